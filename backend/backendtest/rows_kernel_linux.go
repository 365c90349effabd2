package backendtest

import (
	"runtime"

	"sandboxd/policy"
)

// none marks rows that no effect of the report covers: every launch holds them.
const none policy.Effect = 0

// processRows attempt to touch processes outside.
func processRows() []Row {
	const strangers = "ptrace access to processes of the same user"
	signal := func(name, op string) Row { return deny(27, policy.ProcSignal, name, op, "EPERM") }
	trace := func(name, op string) Row {
		return deny(27, policy.ProcTrace, name, op, "EPERM").needing(strangers)
	}
	return []Row{
		signal("kill a host process", "kill {host}"),
		signal("tgkill a host process", "tgkill {host}"),
		signal("tkill a host process", "tkill {host}"),
		signal("sigqueue to a host process", "sigqueue {host}"),
		signal("pidfd_send_signal to a host process", "pidfd-signal {host}"),
		signal("kill a host process group", "kill-group {host}"),
		signal("ask whether the launcher can be signalled", "kill-nothing {launcher}"),
		signal("ask whether a thread of the launcher can be signalled", "kill-threads {launcher}"),
		{Name: "kernel-sent signal to a host process", Catalogue: 27, Effect: policy.ProcSignal, Op: "sigio {host}", want: silent},
		deny(27, policy.ProcTrace, "memory of a thread of the launcher", "memory-threads {launcher}", "EACCES").needing(strangers),
		trace("ptrace attach", "ptrace-attach {host}"),
		trace("ptrace seize", "ptrace-seize {host}"),
		trace("process_vm_readv", "process-read {host} {hostaddr}"),
		trace("process_vm_writev", "process-write {host} {hostaddr}"),
		trace("pidfd_getfd", "pidfd-getfd {host} {hostfd}"),
		trace("kcmp", "kcmp {host}"),
		deny(27, policy.ProcTrace, "process_madvise", "process-madvise {host} {hostaddr}", "EACCES").needing(strangers + " and CAP_SYS_NICE"),
		deny(27, none, "limits of a host process", "prlimit-other {host}", "EPERM"),
		deny(27, none, "priority of a host process", "setpriority {host}", "EPERM"),
		deny(27, none, "processors of a host process", "sched-affinity {host}", "EPERM"),
		deny(27, none, "policy of a host process", "sched-scheduler {host}", "EPERM"),
		deny(27, none, "parameters of a host process", "sched-param {host}", "EPERM"),
		deny(27, none, "attributes of a host process", "sched-attr {host}", "EPERM"),
		deny(27, none, "I/O priority of a host process", "ioprio {host}", "EPERM"),
		deny(27, none, "priority of a host process group", "setpriority-group {host}", "EPERM"),
		deny(27, none, "I/O priority of a host process group", "ioprio-group {host}", "EPERM"),
		deny(27, none, "priority of the launcher", "setpriority {launcher}", "EPERM"),
		deny(27, none, "processors of the launcher", "sched-affinity {launcher}", "EPERM"),
		deny(27, none, "policy of the launcher", "sched-scheduler {launcher}", "EPERM"),
		deny(27, none, "parameters of the launcher", "sched-param {launcher}", "EPERM"),
		deny(27, none, "attributes of the launcher", "sched-attr {launcher}", "EPERM"),
		deny(27, none, "I/O priority of the launcher", "ioprio {launcher}", "EPERM"),
		deny(27, none, "scheduling of a thread of the launcher", "schedule-threads {launcher}", "EPERM"),

		allow(27, policy.ProcSignal, "kill a child", "kill-child"),
		allow(27, policy.ProcTrace, "ptrace a child", "ptrace-child"),
		allow(27, policy.ProcTrace, "read a child's memory", "process-read-child"),
		allow(27, none, "own limits", "prlimit-self"),
		allow(27, none, "scheduling of own threads and a child", "schedule-own"),
	}
}

// kernelRows attempt the kernel's interfaces that no ordinary program needs.
func kernelRows() []Row {
	k := func(name, op, errnos string) Row { return deny(28, none, name, op, errnos) }
	mount := func(name, op string) Row { return deny(28, policy.KernelMount, name, op, "EPERM") }
	ns := func(name, op, errnos string) Row { return deny(28, policy.KernelUserns, name, op, errnos) }
	const admin = "CAP_SYS_ADMIN"
	return []Row{
		deny(28, policy.KernelIOUring, "io_uring", "io-uring", "ENOSYS").needing("kernel.io_uring_disabled=0"),
		deny(28, policy.KernelKeyring, "add_key", "add-key", "EPERM").needing("CONFIG_KEYS"),
		deny(28, policy.KernelKeyring, "keyctl", "keyctl", "EPERM").needing("CONFIG_KEYS"),
		deny(28, policy.KernelKeyring, "request_key", "request-key", "EPERM").naturally("ENOKEY|ENOENT"),
		k("bpf", "bpf", "EPERM").needing("kernel.unprivileged_bpf_disabled=0 or CAP_BPF"),
		k("perf_event_open", "perf", "EPERM").needing("kernel.perf_event_paranoid below 3"),
		k("userfaultfd", "userfaultfd", "EPERM").needing("CONFIG_USERFAULTFD"),
		k("personality READ_IMPLIES_EXEC", "personality 0x400000", "EPERM"),
		k("personality MMAP_PAGE_ZERO", "personality 0x100000", "EPERM"),
		k("quotactl", "quotactl", "EPERM").needing("CONFIG_QUOTACTL"),
		k("kexec_load", "kexec", "EPERM").naturally("ENOSYS|EINVAL").needing("CAP_SYS_BOOT"),
		k("init_module", "init-module", "EPERM").naturally("ENOSYS|EFAULT|ENOEXEC").needing("CAP_SYS_MODULE"),
		k("syslog", "syslog", "EPERM").needing("kernel.dmesg_restrict=0 or CAP_SYSLOG"),
		allow(28, none, "personality without address randomization", "personality 0x40000"),

		ns("unshare a user namespace", "unshare 0x10000000", "EPERM").naturally("EINVAL").needing("user namespaces"),
		ns("unshare a mount namespace", "unshare 0x20000", "EPERM").needing(admin),
		ns("unshare a network namespace", "unshare 0x40000000", "EPERM").needing(admin),
		ns("unshare a time namespace", "unshare 0x80", "EPERM").needing(admin),
		ns("clone into a user namespace", "clone 0x10000000", "EPERM").needing("user namespaces"),
		ns("clone into a pid namespace", "clone 0x20000000", "EPERM").needing(admin),
		ns("clone3 into a user namespace", "clone3 0x10000000", "ENOSYS").needing("user namespaces"),
		ns("setns to its own user namespace", "setns-self", "EPERM").naturally("EINVAL"),
		ns("setns by pidfd", "setns-pid {host} 0x4000000", "EPERM").needing(admin),

		mount("mount", "mount {mine}/no-such-directory").naturally("ENOENT"),
		mount("umount2", "umount {mine}").naturally("EINVAL"),
		mount("pivot_root", "pivot-root").naturally("EINVAL|EBUSY").needing(admin),
		mount("chroot", "chroot {mine}/no-such-directory").naturally("ENOENT"),
		mount("fsopen", "fsopen").needing(admin),
		mount("open_tree", "open-tree {mine}"),
		mount("move_mount", "move-mount").naturally("EBADF").needing(admin),
		mount("mount_setattr", "mount-attr {mine}").naturally("EINVAL"),

		allow(28, none, "name_to_handle_at", "name-handle {mine}/file"),
		allow(28, none, "nested seccomp filter", "nested-seccomp"),
		allow(28, none, "nested landlock domain", "nested-landlock").needing("Landlock"),
	}
}

// architectureRows attempt other system call tables.
func architectureRows() []Row {
	const closed = "SIGSYS|ENOSYS|EPERM"
	if runtime.GOARCH == "arm64" {
		return []Row{
			deny(29, none, "AArch32 getpid", "aarch32-getpid", closed).needing("32-bit programs"),
			deny(29, none, "AArch32 socket", "aarch32-socket", closed).needing("32-bit programs"),
		}
	}
	if runtime.GOARCH != "amd64" {
		return nil
	}
	return []Row{
		deny(28, none, "modify_ldt", "modify-ldt", "ENOSYS").needing("CONFIG_MODIFY_LDT_SYSCALL"),
		deny(29, none, "i386 getpid", "int80-getpid", closed).needing("CONFIG_IA32_EMULATION"),
		deny(29, none, "i386 socket", "int80-socket", closed).needing("CONFIG_IA32_EMULATION"),
		deny(29, none, "i386 unshare", "int80-unshare", closed).needing("CONFIG_IA32_EMULATION"),
		deny(29, none, "x32 getpid", "x32-getpid", closed).needing("CONFIG_X86_X32_ABI"),
		deny(29, none, "x32 socket", "x32-socket", closed).needing("CONFIG_X86_X32_ABI"),
	}
}

// terminalRows attempt to type where others read.
func terminalRows() []Row {
	const legacy = "dev.tty.legacy_tiocsti=1"
	inject := func(name, op string) Row { return deny(30, policy.TTYInject, name, op, "EPERM") }
	return []Row{
		inject("TIOCSTI", "tty-sti").needing(legacy),
		inject("TIOCSTI with high bits", "tty-sti-high").needing(legacy),
		inject("TIOCLINUX", "tty-linux").naturally("ENOTTY"),
		inject("TIOCLINUX with high bits", "tty-linux-high").naturally("ENOTTY"),
		inject("TIOCSTI to a host terminal", "tty-sti-other {pts}").needing(legacy + " and CAP_SYS_ADMIN"),
		gap(30, policy.TTYInject, "open a host terminal", "open-rdwr {pts}", "EACCES"),
		allow(30, policy.TTYInject, "own terminal", "tty-own"),
		deny(30, policy.FSIoctl, "ioctl on a device that may only be read", "ioctl-random", "EACCES"),
	}
}

// sharedMemoryRows attempt objects that are named beside the file system.
func sharedMemoryRows() []Row {
	return []Row{
		deny(32, none, "host SysV shared memory", "sysv-shm {shmkey}", "ENOSYS"),
		deny(32, none, "host SysV semaphores", "sysv-sem {semkey}", "ENOSYS"),
		deny(32, none, "host SysV message queue", "sysv-msg {msgkey}", "ENOSYS"),
		deny(32, none, "host POSIX message queue", "mq-open {mq}", "ENOSYS").needing("CONFIG_POSIX_MQUEUE"),
		deny(32, policy.FSWrite, "host shared memory segment", "shm-open-host {hostshm} follow", "EACCES").elsewhere(),
		deny(32, policy.FSWrite, "host shared memory segment as shm_open does", "shm-open-host {hostshm} nofollow", "EACCES|ENOENT").elsewhere(),
		deny(32, policy.FSWrite, "remove a host shared memory segment", "old-unlink /dev/shm/{spareshm}", "EACCES|ENOENT").elsewhere(),
		allow(32, none, "own shared memory segment", "shm-own {unique}-own"),
		allow(32, none, "own semaphore", "sem-own {unique}-own"),
	}
}

// inheritanceRows look for what the launcher had and its worker must not have.
func inheritanceRows() []Row {
	fd := func(name, op string) Row { return deny(38, none, name, op, "EBADF") }
	return []Row{
		fd("inherited file", "descriptor {fdfile}"),
		fd("inherited directory", "descriptor {fddir}"),
		fd("inherited listener", "descriptor {fdlistener}"),
		fd("inherited memory file", "descriptor {fdmemory}"),
		fd("inherited epoll", "descriptor {fdepoll}"),
		fd("inherited pidfd", "descriptor {fdpid}"),
		deny(19, none, "variable of the launcher", "environment "+launcherSecret, "ENOENT"),
		allow(19, none, "variable of the policy", "environ-equals SBX_TEST_GIVEN {given}"),
		deny(31, none, "execve can gain privileges", "gains-privileges", "EPERM"),
		deny(31, none, "set-user-ID program", "suid-exec {suid}", "EPERM").needing("a set-user-ID program"),
		deny(31, none, "capabilities", "capabilities", "EPERM").needing("root"),
	}
}
