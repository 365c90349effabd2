package sys

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls in this file change the calling *thread* only. The kernel keeps
// no_new_privs, capabilities, seccomp filters and Landlock domains per task,
// and a child inherits those of the thread that forks it; package syscall's
// own Setuid and friends would apply them to every thread of the process.
// Precondition of each: the goroutine is locked to its thread and never
// unlocks it.

// OnOwnThread runs f in a goroutine of its own, on a thread that it alone uses
// and that ends with it. It is never the main thread: /proc/PID, ptrace(2) and
// kill(2) look at the main thread's credentials, so a process whose main thread
// carried a worker's domain would stand open to that worker, and the main
// thread cannot end.
func OnOwnThread(f func()) {
	go func() {
		runtime.LockOSThread() // never unlocked
		if unix.Gettid() != os.Getpid() {
			f()
			return
		}
		// Hold the main thread until another goroutine has got another one.
		elsewhere := make(chan struct{})
		go func() {
			runtime.LockOSThread() // never unlocked
			close(elsewhere)
			f()
		}()
		<-elsewhere
		runtime.UnlockOSThread()
	}()
}

// SetNoNewPrivs sets the thread's no_new_privs bit and reads it back
// (PR_SET_NO_NEW_PRIVS, prctl(2)).
func SetNoNewPrivs() error {
	if err := rawPrctl(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	got, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0)
	if errno != 0 || got != 1 {
		return fmt.Errorf("no_new_privs reads back as %d (%w)", got, errno)
	}
	return nil
}

// InstallFilter attaches a seccomp filter to the thread. With listener set it
// returns the notification descriptor (close-on-exec by the kernel's choice),
// else -1. Where the kernel has it (5.19), a call that the supervisor has
// taken is interrupted by fatal signals only. EBUSY means that another filter
// of this tree has a listener already: the kernel allows one (seccomp(2)).
func InstallFilter(prog []SockFilter, listener bool) (fd int, err error) {
	if len(prog) == 0 || len(prog) > 4096 {
		return -1, fmt.Errorf("seccomp filter has %d instructions", len(prog))
	}
	fprog := struct {
		n      uint16
		filter *SockFilter
	}{uint16(len(prog)), &prog[0]}
	flags := uintptr(0)
	if listener {
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
		switch {
		case errno == unix.EINVAL && flags&unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV != 0:
			flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV // before 5.19
			continue
		case errno != 0:
			return -1, fmt.Errorf("installing the seccomp filter: %w", errno)
		case !listener:
			return -1, nil
		}
		return int(r), nil
	}
}

// FilterActive tells whether the thread runs under a seccomp filter
// (PR_GET_SECCOMP answers 2).
func FilterActive() bool {
	r, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_SECCOMP, 0, 0, 0, 0, 0)
	return errno == 0 && r == unix.SECCOMP_MODE_FILTER
}

// UnshareFS gives the thread its own working directory, root and umask
// (CLONE_FS, unshare(2)), so that changing them touches no other goroutine.
func UnshareFS() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_FS, 0, 0); errno != 0 {
		return fmt.Errorf("unsharing the working directory: %w", errno)
	}
	return nil
}

// Fchdir changes the working directory of a thread that called [UnshareFS].
func Fchdir(dir *os.File) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_FCHDIR, dir.Fd(), 0, 0); errno != 0 {
		return fmt.Errorf("entering %q: %w", dir.Name(), errno)
	}
	return nil
}

// DropBoundingSet empties the thread's capability bounding set as far as
// CAP_SETPCAP allows. It comes before a change of uid, which takes that away.
func DropBoundingSet() error {
	if !HaveCapability(unix.CAP_SETPCAP) {
		return nil
	}
	// EINVAL marks the end of the capabilities that this kernel knows.
	for c := uintptr(0); c < 64; c++ {
		if err := rawPrctl(unix.PR_CAPBSET_DROP, c); err == unix.EINVAL {
			break
		} else if err != nil {
			return fmt.Errorf("dropping capability %d from the bounding set: %w", c, err)
		}
	}
	return nil
}

// DropCapabilities empties the thread's ambient, inheritable, permitted and
// effective sets and reads them back (capabilities(7)).
func DropCapabilities() error {
	_ = rawPrctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL)
	hdr := capHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none, got [2]capData
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&none[0])), 0); errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&got[0])), 0); errno != 0 || got != none {
		return fmt.Errorf("capabilities are left after dropping them: %v (%w)", got, errno)
	}
	return nil
}

// HaveCapability tells whether the calling thread's effective set has c.
func HaveCapability(c int) bool {
	hdr := capHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]capData
	_, _, errno := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	return errno == 0 && data[c/32].Effective&(1<<(c%32)) != 0
}

// SetIDs changes the thread's groups, gid and uid (all of real, effective,
// saved and file system id), in the order that each step's privilege allows.
func SetIDs(uid, gid int, groups []int) error {
	list := make([]uint32, len(groups)+1)
	for i, g := range groups {
		list[i] = uint32(g)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0); errno != 0 {
		return fmt.Errorf("setting supplementary groups: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return fmt.Errorf("setting gid %d: %w", gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return fmt.Errorf("setting uid %d: %w", uid, errno)
	}
	return nil
}

// AsUser runs f with the rights of a user and none of root's, on a thread of its
// own that ends with it: paths that come from a user are looked up as that user
// could. An error says that f was not run. It is for root.
func AsUser(uid, gid int, groups []int, f func()) (err error) {
	done := make(chan struct{})
	OnOwnThread(func() {
		defer close(done)
		if err = DropBoundingSet(); err != nil { // before the uid, which takes CAP_SETPCAP along
			return
		}
		if err = SetIDs(uid, gid, groups); err != nil {
			return
		}
		if err = DropCapabilities(); err != nil {
			return
		}
		f()
	})
	<-done
	return err
}

// KillScope sends SIGKILL to every process that the thread may signal, but for its
// own (kill(2), -1). A precondition of life and death: the thread is in a Landlock
// domain that scopes signals (landlock(7), LANDLOCK_SCOPE_SIGNAL), so that these are
// the domain's. As a proof somebody who is not in it is tried first: the parent of
// this process, or if that is outside of its PID namespace, the first process of
// it. If one could be signalled, nothing is done, and the answer is false. The first
// process itself has nobody to try, and 0 would be its own group.
func KillScope() bool {
	outside := os.Getppid()
	if outside == 0 && os.Getpid() != 1 {
		outside = 1
	}
	if outside != 0 && unix.Kill(outside, 0) == nil {
		return false
	}
	_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: there is none
	return true
}

// DeniesOpen tells whether open(path, O_RDONLY|O_DIRECTORY) fails with EACCES
// on this thread: the canary that a Landlock domain is really in force.
// path must end in NUL and hold no other, so that no allocation is needed.
func DeniesOpen(pathNUL []byte) bool {
	dir := unix.AT_FDCWD
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&pathNUL[0])), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, 0, 0)
	if errno == 0 {
		_ = unix.Close(int(fd))
	}
	return errno == unix.EACCES
}

type capHeader struct {
	Version uint32
	Pid     int32
}

type capData struct{ Effective, Permitted, Inheritable uint32 }

func rawPrctl(option int, arg uintptr) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, uintptr(option), arg, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
