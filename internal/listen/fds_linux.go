package listen

import "golang.org/x/sys/unix"

const (
	scmPIDFD = unix.SCM_PIDFD
	noSignal = unix.MSG_NOSIGNAL
)

// roomFor is the size of a buffer for so many descriptors and for credentials.
// The kernel opens none for which there is no room.
func roomFor(fds int) int {
	return unix.CmsgSpace(4*fds) + unix.CmsgSpace(unix.SizeofUcred)
}

// receive reads once, without waiting.
func receive(s int, buf, oob []byte) (n, flags int, fds []int, err error) {
	n, oobn, flags, _, err := unix.Recvmsg(s, buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return 0, 0, nil, err
	}
	fds, err = descriptors(oob[:oobn])
	return n, flags, fds, err
}
