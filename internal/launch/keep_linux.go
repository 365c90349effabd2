package launch

import (
	"os"

	"golang.org/x/sys/unix"
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
	var err error
	k.proc, err = os.StartProcess(path, argv, &os.ProcAttr{Env: env, Files: files})
	return k, err
}

// Signal sends a signal to the launcher.
func (k *Keeper) Signal(sig os.Signal) { _ = k.proc.Signal(sig) }

// Wait waits for the launcher to end, and calls stopped each time that it stops.
// If it did not end by itself, what it left is ended, and what could not be is
// returned.
func (k *Keeper) Wait(stopped func()) (status unix.WaitStatus, survivors []int, err error) {
	for {
		_, err := unix.Wait4(k.proc.Pid, &status, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return status, nil, err
		case status.Stopped():
			stopped()
		case status.Exited():
			return status, nil, nil
		default:
			return status, k.tree.end(), nil
		}
	}
}
