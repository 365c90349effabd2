package seccomp

import (
	"strings"
	"testing"
)

// This file is the verdict table of workers' filters (the front's is in
// front_test.go), written by hand from the requirements and not
// from table.go. A call of testdata/syscalls.tsv that none of these lists names
// must be allowed whatever its arguments.

const deniedEPERM = `
	mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
	setns bpf perf_event_open kexec_load kexec_file_load init_module finit_module delete_module
	open_by_handle_at keyctl add_key request_key reboot swapon swapoff acct quotactl quotactl_fd syslog
	settimeofday clock_settime adjtimex clock_adjtime iopl ioperm userfaultfd fanotify_init fanotify_mark
	vhangup sethostname setdomainname open_tree_attr lsm_set_self_attr`

const deniedENOSYS = `
	clone3 io_uring_setup io_uring_enter io_uring_register
	shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
	mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
	modify_ldt uselib ustat sysfs _sysctl create_module get_kernel_syms query_module getpmsg putpmsg
	afs_syscall tuxcall security set_thread_area get_thread_area epoll_ctl_old epoll_wait_old vserver
	nfsservctl lookup_dcookie statmount listmount listns file_setattr`

// notOnARM64 is ENOSYS there because libseccomp cannot compile it.
const notOnARM64 = `
	mseal setxattrat getxattrat listxattrat removexattrat file_getattr lsm_get_self_attr lsm_set_self_attr
	lsm_list_modules open_tree_attr rseq_slice_yield`

// judged calls have their own rows below.
const judged = `
	clone unshare ioctl prlimit64 personality socket socketpair connect bind sendto sendmsg sendmmsg
	open openat openat2 truncate link unlink linkat unlinkat
	prctl chmod fchmod fchmodat fchmodat2
	sched_setaffinity sched_setattr sched_setparam sched_setscheduler setpriority ioprio_set`

const (
	errPERM                  = retErrno | 1
	errACCES                 = retErrno | 13
	errNOSYS                 = retErrno | 38
	errPROTONOSUPPORT        = retErrno | 93
	errAFNOSUPPORT           = retErrno | 97
	high                     = 1 << 32
	highAll                  = 0xffffffff << 32
	anything          uint64 = 0xdeadbeef_cafef00d
)

// fixed gives each call without judged arguments its one verdict.
func fixed(t *testing.T, goarch string) map[string]uint32 {
	want := map[string]uint32{}
	for name := range numbers(t, goarch) {
		want[name] = retAllow
	}
	set := func(list string, v uint32) {
		for name := range strings.FieldsSeq(list) {
			if _, ok := want[name]; ok {
				want[name] = v
			}
		}
	}
	set(deniedEPERM, errPERM)
	set(deniedENOSYS, errNOSYS)
	if goarch == "arm64" {
		set(notOnARM64, errNOSYS)
	}
	for name := range strings.FieldsSeq(judged) {
		delete(want, name)
	}
	return want
}

func TestListsName(t *testing.T) {
	known := numbers(t, "amd64")
	for name := range strings.FieldsSeq(deniedEPERM + deniedENOSYS + notOnARM64 + judged) {
		if _, ok := known[name]; !ok {
			t.Errorf("no call is named %q", name)
		}
	}
}

func TestFixedVerdicts(t *testing.T) {
	eachWorker(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		nrs := numbers(t, goarch)
		for name, want := range fixed(t, goarch) {
			for _, a := range []uint64{0, 1, 0xffffffff, high, highAll, anything, 1<<64 - 1} {
				d := data{nr: nrs[name], arch: auditArch(goarch), args: [6]uint64{a, a, a, a, a, a}}
				if got := mustRun(t, p, d); got != want {
					t.Errorf("%s(%#x...) = %#x, want %#x", name, a, got, want)
				}
			}
		}
	})
}

// unknown is the answer to a number that has no name.
func unknown(v Variant) uint32 {
	if v.Front != 0 {
		return errPERM
	}
	return errNOSYS
}

// TestUnknownNumbers: what has no name is ENOSYS, to the front EPERM, so calls of
// future kernels are closed.
func TestUnknownNumbers(t *testing.T) {
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		known := map[uint32]bool{}
		for _, nr := range numbers(t, goarch) {
			known[nr] = true
		}
		check := func(nr uint32) {
			if got := mustRun(t, p, data{nr: nr, arch: auditArch(goarch)}); got != unknown(v) {
				t.Errorf("number %d = %#x, want %#x", nr, got, unknown(v))
			}
		}
		for nr := range uint32(2048) {
			if !known[nr] {
				check(nr)
			}
		}
		for _, nr := range []uint32{1 << 16, x32Bit - 1, 1<<32 - 1} {
			check(nr)
		}
	})
}

// TestForeignABIs: i386, x32, arm and all else die, whatever they call.
func TestForeignABIs(t *testing.T) {
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		for _, arch := range []uint32{0, auditI386, auditARM, auditRISCV, auditAMD64, auditARM64, auditAMD64 ^ 1, 1<<32 - 1} {
			if arch == auditArch(goarch) {
				continue
			}
			for nr := range uint32(600) {
				if got := mustRun(t, p, data{nr: nr, arch: arch}); got != retKill {
					t.Fatalf("arch %#x, number %d = %#x", arch, nr, got)
				}
			}
		}
		want := uint32(retKill)
		if goarch == "arm64" { // bit 30 means nothing there
			want = unknown(v)
		}
		for nr := range uint32(1024) {
			if got := mustRun(t, p, data{nr: x32Bit | nr, arch: auditArch(goarch)}); got != want {
				t.Fatalf("number %#x = %#x, want %#x", x32Bit|nr, got, want)
			}
		}
	})
}

// try is one call with its arguments and the verdict it must get.
type try struct {
	call string
	args [6]uint64
	want uint32
}

func call(want uint32, name string, args ...uint64) try {
	c := try{call: name, want: want}
	copy(c.args[:], args)
	return c
}

func TestJudgedVerdicts(t *testing.T) {
	eachWorker(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		nrs := numbers(t, goarch)
		seen := map[string]bool{}
		for _, c := range judgedCalls(goarch, v) {
			nr, ok := nrs[c.call]
			if !ok {
				continue
			}
			seen[c.call] = true
			if got := mustRun(t, p, data{nr: nr, arch: auditArch(goarch), ip: anything, args: c.args}); got != c.want {
				t.Errorf("%s(%#x) = %#x, want %#x", c.call, c.args, got, c.want)
			}
		}
		for name := range strings.FieldsSeq(judged) {
			if _, ok := nrs[name]; ok && !seen[name] {
				t.Errorf("%s is never tried", name)
			}
		}
	})
}

func judgedCalls(goarch string, v Variant) []try {
	var all []try
	for _, part := range [][]try{
		processCalls(), ioctlCalls(), socketCalls(v), inetCalls(v), messageCalls(v), linkCalls(goarch, v), pathCalls(v),
		openCalls(goarch, v), prctlCalls(v), modeCalls(), scheduleCalls(v),
	} {
		all = append(all, part...)
	}
	return all
}

func processCalls() []try {
	all := []try{
		call(retAllow, "clone", 17),       // fork
		call(retAllow, "clone", 0x3d0f00), // pthread_create
		call(retAllow, "clone", 0x4111),   // vfork
		call(retAllow, "clone", 0x50f00),  // Go's threads
		call(retAllow, "clone", 0x80),     // part of the signal number
		call(retAllow, "clone", high|17),
		call(retAllow, "clone", 0),
		call(retAllow, "unshare", 0),
		call(retAllow, "unshare", 0x200),
		call(retAllow, "unshare", 0x400),
		call(retAllow, "unshare", 0x40000),
		call(errNOSYS, "unshare", high),
		call(errNOSYS, "unshare", high|0x10000000),
		call(errPERM, "unshare", 0x80),
		call(errPERM, "unshare", 0x100000),
		call(errPERM, "unshare", 0x7e020080),
		call(errPERM, "unshare", 0xffffffff),
		call(retAllow, "prlimit64", 0, 7),
		call(retAllow, "prlimit64", high, 7),
		call(retAllow, "prlimit64", highAll, 7),
		call(errPERM, "prlimit64", 1, 7),
		call(errPERM, "prlimit64", 2, 7),
		call(errPERM, "prlimit64", high|1, 7),
		call(errPERM, "prlimit64", 0x80000000, 7),
		call(errPERM, "prlimit64", 0xffffffff, 7),
	}
	for _, ns := range []uint64{0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000} {
		all = append(all,
			call(errPERM, "clone", ns), call(errPERM, "clone", ns|17), call(errPERM, "clone", highAll|ns),
			call(errPERM, "unshare", ns), call(errPERM, "unshare", ns|0x400))
	}
	for _, ok := range []uint64{0, 8, 0x20000, 0x20008, 0x40000, 0xffffffff} {
		all = append(all, call(retAllow, "personality", ok), call(retAllow, "personality", high|ok),
			call(retAllow, "personality", highAll|ok))
	}
	for _, bad := range []uint64{1, 7, 9, 0x1fff8, 0x20001, 0x20009, 0x40008, 0x60000, 0x60008, 0x100000, 0x400000,
		0x8000000, 0xfffffffe, 0x7fffffff, 0x80000000, high | 1} {
		all = append(all, call(errPERM, "personality", bad))
	}
	return all
}

func ioctlCalls() []try {
	var all []try
	for _, bad := range []uint64{0x5412, 0x541c} {
		for _, over := range []uint64{0, high, 1 << 63, highAll} {
			all = append(all, call(errPERM, "ioctl", 0, over|bad), call(errPERM, "ioctl", anything, over|bad, anything))
		}
	}
	for _, ok := range []uint64{0, 0x5401, 0x5402, 0x540e, 0x5411, 0x5413, 0x541b, 0x541d, 0x15412, 0x80005412, 0x54125412,
		0x40086602, 0x5450, 0x5421, high, highAll | 0x5413, 0xffffffff} {
		all = append(all, call(retAllow, "ioctl", 0, ok), call(retAllow, "ioctl", 0x5412, ok, 0x5412))
	}
	return all
}

// unixType is the verdict of AF_UNIX sockets by type.
func unixType(v Variant, typ uint64) uint32 {
	if v.Unix == UnixClosed && (typ&0xf == 2 || typ&0xf == 3) {
		return errACCES
	}
	return retAllow
}

func socketCalls(v Variant) []try {
	var all []try
	for typ := range uint64(16) {
		for _, flags := range []uint64{0, 0x800, 0x80000, 0x80800, high, highAll} {
			for _, over := range []uint64{0, high, highAll} {
				want := unixType(v, typ)
				all = append(all,
					call(want, "socket", over|1, flags|typ), call(want, "socketpair", over|1, flags|typ),
					call(want, "socket", over|1, flags|typ, 77), call(want, "socketpair", over|1, flags|typ, 77))
			}
		}
	}
	for family := range uint64(64) {
		if family != 1 {
			all = append(all, call(errAFNOSUPPORT, "socketpair", family, 1), call(errAFNOSUPPORT, "socketpair", high|family, 2))
		}
		switch family {
		case 1, 2, 10, 16:
		default:
			all = append(all, call(errAFNOSUPPORT, "socket", family, 1), call(errAFNOSUPPORT, "socket", highAll|family, 3, anything))
		}
	}
	for _, typ := range []uint64{2, 3, 0x80003} {
		all = append(all,
			call(retAllow, "socket", 16, typ, 0), call(retAllow, "socket", high|16, typ, high), call(retAllow, "socket", 16, typ, highAll))
		for _, proto := range []uint64{1, 2, 4, 6, 9, 12, 15, 16, 21, 0x100, 0x80000000, high | 9, 0xffffffff} {
			all = append(all, call(errPROTONOSUPPORT, "socket", 16, typ, proto), call(errPROTONOSUPPORT, "socket", high|16, typ, proto))
		}
	}
	return append(all,
		call(errAFNOSUPPORT, "socket", 0x80000001, 1), call(errAFNOSUPPORT, "socket", 0x101, 1),
		call(errAFNOSUPPORT, "socket", 0x102, 1), call(errAFNOSUPPORT, "socket", 0xffffffff, 1),
		call(errAFNOSUPPORT, "socketpair", 0x80000001, 1), call(errAFNOSUPPORT, "socketpair", 0x101, 1))
}

// inetCalls goes through types and protocols: TCP, UDP, UDP-Lite (136), ICMP,
// raw, SCTP (132), MPTCP (262), DCCP.
func inetCalls(v Variant) []try {
	want := uint32(retAllow)
	if v.Net == NetNone {
		want = errACCES
	}
	var all []try
	for _, family := range []uint64{2, 10, high | 2, highAll | 10} {
		for _, typ := range []uint64{0, 1, 2, 3, 5, 6, 9, 11, 0x801, 0x80002, high | 1, highAll | 2} {
			for _, proto := range []uint64{0, 1, 6, 17, 58, 132, 136, 255, 262, anything} {
				all = append(all, call(want, "socket", family, typ, proto))
			}
		}
	}
	packet := uint32(errAFNOSUPPORT)
	if v.Net == NetNone {
		packet = errACCES
	}
	return append(all,
		call(packet, "socket", 2, 10, 0x300), call(packet, "socket", high|2, highAll|0x8000a),
		call(want, "socket", 10, 10))
}

func messageCalls(v Variant) []try {
	addressed, connect := uint32(retAllow), uint32(retAllow)
	switch v.Unix {
	case UnixSupervised:
		addressed, connect = retNotify, retNotify
	case UnixClosed:
		connect = errACCES
	}
	all := []try{
		call(retAllow, "sendto", 3, anything, 10, 0, 0, 0),
		call(retAllow, "sendto", 3, anything, 10, 0, 0, 110),
		call(retAllow, "sendto", anything, anything, anything, anything, 0, anything),
	}
	for _, addr := range []uint64{1, 0x7ffd_1234_5678, high, highAll, 1 << 63, 0xffffffff, 0x80000000, anything} {
		all = append(all, call(addressed, "sendto", 3, anything, 10, 0, addr, 110), call(addressed, "sendto", 0, 0, 0, 0, addr, 0))
	}
	for _, a := range []uint64{0, 3, high, anything} {
		all = append(all,
			call(connect, "connect", a, a, a),
			call(addressed, "bind", a, a, a),
			call(addressed, "sendmsg", a, a, a),
			call(addressed, "sendmmsg", a, a, a, a))
	}
	return all
}

func pathCalls(v Variant) []try {
	truncate, openat2 := uint32(retAllow), uint32(retAllow)
	if v.Truncate {
		truncate, openat2 = retNotify, errNOSYS
		if v.Unix == UnixClosed {
			truncate = errACCES
		}
	}
	return []try{
		call(truncate, "truncate"), call(truncate, "truncate", anything, anything),
		call(openat2, "openat2"), call(openat2, "openat2", anything, anything, anything, 24),
	}
}

func linkCalls(goarch string, v Variant) []try {
	named := uint32(retAllow)
	if v.Shm {
		named = retNotify
	}
	const cwd = 0xffffff9c
	if goarch == "amd64" {
		return []try{
			call(named, "link"), call(named, "link", anything, anything),
			call(named, "unlink"), call(named, "unlink", anything),
			call(retAllow, "linkat", cwd, 1, cwd, 1), call(retAllow, "linkat", highAll|cwd, anything, 5),
			call(retAllow, "unlinkat", cwd, 1, 0), call(retAllow, "unlinkat", highAll|cwd, anything, 0x200),
		}
	}
	return []try{
		call(named, "linkat", cwd, 1, cwd, 1), call(named, "linkat", 7, 1, 8, 1, 0x1000),
		call(named, "unlinkat", cwd, 1, 0), call(named, "unlinkat", highAll|cwd, 1, 0), call(named, "unlinkat", cwd, 1, high),
		call(retAllow, "unlinkat", cwd, 1, 0x200), call(retAllow, "unlinkat", cwd, 1, 1), call(retAllow, "unlinkat", cwd, 1, 0x80000000),
		call(retAllow, "unlinkat", cwd-1, 1, 0), call(retAllow, "unlinkat", cwd+1, 1, 0), call(retAllow, "unlinkat", 0x7fffff9c, 1, 0),
		call(retAllow, "unlinkat", 5, 1, 0), call(retAllow, "unlinkat", 5, 1, 0x200), call(retAllow, "unlinkat", 0, 0, 0),
	}
}

// prctlCalls: no parent death signal but SIGKILL. Making oneself non-dumpable
// is refused only where the supervisor must read memory.
func prctlCalls(v Variant) []try {
	want := uint32(retAllow)
	if v.Unix == UnixSupervised {
		want = errPERM
	}
	all := []try{
		call(retAllow, "prctl", 1, 9), call(retAllow, "prctl", high|1, 9, anything), call(retAllow, "prctl", highAll|1, high|9),
		call(want, "prctl", 4, 0), call(want, "prctl", high|4, 0, 5), call(want, "prctl", 4, 2),
		call(retAllow, "prctl", 4, 1), call(want, "prctl", 4, high), call(retAllow, "prctl", 3, 0), call(retAllow, "prctl", 5, 0),
		call(retAllow, "prctl", 38, 1), call(retAllow, "prctl", 0, 0), call(retAllow, "prctl", 15, anything),
		call(retAllow, "prctl", 2, anything), call(retAllow, "prctl", 22, 2), call(retAllow, "prctl", 0x101, 15),
	}
	for _, sig := range []uint64{0, 1, 8, 10, 11, 13, 15, 64, 0x109, high, high | 15, 0xffffffff, anything} {
		all = append(all, call(errPERM, "prctl", 1, sig), call(errPERM, "prctl", high|1, sig, 9))
	}
	return all
}

// scheduleCalls: for oneself always; for a thread by its number where somebody can
// tell whose it is; for a group or a user never.
func scheduleCalls(v Variant) []try {
	others := uint32(retAllow)
	if v.Shm || v.Unix == UnixSupervised {
		others = retNotify
	}
	var all []try
	add := func(want uint32, id uint64) {
		for _, name := range []string{"sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"} {
			all = append(all, call(want, name, id, anything, anything), call(want, name, id, 0))
		}
		all = append(all,
			call(want, "setpriority", 0, id, 19), call(want, "setpriority", high, id, anything),
			call(want, "ioprio_set", 1, id, anything), call(want, "ioprio_set", highAll|1, id, 0))
	}
	for _, self := range []uint64{0, high, highAll} {
		add(retAllow, self)
	}
	for _, id := range []uint64{1, 2, 0x80000000, 0xffffffff, high | 1, highAll | 7, anything} {
		add(others, id)
	}
	for _, id := range []uint64{0, 1, high, anything} {
		for _, which := range []uint64{1, 2, 3, 0xffffffff, high | 1, highAll | 2} {
			all = append(all, call(errPERM, "setpriority", which, id, 19))
		}
		for _, which := range []uint64{0, 2, 3, 0xffffffff, high, highAll | 2} {
			all = append(all, call(errPERM, "ioprio_set", which, id, 0))
		}
	}
	return all
}

// modeCalls: the set-user-ID bit (04000) is refused, set-group-ID (02000) and
// sticky (01000) are not. The mode is read as 16 bits.
func modeCalls() []try {
	var all []try
	add := func(want uint32, mode uint64) {
		all = append(all,
			call(want, "chmod", anything, mode, anything), call(want, "fchmod", 3, mode, anything),
			call(want, "fchmodat", 0xffffff9c, 0, mode), call(want, "fchmodat2", 0xffffff9c, 0, mode, 0x100))
	}
	for _, m := range []uint64{0, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o3777, 0o100644, 0o10000, high, highAll | 0o2755} {
		add(retAllow, m)
		add(errPERM, m|0o4000)
	}
	add(errPERM, 0o6755)
	add(errPERM, 0o7777)
	add(errPERM, 1<<64-1)
	return all
}

// openCalls tries all combinations of the bits that decide, with every other
// bit clear and set. O_CREAT and O_TRUNC are the same on both architectures.
func openCalls(goarch string, v Variant) []try {
	nofollow, directory := uint64(0x20000), uint64(0x10000)
	if goarch == "arm64" {
		nofollow, directory = 0x8000, 0x4000
	}
	const creat, excl, trunc, cloexec, nonblock, path = 0x40, 0x80, 0x200, 0x80000, 0x800, 0x200000
	decide := nofollow | directory | creat | excl | trunc | cloexec | nonblock | path | 3
	noise := []uint64{0, high, highAll, 0xffffffff &^ decide, ^decide}
	var all []try
	for bits := range uint64(1024) {
		acc := bits & 3
		var f uint64
		for i, b := range []uint64{nofollow, creat, trunc, excl, cloexec, directory, nonblock, path} {
			if bits>>(2+i)&1 != 0 {
				f |= b
			}
		}
		// As glibc before 2.38 makes the file of a semaphore.
		sem := f&(nofollow|creat|excl|cloexec) == creat|excl && acc == 2
		if v.Truncate && f&trunc != 0 {
			sem = false // sem_open does not truncate
		}
		// As libc opens shared memory for reading.
		sem = sem || f&(nofollow|creat|cloexec|directory|nonblock|path) == nofollow|cloexec && acc == 0
		want := openVerdict(v, acc, f&nofollow != 0, f&creat != 0, f&trunc != 0, sem)
		for _, n := range noise {
			all = append(all,
				call(want, "open", anything, n|f|acc, 0o600),
				call(want, "openat", 0xffffff9c, anything, n|f|acc, 0o600),
				call(want, "openat", anything, 0, n|f|acc))
		}
	}
	return all
}

// openVerdict: 0 is O_RDONLY, 1 and 2 can write, 3 is for ioctl only and can
// not, though the kernel truncates.
func openVerdict(v Variant, acc uint64, nofollow, creat, trunc, sem bool) uint32 {
	if v.Truncate && trunc && (acc == 0 || acc == 3) {
		return errACCES
	}
	if v.Shm && (sem || nofollow && (creat || acc != 0)) {
		return retNotify
	}
	return retAllow
}
