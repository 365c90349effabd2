// Package landlock confines workers with Landlock and a seccomp filter, with
// no privilege, no helper process and no daemon: a thread of this process is
// confined and forks the worker.
//
// What it does NOT do by itself: it cannot deny inside an allowed tree, hide
// that a path exists, keep chmod, chown, utime and xattr from files that it
// does not grant, hide other processes from /proc, or give a loopback network.
// The enforcement report names each of these per launch; docs/enforcement.md
// says which test pins it.
package landlock

import (
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// abiLevel is what one Landlock ABI version adds
// (https://docs.kernel.org/userspace-api/landlock.html, "Previous limitations").
type abiLevel struct {
	abi    int
	kernel string
	fs     uint64
	net    uint64
	scope  uint64
	// flags are those of landlock_restrict_self(2).
	flags uint32
	adds  string
}

// abiLevels lists every ABI up to the newest that this program knows. A newer
// kernel is used as the newest known: unknown rights are never guessed.
var abiLevels = []abiLevel{
	{1, "5.13", 1<<13 - 1, 0, 0, 0, "files: execute, read, write, make, remove"},
	{2, "5.19", ll.AccessFSRefer, 0, 0, 0, "link and rename across directories (before: always refused)"},
	{3, "6.2", ll.AccessFSTruncate, 0, 0, 0, "truncate"},
	{4, "6.7", 0, ll.AccessNetBindTCP | ll.AccessNetConnectTCP, 0, 0, "TCP bind and connect"},
	{5, "6.10", ll.AccessFSIoctlDev, 0, 0, 0, "ioctl on devices"},
	{6, "6.12", 0, 0, ll.ScopeAbstractUnixSocket | ll.ScopeSignal, 0, "abstract unix sockets and signals"},
	{7, "6.15", 0, 0, 0, ll.FlagRestrictSelfLogSameExecOff | ll.FlagRestrictSelfLogNewExecOn | ll.FlagRestrictSelfLogSubdomainsOff, "audit records"},
	{8, "7.0", 0, 0, 0, ll.FlagRestrictSelfTSync, "restrict all threads at once"},
	{9, "7.1", ll.AccessFSResolveUnix, 0, 0, 0, "unix sockets by path"},
	{10, "7.2", 0, ll.AccessNetBindUDP | ll.AccessNetConnectSendUDP, 0, 0, "UDP; quiet rules"},
	{11, "7.3", 0, 0, 0, ll.FlagRestrictSelfNoNewPrivs, "no_new_privs set with the restriction"},
}

// MaxABI is the newest Landlock ABI that this program knows.
const MaxABI = 11

// handled is everything that the kernels up to one ABI can govern.
type handled struct {
	FS, Net, Scope uint64
	Flags          uint32
}

func handledAt(abi int) handled {
	var h handled
	for _, l := range abiLevels {
		if l.abi <= abi {
			h.FS |= l.fs
			h.Net |= l.net
			h.Scope |= l.scope
			h.Flags |= l.flags
		}
	}
	return h
}

// attrSize is the size of struct landlock_ruleset_attr that a kernel of the
// ABI knows. A larger one is accepted only if the rest is zero
// (copy_struct_from_user), so the plan checks that it is.
func attrSize(abi int) int {
	switch {
	case abi >= 10:
		return 48 // + quiet_access_fs, quiet_access_net, quiet_scoped
	case abi >= 6:
		return 24 // + scoped
	case abi >= 4:
		return 16 // + handled_access_net
	}
	return 8
}

// erratumDisconnected is bit 3 of the errata mask (ABI 1): where it is not
// fixed, a directory that is moved out of its bind mount can gain rights by a
// rename. Errata 1 (TCP rules match TCP only) and 2 (threads of one process may
// signal each other) change nothing here: the filter refuses the sockets, and a
// worker's threads share one domain.
const erratumDisconnected = 1 << 2
