package launch

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// Keeper is a parent that a launcher has for one purpose: if the launcher is
// killed, what it had inherited from its worker comes to its nearest ancestor
// that is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)), which ends it. That is
// what a host without cgroups for this user has to offer.
type Keeper struct {
	tree *tree
	proc *os.Process
}

// Keep starts a launcher as a child of this process. Its standard descriptors,
// and all that are not close-on-exec, are this process'; passed is one more that
// it gets, by the same number.
func Keep(path string, argv, env []string, passed *os.File) (*Keeper, error) {
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	k := &Keeper{tree: newTree()}
	files := make([]*os.File, 3)
	for i, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if _, err := unix.FcntlInt(uintptr(i), unix.F_GETFD, 0); err == nil {
			files[i] = f // nil stays closed
		}
	}
	if _, err := unix.FcntlInt(passed.Fd(), unix.F_SETFD, 0); err != nil {
		return nil, err
	}
	<-sys.SpareThreads(0) // the worker may use up what this user may have
	// A launcher that is stopped would not see that its keeper is dead. The signal is
	// sent at the end of any thread of the parent (prctl(2)), and then does no harm.
	// A sandbox around both may refuse it.
	attr := &os.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGCONT}}
	var err error
	if k.proc, err = os.StartProcess(path, argv, attr); errors.Is(err, unix.EPERM) {
		attr.Sys = nil
		k.proc, err = os.StartProcess(path, argv, attr)
	}
	return k, err
}

// Signal sends a signal to the launcher.
func (k *Keeper) Signal(sig os.Signal) { _ = k.proc.Signal(sig) }

// Wait waits for the launcher to end, and calls stopped each time that it stops.
// If it did not end by itself, what it left is ended, and what could not be is
// returned, as is what may be of this process' other children: see [Process.Unknown].
func (k *Keeper) Wait(stopped func(unix.Signal)) (status unix.WaitStatus, survivors, unknown []int, err error) {
	for {
		_, err := unix.Wait4(k.proc.Pid, &status, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return status, nil, nil, err
		case status.Stopped():
			stopped(status.StopSignal())
		case status.Exited():
			return status, nil, nil, nil
		default:
			survivors := k.tree.end()
			return status, survivors, k.tree.unknown(), nil
		}
	}
}
