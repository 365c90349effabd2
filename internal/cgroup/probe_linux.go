package cgroup

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd/internal/mounts"
)

// state is what a [Host] keeps open.
type state struct {
	mounts []mount
	all    []*hierarchy
	caller caller

	mu    sync.Mutex // held while this process moves
	leaf  string     // where it has moved to, below its own cgroup
	given []string   // controllers that were enabled for it
}

// Probe finds out what this process may do. It changes nothing. Its handles
// are released by [Host.Close].
func Probe() Host {
	s := &state{}
	self, _ := readBounded(unix.AT_FDCWD, "/proc/self/cgroup", 64<<10)
	// What could be read of the table counts: what it does not show cannot be used.
	_ = mounts.Own(func(m mounts.Mount) bool {
		if c, ok := mountOf(m); ok {
			s.mounts = append(s.mounts, c)
		}
		return true
	})
	for _, m := range parseSelf(self) {
		if m.useful() {
			h := &hierarchy{member: m, dir: -1, tasks: -1}
			h.look(s.mounts)
			s.all = append(s.all, h)
		}
	}
	s.caller = caller{
		root:    os.Geteuid() == 0,
		systemd: unix.Access("/run/systemd/system", unix.F_OK) == nil, // sd_booted(3)
		clone:   clone3(),
	}
	host := judge(s.all, s.caller)
	host.state = s
	return host
}

// clone3 asks for a child with arguments of size 0, which the kernel refuses
// with EINVAL. Container engines answer ENOSYS to make libc use clone(2), which
// has no CLONE_INTO_CGROUP.
func clone3() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.EINVAL {
		return errno
	}
	return nil
}

// look finds the facts of this process' own cgroup.
func (h *hierarchy) look(mounts []mount) {
	var readOnly bool
	if h.dir, readOnly, h.cause, h.open = openCgroup(h.member, h.path, mounts); h.dir < 0 {
		return
	}
	if h.make = access(h.dir, ".", unix.W_OK|unix.X_OK); readOnly {
		h.make = unix.EROFS // rather than EACCES, which another user could not help
	}
	if h.id != 0 {
		// To open it is the very check that the kernel makes.
		h.tasks, h.enter = openAt(h.dir, "tasks", unix.O_WRONLY)
		if h.has(memory) {
			flat, err := readBounded(h.dir, "memory.use_hierarchy", 16)
			top := access(h.dir, "cgroup.sane_behavior", unix.F_OK) == nil // only the root has it
			h.flat = err == nil && strings.TrimSpace(string(flat)) == "0" && !top
		}
		return
	}
	// A process may move, or start elsewhere, if its user may write cgroup.procs
	// of the nearest cgroup above both: cgroup-v2.rst, "Delegation Containment".
	h.enter = access(h.dir, "cgroup.procs", unix.W_OK)
	h.divide = access(h.dir, "cgroup.subtree_control", unix.W_OK)
	h.offered = words(h.dir, "cgroup.controllers")
	h.enabled = words(h.dir, "cgroup.subtree_control")
	kind, err := readBounded(h.dir, "cgroup.type", 64)
	h.kind = strings.TrimSpace(string(kind))
	h.top = errors.Is(err, unix.ENOENT) // the root has no such file, also where a namespace shows another as /
	if !h.top {
		_, h.others = here(h.dir)
	}
}

// here tells whether this process is in a cgroup, and the others there. 0 is
// one of another pid namespace. A page of them is enough to know.
func here(dir int) (inside bool, others []int) {
	text, _ := readBounded(dir, "cgroup.procs", 4096)
	for _, pid := range numbers(text) {
		if pid == os.Getpid() {
			inside = true
		} else {
			others = append(others, pid)
		}
	}
	return inside, others
}

func numbers(text []byte) []int {
	var list []int
	for f := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// openCgroup opens the directory of a cgroup, through the first mount that
// truly shows it: the device tells whether another mount hides that one.
func openCgroup(m member, cgroup string, mounts []mount) (fd int, readOnly bool, cause Cause, err error) {
	places, cause := find(m, cgroup, mounts)
	for _, p := range places {
		var top int
		var st unix.Stat_t
		if top, err = openAt(unix.AT_FDCWD, p.point, unix.O_PATH|unix.O_DIRECTORY); err == nil {
			err = unix.Fstat(top, &st)
		}
		if cause = ""; err != nil || deviceOf(st) != p.dev {
			if err == nil {
				cause = NotMounted
			}
			closeAll(&top)
			continue
		}
		if p.rel == "" {
			return top, p.readOnly, "", nil
		}
		fd, err = openAt(top, p.rel[1:], unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		unix.Close(top)
		return fd, p.readOnly, "", err
	}
	return -1, false, cause, err
}

func deviceOf(st unix.Stat_t) string {
	return strconv.Itoa(int(unix.Major(uint64(st.Dev)))) + ":" + strconv.Itoa(int(unix.Minor(uint64(st.Dev))))
}

func words(dir int, file string) []string {
	text, _ := readBounded(dir, file, 4096)
	return strings.Fields(string(text))
}

// access asks with the effective ids. A mount that is read only answers EROFS.
func access(dir int, name string, mode uint32) error {
	return unix.Faccessat(dir, name, mode, unix.AT_EACCESS)
}

func openAt(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// readBounded reads a file of the kernel. (Package os would ask its poller
// about each.)
func readBounded(dir int, name string, limit int) ([]byte, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := make([]byte, 0, min(limit, 8<<10))
	for len(text) < limit {
		text = slices.Grow(text, min(limit-len(text), 4096))
		n, err := unix.Read(fd, text[len(text):min(cap(text), limit)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return text, err
		case n == 0:
			return text, nil
		}
		text = text[:len(text)+n]
	}
	return text, nil
}
