package listen

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	scmPIDFD = -1 // there are none
	// noSignal is no flag here: Go's runtime catches SIGPIPE.
	noSignal = 0
)

// roomFor is room for all that one message can carry, whatever was asked for: the
// kernel opens descriptors before it cuts off what it says of them.
func roomFor(int) int { return unix.CmsgSpace(4*512) + unix.CmsgSpace(256) }

// receive reads once, without waiting. No fork comes between the descriptors and
// their mark: there is no MSG_CMSG_CLOEXEC.
func receive(s int, buf, oob []byte) (n, flags int, fds []int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	n, oobn, flags, _, err := unix.Recvmsg(s, buf, oob, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, 0, nil, err
	}
	fds, err = descriptors(oob[:oobn])
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return n, flags, fds, err
}
