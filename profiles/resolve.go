package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"sandboxd/policy"
)

// Resolve turns a request into a policy's spec. It reads the file system and
// changes nothing. The error is a *[RefusalError]. Notices come in the order
// in which they were found, also with an error.
//
// The spec passes [policy.New]; whether a backend can carry it is the
// backend's answer.
func Resolve(req Request) (policy.Spec, []Notice, error) {
	r := newResolver(req)
	for _, step := range []func(*resolver) error{
		(*resolver).readProfiles,
		(*resolver).placeWorkspace,
		(*resolver).readProject,
		(*resolver).decideMode,
		(*resolver).checkContradictions,
		(*resolver).checkWorkspace,
		(*resolver).limitToolchains,
		(*resolver).grantWorkspace,
		(*resolver).grantPresets,
		(*resolver).grantPath,
		(*resolver).grantNamed,
		(*resolver).placeCaches,
		(*resolver).limitExec,
		(*resolver).settleGrants,
		(*resolver).placeCwd,
		(*resolver).collectDeny,
		(*resolver).collectEffects,
		(*resolver).collectEnv,
		(*resolver).noteGit,
	} {
		if err := step(r); err != nil {
			return policy.Spec{}, r.notices, err
		}
	}
	return r.spec, r.notices, nil
}

// resolver is the state of one Resolve. Its methods are the steps.
type resolver struct {
	req     Request
	host    map[string]string
	home    string
	v       *view
	guard   *guard
	path    *toolPath
	store   *store
	spec    policy.Spec
	notices []Notice

	chosen     []*profile // named by the caller, parents first
	project    *profile
	active     []*profile // what grants: presets, then chosen
	toolchains []string   // the only presets, if limited
	limited    bool
	cwdNamed   string // as the caller wrote it, absolute
	caches     []cacheRule
	odd        map[string]bool // components that were noticed already
	strange    []Notice        // about PATH
}

func newResolver(req Request) *resolver {
	r := &resolver{req: req, host: envMap(req.HostEnv), home: cleanHome(req.Home), v: newView(), odd: map[string]bool{}}
	r.guard = newGuard(r.v, r.home, r.host)
	// Listing what many grants are looked for in once is cheaper than asking
	// for each.
	for _, d := range []string{"/etc", r.home} {
		if d != "" {
			if real, n, err := r.v.eval(d); err == nil && n.isDir() {
				r.v.list(real)
			}
		}
	}
	places := PlacesFor(r.home, nil)
	if d := xdg(r.host, r.home, "XDG_CONFIG_HOME", ".config"); d != "" {
		places.User = d + "/sbx/profiles"
	}
	places.Admin = cmp.Or(req.AdminDir, AdminDir)
	r.store = newStore(places)
	r.path = &toolPath{v: r.v, found: map[string]string{}}
	return r
}

func (r *resolver) note(l Level, format string, args ...any) {
	r.notices = append(r.notices, Notice{l, fmt.Sprintf(format, args...)})
}

func (r *resolver) weaken(flag, meaning string) {
	r.spec.Weakened = append(r.spec.Weakened, policy.Weakening{Flag: flag, Meaning: meaning})
}

// absolute makes what the caller wrote absolute, without cleaning: "link/.."
// is where the link leads, not where it lies.
func (r *resolver) absolute(p string) (string, error) {
	switch {
	case path.IsAbs(p):
		return p, nil
	case r.req.Dir == "":
		return "", syscall.ENOENT
	}
	return join2(r.req.Dir, p), nil
}

// named resolves a path that the caller named with a flag, or refuses.
func (r *resolver) named(flag, p string) (string, node, error) {
	if p == "" {
		return "", node{}, refuse("give it a path", "%s is empty", flag)
	}
	abs, err := r.absolute(p)
	if err != nil {
		return "", node{}, refuse("change into an existing directory, or give an absolute path", "%s %s is relative, and the current directory no longer exists", flag, show(p))
	}
	real, n, err := r.v.eval(abs)
	if err != nil {
		return "", node{}, &RefusalError{Msg: fmt.Sprintf("%s %s %s", flag, show(p), explain(err)), Hint: r.pathHint(abs, err), Err: err}
	}
	return real, n, nil
}

func (r *resolver) pathHint(abs string, err error) string {
	var odd *oddPath
	switch {
	case errors.Is(err, syscall.ENOENT):
		return "mkdir -p " + shellQuote(path.Clean(abs))
	case errors.Is(err, syscall.EACCES) && errors.As(err, &odd):
		return "see who may enter: ls -ld " + shellQuote(path.Dir(odd.at))
	case errors.Is(err, syscall.ELOOP):
		return "see the links: namei -l " + shellQuote(path.Clean(abs))
	}
	return "name another path"
}

// readProfiles loads what the caller named, each after what it extends.
func (r *resolver) readProfiles() error {
	for _, name := range r.req.Profiles {
		if strings.Contains(name, "/") {
			abs, err := r.absolute(name)
			if err != nil {
				return refuse("give an absolute path", "--profile %s is relative, and the current directory no longer exists", show(name))
			}
			name = path.Clean(abs)
		}
		if err := r.choose(name, nil); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) choose(name string, chain []string) error {
	if slices.Contains(chain, name) {
		return refuse("remove one `extends`", "profiles extend each other in a circle: %s", show(strings.Join(append(chain, name), " -> ")))
	}
	p, err := r.store.load(name)
	if err != nil || slices.Contains(r.chosen, p) {
		return err
	}
	for _, parent := range p.extends {
		if err := r.choose(parent, append(chain, name)); err != nil {
			return err
		}
	}
	if !slices.Contains(r.chosen, p) {
		r.chosen = append(r.chosen, p)
	}
	return nil
}

// placeWorkspace finds the workspace; checkWorkspace judges it.
func (r *resolver) placeWorkspace() error {
	named, flag := r.req.Workspace, "--workspace"
	if named == "" {
		if named, flag = r.req.Dir, "the current directory"; named == "" {
			return refuse("change into a project directory, or name one with --workspace", "the current directory no longer exists")
		}
	}
	real, n, err := r.named(flag, named)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return refuse("name the directory that holds it: --workspace "+shellQuote(path.Dir(real)), "%s %s is not a directory", flag, show(named))
	}
	if err := may(real, accessX); err != nil {
		return &RefusalError{Msg: fmt.Sprintf("workspace %s cannot be read: %v", show(real), err), Hint: "see who may: ls -ld " + shellQuote(real), Err: err}
	}
	r.spec.Workspace = real
	return nil
}

// decideMode settles mode and network: the caller's word, then the profiles',
// then the default; the project can only tighten all of them.
func (r *resolver) decideMode() error {
	mode, net := r.req.Mode, r.req.Net
	for _, p := range r.chosen {
		if r.req.Mode == 0 && p.mode != 0 {
			mode = p.mode
		}
		if r.req.Net == 0 && p.net != 0 {
			net = p.net
		}
	}
	if mode == 0 {
		mode = DefaultMode
	}
	if !mode.Valid() || net != 0 && !net.Valid() {
		return refuse("see sbx run --help", "unknown mode or network")
	}
	if r.project != nil && r.project.mode != 0 {
		mode = mode.Stricter(r.project.mode)
	}
	if net == 0 {
		net = policy.NetNone
		if mode == policy.FullAccess {
			net = policy.NetHost
		}
	}
	if r.project != nil && r.project.net != 0 {
		net = min(net, r.project.net)
	}
	r.spec.Mode, r.spec.Net = mode, net
	if mode == policy.FullAccess {
		r.weaken("--mode "+mode.String(), "no sandbox: the command may do whatever you may")
	} else if meaning := netMeanings[net]; meaning != "" {
		r.weaken("--net "+net.String(), meaning)
	}
	return nil
}

var netMeanings = map[policy.Net]string{
	policy.NetProxy: "the worker reaches the hosts that the proxy allows",
	policy.NetHost:  "the worker uses the host's network, unconfined",
}

func (r *resolver) checkContradictions() error {
	mode := r.spec.Mode
	by := ""
	if r.project != nil && r.project.mode == mode && r.req.Mode != mode {
		by = " (set by the project's " + ProjectFile + ")"
	}
	if mode == policy.ReadOnly && len(r.req.Writable) > 0 {
		return refuse("use --mode workspace-write, or drop --writable", "--writable %s contradicts mode read-only%s", show(r.req.Writable[0]), by)
	}
	if r.req.Cache != "" && r.req.Cache != CacheWorkspace && r.req.Cache != CachePrivate {
		return refuse("use workspace or private", "unknown cache place %q", r.req.Cache)
	}
	if mode != policy.FullAccess {
		return nil
	}
	for _, f := range []struct {
		flag   string
		values []string
	}{{"--readable", r.req.Readable}, {"--writable", r.req.Writable}, {"--deny", r.req.Deny}, {"--allow-exec", r.req.AllowExec}} {
		if len(f.values) > 0 {
			return refuse("drop "+f.flag+", or use --mode workspace-write", "%s %s contradicts mode danger-full-access, which confines nothing", f.flag, show(f.values[0]))
		}
	}
	if r.spec.Net != policy.NetHost {
		return refuse("use --mode workspace-write, or --net host", "network %s contradicts mode danger-full-access, which confines nothing", r.spec.Net)
	}
	return nil
}

func (r *resolver) confined() bool { return r.spec.Mode.Confined() }

func (r *resolver) checkWorkspace() error {
	if !r.confined() {
		return nil
	}
	w := r.spec.Workspace
	if why := r.guard.workspaceRefusal(w); why != "" {
		return refuse(r.workspaceHint(w), "workspace %s %s", show(w), why)
	}
	if err := may(w, accessR|accessX); err != nil {
		return &RefusalError{Msg: fmt.Sprintf("workspace %s cannot be read: %v", show(w), err), Hint: "see who may: ls -ld " + shellQuote(w), Err: err}
	}
	if r.spec.Mode == policy.WorkspaceWrite {
		if err := may(w, accessW); err != nil {
			r.note(Warning, "workspace %s is not writable for you (%v)", show(w), err)
		}
	}
	return nil
}

func (r *resolver) workspaceHint(w string) string {
	if w != r.home && w != r.guard.real {
		return "name a project's own directory: --workspace DIR"
	}
	dir := join(w, "work")
	return fmt.Sprintf("make a directory below it and use that: mkdir -p %s, then --workspace %s", shellQuote(dir), shellQuote(dir))
}

// limitToolchains intersects the lists of toolchains that profiles and the
// project give.
func (r *resolver) limitToolchains() error {
	lists := r.chosen
	if r.project != nil {
		lists = append(slices.Clone(lists), r.project)
	}
	for _, p := range lists {
		if !p.limited {
			continue
		}
		for _, t := range p.toolchains {
			if builtinByName(t) == nil {
				return refuse(near(t, toolchainNames()...), "profile %s limits to an unknown toolchain %q", show(p.file), t)
			}
		}
		if !r.limited {
			r.limited, r.toolchains = true, slices.Clone(p.toolchains)
			continue
		}
		r.toolchains = slices.DeleteFunc(r.toolchains, func(t string) bool { return !slices.Contains(p.toolchains, t) })
	}
	return nil
}

// always are the presets that no limit takes away: without them nothing runs.
var always = []string{"system", "dev"}

func toolchainNames() []string {
	var names []string
	for i := range builtins {
		if !slices.Contains(always, builtins[i].name) {
			names = append(names, builtins[i].name)
		}
	}
	return names
}

func (r *resolver) grantWorkspace() error {
	if !r.confined() {
		return nil
	}
	access := policy.Read | policy.Exec
	if r.spec.Mode == policy.WorkspaceWrite {
		access |= policy.Write
	}
	r.grant(policy.Grant{Path: policy.Raw(r.spec.Workspace), Kind: policy.Tree, Access: access, Reason: "the workspace", Source: "workspace"})
	return nil
}

func (r *resolver) grant(g policy.Grant) { r.spec.Grants = append(r.spec.Grants, g) }

// grantPresets finds the presets that apply and adds their grants, then those
// of the profiles that the caller named.
func (r *resolver) grantPresets() error {
	r.scanPath()
	exp := &expander{v: r.v, home: r.home, host: r.host, path: r.path}
	for i := range builtins {
		p, err := r.store.load(builtins[i].name)
		if err != nil {
			return err
		}
		if r.applies(p, builtins[i].name, exp) {
			r.active = append(r.active, p)
		}
	}
	for _, p := range r.chosen {
		if r.allowedToolchain(p.name) && !slices.Contains(r.active, p) {
			r.active = append(r.active, p)
		}
	}
	for _, p := range r.active {
		r.caches = append(r.caches, p.caches...)
		if !r.confined() {
			continue
		}
		if err := r.grantProfile(p, exp); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) allowedToolchain(name string) bool {
	return !r.limited || builtinByName(name) == nil || slices.Contains(always, name) || slices.Contains(r.toolchains, name)
}

// applies tells whether a preset is wanted here: nothing to detect, a command
// on the worker's PATH, or a variable that names an absolute path.
func (r *resolver) applies(p *profile, name string, exp *expander) bool {
	if !r.allowedToolchain(name) {
		return false
	}
	if len(p.commands)+len(p.detectEnv) == 0 || slices.Contains(r.chosen, p) {
		return true
	}
	return slices.ContainsFunc(p.detectEnv, func(k string) bool { return path.IsAbs(r.host[k]) }) ||
		slices.ContainsFunc(p.commands, func(c string) bool { return exp.path.lookup(c) != "" })
}

func (r *resolver) grantProfile(p *profile, exp *expander) error {
	source, trusted := "preset:"+p.name, true
	if p.layer != layerBuiltin {
		source, trusted = "profile:"+p.name, false
	}
	before := len(r.spec.Grants)
	for _, rule := range p.grants {
		if rule.os != "" && rule.os != runtime.GOOS {
			continue
		}
		for _, expr := range rule.paths {
			made := 0
			for _, at := range exp.expand(expr) {
				ok, err := r.grantRule(p, rule, expr, at, source, trusted)
				if err != nil {
					return err
				}
				if ok {
					made++
				}
			}
			if made == 0 && rule.required {
				return refuse("make it, or set optional = true in "+show(p.file), "profile %s requires %s, which is not there", show(p.name), show(expr))
			}
		}
	}
	if !trusted {
		r.weakenProfile(p, r.spec.Grants[before:])
	}
	return nil
}

// weakenProfile says what a file that a person wrote opens.
func (r *resolver) weakenProfile(p *profile, grants []policy.Grant) {
	if len(grants) == 0 {
		return
	}
	var opened []string
	for _, g := range grants {
		opened = append(opened, g.Access.String()+" "+g.Path.String())
	}
	r.weaken("profile "+show(p.name), fmt.Sprintf("%s grants %s", show(p.file), strings.Join(opened, ", ")))
}

// grantRule adds the grant of one path of a profile, if it is there.
func (r *resolver) grantRule(p *profile, rule rule, expr, at, source string, trusted bool) (bool, error) {
	real, n, err := r.v.eval(at)
	if err != nil {
		r.noteOdd(p.name, at, err)
		return false, nil
	}
	g := policy.Grant{Path: policy.Raw(real), Kind: policy.File, Access: rule.access, Reason: rule.reason, Source: source}
	if n.isDir() {
		g.Kind = policy.Tree
	}
	if n.kind == syscall.S_IFSOCK {
		r.note(Warning, "profile %s: %s is a socket, not a file to grant: skipped", show(p.name), show(at))
		return false, nil
	}
	if trusted {
		if why := r.guard.refuses(real, n.isDir()); why != "" {
			level := Warning
			if strings.HasPrefix(expr, "$(bin:") { // a guess of ours: the PATH's grant remains
				level = Info
			}
			r.note(level, "preset %s: %s %s: skipped", show(p.name), show(real), why)
			return false, nil
		}
	} else if rule.access.Has(policy.Write) {
		if why := r.guard.writableRefusal(real, n); why != "" {
			return false, refuse("grant a directory below it", "profile %s makes %s writable, but it %s", show(p.file), show(at), why)
		}
	}
	// Read-only is a ceiling: only devices, which keep nothing, stay writable.
	if r.spec.Mode == policy.ReadOnly && !n.isChar() && real != "/dev/pts" {
		if g.Access &^= policy.Write; g.Access == 0 {
			return false, nil
		}
	}
	r.grant(g)
	return true, nil
}

// noteOdd tells once per failing place that something optional is skipped.
// What is not there is no news, and nor is what this user may not enter.
func (r *resolver) noteOdd(who, at string, err error) {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return
	}
	var odd *oddPath
	where := at
	if errors.As(err, &odd) {
		where = odd.at
	}
	if errors.Is(err, syscall.EACCES) {
		where = path.Dir(where)
		if !r.odd[where] {
			r.odd[where] = true
			r.note(Info, "%s may not be entered by uid %d: what profile %s grants there is skipped", show(where), r.req.UID, show(who))
		}
		return
	}
	if !r.odd[where] {
		r.odd[where] = true
		r.note(Warning, "profile %s: %s %s: skipped", show(who), show(at), explain(err))
	}
}

// scanPath resolves the worker's PATH once.
func (r *resolver) scanPath() {
	for _, d := range strings.Split(r.workerPath(), ":") {
		if !path.IsAbs(d) {
			r.strange = append(r.strange, Notice{Info, fmt.Sprintf("PATH entry %q depends on the current directory: nothing is granted for it", d)})
			continue
		}
		real, n, err := r.v.eval(d)
		if err != nil || !n.isDir() || slices.Contains(r.path.dirs, real) {
			continue
		}
		r.path.dirs = append(r.path.dirs, real)
		r.v.listIfSmall(real) // every tool is looked for in each
	}
}

// defaultPath is what a worker searches if the caller has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

func (r *resolver) workerPath() string {
	p := r.host["PATH"]
	for _, e := range r.req.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			p = v
		}
	}
	return cmp.Or(p, defaultPath)
}

// grantPath lets the worker run what its PATH names.
func (r *resolver) grantPath() error {
	if !r.confined() {
		return nil
	}
	r.notices = append(r.notices, r.strange...)
	for _, d := range r.path.dirs {
		if r.v.full(d).perm&0o002 != 0 {
			r.note(Warning, "PATH entry %s is writable for everybody: nothing is granted for it", show(d))
			continue
		}
		if why := r.guard.refuses(d, true); why != "" {
			r.note(Warning, "PATH entry %s %s: nothing is granted for it", show(d), why)
			continue
		}
		r.grant(policy.Grant{Path: policy.Raw(d), Kind: policy.Tree, Access: policy.Read | policy.Exec, Reason: "on PATH", Source: "path"})
	}
	return nil
}

// grantNamed adds what the caller grants with flags.
func (r *resolver) grantNamed() error {
	for _, p := range r.req.Readable {
		if err := r.grantReadable(p); err != nil {
			return err
		}
	}
	for _, p := range r.req.Writable {
		if err := r.grantWritable(p); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) grantReadable(p string) error {
	const flag = "--readable"
	real, n, err := r.namedRoot(flag, p, accessR, nil)
	if err != nil {
		return err
	}
	meaning := "the worker may read and run " + show(real)
	if n.isDir() && r.guard.holdsHome(real) {
		meaning += ", with every key and password kept there"
	} else if s := r.guard.secret(real, n.isDir()); s != "" {
		meaning += ", which exposes " + show(s)
	}
	r.addNamed(flag, real, n, policy.Read|policy.Exec, meaning)
	return nil
}

func (r *resolver) grantWritable(p string) error {
	const flag = "--writable"
	real, n, err := r.namedRoot(flag, p, accessW, r.guard.writableRefusal)
	if err != nil {
		return err
	}
	access := policy.Read | policy.Write | policy.Exec
	if n.isChar() {
		access = policy.Read | policy.Write | policy.Ioctl
	}
	meaning := "the worker may change " + show(real)
	if slices.Contains(scratchRoots, real) {
		meaning += ", where other programs keep files and sockets"
	}
	r.addNamed(flag, real, n, access, meaning)
	return nil
}

func (r *resolver) addNamed(flag, real string, n node, access policy.Access, meaning string) {
	g := policy.Grant{Path: policy.Raw(real), Kind: policy.File, Access: access, Reason: "named by the caller", Source: "flag:" + flag}
	if n.isDir() {
		g.Kind = policy.Tree
	}
	r.grant(g)
	r.weaken(flag+" "+shellQuote(real), meaning)
}

// namedRoot resolves a path of a granting flag and refuses what is no file or
// directory, what forbid names a reason for, and what this user could not
// touch anyway.
func (r *resolver) namedRoot(flag, p string, bits uint32, forbid func(string, node) string) (string, node, error) {
	real, n, err := r.named(flag, p)
	if err != nil {
		return "", node{}, err
	}
	if n.kind == syscall.S_IFSOCK {
		return "", node{}, refuse("name a file or directory; sockets are reached through the network and socket rules", "%s %s is a socket", flag, show(p))
	}
	if forbid != nil {
		if why := forbid(real, n); why != "" {
			return "", node{}, refuse("name a directory below it that the work needs: "+flag+" DIR", "%s %s %s", flag, show(p), why)
		}
	}
	if err := may(real, bits); err != nil && !(n.isChar() && errors.Is(err, syscall.ENXIO)) {
		return "", node{}, &RefusalError{Msg: fmt.Sprintf("%s %s is not accessible for you: %v", flag, show(p), err), Hint: "see who may: ls -ld " + shellQuote(real), Err: err}
	}
	return real, n, nil
}

// settleGrants merges grants of one path and drops those that a wider one
// covers with the same access, so that backends carry no needless rule.
func (r *resolver) settleGrants() error {
	if !r.confined() {
		r.spec.Grants = nil
		return nil
	}
	r.spec.Grants = settle(r.spec.Grants)
	return nil
}

func settle(grants []policy.Grant) []policy.Grant {
	at := make(map[policy.Raw]int, len(grants))
	var merged []policy.Grant
	for _, g := range grants {
		i, ok := at[g.Path]
		if !ok {
			at[g.Path] = len(merged)
			merged = append(merged, g)
			continue
		}
		if m := &merged[i]; !m.Access.Has(g.Access) {
			m.Access |= g.Access
			m.Reason += "; " + g.Reason
			m.Source += "," + g.Source
		}
	}
	out := make([]policy.Grant, 0, len(merged))
	for _, g := range merged {
		if !coveredAbove(g, merged, at) {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b policy.Grant) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return out
}

func coveredAbove(g policy.Grant, merged []policy.Grant, at map[policy.Raw]int) bool {
	for p := string(g.Path); p != "/"; {
		p, _ = split(p)
		if i, ok := at[policy.Raw(p)]; ok && merged[i].Kind == policy.Tree && merged[i].Access.Has(g.Access) {
			return true
		}
	}
	return false
}

// placeCwd decides where the command starts. What the caller names must lie
// in a grant; where the caller merely stands is kept with a warning, as
// standing there gives no right.
func (r *resolver) placeCwd() error {
	if r.req.Cwd == "" {
		return r.inheritCwd()
	}
	real, n, err := r.named("--cwd", r.req.Cwd)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return refuse("name a directory", "--cwd %s is not a directory", show(r.req.Cwd))
	}
	if r.confined() && !r.readable(real) {
		return refuse(fmt.Sprintf("use --workspace %s, or --readable %[1]s", shellQuote(real)), "--cwd %s is %s, which lies in no granted directory", show(r.req.Cwd), show(real))
	}
	r.spec.Cwd = real
	r.cwdNamed, _ = r.absolute(r.req.Cwd)
	return nil
}

func (r *resolver) inheritCwd() error {
	if r.req.Dir != "" {
		if real, n, err := r.v.eval(r.req.Dir); err == nil && n.isDir() {
			r.spec.Cwd = real
			if r.confined() && !r.readable(real) {
				r.note(Warning, "the current directory %s lies in no granted directory: the command starts there but cannot read or write it (use --cwd %s)", show(real), shellQuote(r.spec.Workspace))
			}
			return nil
		}
	}
	r.spec.Cwd = r.spec.Workspace
	r.note(Warning, "the current directory no longer exists: the command starts in the workspace %s", show(r.spec.Workspace))
	return nil
}

func (r *resolver) readable(p string) bool {
	return slices.ContainsFunc(r.spec.Grants, func(g policy.Grant) bool { return g.Access.Has(policy.Read) && g.Covers(p) })
}

// collectDeny resolves what must stay unreachable.
func (r *resolver) collectDeny() error {
	if !r.confined() {
		for _, p := range append(slices.Clone(r.chosen), r.project) {
			if p != nil && len(p.deny) > 0 {
				r.note(Warning, "what %s denies is not denied in mode danger-full-access", show(p.file))
			}
		}
		return nil
	}
	for _, d := range r.req.Deny {
		abs, err := r.absolute(d)
		if err != nil || d == "" {
			return refuse("give an absolute path", "--deny %s is empty, or relative while the current directory no longer exists", show(d))
		}
		if err := r.deny("--deny "+show(d), abs, true); err != nil {
			return err
		}
	}
	for _, p := range append(slices.Clone(r.active), r.project) {
		if p == nil {
			continue
		}
		exp := &expander{v: r.v, home: r.home, host: r.host}
		for _, d := range p.deny {
			for _, at := range exp.heads(d) {
				if !path.IsAbs(at) {
					at = join(r.spec.Workspace, at)
				}
				if err := r.deny(show(p.file)+": deny "+show(d), at, p != r.project); err != nil {
					return err
				}
			}
		}
	}
	r.spec.Deny = outermost(r.spec.Deny)
	return nil
}

// deny adds a path or a pattern. A project's pattern may not make the launch
// walk the tree, since nobody trusts the project.
func (r *resolver) deny(what, abs string, walk bool) error {
	if strings.ContainsRune(abs, 0) {
		return refuse("remove the NUL byte", "%s holds a NUL byte", what)
	}
	for strings.HasSuffix(abs, "/**") { // the directory stands for all below it
		abs = strings.TrimSuffix(abs, "/**")
	}
	if !hasMeta(abs) {
		r.denyPath(cmp.Or(abs, "/"))
		return nil
	}
	pattern := path.Clean(abs)
	if !walk && (strings.Contains(pattern, "**") || hasMeta(path.Dir(pattern))) {
		return refuse("use a path, DIR/*, or DIR/**", "%s: a project's pattern may have *, ? and [ in the last component only", what)
	}
	matches, ok := globAll(pattern)
	if !ok {
		return refuse("deny a directory instead", "%s matches more than can be looked through", what)
	}
	if len(matches) == 0 {
		r.denyPath(pattern)
		return nil
	}
	r.note(Info, "%s: %d paths match now; what is made later and would match is not denied", what, len(matches))
	for _, m := range matches {
		r.denyPath(m)
	}
	return nil
}

func (r *resolver) denyPath(p string) {
	lexical := path.Clean(p)
	r.spec.Deny = append(r.spec.Deny, lexical)
	if full, _, _, err := r.v.evalPartial(p); err == nil && full != lexical {
		r.spec.Deny = append(r.spec.Deny, full)
	}
}

// outermost sorts paths and drops those below another.
func outermost(paths []string) []string {
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	kept := map[string]bool{}
	var out []string
	for _, p := range paths {
		if !below(p, kept) {
			kept[p] = true
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

func below(p string, kept map[string]bool) bool {
	for {
		if kept[p] {
			return true
		}
		if p == "/" {
			return false
		}
		p = path.Dir(p)
	}
}

// collectEffects settles what must and what need not be enforced.
func (r *resolver) collectEffects() error {
	s := &r.spec
	s.Require, s.RequireFull, s.AllowGap = r.req.Require, r.req.RequireFull, r.req.AllowGap
	for _, p := range append(slices.Clone(r.chosen), r.project) {
		if p == nil {
			continue
		}
		s.Require = s.Require.Union(p.require)
		s.RequireFull = s.RequireFull || p.requireFull
		s.AllowGap = s.AllowGap.Union(p.allowGap)
	}
	if both := s.Require & s.AllowGap; both != 0 {
		return refuse("drop one of the two", "%s is both required and allowed to be missing", both)
	}
	if s.RequireFull && s.AllowGap != 0 {
		return refuse("drop --allow-gap or the requirement", "full enforcement is required, yet %s is allowed to be missing", s.AllowGap)
	}
	if s.Mode == policy.FullAccess && (s.RequireFull || s.Require != 0) {
		return refuse("use --mode workspace-write, or drop the requirement", "something is required to be enforced, but mode danger-full-access confines nothing")
	}
	for _, e := range s.AllowGap.List() {
		r.weaken("--allow-gap "+e.String(), "the launch goes on where "+e.String()+" cannot be enforced")
	}
	if s.Mode == policy.WorkspaceWrite {
		s.Protected = Protected()
	}
	return nil
}

// Protected returns the paths, relative to every repository root in a
// writable workspace, that stay unwritable: what is written there would run
// outside the sandbox later, in the user's git, shell, editor or agent.
func Protected() []string { return slices.Clone(protected) }

var protected = []string{
	".git/config", ".git/config.worktree", ".git/hooks", ".git/info/attributes", ".gitmodules", ProjectFile,
	".bash_profile", ".bashrc", ".envrc", ".gitconfig", ".profile", ".zprofile", ".zshrc",
	".claude/agents", ".claude/commands", ".claude/hooks", ".claude/settings.json", ".claude/settings.local.json", ".claude/skills",
	".codex", ".cursor", ".gemini", ".idea", ".mcp.json", ".vscode",
}
