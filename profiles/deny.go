package profiles

import (
	"cmp"
	"path"
	"slices"
	"strings"
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
	for _, p := range append(slices.Clone(r.active), r.project) {
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
		r.denyPath(what, pattern, walk)
		return nil
	}
	r.note(Info, "%s: %d paths match now; what is made later and would match is not denied", what, len(matches))
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
