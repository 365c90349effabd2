package rootfs

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/internal/hold"
	"sandboxd/internal/sys"
)

// nothing is a directory of the tree that stands where the worker must find nothing.
// What is in it has git ignore it: git would remove an empty directory with all else
// that it does not know (git stash -u, git clean), and fail as it cannot.
const nothing = ".sbx"

// guard puts a mount on every place that is held, in the tree that is the root later.
// What a mount is on cannot be renamed, replaced or removed (EBUSY), nor linked or
// moved out or in (EXDEV); a read-only one cannot be changed either (EROFS). A place
// that is only pinned is mounted on itself as it is. The places come in the order of
// their paths, so that each is found on the mounts of those above it.
func guard(p *sys.Program, root sys.Ref, places []hold.Place) {
	var none sys.Ref
	if slices.ContainsFunc(places, standsForNothing) {
		p.Step("what stands for nothing")
		p.Mkdir(root, nothing, 0o1555) // by which package profiles knows it, inside
		p.Make(root, nothing+"/.gitignore", "*\n", 0o444)
		plain := p.Open(root, nothing, unix.O_PATH)
		tree := p.Clone(plain, "")
		p.Restrain(tree, unix.MOUNT_ATTR_RDONLY)
		p.Move(tree, plain)
		p.Close(tree)
		p.Close(plain)
		none = p.Open(root, nothing, unix.O_PATH)
	}
	for i := range places {
		g := &places[i]
		p.Step("protecting %q", g.Path)
		at := p.Look(root, strings.TrimPrefix(g.Path, "/"))
		p.Same(at, g.Stat.Dev, g.Stat.Ino)
		var tree sys.Ref
		if standsForNothing(*g) {
			tree = p.Clone(none, "")
		} else if tree = p.Clone(at, ""); g.Shut {
			p.Restrain(tree, unix.MOUNT_ATTR_RDONLY)
		}
		p.Move(tree, at)
		p.Close(tree)
		p.Close(at)
	}
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
