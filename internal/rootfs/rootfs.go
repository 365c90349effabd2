// Package rootfs compiles a policy's grants to the tree of files that a worker with a
// mount namespace of its own sees: what is granted, where it lies, and nothing else.
// It is pure, and the same on every system; rootfs_linux.go makes calls of it.
package rootfs

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"sandboxd/backend"
	"sandboxd/policy"
)

// Kind is what stands at a place.
type Kind string

// The kinds of entry.
const (
	// Bind is a part of the host's tree.
	Bind Kind = "bind"
	// Dir is an empty directory, to hold others or for its name alone.
	Dir Kind = "dir"
	// Mask is what stands over something denied: nobody can read, list or change it.
	// Beside what is granted in it nothing of the host's is there.
	Mask Kind = "mask"
	// Symlink is a link of the host's that leads to something granted.
	Symlink Kind = "symlink"
	// Proc is a /proc of the worker's own PID namespace.
	Proc Kind = "proc"
	// Terminals is a devpts of the worker's own.
	Terminals Kind = "devpts"
	// Temp is the worker's private temp, Shm what stands for /dev/shm.
	Temp Kind = "temp"
	Shm  Kind = "shm"
)

// Entry is one place of the tree.
type Entry struct {
	Path policy.Raw `json:"path"`
	Kind Kind       `json:"kind"`
	// Source is where a link leads.
	Source policy.Raw `json:"source,omitempty"`
	// File tells that it is no directory; Device that it is, or holds, devices.
	File   bool `json:"file,omitempty"`
	Device bool `json:"device,omitempty"`
	Write  bool `json:"write,omitempty"`
	Exec   bool `json:"exec,omitempty"`
}

// Layout is a tree: what holds others stands before them.
type Layout struct {
	Entries []Entry `json:"entries"`
	// Places are what is to be held in the tree against the worker, of the policy's
	// protected and denied places those that it sees, for [hold.Take].
	Places []policy.Guarded `json:"-"`
	// TempAt is where the worker finds its private temp.
	TempAt policy.Raw `json:"temp"`
	// Within tells that places of the tree are made in the private temp, which a later
	// worker cannot have, therefore.
	Within bool `json:"within_temp,omitempty"`
}

// Where things are that every tree has.
const (
	tempAt = "/tmp"
	dev    = "/dev"
	proc   = "/proc"
	pts    = "/dev/pts"
	shm    = "/dev/shm"
)

// Compile makes the tree of a policy. The host's links are those of its root directory,
// such as /bin: each that leads to what is granted is in the tree, as those are that the
// policy names.
func Compile(p policy.Policy, host []policy.Link) (Layout, error) {
	if !p.Valid() || !p.Mode().Confined() {
		return Layout{}, fmt.Errorf("a tree of files for mode %s", p.Mode())
	}
	grants := p.Grants()
	b := builder{p: p, grants: grants, l: Layout{TempAt: tempAt}, at: map[string]int{}, mapped: p.Spec().ExecOnly}
	slices.SortStableFunc(grants, func(a, b policy.Grant) int { return compare(string(a.Path), string(b.Path)) })
	for _, g := range grants {
		switch {
		case p.AccessAt(string(g.Path)) == 0:
			return Layout{}, backend.Refuse("drop one of the two", "%q is both granted and denied", g.Path)
		case len(p.Deny()) > 0 && !p.AccessAt(string(g.Path)).Has(policy.Read):
			// A mount can take away writing and executing, not reading.
			return Layout{}, backend.Refuse("grant reading as well", "%q cannot be granted without reading beside what is denied", g.Path)
		case g.Path == "/":
			// Its /run, its processes and terminals would come along.
			return Layout{}, backend.Refuse("grant the trees that are needed", "a grant of the whole file system leaves nothing to hide")
		}
	}
	b.add(Entry{Path: dev, Kind: Dir})
	b.add(Entry{Path: proc, Kind: Proc})
	b.add(Entry{Path: tempAt, Kind: Temp, Write: true, Exec: true})
	b.add(Entry{Path: shm, Kind: Shm, Write: true})
	masks, err := b.masks()
	if err != nil {
		return Layout{}, err
	}
	for _, g := range grants {
		for len(masks) > 0 && compare(string(masks[0].Path), string(g.Path)) < 0 {
			b.mask(masks[0])
			masks = masks[1:]
		}
		b.grant(g)
	}
	for _, m := range masks {
		b.mask(m)
	}
	for _, l := range [][2]string{{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}} {
		b.add(Entry{Path: policy.Raw(path.Join(dev, l[0])), Kind: Symlink, Source: policy.Raw(l[1])})
	}
	for _, l := range p.Spec().Links {
		b.link(l)
	}
	for _, l := range host {
		to := path.Join(path.Dir(string(l.Path)), string(l.Target))
		if path.IsAbs(string(l.Target)) {
			to = path.Clean(string(l.Target))
		}
		if slices.ContainsFunc(grants, func(g policy.Grant) bool { return g.Covers(to) || policy.Within(string(g.Path), to) }) {
			b.link(l)
		}
	}
	if home := homeOf(p.Env()); path.IsAbs(home) && path.Clean(home) == home {
		b.add(Entry{Path: policy.Raw(home), Kind: Dir})
	}
	// The command starts there, also if nothing of it is granted.
	if cwd := p.Cwd(); cwd != "" && cwd != "/" && b.bound(cwd).Kind != Bind {
		b.add(Entry{Path: policy.Raw(cwd), Kind: Dir})
	}
	slices.SortFunc(b.l.Entries, func(a, b Entry) int { return compare(string(a.Path), string(b.Path)) })
	b.l.Places = slices.DeleteFunc(merge(p.Spec().Guarded, p.Spec().Denied), func(g policy.Guarded) bool { return !b.l.holds(g) })
	return b.l, nil
}

// WithTerminal adds a terminal of the host's, which the worker has been handed, to a tree
// that has no terminals of its own: by its name it can be opened anew.
func (l Layout) WithTerminal(name string) Layout {
	if path.Dir(name) != pts || slices.ContainsFunc(l.Entries, func(e Entry) bool { return e.Path == pts || string(e.Path) == name }) {
		return l
	}
	l.Entries = append(slices.Clone(l.Entries), Entry{Path: pts, Kind: Dir},
		Entry{Path: policy.Raw(name), Kind: Bind, File: true, Device: true, Write: true})
	slices.SortFunc(l.Entries, func(a, b Entry) int { return compare(string(a.Path), string(b.Path)) })
	return l
}

// Shows tells whether the worker sees the host's file or directory of this path, under
// the same path.
func (l Layout) Shows(p string) bool {
	for i := len(l.Entries) - 1; i >= 0; i-- {
		if e := l.Entries[i]; policy.Within(p, string(e.Path)) {
			return e.Kind == Bind
		}
	}
	return false
}

// compare orders paths so that each tree stands together, its root first.
func compare(a, b string) int {
	return cmp.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
}

func homeOf(env []string) (home string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "HOME="); ok {
			home = v
		}
	}
	return home
}

// holds tells whether a place is the host's and the worker sees it, but for being denied.
func (l Layout) holds(g policy.Guarded) bool {
	for i := len(l.Entries) - 1; i >= 0; i-- {
		e := l.Entries[i]
		if e.Kind != Dir && policy.Within(string(g.Path), string(e.Path)) && (e.Kind != Mask || e.Path != g.Path) {
			return e.Kind == Bind
		}
	}
	return false
}

// merge makes one list of what is protected and what is denied, in the order of paths.
// Where both are, what denies counts, and then what protects: it holds at least as much.
func merge(guarded, denied []policy.Guarded) []policy.Guarded {
	all := make([]policy.Guarded, 0, len(guarded)+len(denied))
	for len(guarded)+len(denied) > 0 {
		c := 0
		switch {
		case len(guarded) == 0:
			c = 1
		case len(denied) == 0:
			c = -1
		default:
			c = compare(string(guarded[0].Path), string(denied[0].Path))
		}
		switch {
		case c > 0 || c == 0 && denied[0].Guard.Denies():
			all = append(all, denied[0])
		default:
			all = append(all, guarded[0])
		}
		if c <= 0 {
			guarded = guarded[1:]
		}
		if c >= 0 {
			denied = denied[1:]
		}
	}
	return all
}

type builder struct {
	p      policy.Policy
	grants []policy.Grant
	l      Layout
	at     map[string]int // entries, by their paths
	// mapped tells that execution is limited to single files (--allow-exec), whose
	// libraries lie in trees that are not executable. A mount without execution would
	// keep them from being mapped as well (mmap(2), EPERM), which Landlock does not.
	mapped bool
}

// add puts an entry in, with the directories that lead there, unless something of the
// host's or the worker's own is there already.
func (b *builder) add(e Entry) {
	p := string(e.Path)
	if i, there := b.at[p]; there {
		if b.l.Entries[i].Kind == Dir {
			b.l.Entries[i] = e
		}
		return
	}
	if dir := path.Dir(p); dir != "/" {
		switch holder := b.holder(p); holder.Kind {
		case "", Dir, Shm, Mask:
			b.add(Entry{Path: policy.Raw(dir), Kind: Dir})
		case Temp:
			b.l.Within = true
			b.add(Entry{Path: policy.Raw(dir), Kind: Dir})
		default: // the directory is there, or nothing can be
		}
	}
	b.at[p] = len(b.l.Entries)
	b.l.Entries = append(b.l.Entries, e)
}

// holder is the nearest entry above a path.
func (b *builder) holder(p string) Entry {
	for p != "/" {
		p = path.Dir(p)
		if i, ok := b.at[p]; ok {
			return b.l.Entries[i]
		}
	}
	return Entry{}
}

// masks lists what is denied, and sees to it that each path that a grant covers has a
// place: only who looked at the host knows where links lead.
func (b *builder) masks() (masks []policy.Guarded, err error) {
	places := b.p.Spec().Denied
	for _, d := range b.p.Deny() {
		for _, g := range b.grants {
			if !g.Covers(d) {
				continue
			}
			if policy.Within(d, proc) {
				return nil, backend.Refuse("drop --deny for it", "%q cannot be denied: the worker has a /proc of its own", d)
			}
			if !slices.ContainsFunc(places, func(q policy.Guarded) bool {
				return string(q.Path) == d || policy.Within(d, string(q.Path)) && (q.Guard.Denies() || q.Guard == policy.GuardLink || q.Guard == policy.GuardShut)
			}) {
				return nil, backend.Refuse("resolve the policy anew", "%q cannot be denied inside the granted tree %q: the policy does not name its place", d, g.Path)
			}
		}
	}
	for _, q := range places {
		if q.Guard.Denies() {
			masks = append(masks, q)
		}
	}
	return masks, nil
}

// mask puts in what stands over a denied place, if the host's is there to be seen.
func (b *builder) mask(g policy.Guarded) {
	if b.bound(string(g.Path)).Kind == Bind {
		b.add(Entry{Path: g.Path, Kind: Mask, File: g.File})
	}
}

func (b *builder) grant(g policy.Grant) {
	p := string(g.Path)
	switch {
	case policy.Within(p, proc), p == "/dev/ptmx": // its own
		return
	case p == pts:
		b.add(Entry{Path: pts, Kind: Terminals})
		b.add(Entry{Path: "/dev/ptmx", Kind: Symlink, Source: "pts/ptmx"})
		return
	case p == dev, p == shm, p == tempAt: // they have their own
		return
	}
	access := b.p.AccessAt(p)
	e := Entry{
		Path: g.Path, Kind: Bind, File: g.Kind == policy.File,
		Device: access.Has(policy.Ioctl) || policy.Within(p, dev), Write: access.Has(policy.Write), Exec: access.Has(policy.Exec) || b.mapped,
	}
	if h := b.bound(p); h.Kind == Bind && h.Device == e.Device && h.Write == e.Write && h.Exec == e.Exec {
		return
	}
	b.add(e)
}

// bound is the nearest part of the host's tree above a path, if that is the nearest
// entry but for directories in it.
func (b *builder) bound(p string) Entry {
	for h := b.holder(p); ; h = b.holder(string(h.Path)) {
		if h.Kind != Dir || h.Path == "" {
			return h
		}
	}
}

// link puts in a link of the host's, if it does not lie in what is granted anyway.
func (b *builder) link(l policy.Link) {
	p := string(l.Path)
	if policy.Within(p, proc) || policy.Within(p, dev) {
		return
	}
	if h := b.bound(p); h.Kind == Bind || h.Kind == Temp {
		return
	}
	b.add(Entry{Path: l.Path, Kind: Symlink, Source: l.Target})
}
