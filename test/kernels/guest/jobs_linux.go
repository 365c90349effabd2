package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/test/kernels/wire"
)

const (
	notRun = 125 // Result.Exit of a job that could not be set up

	defaultLimit = 5 * time.Minute
	// outputLimit bounds the wait for the end of a job's output, once all its
	// processes are gone. The line takes about 200 kB of it in a second.
	outputLimit = time.Minute
)

// homes are the users that a job can have, and their homes.
var homes = map[int]string{0: "/root", ordinaryUser: "/home/user"}

// environment is what a user's job finds, and more. exec takes the last of two
// with the same name.
func environment(uid int, more []string) []string {
	name := map[int]string{0: "root", ordinaryUser: "user"}[uid]
	return append([]string{
		"PATH=" + searchPath, "HOME=" + homes[uid], "USER=" + name, "LOGNAME=" + name, "LANG=C.UTF-8", "TMPDIR=/tmp",
	}, more...)
}

func timeLimit(j wire.Job) time.Duration {
	if j.Seconds <= 0 {
		return defaultLimit
	}
	return time.Duration(j.Seconds) * time.Second
}

// run runs a job to its end and cleans up after it.
func run(j wire.Job, stdout, stderr io.Writer) (r wire.Result) {
	r = wire.Result{Name: j.Name, UID: j.UID, Exit: notRun}
	var t troubles
	defer func() {
		r.Trouble = strings.Join(t, "; ")
	}()

	cmd, err := command(j)
	if err != nil {
		t.add("setting up", err)
		return r
	}
	restore, err := writeSysctls(j.Sysctls)
	defer func() { t.add("restoring sysctls", restore()) }()
	if err != nil {
		t.add("setting up", err)
		return r
	}
	if j.Delegate {
		group, err := delegate(j.Name, j.UID, j.Limits)
		defer func() { t.add("removing the cgroup", group.remove()) }()
		if err != nil {
			t.add("delegating a cgroup", err)
			return r
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.leaf.Fd())
	}

	var out, errs capture
	if err := errors.Join(out.open(&cmd.Stdout, stdout), errs.open(&cmd.Stderr, stderr)); err != nil {
		t.add("setting up", err)
		return r
	}
	began := time.Now()
	err = cmd.Start()
	out.started()
	errs.started()
	defer func() { t.add("its output", errors.Join(out.finish(), errs.finish())) }()
	if err != nil {
		t.add("starting", err)
		return r
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // reapUntil waits for it
	// It leads a session and so a process group; what left that is swept below.
	limit := time.AfterFunc(timeLimit(j), func() { _ = unix.Kill(-pid, unix.SIGKILL) })
	status, err := reapUntil(pid)
	r.TimedOut, r.Millis = !limit.Stop(), time.Since(began).Milliseconds()
	t.add("waiting", err)
	r.Exit = exitStatus(status)
	if left := sweep(); left != nil {
		t.add("left behind", left)
	}
	return r
}

// exitStatus is as in a shell.
func exitStatus(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// command is a job's process, not yet started, in its directory.
func command(j wire.Job) (*exec.Cmd, error) {
	home, known := homes[j.UID]
	if !known {
		return nil, fmt.Errorf("there is no user %d", j.UID)
	}
	if len(j.Args) == 0 {
		return nil, errors.New("there is no command")
	}
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	if cmd.Dir = j.Dir; cmd.Dir == "" {
		cmd.Dir = home
	}
	// One that is there keeps its owner: it may be /tmp.
	if !exists(cmd.Dir) {
		if err := makeOwned(cmd.Dir, j.UID, 0o755); err != nil {
			return nil, err
		}
	}
	cmd.Env = environment(j.UID, j.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: uint32(j.UID), Gid: uint32(j.UID)}, // and no other groups
	}
	return cmd, cmd.Err
}

// capture sends one stream of a job on.
type capture struct {
	read, write *os.File
	end         chan error
}

func (c *capture) open(stream *io.Writer, to io.Writer) (err error) {
	if c.read, c.write, err = os.Pipe(); err != nil {
		return err
	}
	*stream = c.write
	c.end = make(chan error, 1)
	go func() {
		_, err := io.Copy(to, c.read)
		if err != nil {
			_, _ = io.Copy(io.Discard, c.read) // the job must not hang for it
		}
		c.end <- err
	}()
	return nil
}

// started closes our copy of the job's end, without which there is no end of file.
func (c *capture) started() { _ = c.write.Close() }

// finish waits until all is sent.
func (c *capture) finish() error {
	select {
	case err := <-c.end:
		_ = c.read.Close()
		return err
	case <-time.After(outputLimit):
		_ = c.read.Close()
		return errors.New("there is no end of it")
	}
}
