package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a worker's cgroup: one directory in each hierarchy that it needs.
type Group struct {
	name string
	dirs []*dir
	tree *dir // the one by which the tree is told, waited for and ended
	kill int  // its cgroup.kill, or -1: open, so that no lack of descriptors can keep a tree alive

	pids  int    // cgroup1's pids.max, or -1: counts the launch thread until Leave
	limit []byte // what Leave writes there

	gaps []string
	last *Usage // before Kill kept the group from forking

	mu      sync.Mutex
	inside  bool // the launch thread is
	stuck   bool // it could not leave
	entered bool // it ever was
}

// dir is a group's directory in one hierarchy.
type dir struct {
	h     *hierarchy
	fd    int
	tasks int // cgroup1, or -1
}

// New makes a group for one worker. The id is the caller's, random. Either the
// limits hold, but for what [Group.Gaps] names, or there is no group and an
// error, which is an *[Error] unless the arguments are wrong.
func New(h Host, id string, l Limits) (*Group, error) {
	if err := errors.Join(checkID(id), l.check()); err != nil {
		return nil, err
	}
	if err := h.Prepare(id, l); err != nil {
		return nil, err
	}
	g := &Group{name: groupPrefix + id, kill: -1, pids: -1}
	if err := g.make(h, l); err != nil {
		if left := g.Remove(); left != nil {
			err = errors.Join(err, left)
		}
		return nil, err
	}
	return g, nil
}

// make fills the group in. What it has made when it fails is in g.
func (g *Group) make(h Host, l Limits) (err error) {
	if h.tree == nil {
		return cannot(kill, h.Kill)
	}
	// cgroup2 first, whatever the limits: it ends and counts best.
	if g.tree, err = g.in(h.tree); err != nil {
		return err
	}
	if h.tree.id == 0 { // cgroup.kill is of Linux 5.14
		if g.kill, err = openAt(g.tree.fd, "cgroup.kill", unix.O_WRONLY); err != nil && err != unix.ENOENT {
			return &Error{Limit: kill, Op: "open", File: "cgroup.kill", Err: err}
		}
	}
	for _, s := range l.settings() {
		if s.version != h.ability(s.limit).By {
			continue
		}
		d, err := g.in(holder(h.state.all, s.limit))
		if err != nil {
			return err
		}
		if err := g.apply(d, s); err != nil {
			return err
		}
	}
	return nil
}

// in returns the group's directory in a hierarchy, which it makes at most once.
// One that is there already is another group's: an error.
func (g *Group) in(h *hierarchy) (*dir, error) {
	for _, d := range g.dirs {
		if d.h == h {
			return d, nil
		}
	}
	failed := func(op, file string, err error) error {
		e := &Error{Op: op, File: file, Err: fmt.Errorf("in %s %s: %w", h.name(), h.path, err)}
		if err == unix.EAGAIN { // cgroup-v2.rst
			e.Fix = "raise cgroup.max.descendants or cgroup.max.depth of a cgroup above"
		}
		return e
	}
	if err := unix.Mkdirat(h.dir, g.name, 0o755); err != nil {
		return nil, failed("mkdir", g.name, err)
	}
	d := &dir{h: h, fd: -1, tasks: -1}
	g.dirs = append(g.dirs, d)
	var err error
	if d.fd, err = openAt(h.dir, g.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW); err != nil {
		return nil, failed("open", g.name, err)
	}
	if h.id != 0 {
		if d.tasks, err = openAt(d.fd, "tasks", unix.O_WRONLY); err != nil {
			return nil, failed("open", "tasks", err)
		}
	}
	return d, nil
}

// apply writes one setting and reads it back.
func (g *Group) apply(d *dir, s setting) error {
	failed := func(op string, err error) error { return &Error{Limit: s.limit, Op: op, File: s.file, Err: err} }
	fd, err := openAt(d.fd, s.file, unix.O_RDWR)
	switch {
	case err == unix.ENOENT && s.gap != "":
		g.gaps = append(g.gaps, s.gap)
		return nil
	case err != nil:
		return failed("open", err)
	}
	if s.later != "" {
		g.pids, g.limit = fd, []byte(s.later)
	} else {
		defer unix.Close(fd)
	}
	if err := write(fd, []byte(s.value)); err != nil {
		// In cgroup1 a group may not have more CPU time than the cgroup above
		// it (tg_cfs_schedulable_down), whose limit then is what holds.
		if s.file == "cpu.cfs_quota_us" && err == unix.EINVAL {
			g.gaps = append(g.gaps, "cpu: the caller's own limit is lower, and holds instead")
			return nil
		}
		return failed("write", err)
	}
	var buf [64]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return failed("read back", err)
	}
	if got := strings.TrimSpace(string(buf[:n])); got != s.value {
		return failed("read back", fmt.Errorf("%q was written, %q is there", s.value, got))
	}
	return nil
}

// Name is the group's directory in each hierarchy, below this process' own
// cgroup.
func (g *Group) Name() string { return g.name }

// Gaps names what the limits leave open, a sentence each.
func (g *Group) Gaps() []string { return slices.Clone(g.gaps) }

// FD is the group's cgroup2 directory for SysProcAttr.UseCgroupFD, or -1.
//
// The kernel judges CLONE_INTO_CGROUP by the credentials of the thread that
// forks (cgroup_css_set_fork): it must own the group, or have CAP_DAC_OVERRIDE.
// A thread that root has turned into another user gets EACCES.
func (g *Group) FD() int {
	for _, d := range g.dirs {
		if d.h.id == 0 {
			return d.fd
		}
	}
	return -1
}

// NeedsEnter tells that the thread that forks the worker must call
// [Group.Enter] before and [Group.Leave] after, whether or not FD is used, too.
func (g *Group) NeedsEnter() bool {
	return slices.ContainsFunc(g.dirs, func(d *dir) bool { return d.tasks >= 0 })
}

// Enter puts the calling thread, and it alone, into the group's cgroup1
// directories, so that what it forks is there from the start. The goroutine is
// locked to its thread. On error the thread is where it was.
//
// The thread may have dropped its ids and capabilities since [New]: the kernel
// asks for those with which the file was opened (Linux 5.16, and stable kernels
// since) or, before, that the writer's user is the moved task's, which is
// itself. Landlock does not govern what is open. Nothing is allocated.
func (g *Group) Enter() error {
	g.mu.Lock()
	busy := g.inside
	g.inside, g.entered = true, true
	g.mu.Unlock()
	if busy {
		return &Error{Op: "write", File: "tasks", Err: unix.EBUSY}
	}
	for _, d := range g.dirs {
		if d.tasks < 0 {
			continue
		}
		if err := write(d.tasks, self); err != nil {
			return errors.Join(&Error{Op: "write", File: "tasks", Err: err}, g.Leave())
		}
	}
	return nil
}

// self is the writing thread, in a tasks file. To move oneself needs no lock
// over all forks of the system, as it does to move others: microseconds instead
// of milliseconds (cgroup_procs_write_start, Linux 5.5).
var self = []byte("0")

// Leave takes the calling thread out again, after the fork. On error it may
// still be inside, where it counts as a task of the group: it must end.
func (g *Group) Leave() error {
	var failed error
	for _, d := range g.dirs {
		if d.tasks < 0 {
			continue
		}
		if err := write(d.h.tasks, self); err != nil {
			failed = &Error{Op: "write", File: "tasks", Err: fmt.Errorf("going back to %s %s: %w", d.h.name(), d.h.path, err)}
		}
	}
	if err := g.lower(); err != nil {
		failed = errors.Join(failed, err)
	}
	g.mu.Lock()
	g.inside, g.stuck = false, failed != nil
	g.mu.Unlock()
	return failed
}

// Add moves a process and its threads into the group: one that is held before
// its first instruction, so that it never ran outside. No launch thread is
// inside then. The kernel judges by the credentials of the caller, so this
// serves a launch thread that has become another user in cgroup2, too. But to
// move others takes a lock over all forks of the system, and waits for a grace
// period unless another move was just before (percpu_down_write): some 6 ms.
func (g *Group) Add(pid int) error {
	if len(g.dirs) == 0 { // it was removed: nothing would be bounded
		return &Error{Op: "write", File: "cgroup.procs", Err: unix.ENOENT}
	}
	for _, d := range g.dirs {
		if err := writeAt(d.fd, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return &Error{Op: "write", File: "cgroup.procs", Err: fmt.Errorf("in %s %s: %w", d.h.name(), d.h.path, err)}
		}
	}
	return g.lower()
}

// lower sets the limit of processes that holds when no launch thread is inside.
func (g *Group) lower() error {
	if g.pids < 0 {
		return nil
	}
	if err := write(g.pids, g.limit); err != nil {
		return &Error{Limit: pids, Op: "write", File: "pids.max", Err: err}
	}
	return nil
}

func write(fd int, text []byte) error {
	for {
		if _, err := unix.Write(fd, text); err != unix.EINTR {
			return err
		}
	}
}

// Remove removes the group's directories, which must be empty of processes, and
// those that were made below them. It says what is left; then it may be called
// again. After it the group must not be used.
func (g *Group) Remove() error {
	err := untilIdle(func() error {
		var left error
		for _, d := range slices.Clone(g.dirs) {
			if err := removeTree(d.h.dir, g.name, 0); err != nil {
				left = errors.Join(left, fmt.Errorf("removing %q from %s %s: %w", g.name, d.h.name(), d.h.path, err))
				continue
			}
			closeAll(&d.fd, &d.tasks)
			g.dirs = slices.DeleteFunc(g.dirs, func(o *dir) bool { return o == d })
		}
		return left
	})
	if err == nil {
		closeAll(&g.kill, &g.pids)
	}
	return err
}

// removeTime bounds the wait for the last tasks to be gone. One that has ended
// is in its cgroup until the kernel is done with it, which from Linux 6.19 on
// is a little after its parent has reaped it.
const removeTime = time.Second

func untilIdle(remove func() error) error {
	end := time.Now().Add(removeTime)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if err := remove(); !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}

// maxDepth is deeper than a worker has a use for.
const maxDepth = 16

// removeTree removes a cgroup and those below it, once. Names there are whoever's
// who made them, so the way down is by handles.
func removeTree(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if err == unix.EBUSY && depth < maxDepth { // there are processes in it, or cgroups below it
		fd, e := openAt(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if e != nil {
			return err
		}
		defer unix.Close(fd)
		below, _ := children(fd)
		for _, child := range below {
			_ = removeTree(fd, child, depth+1)
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// children are the names of the cgroups below one.
func children(dir int) ([]string, error) {
	fd, err := openAt(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY) // with a position of its own
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	entries, err := f.ReadDir(-1)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func closeAll(fds ...*int) {
	for _, fd := range fds {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}
