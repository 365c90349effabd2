package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/launch"
	"sandboxd/internal/scratch"
)

// guardName is the guard's argv[0].
const guardName = "sbx-guard"

// guardAfter is when a worker gets a guard: most commands end before, and the
// start of a process would take longer than they do.
const guardAfter = 20 * time.Millisecond

// guarding is a process beside this one that does, when this one is killed, what
// it can do no more: end the worker's cgroup and remove what was made. It is in a
// session of its own, so that a signal to this process' group does not reach it.
type guarding struct {
	mu    sync.Mutex
	timer *time.Timer
	cmd   *exec.Cmd
	alive *os.File // the guard reads its end, which ends with this process
	over  bool
	err   error
}

func (g *guarding) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(guardAfter, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.over {
			g.err = g.begin()
		}
	})
}

func (g *guarding) begin() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{guardName}, Dir: "/", Stdin: r,
		Env:         stateEnv(),
		SysProcAttr: &unix.SysProcAttr{Setsid: true},
	}
	err = launch.StartHelper(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	if err != nil {
		_ = w.Close()
		return err
	}
	g.cmd, g.alive = cmd, w
	return nil
}

// end dismisses the guard: this process has done all itself. It returns why there
// was none, if one was wanted.
func (g *guarding) end() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.cmd != nil {
		_ = g.cmd.Process.Kill() // before its end of the pipe ends
		_ = g.cmd.Wait()
		launch.HelperEnded(g.cmd.Process.Pid)
		_ = g.alive.Close()
		g.cmd = nil
	}
	return g.err
}

// guardTime bounds how long a guard tries to remove what its launcher left. What
// it cannot remove the next launch finds.
const guardTime = 10 * time.Second

// stateEnv is what [scratch.StateDir] goes by.
func stateEnv() (env []string) {
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func isGuard() bool { return os.Args[0] == guardName }

// guard is the guard's main.
func guard() int {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGTSTP, unix.SIGUSR1, unix.SIGUSR2} {
		signal.Ignore(sig)
	}
	launcher := os.Getppid()
	if fd, err := unix.PidfdOpen(launcher, 0); err == nil {
		defer unix.Close(fd)
		_, _ = io.Copy(io.Discard, os.Stdin)
		// Its last descriptors, the lock of its lease among them, are closed when
		// it is a zombie, and the pipe's may be closed before.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
	} else {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	deadline := time.Now().Add(guardTime)
	for pause := time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		if sweepLeft() == nil || time.Now().After(deadline) {
			return 0
		}
		time.Sleep(pause)
	}
}

// sweepLeft removes what dead launchers left; an error says that something is
// left still.
func sweepLeft() error {
	swept, err := scratch.Mine().Sweep(removeLeft)
	for _, s := range swept {
		err = errors.Join(err, s.Err)
	}
	return err
}
