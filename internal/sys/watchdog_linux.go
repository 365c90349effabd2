//go:build amd64 || arm64

package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watchdog is a process that sends SIGKILL to all that its Landlock domain lets it
// signal, once this process is gone, whatever has ended it. It is no program of
// its own but a fork of this one, which waits: an execve would take longer than most
// commands run. It is in a session of its own and blocks every signal, so that it
// ends with SIGKILL only, or as [Watchdog.Dismiss] wants.
type Watchdog struct {
	pid   int
	alive int // this process' socket of a pair; the other is the watchdog's
	ready bool
}

// watching is what the watchdog reads, made before the fork.
type watching struct {
	pair int32
	root [2]byte
	name [16]byte
}

// watch is under way, under syscall.ForkLock; see spawning.
var watch *watching

// StartWatchdog forks a watchdog of the calling thread, whose goroutine must be
// locked to it, and which must be in a domain that scopes signals (landlock(7),
// LANDLOCK_SCOPE_SIGNAL, Linux 6.12), around that of whom the watchdog shall end: what
// is in a domain within reaches nobody in the one around it. It is asked of whom the
// domain does not contain, this process, as a proof; a watchdog that could signal it
// does nothing.
func StartWatchdog() (*Watchdog, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("a watchdog's sockets: %w", err)
	}
	w := &watching{pair: int32(fds[0]), root: [2]byte{'/'}}
	copy(w.name[:], "sbx-watchdog")
	syscall.ForkLock.Lock()
	watch = w
	pid, errno := w.fork()
	runtimeAfterFork()
	runtime.KeepAlive(watch)
	watch = nil
	syscall.ForkLock.Unlock()
	_ = unix.Close(fds[0])
	if errno != 0 {
		_ = unix.Close(fds[1])
		return nil, fmt.Errorf("a watchdog: %w", errno)
	}
	return &Watchdog{pid: int(pid), alive: fds[1]}, nil
}

// Ready waits until the watchdog watches, which it does in a session of its own:
// before, it is in this process' group, and a signal to that ends both. Nothing that
// it shall end may run before. An error says that it does not watch.
func (w *Watchdog) Ready() error {
	if w.ready {
		return nil
	}
	var b [1]byte
	for {
		n, err := unix.Read(w.alive, b[:])
		switch {
		case err == unix.EINTR:
			continue
		case n == 1:
			w.ready = true
			return nil
		}
		return errors.New("the watchdog ended before it watched")
	}
}

// PID is the watchdog's pid: a child of this process, which only Dismiss waits for.
func (w *Watchdog) PID() int { return w.pid }

// Dismiss ends the watchdog, which does nothing more. An error says that nobody has
// watched: it had ended before.
func (w *Watchdog) Dismiss() error {
	defer unix.Close(w.alive) // after its end
	ws, err := w.wait(unix.WNOHANG)
	switch {
	case err != nil:
		return err
	case ws != nil && ws.Signaled():
		return fmt.Errorf("the watchdog was killed by signal %d", ws.Signal())
	case ws != nil:
		return errors.New("the watchdog's domain does not keep it from signalling this process")
	}
	_ = unix.Kill(w.pid, unix.SIGKILL) // not yet waited for, so it is no other's pid
	_, err = w.wait(0)
	return err
}

func (w *Watchdog) wait(flags int) (*unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		switch pid, err := unix.Wait4(w.pid, &ws, flags, nil); {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, os.NewSyscallError("wait4", err)
		case pid == 0:
			return nil, nil
		}
		return &ws, nil
	}
}

// fork returns in the parent only.
//
//go:noinline
//go:norace
//go:nocheckptr
func (w *watching) fork() (pid uintptr, errno syscall.Errno) {
	runtimeBeforeFork() // which blocks all signals: the child leaves it so
	pid, errno = vfork(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	w.run()
	return
}

// run is the watchdog. It is one thread of what was many: nothing may be called but
// assembly, and nothing allocated.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (w *watching) run() {
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&w.name)), 0)
	syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(&w.root)), 0, 0)
	// It holds nothing that anybody waits for the end of.
	if w.pair != 0 {
		syscall.RawSyscall(unix.SYS_DUP3, uintptr(w.pair), 0, 0)
	}
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 1, ^uintptr(0)>>32, 0)
	parent, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	if _, _, e := syscall.RawSyscall(unix.SYS_KILL, parent, 0, 0); e != unix.EPERM {
		w.exit(1)
	}
	syscall.RawSyscall(unix.SYS_WRITE, 0, uintptr(unsafe.Pointer(&w.root)), 1)
	for {
		_, _, e := syscall.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&w.root)), 1)
		if e != unix.EINTR {
			break
		}
	}
	syscall.RawSyscall(unix.SYS_KILL, ^uintptr(0), uintptr(syscall.SIGKILL), 0)
	w.exit(0)
}

//go:norace
//go:nocheckptr
//go:nosplit
func (w *watching) exit(status uintptr) {
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0)
	}
}
