//go:build amd64 || arm64

package sys

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stage stands between the thread that starts a [Child] and the child: a process that
// enters namespaces of its own, has the first process of the new PID namespace do what
// needs its rights there, gives up what it may, and starts the child as its caller's.
// Nothing is executed but the child: the stage shares the memory and the descriptors of
// this process, as a thread would, and the first process is a fork of it.
//
//	caller --clone--> stage --clone, CLONE_PARENT--> init: Init, then Idle until Alive is closed
//	                  stage: Enter
//	                  stage --clone, CLONE_PARENT--> child: execve
//
// Both are the caller's children, so that they are waited for as ever. Where init
// ends, the kernel ends all in its PID namespace (pid_namespaces(7)).
type Stage struct {
	// Namespaces are CLONE_NEW... flags, without CLONE_NEWPID, which always is.
	Namespaces uintptr
	// Init is run by the first process of the new PID namespace, in the other
	// namespaces, with the rights there that a new user namespace gives.
	Init *Program
	// Idle is what it does from then on, at the end of which it ends. No descriptor is
	// waited for that Idle has not closed.
	Idle *Program
	// Enter is run by the stage once Init is done. What it opens is this process' own.
	Enter *Program

	pid    int // of init
	pidfd  int
	failed failed // shared with the stage
	inInit failed // of init, which has a copy
	ready  [2]int32
}

// Result is, after the start, what a call of Enter has returned: of one that gives a
// descriptor, that descriptor; -1 if it was not made, or if the start failed.
func (st *Stage) Result(r Ref) int {
	if !r.result || st.Enter.regs[r.n] == noResult {
		return -1
	}
	return int(st.Enter.regs[r.n])
}

// PID is init's, and a pidfd of it that is the caller's to close. Init is to be ended
// and waited for by the caller. 0 and -1 stand for none.
func (st *Stage) PID() (pid, pidfd int) { return st.pid, st.pidfd }

// prepare makes the stage ready for one start.
func (st *Stage) prepare() error {
	st.pid, st.pidfd = 0, -1
	st.failed, st.inInit = failed{}, failed{}
	for _, p := range []*Program{st.Init, st.Idle, st.Enter} {
		if p.err != nil {
			return p.err
		}
		for i := range p.regs {
			p.regs[i] = noResult
		}
	}
	return nil
}

// error says what failed, nil if nothing did.
func (st *Stage) error() error {
	if st.inInit.errno != 0 {
		return st.inInit.error(st.Init)
	}
	switch f := st.failed; f.step {
	case stageUnshare:
		return &ProgramError{"a PID namespace", syscall.Errno(f.errno)}
	case stagePipe:
		return &ProgramError{"a pipe", syscall.Errno(f.errno)}
	case stageInit:
		return &ProgramError{"the first process of a PID namespace", syscall.Errno(f.errno)}
	}
	return st.failed.error(st.Enter)
}

// What can fail beside the programs.
const (
	stageUnshare = 1<<16 + iota
	stagePipe
	stageInit
)

// adopt finds what the stage has left.
func (st *Stage) adopt() error {
	if st.pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(st.pid, 0) // nobody has waited for it, so it is no other's pid
	if err != nil {
		_ = unix.Kill(st.pid, unix.SIGKILL)
		reap(st.pid)
		st.pid = 0
		return fmt.Errorf("pidfd_open: %w", err)
	}
	st.pidfd = fd
	return nil
}

// main is the stage.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (s *spawn) stageMain() {
	st := s.stage
	if _, _, e := syscall.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWPID, 0, 0); e != 0 {
		st.end(stageUnshare, e)
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_PIPE2, uintptr(unsafe.Pointer(&st.ready)), unix.O_CLOEXEC, 0); e != 0 {
		st.end(stagePipe, e)
	}
	pid, e := st.forkInit()
	syscall.RawSyscall(unix.SYS_CLOSE, uintptr(st.ready[1]), 0, 0)
	if e != 0 {
		syscall.RawSyscall(unix.SYS_CLOSE, uintptr(st.ready[0]), 0, 0)
		st.end(stageInit, e)
	}
	st.pid = int(pid)
	// Its word is what it failed with, or zeros: the memory is its own.
	st.inInit.errno = uint32(unix.EPIPE)
	for {
		n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(st.ready[0]), uintptr(unsafe.Pointer(&st.inInit)), unsafe.Sizeof(st.inInit))
		if e == unix.EINTR {
			continue
		}
		if e == 0 && n == 0 {
			st.inInit.errno = uint32(unix.EPIPE) // it has ended
		}
		break
	}
	syscall.RawSyscall(unix.SYS_CLOSE, uintptr(st.ready[0]), 0, 0)
	if st.inInit.errno != 0 {
		st.exit()
	}
	st.Enter.run(&st.failed)
	if st.failed.errno != 0 {
		st.exit()
	}
	s.forkStaged()
	st.exit()
}

// forkInit returns in the stage only.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (st *Stage) forkInit() (pid uintptr, errno syscall.Errno) {
	pid, errno = vfork(unix.SYS_CLONE, unix.CLONE_PARENT, 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	st.initMain()
	return
}

// initMain is the first process of the PID namespace. All signals are blocked, and
// stay so.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (st *Stage) initMain() {
	st.Init.run(&st.inInit)
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(st.ready[1]), uintptr(unsafe.Pointer(&st.inInit)), unsafe.Sizeof(st.inInit))
	if st.inInit.errno == 0 {
		st.Idle.run(&st.inInit)
	}
	st.exit()
}

// forkStaged starts the child, as the caller's.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (s *spawn) forkStaged() {
	var pid uintptr
	var errno syscall.Errno
	if s.clone.flags&unix.CLONE_INTO_CGROUP != 0 {
		pid, errno = vfork(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&s.clone)), unsafe.Sizeof(s.clone), uintptr(s.token[0]), uintptr(s.token[1]), 0)
	} else {
		pid, errno = vfork(unix.SYS_CLONE, uintptr(s.clone.flags), 0, uintptr(s.clone.pidfd), 0, 0)
	}
	if pid == 0 && errno == 0 {
		s.child()
	}
	s.pid, s.forkErrno = pid, errno
}

//go:norace
//go:nocheckptr
//go:nosplit
func (st *Stage) end(step uint32, errno syscall.Errno) {
	st.failed.step, st.failed.errno = step, uint32(errno)
	st.exit()
}

//go:norace
//go:nocheckptr
//go:nosplit
func (st *Stage) exit() {
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// startStaged is Start by way of a stage.
func (s *spawn) startStaged(st *Stage) (pid, pidfd int, err error) {
	if err := st.prepare(); err != nil {
		return 0, -1, err
	}
	s.stage = st
	s.clone.flags |= unix.CLONE_PARENT
	s.clone.exitSignal = 0 // that of the stage: clone(2)
	s.parent = 0           // it is outside of the PID namespace: getppid(2)
	syscall.ForkLock.Lock()
	spawning = s
	stage, errno := s.forkStage()
	runtimeAfterFork()
	spawning = nil
	syscall.ForkLock.Unlock()
	if errno != 0 {
		return 0, -1, &ProgramError{"new namespaces", errno}
	}
	reap(int(stage))
	err = st.error()
	switch {
	case err != nil:
	case s.forkErrno != 0:
		err = &SpawnError{StepFork, s.forkErrno}
	case s.errno != 0:
		reap(int(s.pid))
		err = &SpawnError{s.step, s.errno}
	case s.pid == 0:
		err = errors.New("the stage was killed")
	}
	if aerr := st.adopt(); err == nil && aerr != nil {
		_ = unix.Kill(int(s.pid), unix.SIGKILL)
		reap(int(s.pid))
		err = aerr
	}
	if err != nil {
		st.Enter.discard()
		if s.pidfd >= 0 {
			_ = unix.Close(int(s.pidfd))
		}
		return 0, -1, errors.Join(err, st.Close(nil))
	}
	return int(s.pid), int(s.pidfd), nil
}

// forkStage returns in the caller only.
//
//go:noinline
//go:norace
//go:nocheckptr
func (s *spawn) forkStage() (pid uintptr, errno syscall.Errno) {
	flags := s.stage.Namespaces | unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_FILES | uintptr(syscall.SIGCHLD)
	runtimeBeforeFork()
	pid, errno = vfork(unix.SYS_CLONE, flags, 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	s.stageMain()
	return
}

// Kill sends SIGKILL to the first process of the PID namespace, and by it to all that
// is there.
func (st *Stage) Kill() {
	if st.pid != 0 {
		_ = unix.PidfdSendSignal(st.pidfd, unix.SIGKILL, nil, 0)
	}
}

// Close ends the first process of the PID namespace and by it all that is there, and
// waits until they have ended. The kernel has init wait until each of them was waited
// for (zap_pid_ns_processes): the child must have been, and collect is called, again and
// again, to do so for others that are this process' children. The worker can make such
// (CLONE_PARENT, clone(2)). Nil is for when there are none.
func (st *Stage) Close(collect func()) error {
	if st.pid == 0 {
		return nil
	}
	err := unix.PidfdSendSignal(st.pidfd, unix.SIGKILL, nil, 0)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		pid, werr := unix.Wait4(st.pid, nil, unix.WNOHANG, nil)
		if pid != 0 && werr != unix.EINTR {
			break
		}
		// Most end at once, and its end is what this sees first.
		fds := []unix.PollFd{{Fd: int32(st.pidfd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, int(max(pause/time.Millisecond, 1)))
		if n <= 0 && collect != nil {
			collect()
		}
	}
	_ = unix.Close(st.pidfd)
	st.pid, st.pidfd = 0, -1
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}
