package supervise

import (
	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// shm reads a path and returns NAME for /dev/shm/NAME. Everything else goes on:
// the worker's Landlock domain judges the call that its own thread makes, so a
// path that cannot be read, or that changes after this, gains nothing.
func (c *call) shm(addr uint64) (string, error) {
	c.kind = KindFile
	path, err := c.path(addr)
	if err != nil {
		return "", errContinue
	}
	name, ok := shmName(path)
	if !ok {
		return "", errContinue
	}
	return name, nil
}

func (c *call) shmReady(name string) error {
	if c.s.shm < 0 {
		return &refusal{errno: unix.EACCES, path: "/dev/shm/" + name}
	}
	return c.check()
}

func (c *call) openat() (int64, error) {
	return c.open(c.n.Args[1], int(int32(c.n.Args[2])), uint32(c.n.Args[3]))
}

func (c *call) open(addr uint64, flags int, mode uint32) (int64, error) {
	name, err := c.shm(addr)
	if err != nil {
		return 0, err
	}
	var st threadStatus
	if flags&unix.O_CREAT != 0 {
		if st, err = c.status(); err != nil {
			return 0, err
		}
	}
	if err := c.shmReady(name); err != nil {
		return 0, err
	}
	fd := -1
	err = c.asWorker(func() error {
		unix.Umask(st.umask)
		return c.again(func() (err error) {
			// Not to wait for a FIFO's other end, or for a lease to be broken.
			fd, err = unix.Openat(c.s.shm, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	c.hold(fd)
	if flags&unix.O_NONBLOCK == 0 {
		have, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, have&^unix.O_NONBLOCK)
		}
		if err != nil {
			return 0, err
		}
	}
	switch err := sys.NotifInstall(c.s.listener, c.n.ID, fd, flags&unix.O_CLOEXEC != 0); err {
	case nil:
		return 0, errAnswered
	case unix.ENOENT, unix.ESRCH: // interrupted before, or while it took the descriptor
		const fresh = unix.O_CREAT | unix.O_EXCL
		if flags&fresh == fresh { // the repeated call must not meet its own file
			c.asWorker(func() error { return unix.Unlinkat(c.s.shm, name, 0) })
		}
		return 0, errGone
	default:
		return 0, err
	}
}

func (c *call) unlinkat() (int64, error) {
	if c.n.Args[2] != 0 {
		return 0, errContinue
	}
	return c.unlink(c.n.Args[1])
}

func (c *call) unlink(addr uint64) (int64, error) {
	name, err := c.shm(addr)
	if err != nil {
		return 0, err
	}
	if err := c.shmReady(name); err != nil {
		return 0, err
	}
	err = c.asWorkerNow(func() error { return unix.Unlinkat(c.s.shm, name, 0) })
	c.effect = err == nil
	return 0, err
}

func (c *call) linkat() (int64, error) {
	if c.n.Args[4] != 0 {
		return 0, errContinue
	}
	return c.link(c.n.Args[1], c.n.Args[3])
}

func (c *call) link(from, to uint64) (int64, error) {
	old, err := c.shm(from)
	if err != nil {
		return 0, err
	}
	name, err := c.shm(to)
	if err != nil {
		return 0, err
	}
	if err := c.shmReady(name); err != nil {
		return 0, err
	}
	err = c.asWorkerNow(func() error { return unix.Linkat(c.s.shm, old, c.s.shm, name, 0) })
	c.effect = err == nil
	return 0, err
}

// truncate opens the file by handle and lets the deputy's Landlock domain, which
// grants writing beneath the roots only, judge the open.
func (c *call) truncate() (int64, error) {
	c.kind = KindFile
	if err := c.enabled(c.s.cfg.Truncate); err != nil {
		return 0, err
	}
	length := int64(c.n.Args[1])
	if length < 0 {
		return 0, unix.EINVAL
	}
	path, err := c.path(c.n.Args[0])
	if err != nil {
		return 0, err
	}
	at, err := c.place(path)
	if err != nil {
		return 0, err
	}
	limit, err := c.fileLimit()
	if err != nil {
		return 0, err
	}
	if err := c.check(); err != nil {
		return 0, err
	}
	err = c.asWorker(func() error { return truncateAt(at, path, length, limit) })
	if err == unix.EFBIG {
		c.kill(unix.SIGXFSZ)
	}
	return 0, err
}

// fileLimit is the smaller RLIMIT_FSIZE of the worker, which must hold, and of
// the launcher, which the kernel would enforce with a SIGXFSZ to us.
func (c *call) fileLimit() (uint64, error) {
	// prlimit(2) asks for CAP_SYS_RESOURCE over another uid, which root in a
	// container may lack. The file is readable by all.
	text, err := c.readProc("limits")
	if err != nil {
		return 0, unreachable("the worker's limits cannot be read", err)
	}
	var ours unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &ours); err != nil {
		return 0, err
	}
	return min(parseFileLimit(text), ours.Cur), nil
}

func truncateAt(at place, path string, length int64, limit uint64) error {
	file, err := at.resolve(path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return unix.EISDIR
	default:
		return unix.EINVAL
	}
	fd, err := unix.Open(selfFD(file), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.EACCES {
		return &refusal{errno: unix.EACCES, path: path}
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if uint64(length) > limit && length > st.Size {
		return unix.EFBIG
	}
	return unix.Ftruncate(fd, length)
}
