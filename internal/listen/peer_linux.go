package listen

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

func peerOf(fd int) (*Peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, err
	}
	if cred.Uid == 1<<32-1 { // not connected: cred_to_ucred of nobody
		return nil, unix.ENOTCONN
	}
	p := &Peer{UID: cred.Uid, GID: cred.Gid, PID: int(cred.Pid), pidfd: -1}
	if p.Groups, err = sys.PeerGroups(fd); err != nil {
		return nil, err
	}
	p.pidfd, err = sys.PeerPIDFD(fd)
	switch {
	case err == nil:
		p.Exact = true
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return nil, err // it is there, and cannot be opened: no reason to know less of it
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODATA):
		p.gone = true // reaped: kernels before 6.16 keep no handle for it
	default: // ENOPROTOOPT before Linux 6.5, ENOSYS in gVisor
		if err := p.openByPID(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// openByPID opens a process by its number. That is checked as far as it can be:
// the process has the user that connected, or is not the one.
func (p *Peer) openByPID() error {
	if p.PID <= 0 { // of a PID namespace that is not seen here
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	switch err {
	case nil:
	case unix.ESRCH:
		p.gone = true
		return nil
	case unix.EMFILE, unix.ENFILE:
		return fmt.Errorf("pidfd_open: %w", err)
	default: // ENOSYS: a handle is a help, not a condition
		return nil
	}
	p.pidfd = fd
	uid, err := processUser(p.PID)
	if alive, aliveErr := p.alive(); aliveErr == nil && !alive || err == nil && uid != p.UID {
		// It ended, or another has its pid: a set-user-ID program that it runs now
		// looks the same, and is not told apart from a stranger.
		_ = p.close()
		p.gone = aliveErr == nil && !alive
	}
	return nil
}

// processUser returns the effective user of a process (proc_pid_status(5)).
func processUser(pid int) (uint32, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			if f := strings.Fields(rest); len(f) == 4 {
				uid, err := strconv.ParseUint(f[1], 10, 32)
				return uint32(uid), err
			}
		}
	}
	return 0, errors.New("no user in its status")
}

func (p *Peer) alive() (bool, error) {
	if p.gone {
		return false, nil
	}
	if p.pidfd < 0 {
		return false, errNoHandle
	}
	// A pidfd is readable once its process has ended.
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	var n int
	err := retry(func() (err error) { n, err = unix.Poll(fds, 0); return err })
	return n == 0, err
}

// exe reads the path by the pid; that the process is alive afterwards shows that
// the pid was its own all the while.
func (p *Peer) exe() (string, error) {
	if p.gone {
		return "", os.ErrProcessDone
	}
	if p.pidfd < 0 || p.PID <= 0 {
		return "", errNoHandle
	}
	return os.Readlink("/proc/" + strconv.Itoa(p.PID) + "/exe")
}

func (p *Peer) close() error {
	if p.pidfd < 0 {
		return nil
	}
	fd := p.pidfd
	p.pidfd = -1
	return unix.Close(fd)
}
