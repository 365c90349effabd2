//go:build linux || darwin

package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
)

// Peer is who is at the other end of a connection.
//
// What the kernel says (SO_PEERCRED and its kin, unix(7)) are the credentials at
// the time of connect(2), or for a client of listen(2), or of socketpair(2). They
// do not change with the process, and they are not those of who writes now: the
// process may since have become another user, run another program or ended, and
// may have handed the connection to any other process.
//
// Hence UID, GID and Groups may decide what the connection may do: whoever holds
// it got it from one with those rights, and a privileged program that is made to
// write to it lends it nothing. PID, the pidfd and the program's path tell who
// began it: they are for logs, and to end what was begun when that process ends.
// They decide nothing.
//
// A user or group that the daemon's user namespace does not map is the overflow
// number, 65534 (user_namespaces(7)), which several may share.
type Peer struct {
	UID, GID uint32 // effective ones
	// PID is of the daemon's PID namespace; 0 if the process is not visible there.
	PID int
	// Groups are the supplementary ones. On macOS they are at most 15.
	Groups []uint32
	// Exact: the handle is on the very process that connected, as the kernel gave
	// it with the socket. Otherwise it was opened by pid, and a process that took
	// the pid over in the meantime cannot be told from it.
	Exact bool

	mu    sync.Mutex
	pidfd int  // -1: there is none
	gone  bool // the process had ended before it could be opened
}

// PeerOf reads the peer of a connection. A peer that has ended meanwhile is no
// error: its credentials stay. The caller closes it.
func PeerOf(conn *net.UnixConn) (*Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("the peer's credentials: %w", err)
	}
	var p *Peer
	var peerErr error
	if err := raw.Control(func(fd uintptr) { p, peerErr = peerOf(int(fd)) }); err != nil {
		return nil, fmt.Errorf("the peer's credentials: %w", err)
	}
	if peerErr != nil {
		return nil, fmt.Errorf("the peer's credentials: %w", peerErr)
	}
	return p, nil
}

// MemberOf tells whether the peer was in a group.
func (p *Peer) MemberOf(gid uint32) bool { return p.GID == gid || slices.Contains(p.Groups, gid) }

// PIDFD is the handle on the process (pidfd_open(2)), which stays the peer's to
// close; -1 if there is none, as on macOS.
func (p *Peer) PIDFD() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pidfd
}

// errNoHandle is of a process of which nothing can be known.
var errNoHandle = errors.New("there is no handle on the peer's process")

// Alive tells whether the process that connected has not ended. On macOS, which
// has no handles, another process with its pid counts as it.
func (p *Peer) Alive() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive()
}

// Exe is the path of the program that the process runs now, for people: the
// process chose it, and what is loaded into it is not seen. It is an error if
// the process ended while it was read, as the path may be another process' then.
// It is not supported on macOS.
func (p *Peer) Exe() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path, err := p.exe()
	if err != nil {
		return "", fmt.Errorf("the program of pid %d: %w", p.PID, err)
	}
	alive, err := p.alive()
	if err != nil {
		return "", fmt.Errorf("the program of pid %d: %w", p.PID, err)
	}
	if !alive {
		return "", fmt.Errorf("the program of pid %d: %w", p.PID, os.ErrProcessDone)
	}
	return path, nil
}

// Close lets go of the handle.
func (p *Peer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.close()
}
