package listen

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	searchFlags = unix.O_SEARCH | unix.O_NOFOLLOW
	// maxAddress is the length of sun_path less the NUL (unix(4)).
	maxAddress = 103

	systemDir      = "/var/run"
	stateBelowHome = "Library/Application Support"
	stateIsXDG     = false

	// refusedByFullBacklog is how often a refusal is asked again: a full backlog
	// is ECONNREFUSED here, like a stale socket.
	refusedByFullBacklog = 3
)

// rootsGroup tells whether a group is wheel, daemon or admin, whose members can
// become root: /var/run is writable to one.
func rootsGroup(gid uint32) bool { return gid == 0 || gid == 1 || gid == 80 }

// userPaths are a user's sockets, the best first.
func userPaths() []string {
	var all []string
	if dir, _ := stateHome(); dir != "" {
		if path := filepath.Join(dir, appName, socketName); len(path) <= maxAddress {
			all = append(all, path)
		}
	}
	if dir := os.Getenv("TMPDIR"); ownDir(dir, 0o077) {
		all = append(all, filepath.Join(dir, appName, socketName))
	}
	return all
}

func newSocket() (fd int, err error) {
	// There is no SOCK_CLOEXEC: a fork in between would inherit it.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// narrow does nothing: fchmod refuses a socket here. The directory is closed, and
// a socket that does not listen refuses.
func narrow(int) error { return nil }

func (p *place) fits(op string) error {
	if len(p.path) > maxAddress {
		return &Error{Op: op, Path: p.path, Err: fmt.Errorf("%w: %d bytes, of %d that fit on macOS", ErrTooLong, len(p.path), maxAddress), Hint: "choose a shorter path"}
	}
	return nil
}

// bind binds by path, as macOS has no other way: only root and this user can
// change what the directories of it hold.
func (p *place) bind(fd int) error {
	if err := p.fits("listen"); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Bind(fd, &unix.SockaddrUnix{Name: p.path}) }); err != nil {
		return &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("bind: %w", err)}
	}
	return nil
}

// give sets the owner and the mode of the bound socket.
func (p *place) give(_ info, gid int, perm uint32) error {
	if gid >= 0 {
		if err := unix.Fchownat(p.fd, p.name, 0, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return chmodAt(p.fd, p.name, perm)
}

func chmodAt(parent int, name string, perm uint32) error {
	return retry(func() error { return unix.Fchmodat(parent, name, perm, unix.AT_SYMLINK_NOFOLLOW) })
}

func (p *place) connect(fd int, _ info) error {
	if err := p.fits("connect"); err != nil {
		return err
	}
	return retry(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: p.path}) })
}

// acceptRaw accepts without waiting.
func acceptRaw(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	conn, _, err := unix.Accept(fd)
	if err == nil {
		unix.CloseOnExec(conn)
	}
	return conn, err
}

func shorten(path string) (string, func(), error) {
	return "", nil, fmt.Errorf("%w: %d bytes, of %d that fit on macOS", ErrTooLong, len(path), maxAddress)
}
