package sys_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// run starts a child on a locked thread and returns what it wrote to its
// descriptor 1, and its exit status.
func run(t *testing.T, c sys.Child) (string, int) {
	t.Helper()
	out, status, err := try(c)
	if err != nil {
		t.Fatal(err)
	}
	return out, status
}

func try(c sys.Child) (string, int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, w, err := os.Pipe()
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	defer w.Close()
	if c.Files == nil {
		c.Files = []sys.ChildFile{{From: 0, To: 0}, {From: int(w.Fd()), To: 1}, {From: 2, To: 2}}
	}
	pid, pidfd, err := c.Start()
	if err != nil {
		return "", 0, err
	}
	defer unix.Close(pidfd)
	_ = w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		return "", 0, err
	}
	info, err := sys.WaitExit(unix.P_PID, pid, true)
	return string(out), int(info.Status), err
}

func shell(script string) sys.Child {
	return sys.Child{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "WHO=child"}, Cgroup: -1}
}

func TestChild(t *testing.T) {
	out, status := run(t, shell(`echo "$0 $WHO $#"; exit 7`))
	if out != "sh child 0\n" || status != 7 {
		t.Errorf("status %d, output %q", status, out)
	}
	c := shell("")
	c.Path, c.Argv, c.Env = "/usr/bin/env", []string{"env"}, nil
	if out, status := run(t, c); out != "" || status != 0 {
		t.Errorf("without an environment: status %d, output %q", status, out)
	}
}

// TestChildFailures: nothing runs, nothing is left, and the step is told.
func TestChildFailures(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		name   string
		change func(*sys.Child)
		step   sys.Step
		errno  syscall.Errno
	}{
		{"nothing there", func(c *sys.Child) { c.Path = dir + "/none" }, sys.StepExec, unix.ENOENT},
		{"a directory", func(c *sys.Child) { c.Path = dir }, sys.StepExec, unix.EACCES},
		{"a descriptor that is closed", func(c *sys.Child) { c.Files = []sys.ChildFile{{From: 999, To: 0}} }, sys.StepFiles, unix.EBADF},
		{"a descriptor that is none", func(c *sys.Child) { c.Files = []sys.ChildFile{{From: -1, To: 0}} }, sys.StepFiles, unix.EBADF},
		{"a limit above itself", func(c *sys.Child) { c.Limits = []sys.ChildLimit{{Resource: unix.RLIMIT_FSIZE, Cur: 2, Max: 1}} }, sys.StepLimits, unix.EINVAL},
		{"no terminal", func(c *sys.Child) { c.Terminal = true; c.Files = []sys.ChildFile{{From: 2, To: 1}} }, sys.StepTerminal, 0},
		{"no cgroup", func(c *sys.Child) { c.Cgroup = 999 }, sys.StepFork, unix.EBADF},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := shell("echo > " + dir + "/ran")
			test.change(&c)
			_, _, err := try(c)
			var failed *sys.SpawnError
			if !errors.As(err, &failed) || failed.Step != test.step || test.errno != 0 && failed.Errno != test.errno {
				t.Errorf("the error is %v", err)
			}
			if _, err := os.Lstat(dir + "/ran"); err == nil {
				t.Error("the child ran")
			}
			if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG, nil); err != unix.ECHILD {
				t.Errorf("a child is left: %v", err)
			}
		})
	}
	if _, _, err := try(sys.Child{Path: "/bin/\x00sh", Argv: []string{"sh"}, Cgroup: -1}); err == nil {
		t.Error("a path with a NUL byte was taken")
	}
	c := shell("")
	c.Files = []sys.ChildFile{{From: 0, To: 5}, {From: 1, To: 5}}
	if _, _, err := try(c); err == nil {
		t.Error("one descriptor was given twice")
	}
}

// TestChildFiles: the child has these descriptors and no others, whatever
// numbers they have here.
func TestChildFiles(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	a, b := t.TempDir()+"/a", t.TempDir()+"/b"
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	if err := sys.CloseOnExecFrom(3); err != nil {
		t.Fatal(err)
	}
	// Each is wanted at the number of the other.
	fa, fb := open(a), open(b)
	c := shell(fmt.Sprintf("echo for a >/proc/self/fd/%d; echo for b >/proc/self/fd/%d; ls /proc/self/fd", fb, fa))
	c.Files = []sys.ChildFile{{From: 0, To: 0}, {From: int(w.Fd()), To: 1}, {From: 2, To: 2}, {From: fa, To: fb}, {From: fb, To: fa}}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, pidfd, err := c.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	_ = w.Close()
	out, _ := io.ReadAll(r)
	if _, err := sys.WaitExit(unix.P_PID, pid, true); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{a: "for a\n", b: "for b\n"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s holds %q (%v), want %q", path, got, err, want)
		}
	}
	fds := strings.Fields(string(out))
	if len(fds) != 6 { // ls has opened one
		t.Errorf("the child has %v, given 0, 1, 2, %d and %d", fds, fa, fb)
	}
}

// TestChildLimits: they hold from the first instruction.
func TestChildLimits(t *testing.T) {
	c := shell("ulimit -f; ulimit -n")
	c.Limits = []sys.ChildLimit{{Resource: unix.RLIMIT_FSIZE, Cur: 1 << 20, Max: 1 << 20}, {Resource: unix.RLIMIT_NOFILE, Cur: 50, Max: 60}}
	if out, _ := run(t, c); out != "2048\n50\n" {
		t.Errorf("the limits are %q", out)
	}
}

// TestChildSignals: handlers and masks of this process are not the child's, nor
// are its signals lost meanwhile.
func TestChildSignals(t *testing.T) {
	out, _ := run(t, shell("grep -E '^Sig(Blk|Cgt)' /proc/self/status"))
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if name, mask, _ := strings.Cut(line, "\t"); name == "SigBlk:" && strings.Trim(mask, "0") != "" {
			t.Errorf("the child blocks %s", mask)
		}
	}
	out, status := run(t, shell("kill -TERM $$; sleep 9"))
	if status != int(unix.SIGTERM) {
		t.Errorf("SIGTERM ended it with %d: %q", status, out)
	}
}

// TestChildrenBesideOthers forks from many threads, beside a collector that runs
// all the time: the child shares memory with them.
func TestChildrenBesideOthers(t *testing.T) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	defer close(done)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 25 {
				want := fmt.Sprintf("%d-%d\n", i, j)
				c := shell("echo " + strings.TrimSpace(want))
				if j%5 == 0 {
					c.Path = "/none"
				}
				out, _, err := try(c)
				if j%5 == 0 {
					if !errors.Is(err, unix.ENOENT) {
						t.Errorf("an error is %v", err)
					}
				} else if err != nil || out != want {
					t.Errorf("%q (%v), want %q", out, err, want)
				}
			}
		})
	}
	wg.Wait()
}
