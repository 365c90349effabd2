package listen

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	searchFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	// maxAddress is the length of sun_path less the NUL (unix(7)).
	maxAddress = 107
	// maxName is what fits behind "/proc/self/fd/2147483647/".
	maxName = maxAddress - len("/proc/self/fd/2147483647/")

	systemDir      = "/run"
	stateBelowHome = ".local/state"
	stateIsXDG     = true

	// refusedByFullBacklog: a full backlog is EAGAIN here, so one refusal is
	// enough.
	refusedByFullBacklog = 0
)

// rootsGroup tells whether root alone is in a group, as a rule.
func rootsGroup(gid uint32) bool { return gid == 0 }

// userPaths are a user's sockets, the best first.
func userPaths() []string {
	var all []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); ownDir(dir, 0o077) {
		all = append(all, filepath.Join(dir, appName, socketName))
	}
	if dir, _ := stateHome(); dir != "" {
		all = append(all, filepath.Join(dir, appName, socketName))
	}
	return all
}

func newSocket() (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	return fd, err
}

// handlePath is a short name of what a descriptor is open on (proc(5)).
func handlePath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// haveProc tells whether handles have names here.
func haveProc(fd int) bool {
	var st unix.Stat_t
	return unix.Lstat(handlePath(fd), &st) == nil
}

// narrow makes bind create an inode of mode 0600 at most: it takes the mode of
// the socket's inode, less the umask (unix_bind_bsd in net/unix/af_unix.c).
func narrow(fd int) error { return retry(func() error { return unix.Fchmod(fd, 0o600) }) }

// bind binds by the directory's handle, so that no path is too long and none is
// looked up twice. Without /proc the path itself must do, of whose directories
// only root and this user can change what they hold.
func (p *place) bind(fd int) error {
	if len(p.name) > maxName {
		return &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("%w: the name has %d bytes, of %d that fit", ErrTooLong, len(p.name), maxName), Hint: "choose a shorter name; the directory's may be of any length"}
	}
	name := handlePath(p.fd) + "/" + p.name
	if !haveProc(p.fd) {
		if name = p.path; len(name) > maxAddress {
			return &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("%w: %d bytes, of %d that fit", ErrTooLong, len(name), maxAddress), Hint: "mount /proc, or choose a shorter path"}
		}
	}
	if err := retry(func() error { return unix.Bind(fd, &unix.SockaddrUnix{Name: name}) }); err != nil {
		return &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("bind: %w", err)}
	}
	return nil
}

// give sets the owner and the mode of the bound socket by a handle on it.
func (p *place) give(bound info, gid int, perm uint32) error {
	fd, err := p.pin(bound)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if gid >= 0 {
		// First the group, then its bits.
		if err := unix.Fchownat(fd, "", 0, gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	return chmodHandle(fd, perm)
}

// pin opens the socket at the path as a handle (O_PATH), if it is still the one
// that was looked at.
func (p *place) pin(st info) (int, error) {
	fd, err := openAt(p.fd, p.name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	now, err := fstat(fd)
	if err == nil && (!now.same(st) || now.kind() != unix.S_IFSOCK) {
		err = fmt.Errorf("%w: it was replaced", ErrUntrusted)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// chmodHandle sets the mode of what an O_PATH handle is of: fchmod refuses one,
// and fchmodat2 is of Linux 6.6.
func chmodHandle(fd int, perm uint32) error {
	if !haveProc(fd) {
		return unix.Fchmodat(fd, "", perm, unix.AT_EMPTY_PATH)
	}
	return retry(func() error { return unix.Chmod(handlePath(fd), perm) })
}

// chmodAt sets the mode of a directory.
func chmodAt(parent int, name string, perm uint32) error {
	fd, err := openAt(parent, name, searchFlags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return chmodHandle(fd, perm)
}

// connect connects to the very socket that was looked at.
func (p *place) connect(fd int, st info) error {
	sock, err := p.pin(st)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	name := handlePath(sock)
	if !haveProc(sock) {
		if name = p.path; len(name) > maxAddress {
			return fmt.Errorf("%w: %d bytes, of %d that fit without /proc", ErrTooLong, len(name), maxAddress)
		}
	}
	return retry(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: name}) })
}

// acceptRaw accepts without waiting.
func acceptRaw(fd int) (conn int, err error) {
	err = retry(func() error {
		conn, _, err = unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		return err
	})
	return conn, err
}

// shorten names a socket by a handle on it, until done is called.
func shorten(path string) (short string, done func(), err error) {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_PATH, 0)
	if err != nil {
		return "", nil, err
	}
	return handlePath(fd), func() { _ = unix.Close(fd) }, nil
}
