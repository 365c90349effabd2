package rootfs

import (
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/internal/hold"
	"sandboxd/internal/sys"
)

// Canary is a file of every tree that anybody may read, and that no policy grants: what
// confines the worker beside the tree has to refuse it.
const Canary = "/" + own + "/canary"

// Host is what one launch adds to a layout.
type Host struct {
	// Root is a directory of the host's on which the tree is put together; Temp may be
	// it.
	Root string
	// Temp and Shm are the directories that stand for /tmp and /dev/shm.
	Temp, Shm string
	// UserNS tells that a user namespace is new, in which UID and GID are the same as
	// outside.
	UserNS   bool
	UID, GID int
	// Guarded are the places that are held against the worker.
	Guarded []hold.Place
	// Inode, if it is set, tells which file a part of the host's tree has to be.
	Inode func(path string) (dev, ino uint64, ok bool)
	// Rule, if it is set, tells with which rights what is not the host's gets into a
	// Landlock ruleset, the root among it; 0 is none.
	Ruleset int
	Rule    func(e Entry) uint64
}

// Program makes the calls that put the tree together and make it the root, for the
// first process of new mount and PID namespaces. mount_setattr(2) is the newest of
// them: Linux 5.12.
func (l Layout) Program(h Host) *sys.Program {
	p := new(sys.Program)
	p.Room(64 + 12*len(l.Entries))
	p.Name("sbx-init")
	p.Umask(0) // of this process alone: the worker may be another user
	if h.UserNS {
		p.Step("the user namespace")
		p.MapUser(h.UID, h.GID)
	}
	p.Prctl(unix.PR_SET_DUMPABLE, 0)
	p.Step("mounts that nobody else takes part in")
	p.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	trees := map[Kind]sys.Ref{}
	for kind, dir := range map[Kind]string{Temp: h.Temp, Shm: h.Shm} {
		p.Step("the private directory %q", dir)
		trees[kind] = p.Clone(p.Open(sys.AtCwd, dir, unix.O_PATH|unix.O_DIRECTORY), "")
	}
	p.Step("the root")
	p.Mount("sbx", h.Root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=4m")
	root := p.Open(sys.AtCwd, h.Root, unix.O_PATH|unix.O_DIRECTORY)
	if h.Rule != nil {
		if rights := h.Rule(Entry{Path: "/", Kind: Dir}); rights != 0 {
			p.Rule(sys.FD(h.Ruleset), root, rights)
		}
	}
	p.Mkdir(root, own, 0o111)
	p.Make(root, strings.TrimPrefix(Canary, "/"), "canary\n", 0o444)
	g := guarding{l: l, root: root, places: h.Guarded}
	g.prepare(p)
	for _, e := range l.Entries {
		g.before(p, string(e.Path))
		if e.Kind != Mask {
			l.entry(p, e, h, root, trees)
		}
	}
	g.before(p, "")
	p.Step("the root")
	p.RestrainOne(root, unix.MOUNT_ATTR_RDONLY)
	p.Pivot(root)
	p.Close(root)
	return p
}

func (l Layout) entry(p *sys.Program, e Entry, h Host, root sys.Ref, trees map[Kind]sys.Ref) {
	at := strings.TrimPrefix(string(e.Path), "/")
	p.Step("%s %q", e.Kind, e.Path)
	if made, ok := l.makes(e); ok {
		switch {
		case e.Kind == Symlink:
			p.Symlink(string(e.Source), root, made)
			return
		case e.File:
			p.Create(root, made, 0o600)
		default:
			p.Mkdir(root, made, 0o755)
		}
	}
	if e.Kind == Dir || e.Kind == Symlink {
		return
	}
	var tree sys.Ref
	attributes := uint64(unix.MOUNT_ATTR_NOSUID)
	switch e.Kind {
	case Proc:
		tree = p.NewMount("proc")
	case Terminals:
		tree = p.NewMount("devpts", "ptmxmode", "0666", "mode", "620")
	case Temp, Shm:
		tree = trees[e.Kind]
	default:
		// Opened without following a link, so that it is what was granted or fails.
		source := p.Open(sys.AtCwd, string(e.Path), unix.O_PATH)
		if h.Inode != nil {
			if dev, ino, ok := h.Inode(string(e.Path)); ok {
				p.Same(source, dev, ino)
			}
		}
		tree = p.Clone(source, "")
		p.Close(source)
		// A device can be written to on a read-only mount, but not changed
		// (sb_permission, mnt_want_write): its owner could chmod the host's.
		if !e.Write || e.Device {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
	}
	if !e.Device && e.Kind != Terminals {
		attributes |= unix.MOUNT_ATTR_NODEV
	}
	if !e.Exec {
		attributes |= unix.MOUNT_ATTR_NOEXEC
	}
	p.Restrain(tree, attributes)
	onto := p.Open(root, at, unix.O_PATH)
	p.Move(tree, onto)
	p.Close(onto)
	if h.Rule != nil {
		if rights := h.Rule(e); rights != 0 {
			p.Rule(sys.FD(h.Ruleset), tree, rights)
		}
	}
	p.Close(tree)
}

// makes tells whether the place of an entry has to be made, and where below the root:
// if it does not lie in a part of the host's tree, where it is there already.
func (l Layout) makes(e Entry) (at string, ok bool) {
	at = strings.TrimPrefix(string(e.Path), "/")
	for i := len(l.Entries) - 1; i >= 0; i-- {
		o := l.Entries[i]
		rest, below := strings.CutPrefix(string(e.Path), string(o.Path)+"/")
		if !below {
			continue
		}
		switch o.Kind {
		case Bind:
			return "", false
		case Temp:
			return at, true
		case Mask: // what stands over it has a place of its own
			return maskDir(i) + "/" + rest, true
		}
	}
	return at, true
}
