package profiles

import (
	"path"
	"slices"
	"strings"
	"syscall"

	"sandboxd/policy"
)

// credentials are paths below a home directory that hold secrets or a
// browser's life. No preset grants one, nor a tree that holds one.
var credentials = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".oci", ".boto", ".s3cfg",
	".netrc", ".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub", ".config/glab-cli",
	".npmrc", ".yarnrc.yml", ".config/configstore", ".pypirc", ".config/pip", ".pip/pip.conf", ".config/pypoetry",
	".local/share/pypoetry", ".config/uv", ".local/share/uv/credentials",
	".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".composer/auth.json", ".config/composer/auth.json",
	".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".nuget/NuGet", ".config/NuGet",
	".config/gcloud", ".config/doctl", ".config/op", ".config/rclone", ".config/sops", ".config/age", ".config/containers",
	".config/helm", ".terraform.d", ".terraformrc", ".vault-token", ".fly", ".pgpass", ".my.cnf", ".pulumi",
	".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".local/share/password-store", ".pki",
	".claude", ".claude.json", ".codex", ".gemini", ".config/claude", ".config/opencode", ".local/share/opencode",
	".config/github-copilot", ".config/sbx", ".local/state/sbx", ".local/state/sandboxd",
	".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge",
	".config/Slack", ".config/Code", ".config/discord", ".var/app", "snap/firefox", "snap/chromium", ".cache/mozilla", ".cache/google-chrome",
	".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history",
	"Library/Keychains", "Library/Application Support", "Library/Cookies", "Library/Mail", "Library/Messages", "Library/Safari",
}

// systemSecrets are the same for the machine.
var systemSecrets = []string{
	"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private",
	"/etc/krb5.keytab", "/etc/docker", "/etc/kubernetes", "/etc/NetworkManager", "/etc/wpa_supplicant", "/etc/wireguard",
	"/etc/environment", "/etc/pip.conf", "/etc/npmrc", "/run/user", "/run/docker.sock", "/run/podman", "/run/secrets",
	"/var/run/secrets", "/var/lib/docker", "/private/var/db/dslocal", "/Library/Keychains",
}

// namedSecrets are variables that say where a program keeps its secrets when
// that is not the usual place, with what lies there ("" is the place itself).
var namedSecrets = []struct {
	env  string
	subs []string
}{
	{"CARGO_HOME", []string{"credentials", "credentials.toml"}},
	{"GRADLE_USER_HOME", []string{"gradle.properties"}},
	{"XDG_CONFIG_HOME", []string{"gh", "git/credentials", "pip", "gcloud", "rclone", "containers"}},
	{"GNUPGHOME", []string{""}},
	{"DOCKER_CONFIG", []string{""}},
	{"KUBECONFIG", []string{""}},
	{"AWS_CONFIG_FILE", []string{""}},
	{"AWS_SHARED_CREDENTIALS_FILE", []string{""}},
	{"NETRC", []string{""}},
	{"npm_config_userconfig", []string{""}},
	{"NPM_CONFIG_USERCONFIG", []string{""}},
	{"PIP_CONFIG_FILE", []string{""}},
	{"PASSWORD_STORE_DIR", []string{""}},
	{"VAULT_TOKEN_FILE", []string{""}},
}

// coreRoots stay granted although somebody's home lies below (the home of
// "daemon" is /usr/sbin on Debian): without them nothing runs at all.
var coreRoots = []string{"/usr", "/nix/store", "/System"}

// guard knows the paths of one request that no preset may touch and that no
// worker may write.
type guard struct {
	v        *view
	real     string   // the user's home
	homes    []string // real and lexical: the user's, and /root
	own      []string // sbx's and the daemon's configuration and state
	cache    string   // where the caches of all workspaces are
	linked   []string // where credentials really are, if not at their usual place
	homeless bool     // HOME names no directory that could be a home
	expanded bool
}

func newGuard(v *view, home string, host map[string]string) *guard {
	g := &guard{v: v, homes: []string{"/root"}}
	if home != "" {
		if real, n, err := v.eval(home); err == nil && n.isDir() {
			g.real = real
			g.addHome(real)
		}
		g.addHome(home)
	}
	if h := path.Clean(host["HOME"]); path.IsAbs(h) {
		g.addHome(h)
	}
	for _, d := range []string{xdg(host, home, "XDG_CONFIG_HOME", ".config"), xdg(host, home, "XDG_STATE_HOME", ".local/state")} {
		g.addOwn(d)
	}
	for _, s := range namedSecrets {
		if d := host[s.env]; path.IsAbs(d) {
			for _, sub := range s.subs {
				// Nothing could be granted beside a secret at the root.
				if at := g.realOr(path.Join(d, sub)); at != "/" {
					g.linked = append(g.linked, at)
				}
			}
		}
	}
	g.own = append(g.own, "/etc/sbx", "/run/sbx", "/var/lib/sandboxd", "/run/sandboxd")
	if c := xdg(host, home, "XDG_CACHE_HOME", ".cache"); c != "" {
		if full, _, _, err := v.evalPartial(c + "/sbx"); err == nil {
			g.cache = full
		}
	}
	return g
}

// findHome takes the home directory from /etc/passwd where HOME names none: a
// daemon's environment must not make a home a fit workspace.
func (g *guard) findHome(uid int) {
	if g.real != "" && g.real != "/" {
		return
	}
	g.homeless = true
	_, home := userEntry(uid)
	if !path.IsAbs(home) || inSharedRoot(path.Clean(home)) != "" { // that is guarded already
		return
	}
	g.addHome(path.Clean(home))
	if real, n, err := g.v.eval(home); err == nil && n.isDir() {
		g.addHome(real)
	}
}

// homeMarks are entries that tell a home directory from a project, where
// nothing else does.
var homeMarks = []string{".ssh", ".aws", ".gnupg", ".netrc", ".git-credentials", ".docker", ".kube"}

// mark returns the entry that makes p look like a home; "" if there is none.
func (g *guard) mark(p string) string {
	if g.homeless {
		for _, m := range homeMarks {
			if g.v.there(join(p, m)) {
				return m
			}
		}
	}
	return ""
}

// realOr resolves p as far as it exists; p itself if that fails.
func (g *guard) realOr(p string) string {
	if full, _, _, err := g.v.evalPartial(p); err == nil {
		return full
	}
	return p
}

func (g *guard) addHome(h string) {
	if h != "/" && !slices.Contains(g.homes, h) {
		g.homes = append(g.homes, h)
	}
}

func (g *guard) addOwn(base string) {
	if base == "" {
		return
	}
	for _, name := range []string{"/sbx", "/sandboxd"} { // the latter has the audit log
		p := base + name
		g.own = append(g.own, p)
		if full, _, _, err := g.v.evalPartial(p); err == nil && full != p {
			g.own = append(g.own, full)
		}
	}
}

// xdg is the base directory that variable name names, or its default below
// home; "" if there is neither. Relative values count as unset, as the
// specification says.
func xdg(host map[string]string, home, name, fallback string) string {
	if d := host[name]; path.IsAbs(d) {
		return path.Clean(d)
	}
	if home == "" {
		return ""
	}
	return join(home, fallback)
}

// homeOf returns the home directory that p is in, or "".
func (g *guard) homeOf(p string) string {
	for _, h := range g.homes {
		if policy.Within(p, h) {
			return h
		}
	}
	for _, base := range homeRoots {
		if rest, ok := strings.CutPrefix(p, base); ok {
			user, _, _ := strings.Cut(rest, "/")
			return p[:len(base)+len(user)]
		}
	}
	return ""
}

// homeRoots hold one home directory per user.
var homeRoots = []string{"/home/", "/Users/"}

// holdsHome tells whether p is a home directory or holds one.
func (g *guard) holdsHome(p string) bool {
	if p == "/" || p == "/home" || p == "/Users" || g.homeOf(p) == p {
		return true
	}
	for _, h := range g.homes {
		if policy.Within(h, p) {
			return true
		}
	}
	return false
}

// refuses says why a preset must not grant real path p; "" if it may. wide
// tells that the whole tree is meant.
func (g *guard) refuses(p string, wide bool) string {
	if slices.Contains(coreRoots, p) {
		return ""
	}
	if wide && g.holdsHome(p) {
		return "is or holds a home directory"
	}
	if c := g.secret(p, wide); c != "" {
		return "would expose " + show(c)
	}
	for _, o := range g.own {
		if policy.Within(p, o) || wide && policy.Within(o, p) {
			return "would expose sbx's own files in " + show(o)
		}
	}
	return ""
}

// secret returns the credential that granting p would expose, or "".
func (g *guard) secret(p string, wide bool) string {
	if s := g.credential(p, wide); s != "" {
		return s
	}
	if s := touched(p, systemSecrets, wide); s != "" {
		return s
	}
	return touched(p, g.links(), wide)
}

// credential is secret for what lies in the home directory that p is in.
func (g *guard) credential(p string, wide bool) string {
	home := g.homeOf(p)
	if home == "" {
		return ""
	}
	if p == home {
		if wide {
			return join(home, credentials[0])
		}
		return ""
	}
	if c := touched(p[len(home)+1:], credentials, wide); c != "" {
		return join(home, c)
	}
	return ""
}

// touched returns the first of secrets that lies in p, if wide, or that p is
// or lies in; "" if none does. All are absolute, or relative to one place.
func touched(p string, secrets []string, wide bool) string {
	for _, s := range secrets {
		// The last byte that both have tells most apart.
		if last := min(len(p), len(s)) - 1; p[last] != s[last] && p != "/" {
			continue
		}
		if policy.Within(p, s) || wide && policy.Within(s, p) {
			return s
		}
	}
	return ""
}

// links are the real places of credentials that are symbolic links in the
// user's home (~/.ssh -> ~/dotfiles/ssh), and those that variables name.
func (g *guard) links() []string {
	if g.expanded {
		return g.linked
	}
	g.expanded = true
	if g.real == "" {
		return g.linked
	}
	top := g.v.list(g.real)
	for _, c := range credentials {
		if name, _, _ := strings.Cut(c, "/"); top != nil {
			if _, there := top.find(name); !there {
				continue
			}
		}
		p := join(g.real, c)
		if real, _, err := g.v.eval(p); err == nil && real != p && !slices.Contains(g.linked, real) {
			g.linked = append(g.linked, real)
		}
	}
	return g.linked
}

// sharedRoots are directories that other programs' files live in. They are
// too wide to be a workspace; a project below some of them is fine.
var sharedRoots = []struct {
	path string
	why  string
	// below tells that what lies below is refused too, but for except.
	below  bool
	except []string
}{
	{"/usr", "belongs to the system", false, nil},
	{"/usr/bin", "belongs to the system", true, nil},
	{"/usr/sbin", "belongs to the system", true, nil},
	{"/usr/lib", "belongs to the system", true, nil},
	{"/usr/lib32", "belongs to the system", true, nil},
	{"/usr/lib64", "belongs to the system", true, nil},
	{"/usr/libx32", "belongs to the system", true, nil},
	{"/usr/libexec", "belongs to the system", true, nil},
	{"/usr/include", "belongs to the system", true, nil},
	{"/usr/share", "belongs to the system", false, nil},
	{"/usr/local", "belongs to the system", false, nil},
	{"/usr/src", "belongs to the system", false, nil},
	{"/usr/local/bin", "belongs to the system", true, nil},
	{"/usr/local/sbin", "belongs to the system", true, nil},
	{"/usr/local/lib", "belongs to the system", true, nil},
	{"/bin", "belongs to the system", true, nil},
	{"/sbin", "belongs to the system", true, nil},
	{"/lib", "belongs to the system", true, nil},
	{"/lib32", "belongs to the system", true, nil},
	{"/lib64", "belongs to the system", true, nil},
	{"/libx32", "belongs to the system", true, nil},
	{"/etc", "configures the system", true, nil},
	{"/boot", "starts the system", true, nil},
	{"/proc", "is the kernel's", true, nil},
	{"/sys", "is the kernel's", true, nil},
	{"/dev", "holds devices", true, []string{"/dev/shm"}},
	{"/dev/shm", "holds other programs' files", false, nil},
	{"/run", "holds other programs' sockets", false, nil},
	{"/run/user", "holds other programs' sockets", false, nil},
	{"/var", "holds other programs' files", false, nil},
	{"/var/lib", "holds other programs' files", false, nil},
	{"/var/log", "holds other programs' files", false, nil},
	{"/var/cache", "holds other programs' files", false, nil},
	{"/var/spool", "holds other programs' files", false, nil},
	{"/var/tmp", "holds other programs' files", false, nil},
	{"/tmp", "holds other programs' files", false, nil},
	{"/home", "holds everybody's home", false, nil},
	{"/root", "is root's home", false, nil},
	{"/opt", "holds other programs", false, nil},
	{"/srv", "holds other programs' files", false, nil},
	{"/mnt", "holds whole file systems", false, nil},
	{"/media", "holds whole file systems", false, nil},
	{"/nix", "belongs to the system", true, nil},
	{"/snap", "holds other programs", true, nil},
	{"/lost+found", "belongs to the system", true, nil},
	{"/Users", "holds everybody's home", false, nil},
	{"/Volumes", "holds whole file systems", false, nil},
	{"/Applications", "holds other programs", false, nil},
	{"/Library", "belongs to the system", true, nil},
	{"/System", "belongs to the system", true, nil},
	{"/private", "belongs to the system", false, nil},
	{"/private/etc", "configures the system", true, nil},
	{"/private/tmp", "holds other programs' files", false, nil},
	{"/private/var", "holds other programs' files", false, nil},
	{"/private/var/tmp", "holds other programs' files", false, nil},
}

// scratchRoots may be named with --writable although they are too wide for a
// workspace: programs that insist on /tmp need it.
var scratchRoots = []string{"/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "/dev/shm"}

// tooWide says why real path p must not become writable; "" if it may.
func (g *guard) tooWide(p string) string {
	if p == "/" {
		return "is the whole file system"
	}
	if why := inSharedRoot(p); why != "" {
		return why
	}
	for _, h := range g.homes {
		switch {
		case p == h:
			return "is a home directory"
		case policy.Within(h, p):
			return "holds the home directory " + show(h)
		}
	}
	for _, o := range g.own {
		if policy.Within(o, p) || policy.Within(p, o) {
			return "holds or lies in sbx's own files, " + show(o)
		}
	}
	if m := g.mark(p); m != "" {
		return "looks like a home directory, as it holds " + m + " and HOME names no other"
	}
	if g.cache != "" && policy.Within(p, g.cache) {
		return "lies in the caches that sbx keeps, " + show(g.cache)
	}
	return ""
}

func inSharedRoot(p string) string {
	for _, r := range sharedRoots {
		if p == r.path {
			return r.why
		}
		if r.below && policy.Within(p, r.path) && !withinAny(p, r.except) {
			return "lies in " + r.path + ", which " + r.why
		}
	}
	return ""
}

func withinAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return policy.Within(p, d) })
}

// workspaceRefusal says why real path p must not be a workspace; "" if it may.
func (g *guard) workspaceRefusal(p string) string {
	if why := g.tooWide(p); why != "" {
		return why
	}
	if g.cache == p {
		return "holds sbx's own files"
	}
	if s := g.credential(p, true); s != "" {
		return "holds or lies in " + show(s) + ", where secrets are kept"
	}
	return ""
}

// writableRefusal says why the caller must not make real path p writable.
// Named devices may be: they are what --writable is for.
func (g *guard) writableRefusal(p string, n node) string {
	switch {
	case slices.Contains(scratchRoots, p):
		return ""
	case n.kind == syscall.S_IFBLK:
		return "is a raw disk: whoever writes it writes every file on it"
	case n.isChar():
		if slices.Contains(rawMemory, p) {
			return "is the machine's memory"
		}
		return ""
	}
	return g.tooWide(p)
}

var rawMemory = []string{"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kcore"}
