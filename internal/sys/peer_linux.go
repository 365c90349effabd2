package sys

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PeerGroups returns the supplementary groups of a unix socket's peer
// (SO_PEERGROUPS, Linux 4.13), as they were when SO_PEERCRED was taken.
func PeerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		runtime.KeepAlive(groups)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ERANGE && int(size/4) > len(groups): // it says how much it takes
			groups = make([]uint32, size/4)
		default:
			return nil, fmt.Errorf("getsockopt SO_PEERGROUPS: %w", errno)
		}
	}
}

// PeerPIDFD returns a handle on the process that SO_PEERCRED tells of
// (SO_PEERPIDFD, Linux 6.5; ENOPROTOOPT before it). It is close-on-exec.
func PeerPIDFD(fd int) (int, error) {
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return -1, fmt.Errorf("getsockopt SO_PEERPIDFD: %w", err)
	}
	return pidfd, nil
}
