package supervise

import (
	"bytes"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// call is one trapped call in hand.
type call struct {
	s     *Supervisor
	n     sys.Notif
	op    string
	run   func(*call) (int64, error)
	kind  Kind // what it is about, as far as known
	tid   int
	pidfd int
	held  []int
	// effect: the world has changed, so a lost answer must not be forgotten.
	effect bool
	// connecting: the deputy is in connect(2), which must not wait.
	connecting atomic.Bool
	// cancelled: an EINTR on the deputy means to give up.
	cancelled atomic.Bool

	waiting
}

// release lets go of what one attempt holds.
func (c *call) release() {
	c.drop(0)
	if c.pidfd >= 0 {
		unix.Close(c.pidfd)
		c.pidfd = -1
	}
}

func (c *call) hold(fd int) int {
	c.held = append(c.held, fd)
	return fd
}

// drop lets go of the descriptors held since mark, between messages.
func (c *call) drop(mark int) {
	for _, fd := range c.held[mark:] {
		unix.Close(fd)
	}
	c.held = c.held[:mark]
}

func (c *call) proc(name string) string { return "/proc/" + strconv.Itoa(c.tid) + "/" + name }

// check is made after everything of the worker was read or opened: if the call
// still waits, the thread id meant its thread all the time.
func (c *call) check() error {
	if !sys.NotifValid(c.s.listener, c.n.ID) {
		return errGone
	}
	return nil
}

// fd duplicates the worker's descriptor.
func (c *call) fd(n int32) (int, error) {
	if n < 0 {
		return -1, unix.EBADF
	}
	if c.pidfd < 0 {
		fd, err := sys.PidfdOpenThread(c.tid, func() (int, error) {
			st, err := c.status()
			return st.tgid, err
		})
		if err != nil {
			return -1, unreachable("the worker's descriptors cannot be reached", err)
		}
		c.pidfd = fd
	}
	fd, err := unix.PidfdGetfd(c.pidfd, int(n), 0)
	if err == unix.EBADF {
		return -1, err
	}
	if err != nil {
		return -1, unreachable("the worker's descriptor cannot be duplicated", err)
	}
	return c.hold(fd), nil
}

func unreachable(why string, err error) error {
	switch err {
	case unix.ESRCH, unix.ENOENT:
		return errGone
	}
	return gap(why, err)
}

// read copies the worker's memory; all or EFAULT.
func (c *call) read(addr uint64, buf []byte) error {
	n, err := sys.NotifReadMem(c.tid, addr, buf)
	switch {
	case n == len(buf) && err == nil:
		return nil
	case err == nil, err == unix.EFAULT:
		return unix.EFAULT
	}
	return unreachable("the worker's memory cannot be read", err)
}

var pageSize = uint64(os.Getpagesize())

// path reads a terminated string. It may end right before memory that is not
// there, so no read crosses a page; most paths are short, so the first is too.
func (c *call) path(addr uint64) (string, error) {
	var text []byte
	for step := uint64(256); len(text) < maxPath; step = maxPath {
		part := make([]byte, min(step, pageSize-addr%pageSize, uint64(maxPath-len(text))))
		if err := c.read(addr, part); err != nil {
			return "", err
		}
		addr += uint64(len(part))
		end := bytes.IndexByte(part, 0)
		if end < 0 {
			text = append(text, part...)
			continue
		}
		if text = append(text, part[:end]...); len(text) == 0 {
			return "", unix.ENOENT
		}
		return string(text), nil
	}
	return "", unix.ENAMETOOLONG
}

// address reads a sockaddr, once.
func (c *call) address(addr uint64, size int32) ([]byte, error) {
	if size < 0 || size > maxAddr {
		return nil, unix.EINVAL
	}
	buf := make([]byte, size)
	return buf, c.read(addr, buf)
}

// readProc reads a file that is a few KB at most. (package os would ask its
// poller about each.)
func (c *call) readProc(name string) ([]byte, error) {
	fd, err := unix.Open(c.proc(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 4096)
	for len(text) < cap(text) {
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return text, nil
		}
		text = text[:len(text)+n]
	}
	return text, nil
}

func (c *call) status() (threadStatus, error) {
	text, err := c.readProc("status")
	if err != nil {
		return threadStatus{}, unreachable("the worker's status cannot be read", err)
	}
	return parseStatus(text), nil
}

// abandoned tells that a call in which the deputy hangs shall end: nobody waits
// for it any more, the supervisor closes, or a handler of the worker is due.
func (c *call) abandoned() bool {
	if c.cancelled.Load() {
		return true
	}
	select {
	case <-c.s.closing:
		return true
	default:
	}
	gone, handler := c.over(true)
	return gone || handler
}

// again repeats a deputy's call that a stray signal has interrupted.
func (c *call) again(f func() error) error {
	for {
		err := f()
		if err != unix.EINTR || c.cancelled.Load() {
			return err
		}
	}
}

// identity is a directory together with the mount it is seen through.
type identity struct {
	fileID
	mount uint64
	known bool
}

type fileID struct{ dev, ino uint64 }

func identify(path string) (identity, error) {
	const mask = unix.STATX_INO | unix.STATX_MNT_ID
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, mask, &st); err != nil {
		return identity{}, err
	}
	return identity{
		fileID: fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino},
		mount:  st.Mnt_id,
		known:  st.Mask&unix.STATX_MNT_ID != 0, // Linux 5.8
	}, nil
}

func statID(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, err
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}

// place is where the worker's names start.
type place struct {
	dir     int  // its working directory, or its root where that is foreign
	foreign bool // its root is not the launcher's
	c       *call
}

// place opens where this path starts.
func (c *call) place(path string) (place, error) {
	root, err := identify(c.proc("root"))
	if err != nil {
		return place{}, unreachable("the worker's root cannot be seen", err)
	}
	p := place{dir: unix.AT_FDCWD, foreign: !root.known || root != c.s.root, c: c}
	start := "cwd"
	if path[0] == '/' {
		if !p.foreign {
			return p, nil
		}
		start = "root"
	}
	dir, err := unix.Open(c.proc(start), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return place{}, unreachable("the worker's directory cannot be opened", err)
	}
	p.dir = c.hold(dir)
	return p, nil
}

// resolve opens a handle to what the path means to the worker. It runs on a
// deputy, so that search permission is the worker's. /proc magic links are the
// launcher's there and are not followed.
func (p place) resolve(path string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if p.foreign {
		how.Resolve |= unix.RESOLVE_BENEATH
		if path[0] == '/' {
			how.Resolve ^= unix.RESOLVE_BENEATH | unix.RESOLVE_IN_ROOT
		}
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(p.dir, path, &how)
		switch {
		case err == unix.EINTR && try < 1000 && !p.c.cancelled.Load():
		case err == unix.EAGAIN && try < 1000: // a rename passed by a ".."
		case err == unix.EXDEV && p.foreign:
			return -1, &refusal{errno: unix.EACCES, path: path, gap: "a relative path leaves the working directory in a foreign root"}
		default:
			return fd, err
		}
	}
}

func selfFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// kill sends a signal that the kernel would have sent with the call.
func (c *call) kill(sig syscall.Signal) {
	st, err := c.status()
	if err != nil || st.tgid == 0 || c.check() != nil {
		return
	}
	unix.Tgkill(st.tgid, c.tid, sig)
}
