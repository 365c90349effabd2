//go:build amd64 || arm64

package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Child is a process to start. Package syscall's own ForkExec does the same but
// for two things: it cannot carry a [Token] past the caller's own filter, and it
// cannot tell an errno of execve from one of a step before.
type Child struct {
	Path string
	Argv []string
	Env  []string // nil is empty
	// Files are the child's descriptors. All others must be close-on-exec.
	Files []ChildFile
	// Terminal makes the child lead a session whose controlling terminal is its
	// descriptor 0.
	Terminal bool
	// Domain is a Landlock domain of the child's own, within the calling thread's;
	// nil is none.
	Domain *Domain
	// Limits are set before execve. Without one the child has this process', which
	// for open files is higher than the one that this process was started with
	// (package nofile).
	Limits []ChildLimit
	// Cgroup is the directory of the cgroup2 in which the child starts
	// (CLONE_INTO_CGROUP, Linux 5.7), or -1.
	Cgroup int
	// Token is for the filter on the calling thread; see [Token].
	Token Token
	// Traced makes the calling thread the child's tracer, so that it stops at
	// its first instruction (PTRACE_TRACEME, ptrace(2)).
	Traced bool
	// Stage gives the child namespaces of its own; nil is none. The child's files and
	// working directory are then what the stage has.
	Stage *Stage
}

// Domain is how a domain is entered: landlock_restrict_self(2).
type Domain struct {
	Ruleset int
	Flags   uint32
}

// ChildFile is a descriptor of a child: From is this process', To the child's.
type ChildFile struct{ From, To int }

// ChildLimit is a resource limit: setrlimit(2).
type ChildLimit struct {
	Resource int
	Cur, Max uint64
}

// SpawnError is a step of a start that failed. Nothing runs.
type SpawnError struct {
	Step  Step
	Errno syscall.Errno
}

func (e *SpawnError) Error() string { return e.Step.String() + ": " + e.Errno.Error() }
func (e *SpawnError) Unwrap() error { return e.Errno }

// Step is a step of a start.
type Step uint32

// The steps, in their order.
const (
	StepFork Step = iota + 1
	StepSession
	StepDeath // the signal by which the child dies with its parent's thread
	StepDomain
	StepFiles
	StepTerminal
	StepLimits
	StepTrace
	StepExec
)

func (s Step) String() string {
	if names := []string{"fork", "session", "parent death signal", "landlock", "descriptors", "terminal", "limits", "trace", "execve"}; s >= 1 && int(s) <= len(names) {
		return names[s-1]
	}
	return "unknown step"
}

// spawn is all that the child reads, made before the fork: after it nothing may
// be allocated.
type spawn struct {
	path      *byte
	argv, env []*byte
	files     []ChildFile
	domain    *Domain
	limits    []ChildLimit
	terminal  bool
	traced    bool
	parent    uintptr // this process

	clone cloneArgs
	token Token
	stage *Stage

	// The child writes these: it shares this memory until execve.
	step  Step
	errno syscall.Errno
	pidfd int32
	// The stage writes these.
	pid       uintptr
	forkErrno syscall.Errno
}

// spawning is under way, under syscall.ForkLock. That it is reached from here
// keeps it on the heap: the kernel is given addresses in it, and a stack moves.
var spawning *spawn

// cloneArgs is struct clone_args of clone3(2), up to the member that Linux 5.7
// has added.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// Start starts the child and returns its pid and a pidfd, which is -1 before
// Linux 5.2. The child dies with the calling thread (PR_SET_PDEATHSIG): the
// goroutine must be locked to it. It inherits that thread's working directory,
// umask, credentials, filters and Landlock domain, and waits for nothing.
// Errors are *SpawnError, or about the arguments.
func (c *Child) Start() (pid, pidfd int, err error) {
	s := &spawn{terminal: c.Terminal, traced: c.Traced, parent: uintptr(os.Getpid()), token: c.Token, pidfd: -1}
	if s.path, err = syscall.BytePtrFromString(c.Path); err != nil {
		return 0, -1, err
	}
	if s.argv, err = syscall.SlicePtrFromStrings(c.Argv); err != nil {
		return 0, -1, err
	}
	if s.env, err = syscall.SlicePtrFromStrings(c.Env); err != nil {
		return 0, -1, err
	}
	s.limits, s.domain = c.Limits, c.Domain
	var lifted []int
	s.files, lifted, err = lift(c.Files)
	defer func() {
		for _, fd := range lifted {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return 0, -1, err
	}
	const flags = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD
	s.clone = cloneArgs{flags: flags, exitSignal: uint64(syscall.SIGCHLD), pidfd: uint64(uintptr(unsafe.Pointer(&s.pidfd)))}
	if c.Cgroup >= 0 {
		s.clone.flags |= unix.CLONE_INTO_CGROUP
		s.clone.cgroup = uint64(c.Cgroup)
	}

	if c.Stage != nil {
		pid, pidfd, err = s.startStaged(c.Stage)
		runtime.KeepAlive(c)
		return pid, pidfd, err
	}
	// As package syscall does: descriptors that another goroutine is about to
	// mark close-on-exec must not slip through.
	syscall.ForkLock.Lock()
	spawning = s
	child, errno := s.fork(c.Cgroup >= 0)
	runtimeAfterFork()
	runtime.KeepAlive(spawning)
	spawning = nil
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(c)

	if errno != 0 {
		return 0, -1, &SpawnError{StepFork, errno}
	}
	if s.errno != 0 {
		reap(int(child))
		if s.pidfd >= 0 {
			_ = unix.Close(int(s.pidfd))
		}
		return 0, -1, &SpawnError{s.step, s.errno}
	}
	return int(child), int(s.pidfd), nil
}

func reap(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// lift returns the files such that no descriptor is overwritten before it was
// duplicated, with the duplicates that it took.
func lift(files []ChildFile) (safe []ChildFile, lifted []int, err error) {
	above := 0
	for _, f := range files {
		if f.From < 0 || f.To < 0 {
			return nil, nil, &SpawnError{StepFiles, unix.EBADF}
		}
		above = max(above, f.To+1)
	}
	for i, f := range files {
		if slices.ContainsFunc(files[i+1:], func(o ChildFile) bool { return o.To == f.To }) {
			return nil, lifted, fmt.Errorf("descriptor %d is given to the child twice", f.To)
		}
		if f.From != f.To && f.From < above {
			fd, err := unix.FcntlInt(uintptr(f.From), unix.F_DUPFD_CLOEXEC, above)
			if err != nil {
				var errno syscall.Errno
				errors.As(err, &errno)
				return nil, lifted, &SpawnError{StepFiles, errno}
			}
			lifted = append(lifted, fd)
			f.From = fd
		}
		safe = append(safe, f)
	}
	return safe, lifted, nil
}

// fork returns in the parent only. It is a function of its own because the child
// goes on in its stack frame: the parent may use nothing of that frame but the
// way back, once the child has run.
//
//go:noinline
//go:norace
//go:nocheckptr
func (s *spawn) fork(byClone3 bool) (pid uintptr, errno syscall.Errno) {
	// From here on nothing is allocated, and nothing called but assembly.
	runtimeBeforeFork()
	if byClone3 {
		pid, errno = vfork(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&s.clone)), unsafe.Sizeof(s.clone), uintptr(s.token[0]), uintptr(s.token[1]), 0)
	} else {
		pid, errno = vfork(unix.SYS_CLONE, uintptr(s.clone.flags)|uintptr(s.clone.exitSignal), 0, uintptr(s.clone.pidfd), 0, 0)
	}
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	s.child()
	return
}

// child is the child, up to its new program.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (s *spawn) child() {
	// Handlers go before the signals come back.
	runtimeAfterForkInChild()
	// 14a: a session of its own, if it gets a terminal.
	if s.terminal {
		if _, _, e := syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); e != 0 {
			s.fail(StepSession, e)
		}
	}
	// 14b: it dies with the launch thread; if that is gone already, now.
	if _, _, e := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0, 0); e != 0 {
		s.fail(StepDeath, e)
	}
	if parent, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); parent != s.parent {
		s.fail(StepDeath, unix.ESRCH)
	}
	// 14c: a domain of its own. In the launch thread's it could signal and trace that
	// thread, and by it stop or kill this process (kill(2) takes a thread's number).
	// Before the descriptors, which may take the ruleset's number.
	if s.domain != nil {
		if _, _, e := syscall.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(s.domain.Ruleset), uintptr(s.domain.Flags), 0); e != 0 {
			s.fail(StepDomain, e)
		}
	}
	// 14d: its descriptors.
	for i := range s.files {
		f := &s.files[i]
		var e syscall.Errno
		if f.From == f.To {
			_, _, e = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(f.To), unix.F_SETFD, 0)
		} else {
			_, _, e = syscall.RawSyscall(unix.SYS_DUP3, uintptr(f.From), uintptr(f.To), 0)
		}
		if e != 0 {
			s.fail(StepFiles, e)
		}
	}
	if s.terminal {
		if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			s.fail(StepTerminal, e)
		}
	}
	// 14e: its limits, after what needs descriptors. The kernel's struct
	// rlimit64 is two words.
	for i := range s.limits {
		l := &s.limits[i]
		if _, _, e := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, uintptr(l.Resource), uintptr(unsafe.Pointer(&l.Cur)), 0, 0, 0); e != 0 {
			s.fail(StepLimits, e)
		}
	}
	if s.traced {
		if _, _, e := syscall.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0); e != 0 {
			s.fail(StepTrace, e)
		}
	}
	// 14f.
	_, _, e := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(s.path)), uintptr(unsafe.Pointer(&s.argv[0])), uintptr(unsafe.Pointer(&s.env[0])))
	s.fail(StepExec, e)
}

// fail tells the parent and ends the child.
//
//go:norace
//go:nocheckptr
//go:nosplit
func (s *spawn) fail(step Step, errno syscall.Errno) {
	s.step, s.errno = step, errno
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 253, 0, 0)
	}
}

// vfork makes a clone call whose child shares this memory and stack. pid is 0 in
// the child.
//
//go:noescape
func vfork(nr, a0, a1, a2, a3, a4 uintptr) (pid uintptr, errno syscall.Errno)

// What package syscall calls around its own forks, and lets others call: block
// signals and forbid the stack to grow; undo that; in the child, put signal
// handlers and mask back.

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

//go:linkname runtimeAfterForkInChild syscall.runtime_AfterForkInChild
func runtimeAfterForkInChild()
