package profiles

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sandboxd/policy"
)

// envMap makes a map of "K=V" entries; the first of a name wins, as in
// getenv(3).
func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		k, v, ok := strings.Cut(kv, "=")
		if _, seen := m[k]; ok && k != "" && !seen {
			m[k] = v
		}
	}
	return m
}

// hazard is why a variable passes only if a person names it.
type hazard struct {
	names []string // "X", "X*", "*X" or "*X*"
	why   string
}

const mayBeSecret = "may hold a secret"

// hazards are the variables that no preset passes on, whatever it lists.
var hazards = []hazard{
	{[]string{
		"LD_*", "DYLD_*", "BASH_ENV", "ENV", "BASH_FUNC_*", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "CDPATH", "GLOBIGNORE",
		"NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONUSERBASE", "PYTHONWARNINGS",
		"PERL5LIB", "PERLLIB", "PERL5OPT", "PERL5DB", "RUBYOPT", "RUBYLIB", "GEM_PATH", "LUA_PATH*", "LUA_CPATH*", "LUA_INIT*", "PHPRC", "PHP_INI_SCAN_DIR",
		"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "JDK_*_OPTIONS", "CLASSPATH", "MAVEN_OPTS", "MAVEN_ARGS", "GRADLE_OPTS", "ANT_OPTS", "KOTLIN_OPTS",
		"GOFLAGS", "GOENV", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "RUSTC", "RUSTDOC", "CARGO_BUILD_*", "CARGO_TARGET_*", "CARGO_ALIAS_*",
		"MAKEFLAGS", "MAKEFILES", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CCACHE_PREFIX*",
		"GCONV_PATH", "LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN", "MALLOC_*", "GLIBC_TUNABLES", "TERMCAP", "TERMINFO", "TERMINFO_DIRS",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "SSLKEYLOGFILE", "TCLLIBPATH", "DOTNET_STARTUP_HOOKS", "COR_*", "CORECLR_*",
	}, "can make programs run other code"},
	{[]string{"GIT_*"}, "can make git run other programs or work on another repository"},
	{[]string{"SSH_AUTH_SOCK", "SSH_AGENT_*", "DBUS_*", "DISPLAY", "WAYLAND_*", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_*", "GPG_*", "DOCKER_*", "KUBECONFIG", "CONTAINER_HOST", "LISTEN_*", "NOTIFY_SOCKET", "PULSE_*", "TMUX", "STY", "*_SOCK", "*_SOCKET"}, "leads to a service of the host"},
	{[]string{"*_TOKEN", "*_TOKEN_*", "*TOKEN", "*_KEY", "*_KEY_*", "*APIKEY*", "*_SECRET", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*_PASS", "*CREDENTIAL*", "*_PAT", "*_AUTH", "*_AUTH_*", "AWS_*", "AZURE_*", "GOOGLE_*", "*_DSN", "DATABASE_URL", "*_PROXY", "GOPROXY", "NETRC"}, mayBeSecret},
}

// harmless are names that a pattern of [hazards] catches by accident and that
// presets do pass: who wrote a commit is neither code nor a secret.
var harmless = []string{
	"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE",
}

// hazardOf says why a variable is dangerous to pass on; "" if it is not. The
// answer does not depend on case: http_proxy is HTTP_PROXY.
func hazardOf(name string) string {
	if slices.Contains(harmless, name) {
		return ""
	}
	upper := strings.ToUpper(name)
	if upper == "" {
		return ""
	}
	for _, h := range hazards {
		for _, pattern := range h.names {
			if first := pattern[0]; first != '*' && first != upper[0] { // nearly always
				continue
			}
			if matchName(pattern, upper) {
				return h.why
			}
		}
	}
	return ""
}

// matchName matches a name against a pattern with "*" at its ends, or once
// inside.
func matchName(pattern, name string) bool {
	inner, head := strings.CutPrefix(pattern, "*")
	inner, tail := strings.CutSuffix(inner, "*")
	switch {
	case head && tail:
		return strings.Contains(name, inner)
	case head:
		return strings.HasSuffix(name, inner)
	case tail:
		return strings.HasPrefix(name, inner)
	}
	if before, after, ok := strings.Cut(pattern, "*"); ok {
		return len(name) >= len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after)
	}
	return pattern == name
}

// environment collects the worker's variables.
type environment struct {
	r      *resolver
	vars   map[string]string
	caller map[string]bool // named with --env: nothing else touches them
	person map[string]bool // named in a person's own profile
}

// essential variables are not a project's to drop.
var essential = []string{"HOME", "LOGNAME", "PATH", "PWD", "SHELL", Marker, "USER"}

// tempNames are the variables that name the private temp. tmux would make its
// socket in /tmp itself otherwise.
var tempNames = []string{"TEMP", "TMP", "TMPDIR", "TMUX_TMPDIR"}

func (r *resolver) collectEnv() error {
	e := environment{r: r, vars: make(map[string]string, 56), caller: map[string]bool{}, person: map[string]bool{}}
	e.pass()
	e.fill()
	if err := e.fromFlags(); err != nil {
		return err
	}
	e.drop()
	e.caches()
	e.temp()
	r.spec.Env = make([]string, 0, len(e.vars))
	for k, v := range e.vars {
		r.spec.Env = append(r.spec.Env, k+"="+v)
	}
	slices.Sort(r.spec.Env)
	slices.SortFunc(r.spec.TempEnv, func(a, b policy.TempVar) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// pass takes over what the active profiles let through.
func (e *environment) pass() {
	for _, p := range e.r.active {
		for _, rule := range p.env {
			for _, pattern := range rule.pass {
				e.passPattern(p, pattern)
			}
			for _, kv := range rule.set {
				k, v, _ := strings.Cut(kv, "=")
				e.vars[k], e.person[k] = v, true
				e.weakenPerson(p, k)
			}
		}
	}
	if e.r.spec.Mode != policy.FullAccess {
		return
	}
	names := slices.Clone(tempNames)
	for _, c := range e.r.caches {
		names = append(names, c.Env)
	}
	for _, k := range names {
		e.passPattern(nil, k)
	}
}

func (e *environment) passPattern(p *profile, pattern string) {
	byPerson := p != nil && p.layer != layerBuiltin
	if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
		for k, v := range e.r.host {
			if strings.HasPrefix(k, prefix) && hazardOf(k) == "" {
				e.vars[k] = v
			}
		}
		return
	}
	v, ok := e.r.host[pattern]
	if !ok || !byPerson && hazardOf(pattern) != "" {
		return
	}
	e.vars[pattern] = v
	if byPerson {
		e.person[pattern] = true
		e.weakenPerson(p, pattern)
	}
}

func (e *environment) weakenPerson(p *profile, name string) {
	if why := hazardOf(name); why != "" {
		e.r.weaken("profile "+show(p.name), fmt.Sprintf("%s passes variable %s, which %s", show(p.file), show(name), why))
	}
}

// fill adds what programs cannot do without.
func (e *environment) fill() {
	set := func(k, v string) {
		if v != "" && e.vars[k] == "" {
			e.vars[k] = v
		}
	}
	set("HOME", e.r.home)
	set("PATH", defaultPath)
	if e.vars["USER"] == "" && e.vars["LOGNAME"] == "" {
		name := userName(e.r.req.UID)
		set("USER", name)
		set("LOGNAME", name)
	}
	set("USER", e.vars["LOGNAME"])
	set("LOGNAME", e.vars["USER"])
	e.vars["PWD"] = e.r.pwd()
	e.vars[Marker] = "1"
}

// maxPasswd is room for a hundred thousand users.
const maxPasswd = 16 << 20

func userName(uid int) string {
	name, _ := userEntry(uid)
	return name
}

// userEntry finds the name and home of a uid in /etc/passwd; "" if it is not
// there. The C library's other sources would need cgo or a process.
func userEntry(uid int) (name, home string) {
	data, err := readBounded("/etc/passwd", 0, maxPasswd)
	if err != nil {
		return "", ""
	}
	want := strconv.Itoa(uid)
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		_, rest, _ = strings.Cut(rest, ":") // what stood in for the password
		id, rest, ok := strings.Cut(rest, ":")
		if !ok || id != want {
			continue
		}
		if fields := strings.Split(rest, ":"); len(fields) > 2 { // gid, comment, home, shell
			home = fields[2]
		}
		return name, home
	}
	return "", ""
}

// pwd is the name by which the command knows its directory: the caller's own
// one if it still means the same place in the worker, else the real path. What
// leads through /proc means another place in another process.
func (r *resolver) pwd() string {
	for _, p := range []string{r.cwdNamed, r.host["PWD"]} {
		if !path.IsAbs(p) || policy.Within(path.Clean(p), "/proc") || policy.Within(path.Clean(p), "/dev/fd") {
			continue
		}
		if real, _, err := r.v.eval(p); err == nil && real == r.spec.Cwd {
			return p
		}
	}
	return r.spec.Cwd
}

// fromFlags applies --env, later ones over earlier ones.
func (e *environment) fromFlags() error {
	for _, entry := range e.r.req.Env {
		k, v, sets := strings.Cut(entry, "=")
		if k == "" || strings.ContainsRune(entry, 0) {
			return refuse("use --env NAME or --env NAME=VALUE", "--env %s names no variable", show(entry))
		}
		if !sets {
			var ok bool
			if v, ok = e.r.host[k]; !ok {
				e.r.note(Warning, "--env %s: your environment has no such variable", show(k))
				continue
			}
		}
		// Only the name is told: a value may be a secret.
		if why := hazardOf(k); why != "" && !e.caller[k] {
			e.r.weaken("--env "+show(k), "the worker gets variable "+show(k)+", which "+why)
		}
		e.vars[k], e.caller[k] = v, true
	}
	return nil
}

// drop takes away what the project does not want.
func (e *environment) drop() {
	if e.r.project == nil {
		return
	}
	for _, rule := range e.r.project.env {
		for _, pattern := range rule.drop {
			for k := range e.vars {
				if pattern == "" || !matchName(pattern, k) || slices.Contains(essential, k) {
					continue
				}
				if e.caller[k] {
					e.r.note(Warning, "--env %s: the project's %s drops it", show(k), ProjectFile)
				}
				delete(e.vars, k)
			}
		}
	}
}

// caches points the tools' caches to where placeCaches put them.
func (e *environment) caches() {
	if !e.r.confined() {
		return
	}
	base := ""
	if len(e.r.spec.Create) > 0 {
		base = e.r.spec.Create[0]
	}
	for _, c := range e.r.caches {
		switch {
		case e.caller[c.Env] || e.person[c.Env] || e.inTemp(c.Env):
		case base != "":
			e.vars[c.Env] = join(base, c.Dir)
		default:
			delete(e.vars, c.Env)
			e.r.spec.TempEnv = append(e.r.spec.TempEnv, policy.TempVar{Name: c.Env, Sub: "cache/" + c.Dir})
		}
	}
}

func (e *environment) inTemp(name string) bool {
	return slices.ContainsFunc(e.r.spec.TempEnv, func(v policy.TempVar) bool { return v.Name == name })
}

// temp points programs to the private temp, unless the caller chose a place. In
// danger-full-access they keep the caller's own, and tmux its server, unless what
// they put there is to be limited.
func (e *environment) temp() {
	if !e.r.confined() && !e.r.req.PrivateTemp {
		return
	}
	for _, k := range tempNames {
		if !e.caller[k] && (e.r.confined() || k != "TMUX_TMPDIR") {
			delete(e.vars, k)
			e.r.spec.TempEnv = append(e.r.spec.TempEnv, policy.TempVar{Name: k, Sub: "."})
		}
	}
}
