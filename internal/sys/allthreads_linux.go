package sys

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls in this file change every thread of the process, as opposed to those of
// thread_linux.go.

// ErrForeignThreads says that this binary is linked with cgo. Go does not know the
// threads that C makes, so it makes no call on behalf of all (syscall.AllThreadsSyscall).
var ErrForeignThreads = errors.New("built with cgo, whose threads Go cannot confine one by one")

// allThreads makes one call on every thread. The runtime stops the world, holds back
// new threads, calls on this thread and, if that succeeded, on each other one; if
// another one gets a different result, it ends the process. A thread made later is
// the child of one that has made the call.
//
//go:uintptrescapes
func allThreads(trap, a1, a2, a3 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return ErrForeignThreads
	}
	return errno
}

// SetNoNewPrivsAll sets no_new_privs on every thread (prctl(2)).
func SetNoNewPrivsAll() error {
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("setting no_new_privs on all threads: %w", err)
	}
	return nil
}

// DropBoundingSetAll empties the bounding set of every thread. It needs CAP_SETPCAP:
// without it the first drop is EPERM.
func DropBoundingSetAll() error {
	for c := uintptr(0); c < 64; c++ {
		err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the end of the capabilities that this kernel knows
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d from the bounding set of all threads: %w", c, err)
		}
	}
	return nil
}

// DropCapabilitiesAll empties the ambient, inheritable, permitted and effective sets
// of every thread (capabilities(7)).
func DropCapabilitiesAll() error {
	// EINVAL: a kernel without ambient sets (before 4.3).
	err := allThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("clearing the ambient capabilities of all threads: %w", err)
	}
	hdr := &capHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	none := &[2]capData{}
	if err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(hdr)), uintptr(unsafe.Pointer(none)), 0); err != nil {
		return fmt.Errorf("dropping the capabilities of all threads: %w", err)
	}
	return nil
}

// RestrictAll puts every thread into a Landlock domain of the ruleset. With tsync the
// kernel does it (LANDLOCK_RESTRICT_SELF_TSYNC, ABI 8), and all threads share one
// domain. Without it each thread restricts itself, and gets a domain of its own with
// the same rules: to the kernel they are strangers to each other.
func RestrictAll(ruleset int, tsync bool) error {
	const flagTSync = 1 << 3
	if !tsync {
		if err := allThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); err != nil {
			return fmt.Errorf("restricting all threads: %w", err)
		}
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), flagTSync, 0); errno != 0 {
		return fmt.Errorf("restricting all threads: %w", errno)
	}
	return nil
}

// InstallFilterAll attaches a seccomp filter to every thread at once
// (SECCOMP_FILTER_FLAG_TSYNC, seccomp(2)); no_new_privs of the calling thread goes
// with it. It fails, and changes nothing, if a thread has a filter that the calling
// thread has not.
func InstallFilterAll(prog []SockFilter) error {
	if len(prog) == 0 || len(prog) > 4096 {
		return fmt.Errorf("seccomp filter has %d instructions", len(prog))
	}
	fprog := struct {
		n      uint16
		filter *SockFilter
	}{uint16(len(prog)), &prog[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno != 0:
		return fmt.Errorf("installing the seccomp filter on all threads: %w", errno)
	case thread != 0:
		return fmt.Errorf("installing the seccomp filter on all threads: thread %d has another filter", thread)
	}
	return nil
}

// TryExec attempts execve(2) of a program in a way that cannot succeed: its arguments
// are at an address that is never mapped. EFAULT means that nobody refused it.
// path must end in NUL.
func TryExec(pathNUL []byte) unix.Errno {
	const nowhere = 1
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(&pathNUL[0])), nowhere, 0)
	return errno
}
