package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// bootID tells one run of the kernel from another.
var bootID = sync.OnceValue(func() string {
	text, _ := readBounded(unix.AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64)
	return strings.TrimSpace(string(text))
})

// Mark is the mark of a group that exists.
func (g *Group) Mark() Mark {
	m := Mark{Boot: bootID()}
	for _, d := range g.dirs {
		var st unix.Stat_t
		if err := unix.Fstat(d.fd, &st); err == nil {
			m.Dirs = append(m.Dirs, MarkDir{d.h.name(), path.Join(d.h.path, g.name), st.Ino})
		}
	}
	return m
}

// Mark is the mark of a group that [New] is about to make by this id, wherever
// it may make directories. Who stores it before can lose none to a SIGKILL
// between the two.
func (h Host) Mark(id string) Mark {
	m := Mark{Boot: bootID()}
	for _, o := range trees(h.state.all) {
		if o.dir >= 0 {
			m.Dirs = append(m.Dirs, MarkDir{Hierarchy: o.name(), Path: path.Join(o.path, groupPrefix+id)})
		}
	}
	return m
}

// ErrNotMarked says that a directory is not the marked one.
var ErrNotMarked = errors.New("not the marked cgroup")

// RemoveMarked ends what is in a marked group and removes it. What is gone is
// no error. A directory that is another one than the marked, or another user's,
// is left alone: [ErrNotMarked]. The caller makes sure that the launcher of the
// group is no more.
func RemoveMarked(h Host, m Mark) error {
	if m.Boot != bootID() {
		return nil
	}
	var failed error
	for _, d := range m.Dirs { // the one that ends the tree is the first
		if err := h.removeMarked(d); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s %q: %w", d.Hierarchy, d.Path, err))
		}
	}
	return failed
}

func (h Host) removeMarked(m MarkDir) error {
	parent, name := path.Split(m.Path)
	id, ok := strings.CutPrefix(name, groupPrefix)
	if !ok || checkID(id) != nil || path.Clean(m.Path) != m.Path || !path.IsAbs(m.Path) {
		return ErrNotMarked
	}
	i := slices.IndexFunc(h.state.all, func(o *hierarchy) bool { return o.name() == m.Hierarchy })
	if i < 0 {
		return errors.New("there is no such hierarchy here")
	}
	if _, inside := below(m.Path, h.state.all[i].path); inside {
		return fmt.Errorf("this process is in it: %w", ErrNotMarked)
	}
	above := &hierarchy{member: h.state.all[i].member, tasks: -1}
	above.path = path.Clean(parent)
	var err error
	if above.dir, _, _, err = openCgroup(above.member, above.path, h.state.mounts); err == unix.ENOENT {
		return nil
	} else if above.dir < 0 {
		return fmt.Errorf("it cannot be reached from here: %w", cmp.Or(err, error(unix.ENOENT)))
	}
	defer unix.Close(above.dir)
	d := &dir{h: above, fd: -1, tasks: -1}
	g := &Group{name: name, dirs: []*dir{d}, tree: d, kill: -1, pids: -1}
	defer func() { closeAll(&d.fd, &g.kill) }()
	if d.fd, err = openAt(above.dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW); err == unix.ENOENT {
		return nil
	} else if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || m.Inode != 0 && st.Ino != m.Inode {
		return ErrNotMarked
	}
	if g.kill, err = openAt(d.fd, "cgroup.kill", unix.O_WRONLY); err != nil && err != unix.ENOENT {
		return err
	}
	if err := g.Kill(); err != nil {
		return err
	}
	return g.Remove()
}
