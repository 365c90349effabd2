package proxy

import (
	"math"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// touched is how long ago a connection last had data, of either direction: the kernel
// moves some that this process has not heard of yet (TCP_INFO, tcp(7)).
func touched(c net.Conn) time.Duration {
	ago := time.Duration(math.MaxInt64)
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return ago
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return ago
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			ago = time.Duration(min(info.Last_data_sent, info.Last_data_recv)) * time.Millisecond
		}
	})
	return ago
}
