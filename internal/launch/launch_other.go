//go:build !linux

// Package launch starts one process, waits for it, and ends what it leaves
// behind. This is the plain half for systems that are not Linux: it serves
// danger-full-access, which asks for no confinement.
package launch

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"sandboxd/backend"
)

// Request is one launch.
type Request struct {
	Path     string
	Argv     []string
	Env      []string
	Dir      *os.File
	Stdio    [3]*os.File
	Files    []backend.File
	Terminal bool
	OwnTree  bool
	Bounds   *Bounds
	Quota    *Quota
	User     *User
	// Begin: see backend.Command.
	Begin func() error
}

// Process is a started child.
type Process struct{ p *os.Process }

// Start launches the request, which asks for no confinement.
func Start(r Request) (*Process, error) {
	if r.User != nil {
		return nil, &backend.SetupError{Step: "identity", Err: errors.New("no worker runs as another user on " + runtime.GOOS)}
	}
	if r.Begin != nil {
		if err := r.Begin(); err != nil {
			return nil, err
		}
	}
	env := r.Env
	if env == nil {
		env = []string{}
	}
	p, err := os.StartProcess(r.Path, r.Argv, &os.ProcAttr{Dir: r.Dir.Name(), Env: env, Files: r.Stdio[:],
		Sys: &syscall.SysProcAttr{Setsid: r.Terminal, Setctty: r.Terminal}})
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return nil, &backend.ExecError{Path: r.Path, Errno: errno}
		}
		return nil, &backend.SetupError{Step: "fork", Err: err}
	}
	return &Process{p}, nil
}

// PID is the child's pid.
func (p *Process) PID() int { return p.p.Pid }

// Signal sends a signal to the child; one that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stop asks the child to end, and kills it after grace.
func (p *Process) Stop(grace time.Duration) bool {
	if grace <= 0 {
		return p.p.Kill() == nil
	}
	alive := p.p.Signal(syscall.SIGTERM) == nil
	time.AfterFunc(grace, func() { _ = p.p.Kill() })
	return alive
}

// Unknown is empty: no tree is followed.
func (p *Process) Unknown() []int { return nil }

// Warnings is empty.
func (p *Process) Warnings() []string { return nil }

// Usage is not known here.
func (p *Process) Usage() *backend.Usage { return nil }

// Wait blocks until the child has ended.
func (p *Process) Wait() (backend.Outcome, []int) {
	st, err := p.p.Wait()
	if err != nil {
		return backend.Outcome{Kind: backend.SetupFailed, Step: "wait", Reason: err.Error()}, nil
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return backend.Outcome{Kind: backend.Signaled, Signal: int(ws.Signal()), SignalName: ws.Signal().String(), CoreDumped: ws.CoreDump()}, nil
	}
	return backend.ExitedWith(st.ExitCode()), nil
}

// Descriptors refuses to pass any: this half of the package cannot yet.
func Descriptors(files []backend.File, unsafe bool) ([]backend.Descriptor, error) {
	if len(files) == 0 {
		return nil, nil
	}
	return nil, &backend.SetupError{Step: "descriptors", Err: errors.New("descriptors beside 0, 1 and 2 cannot be passed on this system yet")}
}
