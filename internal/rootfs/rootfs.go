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
	if deny, by, found := p.DenyInsideGrant(); found {
		return Layout{}, backend.Refuse("grant what lies beside it instead of the whole tree", "%q cannot be denied inside the granted tree %q yet", deny, by.Path)
	}
	grants := p.Grants()
	b := builder{grants: grants, l: Layout{TempAt: tempAt}, at: map[string]int{}, mapped: p.Spec().ExecOnly}
	slices.SortStableFunc(grants, func(a, b policy.Grant) int { return compare(string(a.Path), string(b.Path)) })
	for _, g := range grants {
		if g.Path == "/" {
			// Its /run, its processes and terminals would come along.
			return Layout{}, backend.Refuse("grant the trees that are needed", "a grant of the whole file system leaves nothing to hide")
		}
	}
	b.add(Entry{Path: dev, Kind: Dir})
	b.add(Entry{Path: proc, Kind: Proc})
	b.add(Entry{Path: tempAt, Kind: Temp, Write: true, Exec: true})
	b.add(Entry{Path: shm, Kind: Shm, Write: true})
	for _, g := range grants {
		b.grant(g)
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

type builder struct {
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
		case "", Dir, Shm:
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
	access := g.Access
	for _, o := range b.grants {
		if o.Covers(p) {
			access |= o.Access
		}
	}
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
