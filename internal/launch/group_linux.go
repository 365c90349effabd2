package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/nofile"
	"sandboxd/internal/sys"
)

// inGroup starts the child in the cgroup of its bounds, if they have one. It runs
// on the launch thread.
func (p *Process) inGroup(b *Bounds, c *sys.Child) error {
	if b == nil || b.group == nil {
		return p.start(c)
	}
	if b.foreign {
		// The kernel judges CLONE_INTO_CGROUP by this thread's credentials,
		// which are not those that made the group: another thread moves it in.
		c.Traced = true
		return p.start(c)
	}
	c.Cgroup = b.group.FD()
	if c.Cgroup < 0 && !b.group.NeedsEnter() {
		return &backend.SetupError{Step: "limits", Err: errors.New("the cgroup is gone")}
	}
	if b.group.NeedsEnter() {
		if err := b.group.Enter(); err != nil {
			return &backend.SetupError{Step: "limits", Err: err}
		}
	}
	err := p.start(c)
	var failed *sys.SpawnError
	if errors.As(err, &failed) && failed.Step == sys.StepFork && failed.Errno == unix.E2BIG {
		// clone3 without CLONE_INTO_CGROUP, before Linux 5.7.
		c.Cgroup, c.Traced = -1, true
		err = p.start(c)
	}
	if b.group.NeedsEnter() {
		if left := b.group.Leave(); left != nil {
			p.abandon()
			err = &backend.SetupError{Step: "limits", Err: errors.Join(left, err)}
		}
	}
	return err
}

// start starts the child, and waits until it stands still if it is traced.
func (p *Process) start(c *sys.Child) (err error) {
	begin := func() (helper int, err error) {
		p.pid, p.pidfd, err = c.Start()
		if c.Stage != nil && err == nil {
			helper, _ = c.Stage.PID()
			helpers.roots[p.pid] = true // under its lock
		}
		return helper, err
	}
	if c.Stage == nil {
		_, err = begin()
	} else { // the first process of its PID namespace is a child of this process, too
		err = StartHelper(begin)
	}
	if err != nil || !c.Traced {
		return err
	}
	if err := p.awaitStop(); err != nil {
		p.abandon()
		return &backend.SetupError{Step: "limits", Err: err}
	}
	return nil
}

// abandon ends a child that must not go on, if there is one. It runs on the launch
// thread, which may be the child's tracer.
func (p *Process) abandon() {
	if p.pid == 0 {
		return
	}
	_ = p.Signal(unix.SIGKILL)
	_, _ = sys.WaitExit(unix.P_PID, p.pid, true)
	_ = p.closeStage()
	if p.pidfd >= 0 {
		_ = unix.Close(p.pidfd)
	}
}

// awaitStop waits until the child stands at its first instruction: it has asked
// to be traced, and a traced process stops with SIGTRAP when execve succeeds
// (ptrace(2)). Only the thread that forked it may wait for that and let it go.
func (p *Process) awaitStop() error {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(p.pid, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("waiting for the held process: %w", err)
		case ws.Stopped() && ws.StopSignal() == unix.SIGTRAP:
			return nil
		case ws.Stopped():
			// A signal that came first: it waits with the others.
			if err := unix.PtraceCont(p.pid, int(ws.StopSignal())); err != nil {
				return fmt.Errorf("letting the held process take a signal: %w", err)
			}
			continue
		}
		return fmt.Errorf("the process ended while it was held (%#x)", uint32(ws))
	}
}

// addHeld puts the held child into its cgroup and lets it go, or ends it. It runs
// on a thread that is not confined.
func (p *Process) addHeld(b *Bounds) error {
	err := b.group.Add(p.pid)
	if err != nil {
		_ = p.Signal(unix.SIGKILL)
	}
	let := make(chan error)
	p.onThread <- func() {
		errno := unix.PtraceDetach(p.pid)
		if errors.Is(errno, unix.ESRCH) && err != nil {
			errno = nil // it was killed
		}
		let <- errno
	}
	if derr := <-let; derr != nil {
		_ = p.Signal(unix.SIGKILL)
		err = errors.Join(err, fmt.Errorf("letting the held process go: %w", derr))
	}
	if err == nil {
		return nil
	}
	_, _ = p.Wait()
	return &backend.SetupError{Step: "limits", Err: err}
}

// reap collects those orphans of the group that have come to this process, which
// has other workers, too: a zombie is in its cgroup until it is reaped.
func (b *Bounds) reap() {
	if b == nil || b.group == nil {
		return
	}
	name := []byte("/" + b.group.Name())
	for _, pid := range workers() {
		dir := "/proc/" + strconv.Itoa(pid)
		if in, err := os.ReadFile(dir + "/cgroup"); err != nil || !bytes.Contains(in, name) {
			continue
		}
		if stat, err := os.ReadFile(dir + "/stat"); err == nil && stateOf(stat) == 'Z' {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// rlimits are the worker's resource limits: getrlimit(2). What is above this
// process' own hard limits is not the worker's to have.
func (b *Bounds) rlimits() (list []sys.ChildLimit) {
	if b == nil {
		return nil
	}
	processes := 0
	if b.userLimit {
		processes = b.limits.Pids + tasksOf(os.Getuid())
	}
	for _, r := range []struct {
		resource int
		asked    bool
		value    uint64
	}{
		{unix.RLIMIT_FSIZE, b.limits.FileSize > 0, uint64(b.limits.FileSize)},
		{unix.RLIMIT_NOFILE, b.limits.Files > 0, uint64(b.limits.Files)},
		{unix.RLIMIT_CORE, true, uint64(b.limits.Core)},
		{unix.RLIMIT_NPROC, b.userLimit, uint64(processes)},
	} {
		var now unix.Rlimit
		if !r.asked || unix.Getrlimit(r.resource, &now) != nil { // it cannot fail with these arguments
			continue
		}
		v := min(r.value, now.Max)
		list = append(list, sys.ChildLimit{Resource: r.resource, Cur: v, Max: v})
	}
	return list
}

// tasksOf counts the threads of a real user, which is what RLIMIT_NPROC counts, as
// far as /proc shows them.
func tasksOf(uid int) (n int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	want := []byte("\nUid:\t" + strconv.Itoa(uid) + "\t")
	for _, e := range entries {
		if e.Name()[0] < '0' || e.Name()[0] > '9' {
			continue
		}
		status, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil || !bytes.Contains(status, want) {
			continue
		}
		_, rest, _ := bytes.Cut(status, []byte("\nThreads:\t"))
		text, _, _ := bytes.Cut(rest, []byte("\n"))
		threads, _ := strconv.Atoi(string(text))
		n += threads
	}
	return n
}

// startLimit is the limit of open files with which this process was started,
// unless somebody has set one since: package syscall has raised it to just below
// the hard limit, and lowers it again for the children that it starts itself.
func startLimit(have []sys.ChildLimit) []sys.ChildLimit {
	start, ok := nofile.AtStart()
	var now unix.Rlimit
	switch {
	case !ok || slices.ContainsFunc(have, func(l sys.ChildLimit) bool { return l.Resource == unix.RLIMIT_NOFILE }):
		return have
	case unix.Getrlimit(unix.RLIMIT_NOFILE, &now) != nil || now.Max != start.Max || now.Cur != start.Max-1 || start.Cur >= now.Cur:
		return have
	}
	return append(have, sys.ChildLimit{Resource: unix.RLIMIT_NOFILE, Cur: start.Cur, Max: start.Max})
}
