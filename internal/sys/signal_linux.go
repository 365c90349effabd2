package sys

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RaiseDefault makes this process do what a signal does to one that does not
// catch it. For a signal that stops, it returns when the process goes on, and at
// once where the kernel discards it (an orphaned process group). os/signal cannot
// do this: once a signal was asked for, the runtime keeps its own handler, and
// signal.Reset leaves SIGTSTP without effect.
func RaiseDefault(sig unix.Signal) error {
	// As the kernel has it on amd64 and arm64 (rt_sigaction(2)).
	type sigaction struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	var byDefault, old sigaction
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), uintptr(unsafe.Pointer(&old)), 8, 0, 0); errno != 0 {
		return errno
	}
	// To this very thread, which takes it before the call returns; kill(2) may
	// choose another one.
	runtime.LockOSThread()
	err := unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	runtime.UnlockOSThread()
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0); errno != 0 {
		return errno
	}
	return err
}

// MaySignal asks whether the calling thread may signal a task, and sends nothing
// (tkill(2), signal 0): nil, EPERM, or ESRCH if there is no such task.
func MaySignal(tid int) error { return tkill0(unix.SYS_TKILL, tid, 0) }

// IsOwnThread tells whether a task is a thread of this process (tgkill(2)).
func IsOwnThread(tid int) bool {
	return tkill0(unix.SYS_TGKILL, os.Getpid(), tid) != unix.ESRCH
}

func tkill0(nr uintptr, a, b int) error {
	if _, _, errno := unix.RawSyscall(nr, uintptr(a), uintptr(b), 0); errno != 0 {
		return errno
	}
	return nil
}
