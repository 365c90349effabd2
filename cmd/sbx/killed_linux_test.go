package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
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

// getaways are commands that leave a process behind, each in another way. Each
// writes its pid, and its parent waits.
var getaways = map[string]string{
	"none":                "sh -c 'echo $$ > pid; exec sleep 300'",
	"new session":         "setsid sh -c 'echo $$ > pid; exec sleep 300' & wait",
	"double fork":         "(setsid sh -c 'echo $$ > pid; exec sleep 300' &) & sleep 300",
	"stopped":             "setsid sh -c 'echo $$ > pid; kill -STOP $$; exec sleep 300' & wait",
	"deaf to signals":     "trap '' HUP INT TERM; setsid sh -c 'echo $$ > pid; exec sleep 300' & wait",
	"without environment": "setsid env -i /bin/sh -c 'echo $$ > pid; exec sleep 300' & wait",
	"without descriptors": "setsid sh -c 'echo $$ > pid; exec sleep 300 0<&- 1>&- 2>&-' & wait",
}

// waitUntil waits for what must come.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// pidIn waits for the pid that a process writes to a file in its working directory, and
// returns the number by which it is known here: in a PID namespace it has another.
func pidIn(t *testing.T, file string) (pid int) {
	t.Helper()
	dir, err := os.Stat(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, file, func() bool {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.HasSuffix(text, []byte("\n")) {
			return false
		}
		pid = knownAs(strings.TrimSpace(string(text)), dir)
		return pid != 0
	})
	return pid
}

// knownAs finds the process in a directory that has this number in its own PID
// namespace, or 0.
func knownAs(number string, dir os.FileInfo) int {
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, line, _ := bytes.Cut(text, []byte("\nNSpid:"))
		line, _, _ = bytes.Cut(line, []byte("\n"))
		list := strings.Fields(string(line))
		if len(list) == 0 || list[len(list)-1] != number {
			continue
		}
		if cwd, err := os.Stat(filepath.Join(filepath.Dir(file), "cwd")); err == nil && os.SameFile(cwd, dir) {
			pid, _ := strconv.Atoi(list[0])
			return pid
		}
	}
	return 0
}

// confining are the backends that can be used here, each of which ends a tree in its
// own way.
func confining() []string {
	list := []string{landlock.Name}
	if nativeUsable() {
		list = append(list, landlock.NativeName)
	}
	return list
}

// gone tells whether a process is no more. A zombie that nobody reaps, as in a
// container without an init, is no more, too.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z ")) || bytes.Contains(stat, []byte(") X "))
}

// childNamed finds the child of a process with such an argv[0], or 0.
func childNamed(parent int, prefix string) int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent)) // proc(5); CONFIG_PROC_CHILDREN
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			if cmd, _ := os.ReadFile("/proc/" + child + "/cmdline"); bytes.HasPrefix(cmd, []byte(prefix)) {
				pid, _ := strconv.Atoi(child)
				return pid
			}
		}
	}
	return 0
}

// guarded waits until somebody is there who would end the worker of this
// launcher, and returns who is the worker's parent.
func guarded(t *testing.T, launcher int) int {
	t.Helper()
	if kept := childNamed(launcher, keptName); kept != 0 {
		launcher = kept
	}
	waitUntil(t, "the guard", func() bool { return childNamed(launcher, guardName) != 0 })
	return launcher
}

// TestNothingOutlivesTheLauncher: the launcher gets SIGKILL; its worker's whole
// tree and all that it made is gone soon after.
func TestNothingOutlivesTheLauncher(t *testing.T) {
	needLandlock(t)
	for _, backend := range confining() {
		for name, command := range getaways {
			for _, whom := range []string{"the caller's", "the worker's parent", "its group"} {
				t.Run(name+", "+whom+", "+backend, func(t *testing.T) {
					t.Parallel()
					c := sbx(t, "run", "-q", "--backend", backend, "--", "sh", "-c", command)
					killAndSee(t, c, name, whom)
				})
			}
		}
	}
}

// TestNothingOutlivesTheLauncherByWatchdog: the same without a cgroup (the other backend
// has the first process of its PID namespace), with a terminal of the command's own,
// and, with and without a cgroup, at once after the start.
func TestNothingOutlivesTheLauncherByWatchdog(t *testing.T) {
	needWatchdog(t)
	for _, backend := range confining() {
		for name, command := range getaways {
			for _, tty := range []string{"--tty=false", "--tty=true"} {
				for _, whom := range []string{"the caller's", "its group"} {
					t.Run(name+", "+tty+", "+whom+", "+backend, func(t *testing.T) {
						t.Parallel()
						c := withoutCgroup(t, "run", "-q", tty, "--backend", backend, "--", "sh", "-c", command)
						killAndSee(t, c, name, whom)
					})
				}
			}
		}
		for name, command := range map[string]func(*testing.T, ...string) *exec.Cmd{"at once": sbx, "at once, without a cgroup": withoutCgroup} {
			t.Run(name+", "+backend, func(t *testing.T) {
				for n := range 20 {
					c := command(t, "run", "-q", "--backend", backend, "--", "sh", "-c", getaways["double fork"])
					if err := c.Start(); err != nil {
						t.Fatal(err)
					}
					pid := pidIn(t, filepath.Join(c.Dir, "pid")) // before there is a guard, mostly
					if n%2 == 0 {
						_ = c.Process.Kill()
					} else {
						_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
					}
					_ = c.Wait()
					waitUntil(t, "the end of the process", func() bool { return gone(pid) })
				}
			})
		}
	}
}

func needWatchdog(t *testing.T) {
	t.Helper()
	if b := landlock.New(landlock.Options{}); !b.Watches() {
		t.Skip("Landlock scopes no signals here")
	}
}

// killAndSee kills a launcher, and sees that nothing is left of what it started.
func killAndSee(t *testing.T, c *exec.Cmd, name, whom string) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := pidIn(t, filepath.Join(c.Dir, "pid"))
	parent := guarded(t, c.Process.Pid)
	switch whom {
	case "the caller's":
		_ = c.Process.Kill()
	case "the worker's parent":
		_ = unix.Kill(parent, unix.SIGKILL)
	case "its group":
		if parent != c.Process.Pid && name != "none" {
			_ = c.Process.Kill() // both at once are the gap of a host without cgroups
		} else {
			_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
		}
	}
	_ = c.Wait()
	waitUntil(t, "the end of the process", func() bool { return gone(pid) })
	tmp := temp(c)
	waitUntil(t, "the end of the private temp", func() bool {
		left, err := os.ReadDir(tmp)
		return err == nil && len(left) == 0
	})
}

func temp(c *exec.Cmd) string {
	for _, v := range c.Env {
		if dir, ok := strings.CutPrefix(v, "TMPDIR="); ok {
			return dir
		}
	}
	return ""
}

// TestGetawaysControl: without sbx those processes live on.
func TestGetawaysControl(t *testing.T) {
	for name, command := range getaways {
		if name == "none" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := exec.Command("sh", "-c", command)
			c.Dir = t.TempDir()
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			pid := pidIn(t, filepath.Join(c.Dir, "pid"))
			_ = c.Process.Kill()
			_ = c.Wait()
			time.Sleep(300 * time.Millisecond)
			if gone(pid) {
				t.Error("it is gone by itself")
			}
			_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
			_ = unix.Kill(pid, unix.SIGKILL)
		})
	}
}

// TestKilledAtAnyTime: whenever the launcher is killed, the next one leaves
// nothing of it, and its command does not run on.
func TestKilledAtAnyTime(t *testing.T) {
	needLandlock(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tmp, home := t.TempDir(), t.TempDir()
	mark := fmt.Sprintf("300.%d", random.Uint32())
	in := func(c *exec.Cmd) *exec.Cmd {
		c.Env = append(c.Env, "TMPDIR="+tmp, "HOME="+home)
		return c
	}
	list := confining()
	for n := range 40 * len(list) {
		c := in(sbx(t, "run", "-q", "--backend", list[n%len(list)], "--", "sh", "-c", "setsid sleep "+mark+" & exec sleep "+mark))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(40 * time.Millisecond))))
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	if out, err := in(sbx(t, "run", "--", "true")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	waitUntil(t, "the end of all", func() bool {
		left, err := os.ReadDir(tmp)
		return err == nil && len(left) == 0 && len(running(mark)) == 0
	})
}

// running lists the processes that have a word in their command line.
func running(word string) (pids []int) {
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range list {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if cmd, err := os.ReadFile(file); err == nil && pid != os.Getpid() && bytes.Contains(cmd, []byte(word)) && !gone(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestDieWithParent: with the flag a command ends when its launcher's parent is
// gone; the control goes on.
func TestDieWithParent(t *testing.T) {
	needLandlock(t)
	for _, flag := range []string{"--die-with-parent", "--quiet"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			c := sbx(t)
			c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `sbx run -q "$0" --report report.json -- sh -c 'echo $$ > pid; exec sleep 300' & echo $! > launcher; wait`, flag}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			pid, launcher := pidIn(t, filepath.Join(c.Dir, "pid")), 0
			waitUntil(t, "the launcher's number", func() bool { // it is in no namespace, and lets no user look at it
				text, _ := os.ReadFile(filepath.Join(c.Dir, "launcher"))
				launcher, _ = strconv.Atoi(strings.TrimSuffix(string(text), "\n"))
				return bytes.HasSuffix(text, []byte("\n")) && launcher > 0
			})
			_ = c.Process.Kill()
			_ = c.Wait()
			if flag == "--die-with-parent" {
				waitUntil(t, "the end of the command", func() bool { return gone(pid) && gone(launcher) })
				if r := readReport(t, filepath.Join(c.Dir, "report.json")); r.Outcome.Signal != int(unix.SIGTERM) {
					t.Errorf("the outcome is %+v", r.Outcome)
				}
				return
			}
			time.Sleep(500 * time.Millisecond)
			if gone(pid) {
				t.Error("the command is gone without the flag")
			}
			_ = unix.Kill(launcher, unix.SIGTERM)
			waitUntil(t, "the end of the control", func() bool { return gone(launcher) })
		})
	}
}
