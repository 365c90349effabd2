package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend/landlock"
)

func needNative(t *testing.T) {
	t.Helper()
	b := landlock.New(landlock.Options{Namespaces: true})
	if c := b.Probe(); !c.Usable {
		t.Skipf("native: %s", c.Reason)
	}
	needProgram(t, "git")
}

// repository makes the workspace of a command one, and tells the names in it.
func repository(t *testing.T, c *exec.Cmd) []string {
	t.Helper()
	git := exec.Command("git", "init", "-q", c.Dir)
	git.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return namesIn(c.Dir)
}

func namesIn(dir string) (names []string) {
	for _, d := range []string{".", ".git", ".git/info"} {
		entries, _ := os.ReadDir(filepath.Join(dir, d))
		for _, e := range entries {
			names = append(names, filepath.Join(d, e.Name()))
		}
	}
	slices.Sort(names)
	return names
}

// parentOf is the parent of a process, or 0.
func parentOf(pid int) (parent int) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	if f := strings.Fields(rest); len(f) > 1 {
		parent, _ = strconv.Atoi(f[1])
	}
	return parent
}

// initOf finds the first process of the PID namespace that is made under the process
// that was started as sbx, and the processes of sbx from there up: where no control
// group can be had, a keeper is between them.
func initOf(started int) (pid int, launchers []int) {
	for _, p := range append(running("sbx-init"), inits()...) {
		for up := parentOf(p); up > 1; up = parentOf(up) {
			if launchers = append(launchers, up); up == started {
				return p, launchers
			}
		}
		launchers = nil
	}
	return 0, nil
}

// inits are all processes that bear that name.
func inits() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range all {
		if name, _ := os.ReadFile(file); string(name) == "sbx-init\n" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestNoPlaceholderIsLeft: what stands for missing protected names is gone after each
// kind of end, the launcher's included; and if its worker's first process dies with it,
// after the next launch.
func TestNoPlaceholderIsLeft(t *testing.T) {
	needNative(t)
	for _, end := range []string{"exit", "kill the worker", "SIGTERM", "SIGKILL", "SIGKILL to both"} {
		t.Run(end, func(t *testing.T) {
			c := sbx(t, "run", "-q", "--backend", "native", "--", "sh", "-c", "echo $$ >pid; while ! [ -e stop ]; do sleep 0.01; done; rm stop")
			before := repository(t, c)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			pidIn(t, filepath.Join(c.Dir, "pid"))
			if during := namesIn(c.Dir); len(during) < len(before)+10 {
				t.Errorf("nothing is held: %q", during)
			}
			first, launchers := initOf(c.Process.Pid)
			switch end {
			case "exit":
				if err := os.WriteFile(filepath.Join(c.Dir, "stop"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			case "kill the worker":
				if first == 0 {
					t.Fatal("the first process is not found")
				}
				_ = unix.Kill(first, unix.SIGKILL)
			case "SIGTERM":
				_ = c.Process.Signal(unix.SIGTERM)
			case "SIGKILL":
				_ = c.Process.Kill()
			case "SIGKILL to both":
				if first == 0 {
					t.Fatal("the first process is not found")
				}
				for _, p := range launchers {
					_ = unix.Kill(p, unix.SIGSTOP)
				}
				_ = unix.Kill(first, unix.SIGKILL)
				for _, p := range launchers {
					_ = unix.Kill(p, unix.SIGKILL)
				}
			}
			_ = c.Wait()
			_ = os.Remove(filepath.Join(c.Dir, "pid"))
			if end == "SIGKILL to both" {
				next := exec.Command("sbx", "run", "-q", "--backend", "native", "--", "true")
				next.Dir, next.Env = c.Dir, c.Env
				if out, err := next.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			waitUntil(t, "the end of the placeholders", func() bool { return slices.Equal(namesIn(c.Dir), before) })
		})
	}
}

// TestNoPlaceholderIsLeftByMany: workers in one workspace begin and end in any order,
// some of their launchers by SIGKILL. Each holds the names as long as it lives, and the
// last leaves nothing.
func TestNoPlaceholderIsLeftByMany(t *testing.T) {
	needNative(t)
	one := sbx(t)
	before := repository(t, one)
	const script = `sleep 0.0$1; for i in 1 2 3 4 5; do mkdir .vscode .claude/x && echo escaped; echo x >.git/commondir && echo escaped; sleep 0.02; done 2>/dev/null; echo end`
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			c := exec.Command("sbx", "run", "-q", "--backend", "native", "--", "sh", "-c", script, "sh", strconv.Itoa(10+i*4))
			c.Dir, c.Env, c.SysProcAttr = one.Dir, one.Env, one.SysProcAttr
			var out strings.Builder
			c.Stdout, c.Stderr = &out, &out
			if err := c.Start(); err != nil {
				t.Error(err)
				return
			}
			if i%2 == 0 {
				time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
				_ = c.Process.Kill()
			}
			err := c.Wait()
			if strings.Contains(out.String(), "escaped") || i%2 == 1 && (err != nil || out.String() != "end\n") {
				t.Errorf("%v: %s", err, out.String())
			}
		})
	}
	all.Wait()
	waitUntil(t, "the end of the placeholders", func() bool { return slices.Equal(namesIn(one.Dir), before) })
}
