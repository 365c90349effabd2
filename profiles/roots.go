package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sandboxd/policy"
)

// A worker may make symbolic links wherever it may write. What the next launch
// finds through such a link is therefore the worker's word, not the caller's:
// no preset, no entry of PATH and no search for a program grants where it
// leads, and what the caller named himself is followed, but loudly.

// crossing is a link in a tree that a worker can write, which leads out of all
// such trees, and which was not followed.
type crossing struct {
	who     string // what would have been granted
	link    string // where the link is
	target  string // where it leads
	suggest string // what to name with --readable
}

// placeRoots collects the trees that workers in this workspace can write, now
// or in an earlier run.
func (r *resolver) placeRoots() error {
	r.wsRefusal = r.guard.workspaceRefusal(r.spec.Workspace)
	r.roots = append(make([]string, 0, 4), r.spec.Workspace)
	for _, p := range r.req.Writable {
		abs, err := r.absolute(p)
		if err != nil {
			continue // grantWritable tells
		}
		if real, n, err := r.v.eval(abs); err == nil && n.isDir() && r.guard.writableRefusal(real, n) == "" {
			r.roots = append(r.roots, real)
		}
	}
	r.granted = slices.Clone(r.roots)
	r.findCache()
	if c := &r.cache; c.base != "" && c.err == nil && !slices.ContainsFunc(c.links, r.plantable) {
		all := path.Dir(c.full) // caches of other workspaces are in reach of other workers
		if path.Base(c.full) != c.name {
			all = c.full
		}
		if !r.guard.holdsHome(all) {
			r.roots = append(r.roots, all)
		}
	}
	r.path.planted, r.path.plantable, r.path.skip = r.planted, r.plantable, r.skipPlanted
	if link := plantedIn(r.wsLinks, r.spec.Workspace, r.roots[1:], r.granted[1:]); link != "" {
		r.loud("--workspace "+shellQuote(r.spec.Workspace), link, r.spec.Workspace)
	}
	if r.wsRefusal != "" || r.req.Mode == policy.FullAccess {
		return nil // refused soon, or not confined at all
	}
	r.store.plantable, r.store.note = r.plantable, r.notePlantedProfile
	return r.checkPlaces()
}

// plantable tells whether a worker can put what it likes at real path p.
func (r *resolver) plantable(p string) bool { return withinAny(p, r.roots) }

// planted returns the first of links that a worker can have made, if it leads
// to a real path which lies in no tree that this worker may write anyway; "" if
// all is well.
func (r *resolver) planted(links []string, real string) string {
	return plantedIn(links, real, r.roots, r.granted)
}

// plantedNamed is planted for what a flag names: that --writable names a path
// does not make the link innocent that leads there.
func (r *resolver) plantedNamed(links []string, real string) string {
	if len(links) == 0 {
		return ""
	}
	others := slices.Clone(r.granted[:1])
	for _, root := range r.granted[1:] {
		if root != real {
			others = append(others, root)
		}
	}
	return plantedIn(links, real, r.roots, others)
}

func plantedIn(links []string, real string, roots, vouching []string) string {
	if len(links) == 0 || withinAny(real, vouching) { // nearly always
		return ""
	}
	for _, l := range links {
		if withinAny(l, roots) {
			return l
		}
	}
	return ""
}

// skipPlanted remembers a link that was not followed. Whether that matters is
// known once all grants are.
func (r *resolver) skipPlanted(who, link, target, suggest string) {
	for i := range r.crossings {
		if r.crossings[i].link == link && r.crossings[i].target == target {
			return
		}
	}
	r.crossings = append(r.crossings, crossing{who, link, target, suggest})
}

// notePlanted tells which links were not followed. Where something trusted
// grants the target as well, nothing is lost: a virtual environment's python
// is a link to the system's.
func (r *resolver) notePlanted() error {
	if !r.confined() {
		return nil
	}
	for _, c := range r.crossings {
		if r.readable(c.target) {
			r.note(Info, "%s: %s is a link to %s in a tree that the worker can write: nothing is granted through it, and another grant covers the target", c.who, show(c.link), show(c.target))
			continue
		}
		r.note(Warning, "%s: %s is a link to %s in a tree that the worker can write: nothing is granted through it (if you made it and trust where it leads: --readable %s)",
			c.who, show(c.link), show(c.target), shellQuote(c.suggest))
	}
	return nil
}

// loud tells that something the caller named leads through a link which a
// worker can have made.
func (r *resolver) loud(what, link, real string) {
	r.noteLoud(what, link, real)
	r.weaken(what, "it is "+show(real)+", where the link "+show(link)+" leads, and a worker can have made that link")
}

func (r *resolver) noteLoud(what, link, real string) {
	r.note(Warning, "%s leads to %s through the link %s, which lies in a tree that the worker can write: an earlier run may have made it", what, show(real), show(link))
}

// checkPlaces refuses profiles that a worker can write: the next launch would
// grant what the worker asks for.
func (r *resolver) checkPlaces() error {
	for _, dir := range []string{r.store.places.Admin, r.store.places.User} {
		// What is not there yet can only be made in a tree that the guard does
		// not know.
		if dir == "" || len(r.req.Writable) == 0 && !r.store.has(dir) {
			continue
		}
		full, _, _, links, err := r.v.tracePartial(dir)
		if err != nil {
			continue
		}
		if r.plantable(full) || slices.ContainsFunc(links, r.plantable) {
			return refusePlace("the profiles in "+show(dir), full)
		}
	}
	return nil
}

func refusePlace(what, real string) *RefusalError {
	return refuse("keep profiles where no worker writes: move "+shellQuote(real)+" out of the workspace and of what --writable names, or use another --workspace",
		"%s are really in %s, which the worker can write: it would choose what the next run grants", what, show(real))
}

// notePlantedProfile tells that a file which the caller named with --profile
// is one that a worker can write.
func (r *resolver) notePlantedProfile(file, real string) {
	r.note(Warning, "profile %s lies in a tree that the worker can write (%s): a run may change what the next one is granted", show(file), show(real))
	r.weaken("profile "+show(file), "the worker can write this file ("+show(real)+"), and so choose what the next run grants")
}

// addProfileRoots adds what the profiles of people make writable.
func (r *resolver) addProfileRoots(exp *expander, profiles []*profile) {
	for _, p := range profiles {
		if p.layer == layerBuiltin {
			continue
		}
		for _, rule := range p.grants {
			if !rule.access.Has(policy.Write) {
				continue
			}
			for _, expr := range rule.paths {
				if strings.HasPrefix(expr, "$(bin:") {
					continue // found through PATH, which is not read yet
				}
				for _, at := range exp.expand(expr) {
					real, n, links, err := r.v.trace(at)
					if err == nil && n.isDir() && real != "/" && r.planted(links, real) == "" && !slices.Contains(r.roots, real) {
						r.roots, r.granted = append(r.roots, real), append(r.granted, real)
					}
				}
			}
		}
	}
}

// suggestion is what to name with --readable for a program: its installation,
// if it looks like one, else the file alone.
func (t *toolPath) suggestion(real string) string {
	if tree := t.treeOf(real); tree != path.Dir(real) {
		return tree
	}
	return real
}

// whoBin names a search for a program in notices.
func whoBin(name string) string { return fmt.Sprintf("program %s on PATH", show(name)) }
