package listen

import (
	"errors"

	"golang.org/x/sys/unix"
)

func peerOf(fd int) (*Peer, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return nil, err
	}
	if cred.Ngroups < 1 || int(cred.Ngroups) > len(cred.Groups) {
		return nil, errors.New("LOCAL_PEERCRED without a group")
	}
	// cr_groups[0] is the effective group (unix(4)).
	p := &Peer{UID: cred.Uid, GID: cred.Groups[0], Groups: append([]uint32(nil), cred.Groups[1:cred.Ngroups]...), pidfd: -1}
	if p.PID, err = unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID); err != nil {
		p.PID = 0
	}
	return p, nil
}

func (p *Peer) alive() (bool, error) {
	if p.PID <= 0 {
		return false, errNoHandle
	}
	if unix.Kill(p.PID, 0) == unix.ESRCH {
		p.gone = true // and stays so, if another gets its pid
	}
	return !p.gone, nil
}

func (p *Peer) exe() (string, error) { return "", errors.ErrUnsupported }

func (p *Peer) close() error { return nil }
