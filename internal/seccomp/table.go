package seccomp

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// This file is the policy: data, to be reviewed line by line. The rows of one
// call are read from the top and the first that matches answers. A call without
// a row, or with rows none of which match, gets the variant's fallback. The front's
// table is in front.go.
//
// The numbers here are Linux's on every architecture that has a filter. They
// are written out because the table compiles on every operating system.

// Errno values of Linux.
const (
	ePERM            = 1
	eACCES           = 13
	eNOSYS           = 38
	ePROTONOSUPPORT  = 93
	eAFNOSUPPORT     = 97
	lowWord          = 0xffff_ffff // an int argument: the kernel ignores the upper half
	wholeArg         = 0xffff_ffff_ffff_ffff
	highWord         = wholeArg &^ lowWord
	afUnix           = 1
	afInet           = 2
	afInet6          = 10
	afNetlink        = 16
	sockTypeMask     = 0xf // the rest of a type argument is SOCK_NONBLOCK and SOCK_CLOEXEC
	sockPacket       = 10
	netlinkRoute     = 0
	sIsuid           = 0o4000
	prSetPdeathsig   = 1
	prioProcess      = 0 // of setpriority: the number is a thread's
	ioprioProcess    = 1 // of ioprio_set
	sigKill          = 9
	tiocSTI          = 0x5412
	tiocLINUX        = 0x541c
	oAccMode         = 0o3
	oCreat           = 0o100
	oExcl            = 0o200
	oCloexec         = 0o2000000
	oNonblock        = 0o4000
	oPath            = 0o10000000
	oTrunc           = 0o1000
	atFDCWD          = 0xffff_ff9c // -100 as a 32-bit word
	cloneNamespaces  = 0x7e02_0000 // NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
	cloneNewTime     = 0x80        // in clone(2) this bit belongs to the exit signal
	unshareEmptyMnt  = 0x0010_0000 // UNSHARE_EMPTY_MNTNS of newer kernels, which implies NEWNS
	unshareForbidden = cloneNamespaces | cloneNewTime | unshareEmptyMnt
)

// oNofollow is O_NOFOLLOW, whose bit differs between the architectures.
func oNofollow(goarch string) uint64 {
	if goarch == "arm64" {
		return 0o100000
	}
	return 0o400000
}

// oDirectory is O_DIRECTORY, whose bit differs too.
func oDirectory(goarch string) uint64 {
	if goarch == "arm64" {
		return 0o40000
	}
	return 0o200000
}

// action is what the filter does with a call.
type action uint8

const (
	actAllow action = iota + 1
	actErrno
	actNotify
)

// verdict is an action, with the errno that actErrno gives the caller.
type verdict struct {
	act   action
	errno uint16
}

func allow() verdict          { return verdict{act: actAllow} }
func notify() verdict         { return verdict{act: actNotify} }
func fail(e uint16) verdict   { return verdict{act: actErrno, errno: e} }
func defaultVerdict() verdict { return fail(eNOSYS) }

// fallback is the answer to a call that no row answers.
func (v Variant) fallback() verdict {
	if v.Front != 0 {
		return fail(ePERM)
	}
	return defaultVerdict()
}

// op is how a condition compares.
type op uint8

const (
	// opMasked holds when argument&mask equals value.
	opMasked op = iota + 1
	// opNonZero holds when any of the argument's 64 bits is set.
	opNonZero
	// opElse holds always. It is for the row that takes what the rows above it
	// left over in that argument.
	opElse
)

// cond is a condition on one argument, counted from 0.
type cond struct {
	arg         uint8
	op          op
	mask, value uint64
}

func (c cond) holds(args [6]uint64) bool {
	switch c.op {
	case opMasked:
		return args[c.arg]&c.mask == c.value
	case opNonZero:
		return args[c.arg] != 0
	}
	return c.op == opElse
}

// is holds when the low 32 bits of the argument equal v.
func is(arg uint8, v uint64) cond { return masked(arg, lowWord, v) }

func masked(arg uint8, mask, v uint64) cond {
	return cond{arg: arg, op: opMasked, mask: mask, value: v}
}

func nonZero(arg uint8) cond { return cond{arg: arg, op: opNonZero} }
func zero(arg uint8) cond    { return masked(arg, wholeArg, 0) }
func other(arg uint8) cond   { return cond{arg: arg, op: opElse} }

// row answers one call, if all its conditions hold.
type row struct {
	call string
	do   verdict
	when []cond
	why  string
}

func (r row) matches(args [6]uint64) bool {
	return !slices.ContainsFunc(r.when, func(c cond) bool { return !c.holds(args) })
}

// group is calls that get the same answer for the same reason, whatever their
// arguments.
type group struct {
	why   string
	calls string
}

// harmless is what both architectures have and ordinary programs need.
var harmless = []group{
	{"every program: start, end, and waiting for children; what a child may do is inherited",
		"execve execveat exit exit_group wait4 waitid restart_syscall set_tid_address set_robust_list get_robust_list rseq"},
	{"every allocator and loader; memory of the caller alone",
		"brk mmap munmap mremap mprotect madvise mincore msync mlock mlock2 mlockall munlock munlockall remap_file_pages membarrier memfd_create memfd_secret pkey_alloc pkey_free pkey_mprotect map_shadow_stack"},
	{"databases and the JVM place memory on nodes; of other processes only where the ptrace rules allow it",
		"mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages process_madvise process_mrelease"},
	{"opened files and pipes: the right was checked when the descriptor was made",
		"read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup3 fcntl flock fsync fdatasync sync_file_range fallocate ftruncate fadvise64 readahead copy_file_range sendfile splice tee vmsplice cachestat pipe2 io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents"},
	{"files by path: Landlock decides, see the gaps it has in README.md",
		"chdir fchdir getcwd mkdirat mknodat symlinkat readlinkat renameat renameat2 newfstatat fstat statx statfs fstatfs faccessat faccessat2 fchown fchownat utimensat umask getdents64 sync syncfs name_to_handle_at"},
	{"extended attributes: tar, cp -a, git, rsync",
		"setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr"},
	{"event loops: libuv, Go's netpoller, asyncio, tmux",
		"epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 ppoll pselect6 eventfd2 signalfd4 timerfd_create timerfd_settime timerfd_gettime inotify_init1 inotify_add_watch inotify_rm_watch"},
	{"sockets that socket(2) or socketpair(2) let through, and inherited ones",
		"accept accept4 listen shutdown getsockname getpeername getsockopt setsockopt recvfrom recvmsg recvmmsg"},
	{"locks, and asking how threads are scheduled",
		"futex futex_waitv futex_wake futex_wait futex_requeue sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_getattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval getpriority ioprio_get getcpu"},
	{"reading clocks, sleeping, own timers",
		"clock_gettime clock_getres clock_nanosleep gettimeofday nanosleep getitimer setitimer timer_create timer_delete timer_settime timer_gettime timer_getoverrun times"},
	{"handling signals",
		"rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack"},
	{"sending signals: Landlock's signal scope confines them to the domain (ABI 6)",
		"kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"},
	{"debuggers, and a process reading its children: Landlock's ptrace rule confines them to the domain (every ABI)",
		"ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd"},
	{"who the process is; no_new_privs keeps it from gaining anything by exec",
		"getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgid setpgid getsid setsid setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset"},
	{"asking about the system and the own limits",
		"uname sysinfo getrusage getrlimit setrlimit getrandom"},
	{"sandboxes inside the sandbox: each can only take away",
		"seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"},
}

// harmlessAMD64 is the same for the older calls that only amd64 has.
var harmlessAMD64 = []group{
	{"older forms of calls allowed above",
		"fork vfork stat lstat access mkdir rmdir rename creat symlink readlink chown lchown mknod utime utimes futimesat getdents pipe dup2 poll select epoll_create epoll_wait eventfd signalfd inotify_init alarm pause time getpgrp"},
	{"thread-local storage: set by every libc at start", "arch_prctl"},
	{"the kernel's own trampolines in processes that someone traces with uprobes; from anywhere else they end in a signal", "uretprobe uprobe"},
	{"newer forms of calls allowed above, see newNumbers",
		"mseal setxattrat getxattrat listxattrat removexattrat file_getattr lsm_get_self_attr lsm_list_modules rseq_slice_yield"},
}

// forbidden is closed with EPERM, the kernel's own answer to a caller without
// the privilege, so that the denial holds for a root caller too.
var forbidden = []group{
	{"changes the mount tree, around which every path rule is built",
		"mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr"},
	{"enters namespaces of others", "setns"},
	{"programs in the kernel, and its most exploited interfaces", "bpf perf_event_open userfaultfd"},
	{"replaces or extends the kernel", "kexec_load kexec_file_load init_module finit_module delete_module"},
	{"opens files without a path, so past every path rule", "open_by_handle_at"},
	{"keyrings hold the caller's secrets outside the file system", "keyctl add_key request_key"},
	{"watches file events of the whole mount", "fanotify_init fanotify_mark"},
	{"the machine as a whole: power, swap, accounting, quota, log, names, terminal",
		"reboot swapon swapoff acct quotactl quotactl_fd syslog sethostname setdomainname vhangup"},
	{"sets the machine's clock", "settimeofday clock_settime adjtimex clock_adjtime"},
}

// forbiddenAMD64 is the same for calls that only amd64 has.
var forbiddenAMD64 = []group{
	{"raw access to I/O ports", "iopl ioperm"},
	{"changes how security modules treat the process", "lsm_set_self_attr"},
	{"changes the mount tree (open_tree with attributes)", "open_tree_attr"},
}

// absent answers ENOSYS like any unknown call; it is written out to say that
// this is on purpose, and why.
var absent = []group{
	{"its flags are in memory, where a filter cannot see them; libc and Go fall back to clone", "clone3"},
	{"performs other calls past the filter; libuv, Go and Rust fall back to epoll", "io_uring_setup io_uring_enter io_uring_register"},
	{"System V IPC reaches objects of the host, as no IPC namespace is made",
		"shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl"},
	{"POSIX message queues reach objects of the host",
		"mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"},
	{"tell about mounts and namespaces; libmount falls back to /proc/self/mountinfo", "statmount listmount listns"},
	{"changes inode flags by path, which Landlock does not govern; tools fall back to ioctl on an open file", "file_setattr"},
	{"obsolete, or removed from the kernel", "nfsservctl lookup_dcookie"},
}

// absentAMD64 is the same for calls that only amd64 has.
var absentAMD64 = []group{
	{"16-bit code segments: a history of kernel holes, needed by wine and dosemu only", "modify_ldt"},
	{"obsolete, removed from the kernel or never in it",
		"uselib ustat sysfs _sysctl create_module get_kernel_syms query_module getpmsg putpmsg afs_syscall tuxcall security set_thread_area get_thread_area epoll_ctl_old epoll_wait_old vserver"},
}

// absentARM64 is what amd64 answers by newNumbers and arm64 cannot: closed
// there, in some cases only because of the tool. Every caller of these falls
// back, as all but the newest kernels lack them.
var absentARM64 = []group{
	{"libseccomp 2.5.4 cannot compile a number without a name for an architecture other than the generating machine's",
		"mseal setxattrat getxattrat listxattrat removexattrat file_getattr lsm_get_self_attr lsm_set_self_attr lsm_list_modules open_tree_attr rseq_slice_yield"},
}

// table returns all rows for one architecture and variant.
func table(goarch string, v Variant) ([]row, error) {
	if !slices.Contains(Arches(), goarch) {
		return nil, fmt.Errorf("seccomp: no filter for linux/%s", goarch)
	}
	if !v.Valid() {
		return nil, fmt.Errorf("seccomp: no filter variant %s", v)
	}
	if v.Front != 0 {
		return frontRows(goarch, v.Front), nil
	}
	rows := slices.Concat(
		expand(allow(), harmless), expand(fail(ePERM), forbidden), expand(defaultVerdict(), absent),
		generalRows(), scheduleRows(v), modeRows(goarch), prctlRows(v.Unix), socketRows(v), messageRows(v.Unix), fileRows(goarch, v),
	)
	if goarch == "arm64" {
		return append(rows, expand(defaultVerdict(), absentARM64)...), nil
	}
	return slices.Concat(rows, expand(allow(), harmlessAMD64),
		expand(fail(ePERM), forbiddenAMD64), expand(defaultVerdict(), absentAMD64)), nil
}

func expand(do verdict, groups []group) []row {
	var rows []row
	for _, g := range groups {
		for name := range strings.FieldsSeq(g.calls) {
			rows = append(rows, row{call: name, do: do, why: g.why})
		}
	}
	return rows
}

// on is a row; the conditions come last, as most rows have one or none.
func on(call string, do verdict, why string, when ...cond) row {
	return row{call: call, do: do, when: when, why: why}
}

// generalRows are the calls whose arguments decide, in every variant.
func generalRows() []row {
	const (
		ns      = "new namespaces give back the privileges that the sandbox took"
		tty     = "types into the terminal from which the sandbox was started; the kernel reads 32 bits only (CVE-2019-10063)"
		persona = "values that ordinary programs use: Linux, 32-bit reporting, no address randomization (debuggers), and asking"
		limits  = "the limits of other processes of the same user, also outside the sandbox"
	)
	rows := []row{
		on("clone", allow(), "fork and threads", masked(0, cloneNamespaces, 0)),
		on("clone", fail(ePERM), ns, other(0)),
		// A flag above bit 31 matches neither row and so is ENOSYS.
		on("unshare", allow(), "threads that want their own descriptors or cwd", masked(0, highWord|unshareForbidden, 0)),
		on("unshare", fail(ePERM), ns, masked(0, highWord, 0)),
		on("ioctl", fail(ePERM), tty, is(1, tiocSTI)),
		on("ioctl", fail(ePERM), tty, is(1, tiocLINUX)),
		on("ioctl", allow(), "terminals, file flags, sockets; devices are Landlock's from ABI 5", other(1)),
		on("prlimit64", allow(), "the process's own limits (libc's getrlimit)", is(0, 0)),
		on("prlimit64", fail(ePERM), limits, other(0)),
	}
	for _, p := range []uint64{0, 0x8, 0x20000, 0x20008, 0x40000, 0xffffffff} {
		rows = append(rows, on("personality", allow(), persona, is(0, p)))
	}
	return append(rows, on("personality", fail(ePERM), "switches off protections such as the lowest mmap address", other(0)))
}

// scheduleRows: the kernel lets a process change how every other process of its
// user is scheduled, the launcher's threads included, and Landlock has no say. A
// worker that made them idle on a processor that it keeps busy would outlive its
// timeout. A number is as often the caller's own thread (pthread_setaffinity_np)
// as a stranger's, so whose it is must be asked; 0 is the caller.
func scheduleRows(v Variant) []row {
	const (
		own    = "the calling thread itself"
		judged = "the supervisor tells the worker's threads from others"
		open   = "nobody can tell the worker's threads from others; those of the launcher are refused by a prologue, see Spare"
		many   = "a process group or all of a user's processes: the launcher is among them"
	)
	// whose answers a call on one thread, if conditions say that it is one.
	whose := func(call string, id uint8, when ...cond) []row {
		if !v.Notifies() {
			return []row{on(call, allow(), open, when...)}
		}
		return []row{
			on(call, allow(), own, append(slices.Clone(when), is(id, 0))...),
			on(call, notify(), judged, append(slices.Clone(when), other(id))...),
		}
	}
	var rows []row
	for _, call := range []string{"sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"} {
		rows = append(rows, whose(call, 0)...)
	}
	rows = append(rows, whose("setpriority", 1, is(0, prioProcess))...)
	rows = append(rows, whose("ioprio_set", 1, is(0, ioprioProcess))...)
	rows = append(rows, on("setpriority", fail(ePERM), many, other(0)), on("ioprio_set", fail(ePERM), many, other(0)))
	return rows
}

// modeRows refuse the set-user-ID bit. Landlock does not govern chmod, so a
// worker that owns a file anywhere (root: all of root's) could make it run with
// its owner's rights for whoever starts it outside. The set-group-ID bit stays:
// on a directory it is inheritance of the group, which git (core.sharedRepository),
// tar and cp -a set, and the filter cannot tell directories.
func modeRows(goarch string) []row {
	const (
		setuid = "a set-user-ID file outlives the sandbox, and Landlock does not govern chmod"
		lands  = "files by path and open files: nobody decides but the owner"
	)
	modes := map[string]uint8{"fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
	if goarch == "amd64" {
		modes["chmod"] = 1
	}
	var rows []row
	for _, call := range slices.Sorted(maps.Keys(modes)) {
		rows = append(rows,
			on(call, fail(ePERM), setuid, masked(modes[call], sIsuid, sIsuid)),
			on(call, allow(), lands, masked(modes[call], sIsuid, 0)))
	}
	return rows
}

// prctlRows: the worker's first process dies with the launcher, by the signal
// that the launch sets, under this filter, before exec. The supervisor reads the
// addresses of a worker's calls from its memory, which a process that made itself
// non-dumpable closes to an ordinary user's launcher. ssh-agent does so and goes
// on where it may not.
func prctlRows(u Unix) []row {
	const (
		setDumpable = 4
		general     = "names, further sandboxing"
		death       = "SIGKILL is what the launch itself sets, and what keeps a process from outliving its parent"
		outlive     = "clears or weakens the signal by which the worker dies with the launcher"
		readable    = "a worker whose memory the supervisor cannot read would get no unix socket at all"
	)
	rows := []row{
		on("prctl", allow(), death, is(0, prSetPdeathsig), is(1, sigKill)),
		on("prctl", fail(ePERM), outlive, is(0, prSetPdeathsig), other(1)),
	}
	if u == UnixSupervised {
		rows = append(rows,
			on("prctl", fail(ePERM), readable, is(0, setDumpable), masked(1, 1, 0)),
			on("prctl", allow(), general, is(0, setDumpable), other(1)))
	}
	return append(rows, on("prctl", allow(), general, other(0)))
}

// socketRows decide which sockets exist at all.
func socketRows(v Variant) []row {
	const (
		own     = "own sockets: node IPC, asyncio, multiprocessing, ssh-agent inside"
		dgram   = "a datagram socket carries an address in each message, which nobody would judge"
		foreign = "packet, vsock, alg, bluetooth, xdp, can and the rest reach the host, its hardware or kernel code that nobody needs here"
		route   = "getifaddrs and getaddrinfo read the interfaces"
		netlink = "audit, uevent, netfilter and other talks with the kernel; libaudit reads this as a kernel without audit"
	)
	var rows []row
	if v.Unix == UnixClosed {
		for _, call := range []string{"socket", "socketpair"} {
			// Types 2 (DGRAM) and 3 (RAW, which AF_UNIX treats as DGRAM).
			rows = append(rows,
				on(call, fail(eACCES), dgram, is(0, afUnix), masked(1, sockTypeMask&^1, 2)),
				on(call, allow(), own, is(0, afUnix), other(1)))
		}
	} else {
		rows = append(rows, on("socket", allow(), own, is(0, afUnix)), on("socketpair", allow(), own, is(0, afUnix)))
	}
	rows = append(rows, inetRows(v.Net)...)
	return append(rows,
		on("socket", allow(), route, is(0, afNetlink), is(2, netlinkRoute)),
		on("socket", fail(ePROTONOSUPPORT), netlink, is(0, afNetlink), other(2)),
		on("socket", fail(eAFNOSUPPORT), foreign, other(0)),
		on("socketpair", fail(eAFNOSUPPORT), "only AF_UNIX has pairs that anyone uses", other(0)))
}

func inetRows(n Net) []row {
	if n == NetNone {
		const why = "no network: TCP, UDP, ICMP, raw, MPTCP and SCTP on every kernel, in one place"
		return []row{
			on("socket", fail(eACCES), why, is(0, afInet)),
			on("socket", fail(eACCES), why, is(0, afInet6)),
		}
	}
	const why = "the host's network was asked for"
	return []row{
		// The kernel makes an AF_PACKET socket of this one.
		on("socket", fail(eAFNOSUPPORT), "the old name of a packet socket", is(0, afInet), masked(1, sockTypeMask, sockPacket)),
		on("socket", allow(), why, is(0, afInet), other(1)),
		on("socket", allow(), why, is(0, afInet6)),
	}
}

// messageRows decide the calls that carry an address to another socket.
func messageRows(u Unix) []row {
	switch u {
	case UnixSupervised:
		const why = "the supervisor judges the address and performs the call (Landlock below ABI 9 does not)"
		return []row{
			on("connect", notify(), why),
			on("bind", notify(), why),
			on("sendmsg", notify(), why),
			on("sendmmsg", notify(), why),
			on("sendto", notify(), why, nonZero(4)),
			on("sendto", allow(), "send(2): no address, nothing to judge", zero(4)),
		}
	case UnixClosed:
		const why = "no socket that can carry an address in a message exists"
		return []row{
			on("connect", fail(eACCES), "nobody can judge the address, so none is reached"),
			on("bind", allow(), "own listeners; Landlock governs making the file"),
			on("sendmsg", allow(), why),
			on("sendmmsg", allow(), why),
			on("sendto", allow(), why),
		}
	}
	const why = "Landlock judges the address (ABI 9 for path sockets)"
	return []row{
		on("connect", allow(), why),
		on("bind", allow(), why),
		on("sendmsg", allow(), why),
		on("sendmmsg", allow(), why),
		on("sendto", allow(), why),
	}
}

// fileRows are the calls on paths that Shm and Truncate change.
func fileRows(goarch string, v Variant) []row {
	rows := slices.Concat(
		openRows("openat", 2, goarch, v), openat2Rows(v), truncateRows(v), linkRows(goarch, v.Shm))
	if goarch == "amd64" {
		rows = append(rows, openRows("open", 1, goarch, v)...)
	}
	return rows
}

// openRows answers an open whose flags are in argument arg. All rows with
// different answers are disjoint, but for the last, so their order does not
// matter to whoever compiles them.
//
// Access mode 3 is counted with O_RDONLY: such a descriptor is for ioctl only,
// so Landlock asks for no write right, yet the kernel truncates the file.
func openRows(call string, arg uint8, goarch string, v Variant) []row {
	const (
		lands = "Landlock decides"
		empty = "empties a file without needing the right to write it, which Landlock below ABI 3 does not see"
		shm   = "shm_open and sem_open make their files so; the supervisor puts them in the worker's own directory"
	)
	var rows []row
	trunc := uint64(0)
	if v.Truncate {
		trunc = oTrunc
		rows = append(rows,
			on(call, fail(eACCES), empty, masked(arg, oTrunc|oAccMode, oTrunc)),
			on(call, fail(eACCES), empty, masked(arg, oTrunc|oAccMode, oTrunc|oAccMode)))
	}
	if !v.Shm {
		if v.Truncate {
			return append(rows, on(call, allow(), lands, other(arg)))
		}
		return append(rows, on(call, allow(), lands))
	}
	// Everything that is not how libc opens shared memory, in disjoint rows.
	// shm_open always says O_NOFOLLOW, and so does musl; glibc's sem_open makes
	// its temporary file with exactly O_RDWR|O_CREAT|O_EXCL before 2.38, as
	// mkstemp does too.
	nofollow := oNofollow(goarch)
	plain := func(mask, value uint64) {
		rows = append(rows, on(call, allow(), lands, masked(arg, mask|trunc, value)))
	}
	plain(nofollow|oCreat, 0)
	plain(nofollow|oCreat|oExcl, oCreat)
	plain(nofollow|oCreat|oExcl|oAccMode, oCreat|oExcl)
	plain(nofollow|oCreat|oExcl|oAccMode, oCreat|oExcl|1)
	plain(nofollow|oCreat|oExcl|oAccMode, oCreat|oExcl|3)
	plain(nofollow|oCreat|oExcl|oAccMode|oCloexec, oCreat|oExcl|2|oCloexec)
	// shm_open for reading: O_RDONLY|O_NOFOLLOW|O_CLOEXEC, and none of the bits
	// with which programs open directories, handles or what may be a FIFO.
	read := nofollow | oCreat | oAccMode
	dir := oDirectory(goarch)
	plain(read|oCloexec, nofollow)
	plain(read|oCloexec|dir, nofollow|oCloexec|dir)
	plain(read|oCloexec|dir|oPath, nofollow|oCloexec|oPath)
	plain(read|oCloexec|dir|oPath|oNonblock, nofollow|oCloexec|oNonblock)
	if v.Truncate {
		plain(nofollow|oAccMode, oTrunc|1)
		plain(nofollow|oAccMode, oTrunc|2)
	}
	return append(rows, on(call, notify(), shm, other(arg)))
}

func openat2Rows(v Variant) []row {
	if v.Truncate {
		return []row{on("openat2", defaultVerdict(), "its flags are in memory, where O_TRUNC cannot be seen; callers fall back to openat")}
	}
	return []row{on("openat2", allow(), "Landlock decides")}
}

func truncateRows(v Variant) []row {
	switch {
	case v.Truncate && v.Notifies():
		return []row{on("truncate", notify(), "Landlock below ABI 3 does not govern it: the supervisor does")}
	case v.Truncate:
		return []row{on("truncate", fail(eACCES), "Landlock below ABI 3 does not govern it; ftruncate on an open file does the job")}
	}
	return []row{on("truncate", allow(), "Landlock decides (ABI 3)")}
}

// linkRows answers the calls that name and unname a POSIX semaphore. libc uses
// link and unlink where they exist, so the newer calls stay free on amd64.
func linkRows(goarch string, shm bool) []row {
	const (
		lands = "Landlock decides"
		sem   = "sem_open links a finished semaphore to its name; shm_unlink and sem_unlink remove it"
	)
	switch {
	case goarch == "amd64" && shm:
		return []row{
			on("link", notify(), sem), on("unlink", notify(), sem),
			on("linkat", allow(), lands), on("unlinkat", allow(), lands),
		}
	case goarch == "amd64":
		return []row{
			on("link", allow(), lands), on("unlink", allow(), lands),
			on("linkat", allow(), lands), on("unlinkat", allow(), lands),
		}
	case shm:
		return []row{
			on("linkat", notify(), sem),
			on("unlinkat", notify(), sem, is(0, atFDCWD), is(2, 0)),
			on("unlinkat", allow(), lands, is(0, atFDCWD), other(2)),
			on("unlinkat", allow(), lands, other(0)),
		}
	}
	return []row{on("linkat", allow(), lands), on("unlinkat", allow(), lands)}
}
