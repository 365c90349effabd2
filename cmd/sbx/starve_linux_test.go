package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// starve is a command that keeps one processor busy with 24 processes, and first
// makes all threads of its launcher, of that one's parent and of its other children
// idle there. It is told what of it to do.
func starve() {
	if os.Args[1] == "spin" {
		for n := 0; ; n++ {
			runtime.KeepAlive(n)
		}
	}
	launcher := os.Getppid()
	if os.Args[1] == "stop" {
		for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, tid := range threadsAround(launcher) {
				if err := unix.Kill(tid, sig); err != nil && err != unix.EPERM {
					fmt.Printf("thread %d: %v.\n", tid, err)
				}
			}
		}
		fmt.Println("sent.")
		time.Sleep(time.Minute)
	}
	var cpu unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpu); err != nil {
		panic(err)
	}
	first := 0
	for !cpu.IsSet(first) {
		first++
	}
	cpu.Zero()
	cpu.Set(first)
	if what := os.Args[1]; what == "attack" || what == "ask" {
		changed, refused := 0, 0
		for _, tid := range threadsAround(launcher) {
			var idle int32
			_, _, policy := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), unix.SCHED_IDLE, uintptr(unsafe.Pointer(&idle)))
			for _, err := range []error{unix.SchedSetaffinity(tid, &cpu), unix.Setpriority(unix.PRIO_PROCESS, tid, 19), policy} {
				switch err {
				case nil, unix.Errno(0):
					changed++
				case unix.EPERM:
					refused++
				}
			}
		}
		fmt.Printf("changed=%d refused=%d.\n", changed, refused)
	}
	if os.Args[1] == "ask" {
		return
	}
	if err := unix.SchedSetaffinity(0, &cpu); err != nil {
		panic(err)
	}
	for range 24 {
		c := exec.Command("./starve", "spin")
		if err := c.Start(); err != nil {
			panic(err)
		}
		_ = unix.SchedSetaffinity(c.Process.Pid, &cpu)
	}
	_ = os.WriteFile("pid", []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
	fmt.Println("busy.")
	time.Sleep(time.Minute)
}

// TestNotStopped: no thread of the launcher takes a signal of the command's, by whose
// number it could stop or kill the launcher.
func TestNotStopped(t *testing.T) {
	needWatchdog(t)
	for name, as := range map[string]func(*testing.T, ...string) *exec.Cmd{"the caller": sbx, "an ordinary user": withoutCgroup} {
		t.Run(name, func(t *testing.T) {
			c := withStarve(t, as(t, "run", "-q", "--timeout", "1s", "--grace", "0s", "--", "./starve", "stop"))
			end := time.AfterFunc(20*time.Second, func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL) })
			out := start(t, c)
			out.waitFor(t, "sent.")
			if got := exitStatus(c.Wait()); got != backend.StatusTimedOut {
				t.Errorf("status %d: %s", got, out.text.String())
			}
			end.Stop()
		})
	}
}

// TestNotStarvedInside: an sbx inside sbx has no listener. Its threads are refused
// to its command by number.
func TestNotStarvedInside(t *testing.T) {
	needLandlock(t)
	c := withStarve(t, withoutCgroup(t, "run", "-q", "--", "./sbx", "run", "-q", "--timeout", "1s", "--grace", "0s", "--", "./starve", "attack"))
	began := time.Now()
	out := start(t, c)
	if said := out.waitFor(t, "."); strings.Contains(said, "refused=0") {
		t.Error(said)
	}
	if got := exitStatus(c.Wait()); got != backend.StatusTimedOut {
		t.Errorf("status %d: %s", got, out.text.String())
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a timeout of 3 s took %v", took)
	}
}

func threadsAround(launcher int) (tids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	parent := 0
	if stat, err := os.ReadFile("/proc/" + strconv.Itoa(launcher) + "/stat"); err == nil {
		parent = parentIn(stat)
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || pid == os.Getpid() || pid != launcher && pid != parent && parentIn(stat) != launcher {
			continue
		}
		tasks, _ := os.ReadDir(filepath.Dir(file) + "/task")
		for _, task := range tasks {
			if tid, err := strconv.Atoi(task.Name()); err == nil {
				tids = append(tids, tid)
			}
		}
	}
	return tids
}

func parentIn(stat []byte) int {
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	pid, _ := strconv.Atoi(fields[1])
	return pid
}

// withStarve puts the program, and an sbx, into the workspace of a command line.
func withStarve(t *testing.T, c *exec.Cmd) *exec.Cmd {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"starve", "sbx"} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), self, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestNotStarved: a command cannot put off its end by what it does to its launcher's
// threads: with --timeout, and where the launcher is killed. The same load without
// that says how long an end takes here.
func TestNotStarved(t *testing.T) {
	needLandlock(t)
	for name, as := range map[string]func(*testing.T, ...string) *exec.Cmd{"the caller": sbx, "an ordinary user": withoutCgroup} {
		t.Run(name, func(t *testing.T) {
			c := withStarve(t, as(t, "run", "-q", "--mode", "danger-full-access", "--", "./starve", "ask"))
			if out, err := c.CombinedOutput(); err != nil || strings.Contains(string(out), "changed=0") {
				t.Errorf("the control: %q, %v", out, err)
			}
			var quiet, attacked time.Duration
			for what, took := range map[string]*time.Duration{"load": &quiet, "attack": &attacked} {
				c := withStarve(t, as(t, "run", "-q", "--timeout", "3s", "--grace", "0s", "--", "./starve", what))
				began := time.Now()
				out := start(t, c)
				if what == "attack" {
					out.waitFor(t, "changed=0 refused=")
				}
				if got := exitStatus(c.Wait()); got != backend.StatusTimedOut {
					t.Errorf("%s: status %d: %s", what, got, out.text.String())
				}
				*took = time.Since(began)
			}
			t.Logf("timeout of 3 s: %v under load, %v attacked", quiet, attacked)
			if attacked > 2*quiet+5*time.Second {
				t.Errorf("a timeout of 3 s took %v, and %v with as much load", attacked, quiet)
			}
			for what, took := range map[string]*time.Duration{"load": &quiet, "attack": &attacked} {
				c := withStarve(t, as(t, "run", "-q", "--", "./starve", what))
				start(t, c)
				pid := pidIn(t, filepath.Join(c.Dir, "pid"))
				guarded(t, c.Process.Pid)
				began := time.Now()
				_ = c.Process.Kill()
				_ = c.Wait()
				waitUntil(t, "the end of the command", func() bool { return gone(pid) })
				*took = time.Since(began)
			}
			t.Logf("SIGKILL: %v under load, %v attacked", quiet, attacked)
			if attacked > 2*quiet+5*time.Second {
				t.Errorf("the end after SIGKILL took %v, and %v with as much load", attacked, quiet)
			}
		})
	}
}
