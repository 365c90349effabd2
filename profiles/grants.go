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

func (r *resolver) grant(g policy.Grant) {
	if r.spec.Grants == nil {
		r.spec.Grants = make([]policy.Grant, 0, 112) // of which a page that is not used costs nothing
	}
	r.spec.Grants = append(r.spec.Grants, g)
}

// grantPresets finds the presets that apply and adds their grants, then those
// of the profiles that the caller named.
func (r *resolver) grantPresets() error {
	exp := &expander{v: r.v, home: r.home, host: r.host, path: r.path}
	presets := make([]*profile, len(builtins))
	for i := range builtins {
		p, err := r.store.load(builtins[i].name)
		if err != nil {
			return err
		}
		presets[i] = p
	}
	r.addProfileRoots(exp, presets)
	r.addProfileRoots(exp, r.chosen)
	r.scanPath()
	for i, p := range presets {
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
		slices.ContainsFunc(p.commands, func(c string) bool { return exp.path.has(c) })
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
			if trusted && r.ownTerminalOnly() && (expr == "/dev/ptmx" || expr == "/dev/pts") {
				continue
			}
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

// ownTerminalOnly tells that no preset may open terminals. Landlock grants
// /dev/pts as a whole or not at all, so that a worker that makes terminals also
// reaches those of its user; to name the gap chooses that.
func (r *resolver) ownTerminalOnly() bool {
	return r.req.OwnTerminal && !r.req.AllowGap.Has(policy.TTYInject)
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
	real, n, links, err := r.v.trace(at)
	if err != nil {
		r.noteOdd(p.name, at, err)
		return false, nil
	}
	if link := r.planted(links, real); link != "" {
		if trusted || !slices.Contains(r.chosen, p) {
			r.skipPlanted("preset "+show(p.name), link, real, real)
			return false, nil
		}
		r.loud("profile "+show(p.name), link, real)
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
	if rule.secrets != "" && n.isFile() {
		if found, ok := r.scanFile(real); ok && !r.noteSecret(p, rule, real, found) {
			return false, nil
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

// noteSecret tells that a file seems to hold a secret, and whether it is
// granted nevertheless. The secret itself is not told.
func (r *resolver) noteSecret(p *profile, rule rule, file string, found finding) bool {
	if rule.secrets == secretsWarn {
		r.note(Warning, "profile %s: %s seems to hold a secret (%s), and the worker may read it: the tool stops without this file (move the secret elsewhere, or use --deny %s)",
			show(p.name), show(file), found, shellQuote(file))
		return true
	}
	r.note(Warning, "profile %s: %s seems to hold a secret (%s): not granted (if the worker may have it: --readable %s)", show(p.name), show(file), found, shellQuote(file))
	return false
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
	r.path.dirs = make([]string, 0, 16)
	for d := range strings.SplitSeq(r.workerPath(), ":") {
		if !path.IsAbs(d) {
			r.strange = append(r.strange, Notice{Info, fmt.Sprintf("PATH entry %q depends on the current directory: nothing is granted for it", d)})
			continue
		}
		real, n, links, err := r.v.trace(d)
		if err != nil || !n.isDir() || slices.Contains(r.path.dirs, real) {
			continue
		}
		if link := r.planted(links, real); link != "" {
			r.skipPlanted("PATH entry "+show(d), link, real, real)
			continue
		}
		r.path.dirs = append(r.path.dirs, real)
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
	meaning := "the worker may read, run and change " + show(real)
	switch {
	case n.isDir():
		meaning = "the worker may read, run and change everything in " + show(real)
	case n.isChar():
		meaning = "the worker may read, write and control the device " + show(real)
	}
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
	real, n, links, err := r.named(flag, p)
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
	if link := r.plantedNamed(links, real); link != "" {
		r.loud(flag+" "+shellQuote(p), link, real)
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
	r.unsettled = r.spec.Grants
	r.spec.Grants = settle(r.spec.Grants, nil)
	return nil
}

func settle(grants []policy.Grant, deny []string) []policy.Grant {
	kept := make([]policy.Grant, 0, len(grants))
	order := pathOrder(grants)
	for i := 0; i < len(order); {
		g := grants[order[i]]
		for i++; i < len(order) && grants[order[i]].Path == g.Path; i++ {
			if more := &grants[order[i]]; !g.Access.Has(more.Access) {
				g.Access |= more.Access
				g.Reason += "; " + more.Reason
				g.Source += "," + more.Source
			}
		}
		if !coveredAbove(&g, kept, deny) {
			kept = append(kept, g)
		}
	}
	return kept
}

// pathOrder numbers the grants in the order of their paths, so that a path
// follows all that hold it. Those of one path keep the order in which they
// came, and with it that of their reasons. Numbers are moved as grants are
// large.
func pathOrder(grants []policy.Grant) []int {
	order := make([]int, len(grants))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(strings.Compare(string(grants[a].Path), string(grants[b].Path)), a-b)
	})
	return order
}

// coveredAbove tells whether a tree that holds g gives the same access, with nothing
// denied between the two. A
// tree that was dropped itself is not missed: what covers it covers g as well.
func coveredAbove(g *policy.Grant, kept []policy.Grant, deny []string) bool {
	for i := range kept {
		k := &kept[i]
		if n := len(k.Path); n >= len(g.Path) || g.Path[n] != '/' && k.Path != "/" { // nearly always
			continue
		}
		if k.Kind == policy.Tree && k.Access.Has(g.Access) && policy.Within(string(g.Path), string(k.Path)) &&
			!slices.ContainsFunc(deny, func(d string) bool { return policy.Within(d, string(k.Path)) && policy.Within(string(g.Path), d) }) {
			return true
		}
	}
	return false
}
