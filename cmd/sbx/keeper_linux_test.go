package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend/landlock"
)

// kept starts a command line that has a keeper, and returns both pids.
func kept(t *testing.T, c *exec.Cmd) (keeper, launcher int) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pidIn(t, filepath.Join(c.Dir, "pid")) // the command runs
	if launcher = childNamed(c.Process.Pid, keptName); launcher == 0 {
		_ = c.Process.Signal(unix.SIGTERM)
		_ = c.Wait()
		t.Skip("this user has a cgroup or a watchdog, and no keeper")
	}
	return c.Process.Pid, launcher
}

func stateOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
}

// TestKeeperWithOtherChildren: a shell that became the keeper had background jobs.
// They live on, and what cannot be told from what they started is named.
func TestKeeperWithOtherChildren(t *testing.T) {
	for _, mode := range []string{"workspace-write", "danger-full-access"} {
		if b := landlock.New(landlock.Options{}); mode == "workspace-write" && (b.Watches() || !b.Probe().Usable) {
			continue // it has a watchdog and no keeper, or cannot run
		}
		t.Run(mode, func(t *testing.T) {
			c := withoutCgroup(t)
			c.Args = []string{"sh", "-c", `sleep 300 & echo $! > job; exec "$0" run -q --mode ` + mode + ` -- sh -c 'setsid sleep 300 & echo $! > orphan; echo $$ > pid; sleep 300' 2> told`, c.Path}
			c.Path = "/bin/sh"
			_, launcher := kept(t, c)
			job, orphan := pidIn(t, filepath.Join(c.Dir, "job")), pidIn(t, filepath.Join(c.Dir, "orphan"))
			_ = unix.Kill(launcher, unix.SIGKILL)
			if got := exitStatus(c.Wait()); got != 128+int(unix.SIGKILL) {
				t.Errorf("status %d", got)
			}
			if gone(job) {
				t.Error("the job was ended")
			}
			told, err := os.ReadFile(filepath.Join(c.Dir, "told"))
			if err != nil {
				t.Fatal(err)
			}
			if named := strings.Contains(string(told), strconv.Itoa(orphan)); named == gone(orphan) {
				t.Errorf("the orphan is gone: %v, but: %s", gone(orphan), told)
			}
			_ = unix.Kill(job, unix.SIGKILL)
			_ = unix.Kill(orphan, unix.SIGKILL)
		})
	}
}

// TestKeeperOfAStoppedLauncher: who stops the launcher finds its keeper running, and
// who kills the keeper then ends the command all the same.
func TestKeeperOfAStoppedLauncher(t *testing.T) {
	for _, way := range []string{"continued", "its keeper killed"} {
		t.Run(way, func(t *testing.T) {
			c := withoutCgroup(t, "run", "-q", "--mode", "danger-full-access", "--", "sh", "-c", "setsid sleep 300 & echo $! > orphan; echo $$ > pid; sleep 300")
			keeper, launcher := kept(t, c)
			orphan := pidIn(t, filepath.Join(c.Dir, "orphan"))
			_ = unix.Kill(launcher, unix.SIGSTOP)
			waitUntil(t, "the stop", func() bool { return stateOf(launcher) == "T" })
			time.Sleep(50 * time.Millisecond)
			if got := stateOf(keeper); got == "T" {
				t.Error("the keeper is stopped")
			}
			if way == "continued" {
				_ = unix.Kill(launcher, unix.SIGCONT)
				_ = unix.Kill(keeper, unix.SIGTERM)
			} else {
				_ = unix.Kill(keeper, unix.SIGKILL)
			}
			_ = c.Wait()
			waitUntil(t, "the end of all", func() bool { return gone(launcher) && gone(orphan) })
		})
	}
}

// TestKeeperGoesOn: stopped by job control, and continued by a signal to the keeper
// alone, both go on.
func TestKeeperGoesOn(t *testing.T) {
	c := withoutCgroup(t, "run", "-q", "--mode", "danger-full-access", "--", "sh", "-c", "echo $$ > pid; while ! [ -e stop ]; do sleep 0.02; done; exit 7")
	c.SysProcAttr.Setsid, c.SysProcAttr.Setpgid = false, true // SIGTSTP stops nothing in an orphaned process group
	keeper, launcher := kept(t, c)
	guarded(t, keeper) // stopped while it is forked, it would keep a thread of the launcher from stopping
	for _, sig := range []syscall.Signal{unix.SIGTSTP, unix.SIGSTOP, unix.SIGTSTP} {
		if sig == unix.SIGSTOP {
			_ = unix.Kill(-keeper, sig)
		} else {
			_ = unix.Kill(keeper, sig)
		}
		waitUntil(t, "the stop by "+unix.SignalName(sig), func() bool { return stateOf(launcher) == "T" && stateOf(keeper) == "T" })
		_ = unix.Kill(keeper, unix.SIGCONT)
		waitUntil(t, "the going on", func() bool { return stateOf(launcher) != "T" && stateOf(keeper) != "T" })
	}
	_ = unix.Kill(-keeper, unix.SIGCONT) // the command, which was stopped with the group
	if err := os.WriteFile(filepath.Join(c.Dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := exitStatus(c.Wait()); got != 7 {
		t.Errorf("status %d", got)
	}
}
