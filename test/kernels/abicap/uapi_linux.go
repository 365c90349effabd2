package main

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernel is what the Landlock calls of one ABI accept, as linux/landlock.h and
// security/landlock/ of that release say. It is written down here once more, and
// not taken from the product, whose table is under test.
type kernel struct {
	fs, net, scoped uint64 // known bits of struct landlock_ruleset_attr
	attr            int    // its size
	ruleTypes       uint32 // the highest type of landlock_add_rule
	ruleFlags       uint32
	restrictFlags   uint32
	errata          bool // LANDLOCK_CREATE_RULESET_ERRATA is known
}

const (
	pathBeneath = 1
	netPort     = 2

	tcp    = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	udp    = unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP
	scopes = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	logs   = unix.LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF | unix.LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON | unix.LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF
	tsync  = unix.LANDLOCK_RESTRICT_SELF_TSYNC
	quiet  = unix.LANDLOCK_ADD_RULE_QUIET

	// The highest access to files of each ABI that added one; all below it are known.
	upToMakeSym  = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
	upToRefer    = unix.LANDLOCK_ACCESS_FS_REFER<<1 - 1
	upToTruncate = unix.LANDLOCK_ACCESS_FS_TRUNCATE<<1 - 1
	upToIoctl    = unix.LANDLOCK_ACCESS_FS_IOCTL_DEV<<1 - 1
	upToResolve  = unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX<<1 - 1
)

// kernels are the ABIs, each with all that it knows. The releases are 5.13, 5.19,
// 6.2, 6.7, 6.10, 6.12, 6.15, 7.0, 7.1 and 7.2.
var kernels = [...]kernel{
	1:  {upToMakeSym, 0, 0, 8, pathBeneath, 0, 0, false},
	2:  {upToRefer, 0, 0, 8, pathBeneath, 0, 0, false},
	3:  {upToTruncate, 0, 0, 8, pathBeneath, 0, 0, false},
	4:  {upToTruncate, tcp, 0, 16, netPort, 0, 0, false},
	5:  {upToIoctl, tcp, 0, 16, netPort, 0, 0, false},
	6:  {upToIoctl, tcp, scopes, 24, netPort, 0, 0, false},
	7:  {upToIoctl, tcp, scopes, 24, netPort, 0, logs, true},
	8:  {upToIoctl, tcp, scopes, 24, netPort, 0, logs | tsync, true},
	9:  {upToResolve, tcp, scopes, 24, netPort, 0, logs | tsync, true},
	10: {upToResolve, tcp | udp, scopes, 48 /* + quiet_* */, netPort, quiet, logs | tsync, true},
}

// judgeAttr says what the kernel would of a struct landlock_ruleset_attr of the
// caller's size, which is 8 at least. Its other objections (an empty ruleset,
// quiet bits that are not handled) are the same in every kernel that can make
// them, so they are left to the one that is there.
func (k kernel) judgeAttr(attr []byte) syscall.Errno {
	// copy_struct_from_user() comes before any look at the content.
	for _, b := range attr[min(k.attr, len(attr)):] {
		if b != 0 {
			return unix.E2BIG
		}
	}
	known := [...]uint64{k.fs, k.net, k.scoped}
	for i := 0; i < len(known) && 8*i+8 <= len(attr); i++ {
		if binary.NativeEndian.Uint64(attr[8*i:])&^known[i] != 0 {
			return unix.EINVAL
		}
	}
	return 0
}
