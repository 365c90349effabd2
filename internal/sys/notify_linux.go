package sys

// The raw calls of the seccomp user-notification supervisor: the listener's
// ioctls, reading and writing the trapped thread, duplicating its descriptors,
// and the deputy threads on which calls are made in its name.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NotifArch is the AUDIT_ARCH value of the calls that this build can judge.
// It is zero, which no call carries, on an architecture that we do not know.
var NotifArch = map[string]uint32{
	"amd64": unix.AUDIT_ARCH_X86_64,
	"arm64": unix.AUDIT_ARCH_AARCH64,
}[runtime.GOARCH]

// Notif is struct seccomp_notif: one trapped call. PID is a thread id.
type Notif struct {
	ID    uint64
	PID   uint32
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

type notifResp struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

type notifAddFD struct {
	id         uint64
	flags      uint32
	srcfd      uint32
	newfd      uint32
	newfdFlags uint32
}

// notifSpace is what NOTIF_RECV may write. The kernel's struct can grow, and
// NotifSizes refuses a kernel whose struct would not fit here.
const notifSpace = 512

// NotifSizes asks the kernel how large its notification structures are, and
// refuses sizes that this package cannot hold.
func NotifSizes() error {
	var sizes struct{ notif, resp, data uint16 }
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	if errno != 0 {
		return fmt.Errorf("seccomp get_notif_sizes: %w", errno)
	}
	if int(sizes.notif) < int(unsafe.Sizeof(Notif{})) || sizes.notif > notifSpace ||
		int(sizes.resp) < int(unsafe.Sizeof(notifResp{})) || sizes.resp > notifSpace {
		return fmt.Errorf("seccomp get_notif_sizes: unknown sizes %d and %d: %w", sizes.notif, sizes.resp, syscall.EPROTO)
	}
	return nil
}

// NotifRecv takes the next notification. ENOENT means that its thread is gone
// or was interrupted. The kernel refuses a buffer that is not zeroed.
func NotifRecv(listener int) (Notif, error) {
	var buf [notifSpace / 8]uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&buf)))
	if errno != 0 {
		return Notif{}, errno
	}
	return *(*Notif)(unsafe.Pointer(&buf)), nil
}

// NotifSend answers a notification with a value or an errno.
func NotifSend(listener int, id uint64, val int64, errno syscall.Errno) error {
	return notifSend(listener, notifResp{id: id, val: val, error: -int32(errno)})
}

// NotifContinue lets the trapped thread make its call itself. The arguments
// may have changed since they were read: something else must judge them.
func NotifContinue(listener int, id uint64) error {
	return notifSend(listener, notifResp{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func notifSend(listener int, r notifResp) error {
	var buf [notifSpace / 8]uint64
	*(*notifResp)(unsafe.Pointer(&buf)) = r
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&buf)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// NotifValid reports whether the trapped call still waits for its answer, and
// so whether its thread id still means the same thread.
func NotifValid(listener int, id uint64) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// NotifInstall puts fd into the trapped thread's table and answers its call
// with the new number: in one step from Linux 5.14 on, in two before.
func NotifInstall(listener int, id uint64, fd int, cloexec bool) error {
	r := notifAddFD{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, srcfd: uint32(fd)}
	if cloexec {
		r.newfdFlags = unix.O_CLOEXEC
	}
	_, err := notifAdd(listener, &r)
	if err != unix.EINVAL {
		return err
	}
	r.flags = 0
	n, err := notifAdd(listener, &r)
	if err != nil {
		return err
	}
	return NotifSend(listener, id, int64(n), 0)
}

func notifAdd(listener int, r *notifAddFD) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(r)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}

// ErrPidfdFiles says that a thread's descriptor table cannot be reached: before
// PIDFD_THREAD (6.9) only a process leader can be opened, and this thread does
// not share its leader's table.
var ErrPidfdFiles = errors.New("the thread's descriptor table cannot be reached")

// PidfdOpenThread opens a pidfd through which tid's own descriptors can be
// duplicated. leader is called only where the kernel has no PIDFD_THREAD.
func PidfdOpenThread(tid int, leader func() (int, error)) (int, error) {
	fd, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if err != unix.EINVAL {
		return fd, err
	}
	if fd, err = unix.PidfdOpen(tid, 0); err == nil || err == unix.ESRCH {
		return fd, err
	}
	tgid, err := leader()
	if err != nil {
		return -1, err
	}
	const kcmpFiles = 2
	same, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(tid), uintptr(tgid), kcmpFiles, 0, 0, 0)
	if errno == 0 && same != 0 {
		return -1, ErrPidfdFiles
	}
	return unix.PidfdOpen(tgid, 0)
}

// NotifReadMem copies from a process's memory and returns how much it got.
// Reading needs no handle: the caller asks NotifValid afterwards, and while the
// call waits, its thread id cannot have been given to another.
func NotifReadMem(tid int, addr uint64, buf []byte) (int, error) {
	if len(buf) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	if err != unix.ENOSYS && err != unix.EPERM {
		return n, err
	}
	// CONFIG_CROSS_MEMORY_ATTACH may be off, or a container's filter in the way.
	mem, err := NotifOpenMem(tid, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(mem)
	n, err = unix.Pread(mem, buf, int64(addr))
	if err == unix.EIO {
		err = unix.EFAULT
	}
	return max(n, 0), err
}

// NotifOpenMem opens a process's memory. The handle stays with this address
// space, also after an exec or the reuse of the number, so a write through a
// handle that was validated after the open cannot reach a stranger.
func NotifOpenMem(tid, mode int) (int, error) {
	return unix.Open("/proc/"+strconv.Itoa(tid)+"/mem", mode|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
}

// NotifSockname returns the socket's own address as raw bytes. The x/sys form
// cannot tell the path "@x" from the abstract name "x".
func NotifSockname(fd int) ([]byte, error) {
	var buf [unix.SizeofSockaddrAny]byte
	n := uint32(len(buf))
	_, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&buf)), uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return nil, errno
	}
	return buf[:min(int(n), len(buf))], nil
}

// NotifUnixFile returns a handle to the inode that an AF_UNIX socket is bound
// to. It needs CAP_NET_ADMIN over the socket's network namespace.
func NotifUnixFile(fd int) (int, error) {
	const siocUnixFile = 0x89e0
	n, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), siocUnixFile, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// DeputyConnect and DeputyBind give the kernel exactly these address bytes.
// They do not retry EINTR: an interrupted deputy must come back.
func DeputyConnect(fd int, addr []byte) error { return deputyAddrCall(unix.SYS_CONNECT, fd, addr) }

// DeputyBind: see DeputyConnect.
func DeputyBind(fd int, addr []byte) error { return deputyAddrCall(unix.SYS_BIND, fd, addr) }

func deputyAddrCall(nr uintptr, fd int, addr []byte) error {
	_, _, errno := unix.Syscall(nr, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(addr))), uintptr(len(addr)))
	if errno != 0 {
		return errno
	}
	return nil
}

// DeputySend is sendmsg with a raw address and raw control bytes. A nil name
// means no address. It does not retry EINTR.
func DeputySend(fd int, name, data, control []byte, flags int) (int, error) {
	var iov unix.Iovec
	iov.Base = unsafe.SliceData(data)
	iov.SetLen(len(data))
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1}
	if name != nil {
		msg.Name, msg.Namelen = unsafe.SliceData(name), uint32(len(name))
	}
	if len(control) > 0 {
		msg.Control = unsafe.SliceData(control)
		msg.SetControllen(len(control))
	}
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), uintptr(flags))
	runtime.KeepAlive(name)
	runtime.KeepAlive(data)
	runtime.KeepAlive(control)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// DeputyCreds is what a deputy thread becomes.
type DeputyCreds struct {
	UID, GID int
	Groups   []int
	DropCaps bool
	// Ruleset is a Landlock ruleset to enter, or -1.
	Ruleset int
}

// DeputyEnter turns the calling thread, and it alone, into a deputy: its own
// working directory and umask, the worker's effective ids and groups, no
// capabilities, and a Landlock domain. The caller has locked the goroutine to
// the thread and never unlocks it.
//
// Only the effective ids change. They, through the fs ids, are what the kernel
// asks about files and what SO_PEERCRED shows; the real and saved ids stay the
// launcher's, because a worker whose uid equals the real or saved uid of any
// thread may send that thread SIGKILL, which ends the launcher, and one whose
// uid equals all three may trace it.
//
// The raw calls act on one thread; those of package syscall act on all.
func DeputyEnter(c DeputyCreds) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare files: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if err := deputyIDs(c); err != nil {
		return err
	}
	if c.DropCaps {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			return fmt.Errorf("capset: %w", err)
		}
	}
	if c.Ruleset >= 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(c.Ruleset), 0, 0); errno != 0 {
			return fmt.Errorf("landlock_restrict_self: %w", errno)
		}
	}
	var set unix.Sigset_t
	set.Val[0] = 1 << (deputyInterruptSignal - 1)
	if err := unix.PthreadSigmask(unix.SIG_UNBLOCK, &set, nil); err != nil {
		return fmt.Errorf("unblock signal: %w", err)
	}
	return nil
}

// DeputySame tells whether the calling thread has the deputy's credentials
// already, so that a call without a path, a umask or a wait needs no deputy.
func DeputySame(c DeputyCreds) bool {
	groups, err := unix.Getgroups()
	if err != nil || !deputySameSet(groups, c.Groups) ||
		unix.Getuid() != c.UID || unix.Geteuid() != c.UID || unix.Getgid() != c.GID || unix.Getegid() != c.GID {
		return false
	}
	if !c.DropCaps {
		return true
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	err = unix.Capget(&hdr, &have[0])
	return err == nil && have[0].Effective|have[1].Effective == 0
}

const deputyKeepID = ^uintptr(0)

func deputyIDs(c DeputyCreds) error {
	groups, err := unix.Getgroups()
	if err != nil {
		return fmt.Errorf("getgroups: %w", err)
	}
	if !deputySameSet(groups, c.Groups) {
		list := make([]uint32, len(c.Groups))
		for i, g := range c.Groups {
			list[i] = uint32(g)
		}
		_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(unsafe.SliceData(list))), 0)
		if errno != 0 {
			return fmt.Errorf("setgroups: %w", errno)
		}
	}
	if unix.Getegid() != c.GID {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, deputyKeepID, uintptr(c.GID), deputyKeepID); errno != 0 {
			return fmt.Errorf("setresgid: %w", errno)
		}
	}
	if unix.Geteuid() != c.UID {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, deputyKeepID, uintptr(c.UID), deputyKeepID); errno != 0 {
			return fmt.Errorf("setresuid: %w", errno)
		}
	}
	return nil
}

func deputySameSet(a, b []int) bool {
	in := make(map[int]bool, len(a))
	for _, v := range a {
		in[v] = true
	}
	seen := make(map[int]bool, len(b))
	for _, v := range b {
		if !in[v] {
			return false
		}
		seen[v] = true
	}
	return len(seen) == len(in)
}

// DeputyRule grants rights beneath an open directory, or on an open file.
type DeputyRule struct {
	FD     int
	Rights uint64
}

// DeputyRuleset builds a Landlock ruleset that handles these rights and grants
// them only by the rules. ENOSYS and EOPNOTSUPP mean that the kernel has none.
func DeputyRuleset(handled uint64, rules []DeputyRule) (int, error) {
	fd, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled), 0)
	if errno != 0 {
		return -1, fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	for _, r := range rules {
		// struct landlock_path_beneath_attr is packed: 12 bytes.
		var attr [12]byte
		binary.NativeEndian.PutUint64(attr[:], r.Rights)
		binary.NativeEndian.PutUint32(attr[8:], uint32(r.FD))
		_, _, errno := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
		if errno != 0 {
			unix.Close(int(fd))
			return -1, fmt.Errorf("landlock_add_rule: %w", errno)
		}
	}
	return int(fd), nil
}

// deputyInterruptSignal ends a blocking call on a deputy thread. connect(2) has no
// MSG_DONTWAIT, O_NONBLOCK and SO_SNDTIMEO belong to the worker, and Go's own
// handlers are all installed with SA_RESTART, after which the kernel resumes
// the call; so one signal that nobody uses has that flag cleared.
const deputyInterruptSignal = 63

// deputySigaction is the kernel's struct on amd64 and arm64.
type deputySigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

var deputySignal sync.Mutex

// DeputyInterrupt makes the call that the deputy thread tid blocks in return
// EINTR. If the thread is not yet in the call the signal is lost: repeat it.
func DeputyInterrupt(tid int) error {
	if err := deputyArmInterrupt(); err != nil {
		return err
	}
	return unix.Tgkill(unix.Getpid(), tid, deputyInterruptSignal)
}

// deputyArmInterrupt looks each time, as package signal may bring back the flag.
// The handler is the runtime's own, which it installs for every signal at start
// and which passes over one of the real-time kind that nobody asked for. It is
// missing only where somebody called signal.Ignore. (signal.Notify would need a
// thread for its goroutine, now that there may be none to be had.)
func deputyArmInterrupt() error {
	deputySignal.Lock()
	defer deputySignal.Unlock()
	const restart, setSize = 0x10000000, 8
	sigaction := func(set, get *deputySigaction) error {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, deputyInterruptSignal, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), setSize, 0, 0)
		if errno != 0 {
			return fmt.Errorf("rt_sigaction: %w", errno)
		}
		return nil
	}
	var act deputySigaction
	if err := sigaction(nil, &act); err != nil {
		return err
	}
	if act.handler <= 1 { // SIG_DFL or SIG_IGN
		return fmt.Errorf("signal %d has no handler: %w", deputyInterruptSignal, syscall.EINVAL)
	}
	if act.flags&restart == 0 {
		return nil
	}
	act.flags &^= restart
	return sigaction(&act, nil)
}

// NotifFdinfo returns the mount id and the kernel's own inode number of an open
// handle. stat's number can differ from the kernel's on overlayfs; "ino:" is
// there from Linux 5.14 on, and zero is returned before.
func NotifFdinfo(fd int) (mount, ino uint64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc/self/fdinfo", strconv.Itoa(fd)))
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
		switch {
		case err != nil:
		case string(key) == "mnt_id":
			mount = n
		case string(key) == "ino":
			ino = n
		}
	}
	return mount, ino, nil
}
