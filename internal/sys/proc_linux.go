package sys

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CloseOnExecFrom marks every descriptor from first on close-on-exec:
// close_range(2) where the kernel has CLOSE_RANGE_CLOEXEC (5.11), else one
// fcntl(2) for each entry of /proc/self/fd. Descriptors that the process
// inherited would otherwise reach its workers and walk past every rule.
func CloseOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("marking descriptors close-on-exec: %w", err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("listing descriptors: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < first {
			continue
		}
		// EBADF: the descriptor of the listing itself, closed by now.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil && err != unix.EBADF {
			return fmt.Errorf("marking descriptor %d close-on-exec: %w", fd, err)
		}
	}
	return nil
}

// OpenRealFD opens path, which holds no symbolic link, as a handle (O_PATH).
// A link that appears in it since it was resolved is ELOOP (openat2(2),
// RESOLVE_NO_SYMLINKS), never followed.
func OpenRealFD(path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

// OpenReal is [OpenRealFD] as a file.
func OpenReal(path string) (*os.File, error) {
	fd, err := OpenRealFD(path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// BecomeSubreaper makes orphaned descendants children of this process
// (PR_SET_CHILD_SUBREAPER, prctl(2)), so that they can be found and ended.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming a subreaper: %w", err)
	}
	return nil
}

// SetUndumpable keeps other processes of this user from tracing this one and
// from reading its memory and environment (PR_SET_DUMPABLE, prctl(2)).
func SetUndumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming undumpable: %w", err)
	}
	return nil
}

// ExitInfo is the part of siginfo_t that waitid(2) fills in for a child.
type ExitInfo struct {
	Code   int32 // CLD_EXITED, CLD_KILLED or CLD_DUMPED; CLD_TRAPPED or CLD_STOPPED if it is traced
	Status int32 // exit status or signal
	// Usage is the child's, with what it waited for: getrusage(2). It is set
	// where the child was reaped.
	Usage unix.Rusage
}

// Ended tells whether the child has ended, rather than stopped for a tracer.
func (e ExitInfo) Ended() bool { return e.Code >= 1 && e.Code <= 3 } // CLD_EXITED, CLD_KILLED, CLD_DUMPED

// Stopped tells whether the child has stopped for a tracer.
func (e ExitInfo) Stopped() bool { return e.Code == 4 || e.Code == 5 } // CLD_TRAPPED, CLD_STOPPED

// StopSignal is the signal that a stopped child waits to get: none for a stop
// that ptrace made itself (SIGTRAP).
func (e ExitInfo) StopSignal() int {
	if sig := int(e.Status) & 0x7f; sig != int(unix.SIGTRAP) {
		return sig
	}
	return 0
}

// PtraceDetach lets a stopped tracee go on without a tracer, with a signal
// (ptrace(2), PTRACE_DETACH). Only the thread that traces it may call. Failure
// means that it has gone on by other means, or has ended.
func PtraceDetach(pid, signal int) {
	_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(signal), 0, 0)
}

// WaitExit waits for a child to end, and reaps it if reap is set (waitid(2)).
// idType is P_PID or P_PIDFD.
func WaitExit(idType, id int, reap bool) (ExitInfo, error) {
	flags := uintptr(unix.WEXITED)
	if !reap {
		flags |= unix.WNOWAIT
	}
	return waitid(idType, id, flags)
}

// LookAtChild tells what [WaitExit] would, without waiting: a Code of 0 is nothing.
func LookAtChild(pid int) (ExitInfo, error) {
	return waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG)
}

func waitid(idType, id int, flags uintptr) (ExitInfo, error) {
	// struct siginfo: si_signo, si_errno, si_code, [pad on 64 bit,] then
	// si_pid, si_uid, si_status; 128 bytes in all.
	var info struct {
		signo, errno, code, _ int32
		pid, uid, status      int32
		_                     [100]byte
	}
	// The raw call has a fifth argument, which waitid(2) of libc leaves out.
	var usage unix.Rusage
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, uintptr(idType), uintptr(id), uintptr(unsafe.Pointer(&info)), flags, uintptr(unsafe.Pointer(&usage)), 0)
		switch errno {
		case 0:
			return ExitInfo{info.code, info.status, usage}, nil
		case unix.EINTR:
		default:
			return ExitInfo{}, fmt.Errorf("waiting for the worker: %w", errno)
		}
	}
}
