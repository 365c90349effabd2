package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	register(map[string]op{
		"io-uring":    {0, ioUring, shared},
		"bpf":         {0, bpf, shared},
		"perf":        {0, perf, shared},
		"userfaultfd": {0, userfaultfd, shared},
		"add-key":     {0, addKey, alone},
		"keyctl":      {0, keyctl, alone},
		"request-key": {0, requestKey, alone},
		"personality": {1, personality, alone},
		"quotactl":    {0, quotactl, shared},
		"kexec":       {0, raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0), shared},
		"init-module": {0, raw(unix.SYS_INIT_MODULE, 0, 0, 0), shared},
		"syslog":      {0, raw(unix.SYS_SYSLOG, 10, 0, 0), shared},

		"unshare":      {1, unshare, alone},
		"clone":        {1, cloneNamespaces, alone},
		"clone3":       {1, clone3, alone},
		"setns-self":   {0, setnsSelf, alone},
		"setns-pid":    {2, setnsPid, alone},
		"mount":        {1, plain(func(p string) error { return unix.Mount("none", p, "tmpfs", 0, "") }), shared},
		"umount":       {1, plain(func(p string) error { return unix.Unmount(p, 0x4000_0000) }), shared},
		"pivot-root":   {0, func([]string) (string, error) { return "", unix.PivotRoot(".", ".") }, alone},
		"chroot":       {1, plain(unix.Chroot), alone},
		"fsopen":       {0, func([]string) (string, error) { return "", closing(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)) }, shared},
		"open-tree":    {1, openTree, shared},
		"move-mount":   {0, func([]string) (string, error) { return "", unix.MoveMount(-1, "x", -1, "y", 0) }, shared},
		"mount-attr":   {1, mountAttr, shared},
		"open-handle":  {0, openByHandle, shared},
		"name-handle":  {1, nameHandle, shared},
		"open-handle2": {1, openHandleOf, shared},

		"nested-seccomp":  {0, nestedSeccomp, alone},
		"nested-landlock": {0, nestedLandlock, alone},

		"tty-sti":        {0, onOwnTerminal(ioctlByte(unix.TIOCSTI)), alone},
		"tty-sti-high":   {0, onOwnTerminal(ioctlByte(high | unix.TIOCSTI)), alone},
		"tty-linux":      {0, onOwnTerminal(ioctlByte(tiocLinux)), alone},
		"tty-linux-high": {0, onOwnTerminal(ioctlByte(high | tiocLinux)), alone},
		"tty-own":        {0, onOwnTerminal(useTerminal), alone},
		"tty-sti-other":  {1, stiOther, shared},
		"ioctl-random":   {0, ioctlRandom, shared},

		"sysv-shm":      {1, sysv(unix.SYS_SHMGET), shared},
		"sysv-sem":      {1, sysv(unix.SYS_SEMGET), shared},
		"sysv-msg":      {1, sysv(unix.SYS_MSGGET), shared},
		"mq-open":       {1, mqOpen, shared},
		"shm-own":       {1, shmOwn, shared},
		"sem-own":       {1, semOwn, shared},
		"shm-open-host": {2, shmOpenHost, shared},
	})
}

const (
	high      = 1 << 32
	tiocLinux = 0x541c // ioctl_console(2)
)

func raw(nr uintptr, args ...uintptr) func([]string) (string, error) {
	var a [6]uintptr
	copy(a[:], args)
	return func([]string) (string, error) {
		_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return "", orNil(errno)
	}
}

func ioUring([]string) (string, error) {
	var params [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 2, uintptr(unsafe.Pointer(&params)), 0)
	return "", closing(int(fd), orNil(errno))
}

func bpf([]string) (string, error) {
	const mapCreate, mapArray = 0, 2
	attr := struct{ kind, keySize, valueSize, entries uint32 }{mapArray, 4, 4, 1}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, mapCreate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	return "", closing(int(fd), orNil(errno))
}

func perf([]string) (string, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK,
		Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	return "", closing(unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC))
}

func userfaultfd([]string) (string, error) {
	const userModeOnly = 1 // which needs no privilege
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly, 0, 0)
	return "", closing(int(fd), orNil(errno))
}

func addKey([]string) (string, error) {
	_, err := unix.AddKey("user", "sbx-probe", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
	return "", err
}

func keyctl([]string) (string, error) {
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	return "", err
}

// requestKey asks for a key that nobody has: ENOKEY without a sandbox.
func requestKey([]string) (string, error) {
	_, err := unix.RequestKey("user", "sbx-no-such-key", "", 0)
	return "", err
}

func personality(a []string) (string, error) {
	n, err := numbers(a)
	if err != nil {
		return "", err
	}
	_, _, errno := unix.Syscall(unix.SYS_PERSONALITY, uintptr(n[0]), 0, 0)
	return "", orNil(errno)
}

// quotactl syncs the quotas of all file systems, which anyone may.
func quotactl([]string) (string, error) {
	const syncAll = 0x800001 << 8 // QCMD(Q_SYNC, USRQUOTA)
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL, syncAll, 0, 0, 0, 0, 0)
	return "", orNil(errno)
}

func unshare(a []string) (string, error) {
	n, err := numbers(a)
	if err != nil {
		return "", err
	}
	// A user namespace takes a process of one thread; its own error (EINVAL)
	// comes later than a filter's. Others act on this thread.
	runtime.LockOSThread()
	return "", unix.Unshare(n[0])
}

func cloneNamespaces(a []string) (string, error) {
	n, err := numbers(a)
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self, "-ops")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(n[0])}
	return "", cmd.Run()
}

// clone3 makes a child that ends at once.
//
//go:norace
func clone3(a []string) (string, error) {
	n, err := numbers(a)
	if err != nil {
		return "", err
	}
	args := struct{ flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64 }{
		flags: uint64(n[0]), exitSignal: uint64(unix.SIGCHLD)}
	pid, errno := rawClone3(unsafe.Pointer(&args), unsafe.Sizeof(args))
	if errno != 0 {
		return "", errno
	}
	var ws unix.WaitStatus
	_, err = unix.Wait4(int(pid), &ws, 0, nil)
	return "", err
}

// rawClone3 may do nothing in the child but end it.
//
//go:norace
//go:nosplit
func rawClone3(args unsafe.Pointer, size uintptr) (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(args), size, 0)
	if errno == 0 && pid == 0 {
		for {
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return pid, errno
}

// setnsSelf enters the namespace that it is in: EINVAL without a sandbox.
func setnsSelf([]string) (string, error) {
	fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return "", unix.Setns(fd, unix.CLONE_NEWUSER)
}

// setnsPid enters a process' namespaces by its pidfd.
func setnsPid(a []string) (string, error) {
	n, err := numbers(a)
	if err != nil {
		return "", err
	}
	fd, err := unix.PidfdOpen(n[0], 0)
	if err != nil {
		return "", err
	}
	return "", unix.Setns(fd, n[1])
}

func openTree(a []string) (string, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, a[0], unix.OPEN_TREE_CLOEXEC)
	return "", closing(fd, err)
}

// mountAttr passes a flag that does not exist: EINVAL without a sandbox.
func mountAttr(a []string) (string, error) {
	return "", unix.MountSetattr(unix.AT_FDCWD, a[0], 0x4000_0000, &unix.MountAttr{})
}

// openByHandle passes an empty handle: EINVAL without a sandbox.
func openByHandle([]string) (string, error) {
	h := unix.NewFileHandle(0, nil)
	return "", closing(unix.OpenByHandleAt(unix.AT_FDCWD, h, unix.O_RDONLY))
}

// openHandleOf opens a file by its handle, past every path.
func openHandleOf(a []string) (string, error) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, a[0], 0)
	if err != nil {
		return "", fmt.Errorf("a handle: %w", err)
	}
	return readFrom(unix.OpenByHandleAt(unix.AT_FDCWD, h, unix.O_RDONLY|unix.O_CLOEXEC))
}

func nameHandle(a []string) (string, error) {
	_, _, err := unix.NameToHandleAt(unix.AT_FDCWD, a[0], 0)
	return "", err
}

// nestedSeccomp adds a filter that allows everything to this thread.
func nestedSeccomp([]string) (string, error) {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", err
	}
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	prog := unix.SockFprog{Len: 1, Filter: &filter}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	return "", orNil(errno)
}

// nestedLandlock denies writing to itself and tries to.
func nestedLandlock([]string) (string, error) {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", err
	}
	attr := struct{ fs uint64 }{unix.LANDLOCK_ACCESS_FS_WRITE_FILE}
	fd, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return "", errno
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return "", errno
	}
	if err := closing(unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)); err != unix.EACCES {
		return "", fmt.Errorf("a nested domain did not deny: %v", err)
	}
	return "", nil
}

// onOwnTerminal makes a terminal, makes it this process' own, and uses it.
func onOwnTerminal(use func(main, terminal int) error) func([]string) (string, error) {
	return func([]string) (string, error) {
		runtime.LockOSThread()
		main, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("/dev/ptmx: %w", err)
		}
		if err := unix.IoctlSetPointerInt(main, unix.TIOCSPTLCK, 0); err != nil {
			return "", fmt.Errorf("unlocking the terminal: %w", err)
		}
		n, err := unix.IoctlGetInt(main, unix.TIOCGPTN)
		if err != nil {
			return "", fmt.Errorf("the terminal's number: %w", err)
		}
		terminal, err := unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("/dev/pts/%d: %w", n, err)
		}
		if _, err := unix.Setsid(); err != nil {
			return "", fmt.Errorf("setsid: %w", err)
		}
		if err := unix.IoctlSetInt(terminal, unix.TIOCSCTTY, 0); err != nil {
			return "", fmt.Errorf("TIOCSCTTY: %w", err)
		}
		return "", use(main, terminal)
	}
}

// ioctlByte passes a pointer to one byte with a request of any width.
func ioctlByte(request uintptr) func(main, terminal int) error {
	return func(_, terminal int) error {
		b := [8]byte{'x'}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(terminal), request, uintptr(unsafe.Pointer(&b)))
		return orNil(errno)
	}
}

func useTerminal(main, terminal int) error {
	if err := unix.IoctlSetWinsize(main, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		return fmt.Errorf("TIOCSWINSZ: %w", err)
	}
	ws, err := unix.IoctlGetWinsize(terminal, unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("TIOCGWINSZ: %w", err)
	}
	if ws.Col != 80 {
		return fmt.Errorf("the terminal is %d columns wide, want 80", ws.Col)
	}
	if _, err := unix.Write(main, []byte("hello\n")); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	buf := make([]byte, 16)
	n, err := unix.Read(terminal, buf)
	if err == nil && string(buf[:n]) != "hello\n" {
		err = fmt.Errorf("read %q", buf[:n])
	}
	return err
}

// stiOther types into a terminal of somebody else.
func stiOther(a []string) (string, error) {
	fd, err := unix.Open(a[0], unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return "", ioctlByte(unix.TIOCSTI)(-1, fd)
}

// ioctlRandom asks a device that may be read for what only an ioctl tells.
func ioctlRandom([]string) (string, error) {
	fd, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("/dev/urandom: %w", err)
	}
	_, err = unix.IoctlGetInt(fd, unix.RNDGETENTCNT)
	return "", err
}

// sysv finds an object of the host by its key.
func sysv(nr uintptr) func([]string) (string, error) {
	return func(a []string) (string, error) {
		n, err := numbers(a)
		if err != nil {
			return "", err
		}
		_, _, errno := unix.Syscall(nr, uintptr(n[0]), 0, 0)
		return "", orNil(errno)
	}
}

func mqOpen(a []string) (string, error) {
	name, err := unix.BytePtrFromString(a[0])
	if err != nil {
		return "", err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDWR|unix.O_CLOEXEC, 0, 0, 0, 0)
	return "", closing(int(fd), orNil(errno))
}

const shmFlags = unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// shmOwn makes, shares and removes a segment as shm_open(3) does.
func shmOwn(a []string) (string, error) {
	path := "/dev/shm/" + a[0]
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|shmFlags, 0o600)
	if err != nil {
		return "", fmt.Errorf("creating: %w", err)
	}
	if err := unix.Ftruncate(fd, 4096); err != nil {
		return "", fmt.Errorf("sizing: %w", err)
	}
	one, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return "", fmt.Errorf("mapping: %w", err)
	}
	again, err := unix.Open(path, unix.O_RDWR|shmFlags, 0)
	if err != nil {
		return "", fmt.Errorf("opening it again: %w", err)
	}
	two, err := unix.Mmap(again, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return "", fmt.Errorf("mapping it again: %w", err)
	}
	one[7] = 42
	if two[7] != 42 {
		return "", fmt.Errorf("the two mappings are not of one segment")
	}
	if err := unlinkAsLibc(path); err != nil {
		return "", fmt.Errorf("removing: %w", err)
	}
	return "", nil
}

// semOwn makes, finds and removes a semaphore as sem_open(3) does.
func semOwn(a []string) (string, error) {
	path, draft := "/dev/shm/sem."+a[0], "/dev/shm/sem.draft-"+a[0]
	fd, err := unix.Open(draft, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|shmFlags, 0o600)
	if err != nil {
		return "", fmt.Errorf("creating: %w", err)
	}
	if _, err := unix.Write(fd, make([]byte, 32)); err != nil {
		return "", fmt.Errorf("writing: %w", err)
	}
	if err := linkAsLibc(draft, path); err != nil {
		return "", fmt.Errorf("naming: %w", err)
	}
	if err := unlinkAsLibc(draft); err != nil {
		return "", fmt.Errorf("removing the draft: %w", err)
	}
	again, err := unix.Open(path, unix.O_RDWR|shmFlags, 0)
	if err != nil {
		return "", fmt.Errorf("opening it by its name: %w", err)
	}
	if _, err := unix.Mmap(again, 0, 32, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return "", fmt.Errorf("mapping: %w", err)
	}
	return "", unlinkAsLibc(path)
}

// shmOpenHost opens a segment of the host: "follow" as any program opens a
// file, "nofollow" as shm_open(3) does.
func shmOpenHost(a []string) (string, error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if a[1] == "nofollow" {
		flags |= shmFlags
	}
	fd, err := unix.Open("/dev/shm/"+a[0], flags, 0)
	return "", writing(fd, err, true)
}
