package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"sandboxd/internal/proxy"
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
		(*resolver).placeWorkspace,
		(*resolver).placeRoots,
		(*resolver).readProfiles,
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
		(*resolver).notePlanted,
		(*resolver).placeCwd,
		(*resolver).collectDeny,
		(*resolver).collectEffects,
		(*resolver).collectEnv,
		(*resolver).collectLinks,
		(*resolver).collectGuarded,
		(*resolver).collectDenied,
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
	open       bool   // the workspace may be read, written and entered
	cwdNamed   string // as the caller wrote it, absolute
	caches     []cacheRule
	wsLinks    []string // that led to the workspace
	wsRefusal  string   // why it must not be one
	roots      []string // trees that workers can write
	granted    []string // those of them that this worker may write anyway
	crossings  []crossing
	cache      cachePlace
	odd        map[string]bool // components that were noticed already
	strange    []Notice        // about PATH
	globVisits int             // left for deny patterns
	unsettled  []policy.Grant  // as they were granted
	firm       int             // so many of the denied paths are the caller's or the project's
	denyGaps   []string        // what patterns do not hold
	unmatched  []string        // those of them that nothing matches
}

func newResolver(req Request) *resolver {
	r := &resolver{req: req, host: envMap(req.HostEnv), home: cleanHome(req.Home), v: newView(), odd: map[string]bool{}, globVisits: maxGlobVisits}
	r.v.keepUsual(r.home)
	r.guard = newGuard(r.v, r.home, r.host)
	r.guard.findHome(req.UID)
	places := PlacesFor(r.home, nil)
	if d := xdg(r.host, r.home, "XDG_CONFIG_HOME", ".config"); d != "" {
		places.User = d + "/sbx/profiles"
	}
	places.Admin = cmp.Or(req.AdminDir, AdminDir)
	r.store = newStore(places, r.v)
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

// named resolves a path that the caller named with a flag, or refuses. It also
// tells the links that it followed.
func (r *resolver) named(flag, p string) (string, node, []string, error) {
	if p == "" {
		return "", node{}, nil, refuse("give it a path", "%s is empty", flag)
	}
	abs, err := r.absolute(p)
	if err != nil {
		return "", node{}, nil, refuse("change into an existing directory, or give an absolute path", "%s %s is relative, and the current directory no longer exists", flag, show(p))
	}
	real, n, links, err := r.v.trace(abs)
	if err != nil {
		return "", node{}, nil, &RefusalError{Msg: fmt.Sprintf("%s %s %s", flag, show(p), explain(err)), Hint: r.pathHint(abs, err), Err: err}
	}
	return real, n, links, nil
}

func (r *resolver) pathHint(abs string, err error) string {
	var odd *oddPath
	switch {
	case errors.Is(err, syscall.ENOENT) && inSharedRoot(path.Clean(abs)) != "": // nothing to make there
		return "name what exists, see: ls -l " + shellQuote(path.Dir(path.Clean(abs)))
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
	real, n, links, err := r.named(flag, named)
	if err != nil {
		return err
	}
	r.wsLinks = links
	if !n.isDir() {
		return refuse("name the directory that holds it: --workspace "+shellQuote(path.Dir(real)), "%s %s is not a directory", flag, show(named))
	}
	// Nearly always everything is allowed, and one question settles it.
	r.open = may(real, accessR|accessW|accessX) == nil
	if r.open {
		r.spec.Workspace = real
		return nil
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
	if r.req.Net == 0 && len(r.req.NetAllow) > 0 && mode != policy.FullAccess {
		net = policy.NetProxy
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
	if err := r.allowHosts(); err != nil {
		return err
	}
	if mode == policy.FullAccess {
		r.weaken("--mode "+mode.String(), "no sandbox: the command may do whatever you may")
	} else if meaning := netMeaning(net); meaning != "" {
		r.weaken("--net "+net.String(), meaning)
	}
	return nil
}

// allowHosts reads the allow-list of the proxy.
func (r *resolver) allowHosts() error {
	if len(r.req.NetAllow) == 0 {
		return nil
	}
	rules, err := proxy.ParseRules(r.req.NetAllow)
	var wrong *proxy.RuleError
	if errors.As(err, &wrong) {
		return refuse(cmp.Or(wrong.Hint, "write HOST, HOST:PORT, *.DOMAIN or a network, as in --net-allow example.com:443"), "--net-allow: %v", err)
	}
	switch {
	case err != nil:
		return err
	case r.spec.Net == policy.NetProxy:
		r.spec.NetAllow = rules.Strings()
	case r.project == nil || r.spec.Net > r.project.net: // not by the project's word
		return refuse("use --net proxy, or drop --net-allow", "--net-allow says which hosts the proxy lets through, and the network is %s", r.spec.Net)
	}
	return nil
}

// netMeaning says what a rung of the network ladder opens; "" if nothing.
func netMeaning(net policy.Net) string {
	switch net {
	case policy.NetProxy:
		return "the worker reaches the hosts that the proxy allows"
	case policy.NetHost:
		return "the worker uses the host's network, unconfined"
	}
	return ""
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
	if r.wsRefusal != "" {
		return refuse(r.workspaceHint(w), "workspace %s %s", show(w), r.wsRefusal)
	}
	if r.open {
		if r.req.UID == 0 {
			r.noteRoot(w)
		}
		return nil
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

// noteRoot tells that the worker may not do in the workspace what root may: it
// runs without capabilities, so that the owner and the bits count for it.
func (r *resolver) noteRoot(w string) {
	var st syscall.Stat_t
	if r.v.full(w).uid == 0 || lstat(w, &st) != nil { // nearly always
		return
	}
	bits := uint32(st.Mode) & 7
	if groups, _ := syscall.Getgroups(); int(st.Gid) == r.req.GID || slices.Contains(groups, int(st.Gid)) {
		bits = uint32(st.Mode) >> 3 & 7
	}
	want, lacks := uint32(accessR|accessX), "readable"
	if bits&want == want && r.spec.Mode == policy.WorkspaceWrite {
		want, lacks = want|accessW, "writable"
	}
	if bits&want == want {
		return
	}
	name := userName(int(st.Uid))
	run := "-u " + name
	if name == "" {
		run = fmt.Sprintf("-u '#%d'", st.Uid)
	}
	r.note(Warning, "workspace %s belongs to uid %d and is not %s for the worker, which runs as root without root's capabilities: run sbx as its owner (sudo %s sbx ...), or chown root %s",
		show(w), st.Uid, lacks, run, shellQuote(w))
}

func (r *resolver) workspaceHint(w string) string {
	if w != r.home && w != r.guard.real && !slices.Contains(r.guard.homes[1:], w) && r.guard.mark(w) == "" {
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

// placeCwd decides where the command starts. What the caller names must lie
// in a grant; where the caller merely stands is kept with a warning, as
// standing there gives no right.
func (r *resolver) placeCwd() error {
	if r.req.Cwd == "" {
		return r.inheritCwd()
	}
	real, n, _, err := r.named("--cwd", r.req.Cwd)
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

// collectLinks keeps the links that lead to what is granted, and are not granted
// themselves.
func (r *resolver) collectLinks() error {
	granted := func(p string) bool {
		return slices.ContainsFunc(r.spec.Grants, func(g policy.Grant) bool { return g.Covers(p) })
	}
	for link := range r.v.links {
		if real, _, err := r.v.eval(link); err == nil && granted(real) && !granted(link) {
			r.spec.Links = append(r.spec.Links, policy.Link{Path: policy.Raw(link), Target: policy.Raw(r.v.links[link])})
		}
	}
	slices.SortFunc(r.spec.Links, func(a, b policy.Link) int { return cmp.Compare(a.Path, b.Path) })
	return nil
}

// Protected returns the paths, relative to every repository root in a
// writable workspace, that stay unwritable: what is written there would run
// outside the sandbox later, in the user's git, shell, editor or agent.
func Protected() []string { return slices.Clone(protected) }

var protected = []string{
	".git/config", ".git/config.worktree", ".git/hooks", ".git/info/attributes", ".gitmodules", ProjectFile, ".sbx",
	".bash_profile", ".bashrc", ".envrc", ".gitconfig", ".profile", ".zprofile", ".zshrc",
	".claude/agents", ".claude/commands", ".claude/hooks", ".claude/settings.json", ".claude/settings.local.json", ".claude/skills",
	".codex", ".cursor", ".gemini", ".idea", ".mcp.json", ".vscode",
}
