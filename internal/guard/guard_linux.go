package guard

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/launch"
)

// Guard is a guard that runs. It is in a session of its own, so that a signal to
// this process' group does not reach it.
type Guard struct {
	cmd   *exec.Cmd
	alive *os.File // the guard reads its end, which ends with this process
	gone  chan struct{}
}

// Start starts this program again, which must call [Main] if its argv[0] is name.
func Start(name string) (*Guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		_ = w.Close()
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	launcher := os.NewFile(uintptr(self), "launcher")
	defer launcher.Close()
	g := &Guard{
		cmd: &exec.Cmd{
			Path: "/proc/self/exe", Args: []string{name}, Dir: "/", Stdin: r, ExtraFiles: []*os.File{launcher}, Env: stateEnv(),
			SysProcAttr: &unix.SysProcAttr{Setsid: true},
		},
		alive: w, gone: make(chan struct{}),
	}
	err = launch.StartHelper(func() (int, error) {
		if err := g.cmd.Start(); err != nil {
			return 0, err
		}
		return g.cmd.Process.Pid, nil
	})
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("starting a guard: %w", err)
	}
	go func() {
		_ = g.cmd.Wait()
		launch.HelperEnded(g.cmd.Process.Pid)
		close(g.gone)
	}()
	return g, nil
}

// PID is the guard's.
func (g *Guard) PID() int { return g.cmd.Process.Pid }

// Gone is closed when it has ended, by whomever.
func (g *Guard) Gone() <-chan struct{} { return g.gone }

// End dismisses the guard: this process has done all itself.
func (g *Guard) End() {
	_ = g.cmd.Process.Kill() // before its end of the pipe ends
	<-g.gone
	_ = g.alive.Close()
}

// patience bounds how long a guard goes on. What it cannot remove the next launch
// finds.
const patience = 15 * time.Second

// settling is how long a guard goes on when it finds nothing: what was being forked
// when its launcher died has a copy of the descriptor that locks the lease, until it
// ends or closes it, and a locked lease looks like that of somebody who lives.
const settling = 2 * time.Second

// stateEnv is what [scratch.StateDir] goes by.
func stateEnv() (env []string) {
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// launcherFD is the guard's pidfd of its launcher, the first of [exec.Cmd.ExtraFiles].
const launcherFD = 3

// Main is the guard's main, and returns its exit status.
func Main() int {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGTSTP, unix.SIGUSR1, unix.SIGUSR2} {
		signal.Ignore(sig)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	// Its last descriptors, the lock of its lease among them, are closed when it is
	// a zombie, and the pipe's may be closed before: on a busy machine long before,
	// and what is locked is taken for a living process'.
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: launcherFD, Events: unix.POLLIN}}, -1); err != unix.EINTR {
			break
		}
	}
	ended := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := Sweep()
		if since := time.Since(ended); err == nil && since > settling || since > patience {
			return 0
		}
		time.Sleep(pause)
	}
}
