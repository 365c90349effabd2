package profiles

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"sandboxd/policy"
)

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
	r.firm = len(r.spec.Deny)
	for _, p := range append([]*profile{r.project}, r.active...) {
		if p == nil {
			continue
		}
		exp := &expander{v: r.v, home: r.home, host: r.host}
		for _, d := range p.deny {
			for _, at := range exp.heads(nil, d) {
				if !path.IsAbs(at) {
					at = join(r.spec.Workspace, at)
				}
				if err := r.deny(show(p.file)+": deny "+show(d), at, p != r.project); err != nil {
					return err
				}
			}
		}
		if p == r.project {
			r.firm = len(r.spec.Deny)
		}
	}
	return r.settleDeny()
}

// settleDeny weighs what is denied against what is granted. What the caller grants by
// name below a denied directory stays reachable; what a preset brings does not, nor
// what a profile grants below what the caller or the project denies.
func (r *resolver) settleDeny() error {
	if len(r.spec.Deny) == 0 {
		return nil
	}
	firm := map[string]bool{}
	for i, d := range r.spec.Deny {
		if d == "/" {
			return refuse("deny what must be kept out of reach, and grant nothing more than is needed", "to deny / leaves nothing to run")
		}
		firm[d] = firm[d] || i < r.firm
	}
	all := r.spec.Deny
	named := func(g *policy.Grant, d string) bool {
		return strings.Contains(g.Source, "flag:") || strings.Contains(g.Source, "workspace") || strings.Contains(g.Source, "cache") ||
			!firm[d] && strings.Contains(g.Source, "profile:")
	}
	var kept []policy.Grant
	for i := range r.unsettled {
		g := &r.unsettled[i]
		d := deepest(all, string(g.Path))
		switch {
		case d == "":
		case d == string(g.Path) && named(g, d) && !strings.Contains(g.Source, "cache"):
			return refuse("drop one of the two", "%s is both granted (%s) and denied", show(d), g.Source)
		case d == string(g.Path), !named(g, d) && !slices.ContainsFunc(r.unsettled, func(o policy.Grant) bool {
			return o.Covers(string(g.Path)) && policy.Within(string(o.Path), d) && string(o.Path) != d && named(&o, d)
		}):
			r.note(Info, "%s is not granted (%s), as %s is denied", show(string(g.Path)), g.Source, show(d))
			continue
		}
		kept = append(kept, *g)
	}
	r.spec.Deny = outermost(all, kept)
	r.spec.Grants = settle(kept, r.spec.Deny)
	if p, err := policy.New(policy.Spec{Mode: r.spec.Mode, Net: r.spec.Net, Workspace: r.spec.Workspace, Grants: r.spec.Grants, Deny: r.spec.Deny}); err == nil {
		if d := deepest(r.spec.Deny, r.spec.Cwd); d != "" && !p.Allows(r.spec.Cwd, policy.Read) {
			return refuse("name a directory that is not denied with --cwd", "the command would start in %s, which is denied (%s)", show(r.spec.Cwd), show(d))
		}
	}
	return nil
}

// deepest is the longest of some paths that is or holds another; "" for none.
func deepest(paths []string, p string) (near string) {
	for _, d := range paths {
		if len(d) > len(near) && policy.Within(p, d) {
			near = d
		}
	}
	return near
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
		r.denyPath(what, cmp.Or(abs, "/"), walk)
		return nil
	}
	pattern := path.Clean(abs)
	if !walk && (strings.Contains(pattern, "**") || hasMeta(path.Dir(pattern))) {
		return refuse("use a path, DIR/*, or DIR/**", "%s: a project's pattern may have *, ? and [ in the last component only", what)
	}
	matches, ok := globAll(pattern, &r.globVisits)
	if !ok {
		return refuse("deny a directory instead", "%s matches more than can be looked through", what)
	}
	if len(matches) == 0 {
		r.denyGaps = append(r.denyGaps, fmt.Sprintf("%s: nothing matches, and what comes to match after the start is not denied", what))
		r.unmatched = append(r.unmatched, pattern)
		r.denyPath(what, pattern, walk)
		return nil
	}
	r.note(Info, "%s: %d paths match now; what is made later and would match is not denied", what, len(matches))
	r.denyGaps = append(r.denyGaps, fmt.Sprintf("%s: what comes to match after the start is not denied", what))
	for _, m := range matches {
		r.denyPath(what, m, walk)
	}
	return nil
}

// denyPath denies a path, and where it leads. The caller (byCaller) is told if
// a worker can have chosen that.
func (r *resolver) denyPath(what, p string, byCaller bool) {
	lexical := path.Clean(p)
	r.spec.Deny = append(r.spec.Deny, lexical)
	full, _, _, links, err := r.v.tracePartial(p)
	if err != nil {
		return
	}
	if full != lexical {
		r.spec.Deny = append(r.spec.Deny, full)
	}
	if link := r.plantedNamed(links, full); link != "" && byCaller {
		r.noteLoud(what, link, full)
	}
}

// outermost sorts paths and drops those below another, unless something is granted
// between the two.
func outermost(paths []string, grants []policy.Grant) []string {
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	kept := map[string]bool{}
	var out []string
	for _, p := range paths {
		if d := above(p, kept); d != "" && (d == p || !grantedBetween(p, d, grants)) {
			continue
		}
		kept[p] = true
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// above is the nearest of some paths that is or holds p.
func above(p string, kept map[string]bool) string {
	for {
		if kept[p] {
			return p
		}
		if p == "/" {
			return ""
		}
		p = path.Dir(p)
	}
}

// grantedBetween tells whether a grant that covers p lies below d.
func grantedBetween(p, d string, grants []policy.Grant) bool {
	return slices.ContainsFunc(grants, func(g policy.Grant) bool {
		return len(g.Path) > len(d) && policy.Within(string(g.Path), d) && g.Covers(p)
	})
}

// maxDenied bounds what is denied inside of granted trees: each place is a mount of its
// own, which a launch pays for.
const maxDenied = 512

// collectDenied finds the places of the denied paths that a grant covers. It reads
// only; a backend that can denies what it finds.
func (r *resolver) collectDenied() error {
	if !r.confined() || len(r.spec.Deny) == 0 {
		return nil
	}
	g := r.guarding()
	g.denied = map[string]bool{}
	for _, d := range r.spec.Deny {
		g.denied[d] = true
	}
	inside := 0
	for _, d := range r.spec.Deny {
		if !g.seen(d) {
			continue
		}
		if inside++; inside > maxDenied {
			return refuse("deny a directory that holds them, or grant less", "more than %d paths are denied inside of granted trees (%s is one): that many cannot be denied one by one", maxDenied, show(d))
		}
		g.place(d, policy.GuardDenied, "")
	}
	r.spec.Denied = g.sorted()
	if inside > 0 {
		r.spec.DenyGaps = append(r.denyGaps, g.gaps...)
	}
	return nil
}

// seen tells whether a worker would see what stands at a path, if it were not denied.
func (g *guarding) seen(p string) bool {
	d := ""
	if p != "/" {
		d = above(path.Dir(p), g.denied)
	}
	return slices.ContainsFunc(g.r.spec.Grants, func(o policy.Grant) bool {
		return o.Covers(p) && (d == "" || len(o.Path) > len(d) && policy.Within(string(o.Path), d))
	})
}

// denyAt holds what is the end of a denied path, or as far as it can be followed, with
// the rest of it.
func (g *guarding) denyAt(at, rest string, n node) {
	if !g.seen(at) {
		return
	}
	how := policy.GuardHidden
	pattern := slices.Contains(g.r.unmatched, join2(at, strings.Trim(rest, "/")))
	if g.movable(at) && !pattern {
		how = policy.GuardDenied
	}
	for n.errno == syscall.ENOENT {
		var name string
		if name, rest = component(rest); name == "" || name == ".." {
			break
		}
		if how == policy.GuardDenied { // what leads there may be used
			g.hold(at, policy.GuardMade, "")
		}
		at = join(at, name)
	}
	switch {
	case n.errno == syscall.ENOENT && how == policy.GuardHidden && !pattern:
		g.gap("%s is not there: if it is made from outside while the worker runs, the worker can read it", show(at))
	case n.errno == syscall.EACCES && how == policy.GuardDenied && g.movable(path.Dir(at)):
		at = path.Dir(at) // its owner could open it
	case n.errno == syscall.EACCES: // not even to its owner, on a mount that is read-only
		how = policy.GuardHidden
	case n.errno != 0 && n.errno != syscall.ENOENT:
		g.gap("%s cannot be looked at (%v), and is not denied", show(at), n.errno)
		return
	}
	g.hold(at, how, "")
	var st syscall.Stat_t
	if n.errno != 0 || n.isDir() || lstat(at, &st) != nil {
		return
	}
	for i := range g.found {
		if f := &g.found[i]; string(f.Path) == at {
			f.File = true
		}
	}
	if n.isFile() && st.Nlink > 1 {
		g.gap("%s has other names (%d hard links), and is not denied by those of them that lie in a granted tree", show(at), st.Nlink)
	}
}
