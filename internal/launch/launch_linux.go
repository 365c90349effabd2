// Package launch starts one process from a confined thread, waits for it, and
// ends what it leaves behind. The order of its steps is the security of every
// Linux backend: docs/launch-order.md lists them under the same numbers.
package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/sys"
)

// Request is one launch. Every file is open already: the confined thread may
// not be able to open anything.
type Request struct {
	Path string
	Argv []string
	Env  []string
	// Dir is where the child starts.
	Dir *os.File
	// Stdio are the child's descriptors 0, 1 and 2, and with Files its only ones.
	Stdio [3]*os.File
	Files []backend.File
	// Terminal and OwnTree: see backend.Command.
	Terminal, OwnTree bool
	// Domain is the worker's own, within the launch thread's; nil is none.
	Domain *sys.Domain
	// Bounds are the worker's cgroup and limits, to be discarded after Wait. Nil
	// stands for none.
	Bounds *Bounds
	// Scoped tells that the thread's domain lets it signal its own worker's
	// processes and no others: they are ended by that.
	Scoped bool
	// Quota is the limit on its private directories, nil for none; Wait ends it.
	Quota *Quota
	// Stage gives it namespaces of its own; nil is none. Its working directory is then
	// the stage's. Alive is what keeps the first process of its PID namespace, and by
	// that all others, and is closed with it: see [sys.Stage].
	Stage *sys.Stage
	Alive *os.File
	// Begin: see backend.Command.
	Begin func() error
	// User is whom [Start] makes the child; nil is the caller.
	User *User
}

// Process is a started child.
type Process struct {
	pid   int
	pidfd int   // -1 before Linux 5.2
	tree  *tree // nil without OwnTree
	// onThread are functions for the launch thread, which stays until Wait
	// closes it.
	onThread chan func()
	mu       sync.Mutex // guards what follows: a Signal may stand beside Wait
	reaped   bool
	killer   *time.Timer // of Stop
	cause    string      // who stopped it
	used     usage
	bounds   *Bounds
	scoped   bool
	killed   atomic.Bool // by Stop: a SIGKILL that is nobody else's
	ending   sync.Mutex  // held while the rest of the tree is ended
	look     *time.Timer
	over     bool // the root was waited for
	thread   *Thread
	unknown  []int
	quota    *quotaWatch
	stage    *sys.Stage
	alive    *os.File
	warnings []string
	total    *backend.Usage
}

// Thread is an OS thread that serves one launch: it is confined, then forks
// the worker, then stays until the worker has ended. It may be made ahead of
// its launch, so that a caller with many launches does not wait for the kernel
// to build its domain.
//
// It stays because PR_SET_PDEATHSIG fires when the creating *thread* ends, and
// it does nothing else because a thread that carries a Landlock domain
// and a filter must never serve another goroutine. It is locked and never
// unlocked, so the runtime ends it with its goroutine; and the runtime clones
// new threads from a clean template thread when the current one is locked, so
// no other thread can inherit the domain (runtime.newm).
type Thread struct {
	// calls are functions for the thread to run, one after the other; closed,
	// it ends the thread.
	calls chan func()
	// asks are functions for it while the worker runs, from others than Process.
	asks      chan func()
	gone      chan struct{} // closed when it has ended
	token     sys.Token
	watchdog  *sys.Watchdog
	unwatched error
	tree      *tree // as it is before the launch
}

// Token is for the filter that is installed on the thread, which must let it
// start a process in a cgroup: see [sys.Token].
func (t *Thread) Token() sys.Token { return t.token }

// NewThread makes a thread with a working directory and umask of its own.
func NewThread() (*Thread, error) { return NewThreadDoing(nil) }

// NewThreadDoing makes a thread that has done f when it is there, as by [Thread.Do]
// right after [NewThread]: without two threads that wait for each other once more.
func NewThreadDoing(f func(*Thread) error) (*Thread, error) {
	t := &Thread{calls: make(chan func()), asks: make(chan func()), gone: make(chan struct{}), token: sys.NewToken()}
	ready := make(chan error, 1)
	// 5: a locked thread, never the main one, that serves this worker only.
	sys.OnOwnThread(func() {
		defer close(t.gone)
		// 6: the child will inherit both.
		err := sys.UnshareFS()
		if err != nil {
			err = &backend.SetupError{Step: "cwd", Err: err}
		} else if f != nil {
			err = confineError(f(t))
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range t.calls {
			f()
		}
	})
	if err := <-ready; err != nil {
		t.dismiss()
		return nil, err
	}
	return t, nil
}

func confineError(err error) error {
	var se *backend.SetupError
	if err != nil && !errors.As(err, &se) {
		return &backend.SetupError{Step: "confine", Err: err}
	}
	return err
}

// Do runs f on the thread and waits for it: 7 to 11 are the backend's. After an
// error the thread must be closed; it may be half confined. f must not start
// goroutines there, and must stop on surprise.
func (t *Thread) Do(f func() error) error {
	done := make(chan error, 1)
	t.calls <- func() { done <- f() }
	return confineError(<-done)
}

// Watch forks a watchdog, which ends what the thread will start if this process is
// killed. It is called on the thread, which scope puts in a domain that scopes
// signals, and before it enters the worker's. [Thread.Start] waits until it watches.
// Without one the launch goes on, and Process.Warnings tells of it.
func (t *Thread) Watch(scope func() error) {
	t.tree = newTree() // that there is no child is quick to see
	if t.unwatched = scope(); t.unwatched != nil {
		return
	}
	t.unwatched = StartHelper(func() (pid int, err error) {
		if t.watchdog, err = sys.StartWatchdog(); err == nil {
			pid = t.watchdog.PID()
		}
		return pid, err
	})
}

// dismiss ends the watchdog, whose work is done.
func (t *Thread) dismiss() {
	if t.watchdog != nil {
		t.unwatched = t.watchdog.Dismiss()
		HelperEnded(t.watchdog.PID())
		t.watchdog = nil
	}
}

// Close ends a thread that has served no launch. It may be called once, and
// not after [Thread.Start].
func (t *Thread) Close() {
	close(t.calls)
	t.dismiss()
}

// Start launches the request on the thread, once. Errors are
// *backend.SetupError, with the step's name, *backend.ExecError, and Begin's own;
// after either nothing runs and the thread is gone.
func (t *Thread) Start(r Request) (*Process, error) {
	child, err := r.child()
	if err == nil && r.OwnTree {
		if err = becomeSubreaper(); err != nil {
			err = &backend.SetupError{Step: "subreaper", Err: err}
		}
	}
	// 12: nothing but the named descriptors may pass exec.
	if err == nil {
		if err = sys.CloseOnExecFrom(3); err != nil {
			err = &backend.SetupError{Step: "descriptors", Err: err}
		}
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	p := &Process{pidfd: -1, onThread: make(chan func()), thread: t}
	if r.OwnTree {
		if p.tree = t.tree; p.tree == nil {
			p.tree = newTree()
		}
	}
	if t.watchdog != nil {
		t.unwatched = t.watchdog.Ready()
	}
	if r.Begin != nil {
		if err := r.Begin(); err != nil {
			t.Close()
			return nil, err
		}
	}
	child.Token = t.token
	p.bounds = r.Bounds
	p.scoped = r.Scoped && r.Stage == nil // by way of a stage this thread is in no domain
	p.stage, p.alive, child.Stage = r.Stage, r.Alive, r.Stage
	p.watchQuota(r.Quota)
	started := make(chan error, 1)
	t.calls <- func() {
		err := p.spawn(r, child)
		started <- err
		if err == nil {
			t.stay(p.onThread) // see Thread
		}
	}
	close(t.calls) // it serves this one launch
	err = <-started
	runtime.KeepAlive(r)
	if err != nil {
		p.dropQuota()
		t.dismiss()
		return nil, err
	}
	if child.Traced {
		if err := p.addHeld(r.Bounds); err != nil {
			return nil, err
		}
	}
	if p.tree != nil {
		p.tree.watch(p.pid)
	}
	p.watch()
	p.beginQuota()
	return p, nil
}

// stay serves a running worker's process and whoever asks, until calls is closed.
func (t *Thread) stay(calls <-chan func()) {
	for {
		select {
		case f, more := <-calls:
			if !more {
				return
			}
			f()
		case f := <-t.asks:
			f()
		}
	}
}

// Reach asks whether the worker could signal a task, which its Landlock domain
// decides as it decides for this thread, where that scopes signals: nil for the
// worker's own tasks, EPERM for others, ESRCH where there is none. Whether a thread
// of this process can be reached it does not tell: to these the kernel may let
// the thread send whatever its domain is.
//
// It is for whoever answers for the worker while that runs: the thread does only
// what is done at once, so it waits for nobody, and needs no other thread.
func (t *Thread) Reach(tid int) error {
	answer := make(chan error, 1)
	select {
	case t.asks <- func() { answer <- sys.MaySignal(tid) }:
		return <-answer
	case <-t.gone:
		return unix.EPERM
	}
}

// becomeSubreaper asks once: the attribute is the process' and stays.
var becomeSubreaper = sync.OnceValue(func() error {
	subreaper.Store(true)
	return sys.BecomeSubreaper()
})

var subreaper atomic.Bool

// Start launches a request that asks for no confinement.
func Start(r Request) (*Process, error) {
	var become func(*Thread) error
	if r.User != nil {
		become = func(*Thread) error { return Become(r.User) }
	}
	t, err := NewThreadDoing(become)
	if err != nil {
		return nil, err
	}
	return t.Start(r)
}

// Become makes the calling thread, locked to its goroutine, another user's for good,
// without any capability; nil stays the caller's. Order is the security here; after
// editing run `make test-mutation` as root and as another user.
func Become(u *User) error {
	// 7: identity and capabilities go first, while they may still be changed;
	// the bounding set before the uid, which takes CAP_SETPCAP along.
	if err := sys.DropBoundingSet(); err != nil {
		return &backend.SetupError{Step: "capabilities", Err: err}
	}
	if u != nil {
		if err := sys.SetIDs(u.UID, u.GID, u.Groups); err != nil {
			return &backend.SetupError{Step: "identity", Err: err}
		}
	}
	if err := sys.DropCapabilities(); err != nil {
		return &backend.SetupError{Step: "capabilities", Err: err}
	}
	// 8: no_new_privs: without it and without CAP_SYS_ADMIN neither Landlock nor
	// seccomp may be applied, and a set-user-ID program would regain what step 7
	// gave up.
	if err := sys.SetNoNewPrivs(); err != nil {
		return &backend.SetupError{Step: "no_new_privs", Err: err}
	}
	return nil
}

func (r Request) child() (*sys.Child, error) {
	if len(r.Argv) == 0 || r.Path == "" || r.Dir == nil {
		return nil, &backend.SetupError{Step: "request", Err: errors.New("incomplete request")}
	}
	c := &sys.Child{Path: r.Path, Argv: r.Argv, Env: r.Env, Limits: startLimit(r.Bounds.rlimits()), Cgroup: -1, Terminal: r.Terminal, Domain: r.Domain}
	for i, f := range r.Stdio {
		if f == nil {
			return nil, &backend.SetupError{Step: "request", Err: fmt.Errorf("descriptor %d is not set", i)}
		}
		c.Files = append(c.Files, sys.ChildFile{From: int(f.Fd()), To: i})
	}
	for _, f := range r.Files {
		c.Files = append(c.Files, sys.ChildFile{From: int(f.File.Fd()), To: f.To})
	}
	return c, nil
}

// spawn runs on the launch thread.
func (p *Process) spawn(r Request, c *sys.Child) error {
	// 13: entered by handle, so that a directory swapped after its check
	// changes nothing.
	if err := sys.Fchdir(r.Dir); err != nil {
		return &backend.SetupError{Step: "cwd", Err: err, Hint: "the directory must exist and be searchable by you"}
	}
	// 14: fork and execve, in the worker's cgroup from the start.
	err := p.inGroup(r.Bounds, c)
	var failed *sys.SpawnError
	var staged *sys.ProgramError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &staged):
		return &backend.SetupError{Step: "namespaces", Err: staged}
	case !errors.As(err, &failed):
		var setup *backend.SetupError
		if errors.As(err, &setup) {
			return setup
		}
		return &backend.SetupError{Step: "fork", Err: err}
	case failed.Step == sys.StepExec:
		return &backend.ExecError{Path: r.Path, Errno: failed.Errno}
	case failed.Step == sys.StepDomain && failed.Errno == unix.E2BIG:
		return &backend.SetupError{Step: "landlock", Err: errors.New("15 Landlock domains are stacked already, and the command takes two of the kernel's 16"),
			Hint: "start it outside of the sandboxes around this process"}
	case failed.Step == sys.StepDomain:
		return &backend.SetupError{Step: "landlock", Err: failed}
	case failed.Step == sys.StepTrace:
		// Refused where there is a tracer already, and by Yama (ptrace(2)).
		return &backend.SetupError{Step: "limits", Err: fmt.Errorf("holding the process until it is in its cgroup: %w", failed),
			Hint: "do not run it under a tracer such as strace"}
	case failed.Step == sys.StepTerminal && failed.Errno == unix.EPERM:
		// A terminal is one session's (ioctl_tty(2)), and any process that may open
		// this one may have been quicker.
		return &backend.SetupError{Step: "terminal", Err: failed, Hint: "another process of this user took the new terminal: run again"}
	case failed.Step == sys.StepFork && (failed.Errno == unix.EAGAIN || failed.Errno == unix.ENOMEM):
		return &backend.SetupError{Step: "fork", Err: failed.Errno, Hint: "a process or memory limit of the caller was reached"}
	case failed.Step == sys.StepFork:
		return &backend.SetupError{Step: "fork", Err: failed.Errno}
	}
	return &backend.SetupError{Step: "fork", Err: failed}
}

// PID is the child's pid.
func (p *Process) PID() int { return p.pid }

// Signal sends a signal to the root process; a process that has ended is no
// error.
func (p *Process) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal %v is not a system signal", sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil // its pid may be another's by now
	}
	var err error
	if p.pidfd >= 0 {
		// By pidfd: a pid may have been given to a stranger by now.
		err = unix.PidfdSendSignal(p.pidfd, unix.Signal(s), nil, 0)
	} else {
		err = unix.Kill(p.pid, unix.Signal(s))
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Wait blocks until the root process has ended and, with OwnTree, until the
// rest of its tree has been ended too. It returns what could not be ended. It
// must be called, once.
func (p *Process) Wait() (backend.Outcome, []int) {
	// 15: by pidfd. First without reaping, so that a Signal beside it cannot
	// reach another process that has got the pid.
	idType, id := unix.P_PID, p.pid
	parked := p.park()
	if p.pidfd >= 0 && parked == nil {
		idType, id = unix.P_PIDFD, p.pidfd
	}
	status, err := p.waitEnd(idType, id)
	p.mu.Lock()
	if err == nil {
		var reaped sys.ExitInfo
		if reaped, err = sys.WaitExit(idType, id, true); err == nil {
			p.used.add(&reaped.Usage)
		}
	}
	p.reaped = true
	if p.killer != nil {
		p.killer.Stop()
	}
	if parked != nil {
		_ = parked.Close()
	} else if p.pidfd >= 0 {
		_ = unix.Close(p.pidfd)
	}
	p.mu.Unlock()
	// 16: the rest of the tree.
	p.ending.Lock()
	p.over = true
	if p.look != nil { // there is none for a launch that failed
		p.look.Stop()
	}
	all := p.endRest()
	unstaged := p.closeStage()
	close(p.onThread) // the launch thread may go
	p.ending.Unlock()
	if all {
		p.thread.dismiss() // there is nothing left to watch, and without children the rest is quick
	}
	var survivors []int
	if p.tree != nil {
		survivors = p.tree.end()
		p.unknown = p.tree.unknown()
		p.used.addAll(p.tree.used)
	} else if subreaper.Load() {
		p.bounds.reap() // an earlier worker's OwnTree has made their orphans ours
	}
	outcome := outcomeOf(status)
	if err != nil {
		outcome = backend.Outcome{Kind: backend.SetupFailed, Step: "wait", Reason: err.Error()}
	}
	p.total = p.used.total()
	left, warnings := p.bounds.end(p.total, &outcome, p.killed.Load())
	p.warnings = warnings
	if unstaged != nil {
		p.warnings = append(p.warnings, fmt.Sprintf("ending the PID namespace: %v", unstaged))
	}
	p.thread.dismiss()
	if err := p.thread.unwatched; err != nil {
		p.warnings = append(p.warnings, fmt.Sprintf("nobody would have ended the command's processes had this process been killed: %v", err))
	}
	p.endQuota(&outcome)
	return outcome, append(survivors, left...)
}

// killScope ends all that the launch thread may signal, which is in its Landlock
// domain: every process of the tree, whatever session it is in. No fork escapes:
// kill(2) of -1 goes through all processes under a lock that a fork has to take,
// and a fork fails if its process is about to be killed (copy_process).
func (p *Process) killScope() {
	if !p.scoped {
		return
	}
	done := make(chan bool)
	p.onThread <- func() { done <- sys.KillScope() }
	p.scoped = <-done
}

// Scoped tells, after Wait, whether the tree was ended by what its domain let the
// launch thread signal.
func (p *Process) Scoped() bool { return p.scoped }

// Unknown are, after Wait, the processes that may be the worker's, or of other
// children of this process: those that a shell which became it had in the
// background. Nothing was done to them.
func (p *Process) Unknown() []int { return p.unknown }

// Warnings are what Wait found beside the outcome.
func (p *Process) Warnings() []string { return p.warnings }

// park waits for the end without a thread, where there may be many workers: a pidfd
// polls readable when its process has ended, with all of its threads (pidfd_open(2),
// Linux 5.3). It returns a file that has become the pidfd's owner; nil if it has not
// waited. Stops are left to lookAfter: see waitEnd.
func (p *Process) park() *os.File {
	if p.pidfd < 0 || p.tree != nil || unix.SetNonblock(p.pidfd, true) != nil { // or package os would not wait for it
		return nil
	}
	f := os.NewFile(uintptr(p.pidfd), "pidfd")
	ended := func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return n == 1 && err == nil
	}
	if conn, err := f.SyscallConn(); err == nil {
		_ = conn.Read(ended) // what fails waits in waitEnd
	}
	return f
}

// waitEnd waits for the real end. A worker may make its parent its tracer
// (PTRACE_TRACEME), and waitid then reports each of its stops as well: those
// are detached from, so that no stop is taken for an end, and none hangs it.
// Only the tracer may detach: the thread that forked.
func (p *Process) waitEnd(idType, id int) (sys.ExitInfo, error) {
	for {
		info, err := sys.WaitExit(idType, id, false)
		if err != nil || info.Ended() {
			return info, err
		}
		detached := make(chan struct{})
		p.onThread <- func() {
			sys.PtraceDetach(p.pid, info.StopSignal())
			close(detached)
		}
		<-detached
	}
}

func outcomeOf(s sys.ExitInfo) backend.Outcome {
	const exited, dumped = 1, 3 // CLD_EXITED, CLD_DUMPED: sigaction(2)
	if s.Code == exited {
		return backend.ExitedWith(int(s.Status))
	}
	name := unix.SignalName(unix.Signal(s.Status))
	if name == "" { // a real-time signal
		name = fmt.Sprintf("SIG%d", s.Status)
	}
	return backend.Outcome{
		Kind:       backend.Signaled,
		Signal:     int(s.Status),
		SignalName: name,
		CoreDumped: s.Code == dumped,
	}
}

// closeStage ends the first process of the worker's PID namespace, which ends all that
// are left there. The root has been waited for.
func (p *Process) closeStage() error {
	if p.stage == nil {
		return nil
	}
	pid, _ := p.stage.PID()
	helpers.Lock()
	delete(helpers.roots, p.pid)
	helpers.Unlock()
	err := p.stage.Close(collectStrays)
	HelperEnded(pid)
	_ = p.alive.Close()
	p.stage = nil
	return err
}
