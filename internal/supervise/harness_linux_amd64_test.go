package supervise

import "golang.org/x/sys/unix"

var trappedAlways = []int{unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_SENDMSG, unix.SYS_SENDMMSG,
	unix.SYS_TRUNCATE, unix.SYS_LINK, unix.SYS_UNLINK}

// trappedOpens gives the place of the flags.
var trappedOpens = map[int]int{unix.SYS_OPEN: 1, unix.SYS_OPENAT: 2}
