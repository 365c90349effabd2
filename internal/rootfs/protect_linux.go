package rootfs

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/internal/hold"
	"sandboxd/internal/sys"
)

// own is the directory of the tree that holds what is mounted on places that are held,
// and [Canary]. Nobody lists it.
const own = ".sbx"

const (
	// nothing stands where the worker must find nothing. What is in it has git ignore
	// it: git would remove an empty directory with all else that it does not know (git
	// stash -u, git clean), and fail as it cannot.
	nothing = own + "/nothing"
	// deniedDir and deniedFile stand over what is denied. Nobody may open them: the
	// worker has no capabilities, and their mount is read-only, so that not even their
	// owner can change that.
	deniedDir  = own + "/dir"
	deniedFile = own + "/file"
)

// maskDir is what stands over a denied directory that something is granted in.
func maskDir(entry int) string { return own + "/" + strconv.Itoa(entry) }

// guarding puts a mount on every place that is held, in the tree that is the root
// later. What a mount is on cannot be renamed, replaced or removed (EBUSY), nor linked
// or moved out or in (EXDEV); a read-only one cannot be changed either (EROFS). A place
// that is only pinned is mounted on itself as it is.
//
// All that is mounted comes in the order of paths, so that each is found on what is
// mounted above it, and nothing is hidden by what comes later.
type guarding struct {
	l      Layout
	root   sys.Ref
	places []hold.Place // that are left to be held

	nothing, dir, file sys.Ref // if there is use for them
}

// prepare makes what is mounted on places.
func (g *guarding) prepare(p *sys.Program) {
	need := func(is func(hold.Place) bool) bool { return slices.ContainsFunc(g.places, is) }
	noDir := func(h hold.Place) bool { return h.Denied && h.IsDir() }
	noFile := func(h hold.Place) bool { return h.Denied && !h.IsDir() }
	if !need(standsForNothing) && !need(noDir) && !need(noFile) {
		return
	}
	p.Step("what stands on places that are held")
	if need(standsForNothing) {
		p.Mkdir(g.root, nothing, 0o1555) // by which package profiles knows it, inside
		p.Make(g.root, nothing+"/.gitignore", "*\n", 0o444)
		g.nothing = g.readOnly(p, nothing)
	}
	if need(noDir) {
		p.Mkdir(g.root, deniedDir, 0)
		g.dir = g.readOnly(p, deniedDir)
		for i, e := range g.l.Entries {
			if e.Kind == Mask && g.l.holdsOthers(i) {
				p.Mkdir(g.root, maskDir(i), 0o111)
			}
		}
	}
	if need(noFile) {
		p.Create(g.root, deniedFile, 0)
		g.file = g.readOnly(p, deniedFile)
	}
}

// readOnly mounts something on itself, so that each clone of it is read-only.
func (g *guarding) readOnly(p *sys.Program, at string) sys.Ref {
	plain := p.Open(g.root, at, unix.O_PATH)
	tree := p.Clone(plain, "")
	p.Restrain(tree, unix.MOUNT_ATTR_RDONLY)
	p.Move(tree, plain)
	p.Close(tree)
	p.Close(plain)
	return p.Open(g.root, at, unix.O_PATH)
}

// before holds the places that come before a path; all for "".
func (g *guarding) before(p *sys.Program, path string) {
	for len(g.places) > 0 && (path == "" || compare(g.places[0].Path, path) < 0) {
		g.hold(p, &g.places[0])
		g.places = g.places[1:]
	}
}

func (g *guarding) hold(p *sys.Program, h *hold.Place) {
	p.Step("protecting %q", h.Path)
	if h.Denied {
		p.Step("denying %q", h.Path)
	}
	at := p.Look(g.root, strings.TrimPrefix(h.Path, "/"))
	p.Same(at, h.Stat.Dev, h.Stat.Ino)
	var tree sys.Ref
	switch {
	case h.Denied && !h.IsDir():
		tree = p.Clone(g.file, "")
	case h.Denied:
		tree = g.mask(p, h.Path)
	case standsForNothing(*h):
		tree = p.Clone(g.nothing, "")
	default:
		if tree = p.Clone(at, ""); h.Shut {
			p.Restrain(tree, unix.MOUNT_ATTR_RDONLY)
		}
	}
	p.Move(tree, at)
	p.Close(tree)
	p.Close(at)
}

// mask is what stands over a denied directory.
func (g *guarding) mask(p *sys.Program, path string) sys.Ref {
	for i, e := range g.l.Entries {
		if string(e.Path) == path && e.Kind == Mask && g.l.holdsOthers(i) {
			from := p.Open(g.root, maskDir(i), unix.O_PATH)
			tree := p.Clone(from, "")
			p.Restrain(tree, unix.MOUNT_ATTR_RDONLY)
			p.Close(from)
			return tree
		}
	}
	return p.Clone(g.dir, "")
}

// holdsOthers tells whether an entry is followed by some in it.
func (l Layout) holdsOthers(i int) bool {
	return i+1 < len(l.Entries) && strings.HasPrefix(string(l.Entries[i+1].Path), string(l.Entries[i].Path)+"/")
}

func standsForNothing(g hold.Place) bool { return g.Placeholder && g.Shut && g.IsDir() }

// Idle makes the calls of the first process from then on: it waits until the other end
// of alive is closed, and ends, and by it all processes of its PID namespace. Before
// that it removes the placeholders among the places, as whoever closed alive cannot:
// the launcher itself would have killed this process. It keeps the rights for that,
// those of caps that this process has.
func Idle(alive int, places []hold.Place, caps ...int) *sys.Program {
	p := new(sys.Program)
	p.Step("waiting")
	p.IgnoreChildren()
	keep := []int{alive}
	for _, g := range places {
		if g.Placeholder {
			keep = append(keep, g.FD, g.Dir)
		}
	}
	if len(keep) == 1 {
		p.Dup(sys.FD(alive), 0, 0)
		p.CloseFrom(1)
		p.DropCapabilities(true)
		p.Await(sys.FD(0))
		return p
	}
	p.CloseOthers(keep...)
	p.DropBounding()
	p.KeepCapabilities(caps...)
	p.Await(sys.FD(alive))
	p.Step("removing placeholders")
	p.KillOthers(workerPID)
	for _, g := range slices.Backward(places) {
		if g.Placeholder {
			p.Try(func() { remove(p, g) })
		}
	}
	return p
}

// workerPID is the worker's first process in its PID namespace: the launcher's child.
const workerPID = 2

// remove removes a placeholder that nobody else holds.
func remove(p *sys.Program, g hold.Place) {
	p.Lock(sys.FD(g.FD), unix.LOCK_EX|unix.LOCK_NB)
	p.Detach(g.Path) // it is a mount point here, and only here
	there := p.Look(sys.FD(g.Dir), g.Name())
	flags := 0
	if g.IsDir() {
		flags = unix.AT_REMOVEDIR
		p.Same(there, g.Stat.Dev, g.Stat.Ino)
	} else {
		p.Unchanged(there, g.Stat)
	}
	p.Unlink(sys.FD(g.Dir), g.Name(), flags)
}
