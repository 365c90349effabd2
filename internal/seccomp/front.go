package seccomp

import "slices"

// This file is the front's policy: an allow-list. The front reads what strangers
// send, so its filter says what a Go program with a netpoller needs on sockets that
// were handed to it, and EPERM to all else (see README.md, "The front"). The rows of
// one call have disjoint conditions; what none of them matches is EPERM too.

// Values of Linux that only the front's rows need.
const (
	eINVAL     = 22
	protExec   = 0x4
	sIdBits    = 0o6000 // set-user-ID and set-group-ID
	prSetVMA   = 0x53564d41
	solSocket  = 1
	solTCP     = 6
	fDupfdExec = 1030 // F_DUPFD_CLOEXEC
)

// frontThreads are the flags of clone(2) with which threads are made, and nothing
// but threads: Go's, on arm64 and on amd64 (with CLONE_SETTLS), and those of libc,
// of which the race detector's binaries have some.
var frontThreads = []uint64{0x50f00, 0xd0f00, 0x3d0f00}

// frontCalls are allowed whatever their arguments.
var frontCalls = []group{
	{"the end of a thread and of the process; what a signal interrupted",
		"exit exit_group restart_syscall"},
	{"memory of the process itself; making it executable is judged below", "munmap madvise brk"},
	{"descriptors that are open: the right was checked when they were made", "read write readv writev close lseek"},
	{"handed sockets, and descriptors that come over them", "recvmsg sendmsg shutdown getsockname getpeername"},
	{"Go's netpoller", "epoll_create1 epoll_ctl epoll_pwait eventfd2"},
	{"locks and scheduling of threads", "futex sched_yield sched_getaffinity set_robust_list rseq"},
	{"clocks and sleeping", "clock_gettime clock_getres clock_nanosleep gettimeofday nanosleep"},
	{"timers of the own process: profiles and deadlines", "setitimer timer_create timer_settime timer_delete"},
	{"signal handlers, which the runtime preempts with", "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack"},
	{"a signal to a thread: preemption. Pin narrows it to the own process", "tgkill"},
	{"who the process is", "getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid"},
	{"random numbers; the kernel's version", "getrandom uname"},
	{"reading /proc/self/task and its status files, opened before the filter: the posture", "pread64 getdents64 fstat"},
}

// storeCalls are what files need: Go's package os, and SQLite without cgo (whose
// libc is musl, translated). Landlock decides on the files. SQLite's mremap is refused:
// it goes on without mapping the file.
var storeCalls = []group{
	{"open files: SQLite's pages, journal and locks", "pwrite64 fsync fdatasync ftruncate fallocate flock"},
	{"files by path: Landlock decides", "newfstatat readlinkat unlinkat renameat renameat2 faccessat getcwd"},
}

// storeCallsAMD64 are the older forms, which musl uses where they exist.
var storeCallsAMD64 = []group{
	{"older forms of calls allowed above: musl, hence SQLite, uses them where they exist",
		"stat lstat access unlink"},
}

// frontProbes fail as in a kernel without them: callers fall back on ENOSYS, some
// of them on nothing else.
var frontProbes = []group{
	{"its flags are in memory, where a filter cannot see them; libc falls back to clone", "clone3"},
	{"io.Copy falls back to read and write", "sendfile copy_file_range"},
	{"musl and os.Root fall back to older calls", "statx openat2 faccessat2 epoll_pwait2 futex_waitv close_range"},
	{"performs other calls past the filter", "io_uring_setup io_uring_enter io_uring_register"},
}

// frontRows returns the table of a filter of the front.
func frontRows(goarch string, f Front) []row {
	rows := slices.Concat(expand(allow(), frontCalls), expand(defaultVerdict(), frontProbes),
		frontProcessRows(), frontDescriptorRows(f))
	if f != FrontStore {
		return rows
	}
	rows = slices.Concat(rows, expand(allow(), storeCalls), storeRows("openat", 2), []row{
		on("mkdirat", allow(), plainMode, masked(2, sIdBits, 0)),
	})
	if goarch == "amd64" {
		rows = slices.Concat(rows, expand(allow(), storeCallsAMD64), storeRows("open", 1), []row{
			on("mkdir", allow(), plainMode, masked(1, sIdBits, 0)),
		})
	}
	return rows
}

const plainMode = "no set-user-ID or set-group-ID file is made"

// frontProcessRows are memory, threads and limits.
func frontProcessRows() []row {
	const noExec = "memory that is never executable: code stays what the binary brought"
	rows := []row{
		on("mmap", allow(), noExec, masked(2, protExec, 0)),
		on("mprotect", allow(), noExec, masked(2, protExec, 0)),
		on("prlimit64", allow(), "reading the own limits", is(0, 0), zero(2)),
		// EINVAL is what a kernel without names for memory says: Go stops asking.
		on("prctl", fail(eINVAL), "names of memory areas: Go sets them, and nobody needs them", is(0, prSetVMA)),
	}
	for _, flags := range frontThreads {
		rows = append(rows, on("clone", allow(), "threads of this process, by their exact flags; never a process", masked(0, wholeArg, flags)))
	}
	return rows
}

// frontDescriptorRows are the calls on descriptors that have many uses.
func frontDescriptorRows(f Front) []row {
	const (
		flags   = "package net duplicates a handed descriptor and makes it non-blocking"
		asking  = "package net asks what a handed socket is, and for a failed connection's error; the peer's credentials"
		setting = "TCP connections as package net sets them up; never a filter program (SO_ATTACH_FILTER) or a device"
		locks   = "SQLite's locks"
	)
	var rows []row
	commands := []uint64{fDupfdExec, 1, 2, 3, 4} // F_GETFD, F_SETFD, F_GETFL, F_SETFL
	why := flags
	if f == FrontStore {
		commands = append(commands, 5, 6, 7, 36, 37, 38) // F_GETLK, F_SETLK, F_SETLKW and F_OFD_*
		why += "; " + locks
	}
	for _, c := range commands {
		rows = append(rows, on("fcntl", allow(), why, is(1, c)))
	}
	// SO_TYPE, SO_ERROR, SO_SNDBUF, SO_RCVBUF, SO_PEERCRED, SO_ACCEPTCONN, SO_PROTOCOL, SO_DOMAIN.
	for _, opt := range []uint64{3, 4, 7, 8, 17, 30, 38, 39} {
		rows = append(rows, on("getsockopt", allow(), asking, is(1, solSocket), is(2, opt)))
	}
	for _, opt := range []uint64{7, 8, 9} { // SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE
		rows = append(rows, on("setsockopt", allow(), setting, is(1, solSocket), is(2, opt)))
	}
	for _, opt := range []uint64{1, 4, 5, 6} { // TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT
		rows = append(rows, on("setsockopt", allow(), setting, is(1, solTCP), is(2, opt)))
	}
	return rows
}

// storeRows answer an open whose flags are in argument arg and whose mode follows.
// Access mode 3 ("for ioctl") empties a file with O_TRUNC although Landlock below
// ABI 3 asks for no right.
func storeRows(call string, arg uint8) []row {
	var rows []row
	for access := range uint64(3) {
		rows = append(rows, on(call, allow(), "Landlock decides; "+plainMode, masked(arg, oAccMode, access), masked(arg+1, sIdBits, 0)))
	}
	return rows
}
