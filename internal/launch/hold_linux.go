package launch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// holds tells that the child must stand still while it is bounded.
func (b *Bounds) holds() bool { return b != nil }

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

// bound applies the limits to the held child. It runs on a thread that is not
// confined.
func (b *Bounds) bound(pid int) error {
	if b.group != nil {
		if err := b.group.Add(pid); err != nil {
			return err
		}
	}
	for _, r := range []struct {
		resource int
		asked    bool
		value    uint64
	}{
		{unix.RLIMIT_FSIZE, b.limits.FileSize > 0, uint64(b.limits.FileSize)},
		{unix.RLIMIT_NOFILE, b.limits.Files > 0, uint64(b.limits.Files)},
		{unix.RLIMIT_CORE, true, uint64(b.limits.Core)},
	} {
		if !r.asked {
			continue
		}
		var now unix.Rlimit
		if err := unix.Prlimit(pid, r.resource, nil, &now); err != nil {
			return fmt.Errorf("prlimit: %w", err)
		}
		v := min(r.value, now.Max) // more is not the worker's to have
		if err := unix.Prlimit(pid, r.resource, &unix.Rlimit{Cur: v, Max: v}, nil); err != nil {
			return fmt.Errorf("prlimit: %w", err)
		}
	}
	return nil
}

// holdAndBound bounds the held child and lets it go, or ends it.
func (p *Process) holdAndBound(b *Bounds) error {
	err := b.bound(p.pid)
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
