package sys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// namespaces are those that this process may make: with a user namespace, if it is
// not root's.
func namespaces() uintptr {
	flags := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET)
	if os.Geteuid() != 0 {
		flags |= unix.CLONE_NEWUSER
	}
	return flags
}

// initProgram makes a root of /usr, /proc and /dev/null.
func initProgram(newroot string) *Program {
	p := new(Program)
	p.Name("sbx-init")
	if os.Geteuid() != 0 {
		p.Step("identity")
		p.MapUser(os.Geteuid(), os.Getegid())
	}
	p.Step("private mounts")
	p.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	p.Step("root")
	p.Mount("tmpfs", newroot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	root := p.Open(AtCwd, newroot, unix.O_PATH|unix.O_DIRECTORY)
	p.Step("bind /usr")
	tree := p.Clone(AtCwd, "/usr")
	p.Restrain(tree, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID)
	p.Mkdir(root, "usr", 0o755)
	p.Move(tree, p.Open(root, "usr", unix.O_PATH))
	p.Step("bind /dev/null")
	null := p.Clone(AtCwd, "/dev/null")
	p.Mkdir(root, "dev", 0o755)
	p.Create(root, "dev/null", 0o600)
	p.Move(null, p.Open(root, "dev/null", unix.O_PATH))
	p.Step("links")
	for _, l := range []string{"bin", "lib", "lib64"} {
		p.Symlink("usr/"+l, root, l)
	}
	p.Step("proc")
	p.Mkdir(root, "proc", 0o555)
	p.Move(p.NewMount("proc"), p.Open(root, "proc", unix.O_PATH))
	p.Step("pivot")
	p.Pivot(root)
	return p
}

func idleProgram(alive int) *Program {
	p := new(Program)
	p.IgnoreChildren()
	p.Dup(FD(alive), 0, 0)
	p.CloseFrom(1)
	p.DropCapabilities(true)
	p.Await(FD(0))
	return p
}

func enterProgram() *Program {
	p := new(Program)
	p.Step("loopback")
	p.LoopbackUp(true)
	p.Step("rights")
	p.Chdir(p.Open(AtCwd, "/usr", unix.O_PATH))
	p.DropCapabilities(true)
	p.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1)
	return p
}

// inStage starts a script by way of a stage, and returns what it said, how it ended,
// and the stage, whose first process still is there.
func inStage(t *testing.T, st *Stage, script string) (output string, ws syscall.WaitStatus, err error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c := &Child{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, Files: []ChildFile{{int(null.Fd()), 0}, {int(w.Fd()), 1}, {int(w.Fd()), 2}}, Cgroup: -1, Stage: st}
	type started struct {
		pid, pidfd int
		err        error
	}
	ended := make(chan bool)
	defer close(ended)
	done := make(chan started)
	go func() {
		runtime.LockOSThread()
		pid, pidfd, err := c.Start()
		done <- started{pid, pidfd, err}
		<-ended
	}()
	s := <-done
	_ = w.Close()
	if s.err != nil {
		return "", 0, s.err
	}
	defer unix.Close(s.pidfd)
	text, _ := io.ReadAll(r)
	if _, err := syscall.Wait4(s.pid, &ws, 0, nil); err != nil {
		t.Error(err)
	}
	return string(text), ws, nil
}

// stageFor skips where a stage cannot be had, and makes one.
func stageFor(t *testing.T) (st *Stage, alive int) {
	t.Helper()
	if _, err := os.Lstat("/lib64"); err != nil {
		t.Skip("needs /bin, /lib and /lib64 as links into /usr")
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	return &Stage{Namespaces: namespaces(), Init: initProgram(t.TempDir()), Idle: idleProgram(fds[0]), Enter: enterProgram()}, fds[1]
}

// TestStage: the child is in namespaces of its own, without rights, and the caller's to
// wait for; the first process cannot be killed from inside, and ends when alive does.
func TestStage(t *testing.T) {
	st, alive := stageFor(t)
	if got := st.Result(st.Enter.Open(AtCwd, "/", unix.O_PATH)); got != -1 {
		t.Errorf("a call that was not made has the result %d", got)
	}
	sock := st.Enter.Listen4([4]byte{127, 0, 0, 1}, 99, 1) // CAP_NET_BIND_SERVICE is gone by then
	if _, _, err := inStage(t, st, "true"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a port below 1024: %v", err)
	}
	if fd := st.Result(sock); fd != -1 {
		t.Errorf("the socket of a start that failed is still there: %d", fd)
	}

	st.Enter = enterProgram()
	out, ws, err := inStage(t, st, `echo $$ $PPID; id -u; pwd; ls /proc | grep -c '^[0-9]'; grep -c : /proc/net/dev; touch /usr/x 2>/dev/null; cat /proc/1/comm
		grep -cE '^Cap(Prm|Eff|Bnd|Amb):.0000000000000000$' /proc/self/status; kill -9 1; (sleep 300 >/dev/null 2>&1 & ) ; exit 7`)
	if err != nil {
		t.Fatal(err)
	}
	// cat and grep of ls, and ls itself: the shell, the two, and the first process.
	want := fmt.Sprintf("2 0\n%d\n/usr\n4\n1\nsbx-init\n4\n", os.Geteuid())
	if out != want || ws.ExitStatus() != 7 {
		t.Errorf("%q, %#x; want %q", out, ws, want)
	}
	init, pidfd := st.PID()
	if _, err := os.Stat("/usr/x"); err == nil || init == 0 {
		t.Errorf("init %d, /usr/x: %v", init, err)
	}
	_ = unix.Close(alive)
	if _, err := syscall.Wait4(init, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
		t.Errorf("init: %#x, %v", ws, err)
	}
	_ = unix.Close(pidfd)
}

// TestStageEnds: Close ends what the child has left, all of it, before it returns.
func TestStageEnds(t *testing.T) {
	st, alive := stageFor(t)
	defer unix.Close(alive)
	if _, _, err := inStage(t, st, `trap "" TERM HUP INT; for i in 1 2 3; do (setsid sleep 300 >/dev/null 2>&1 &); done; sleep 0.1; kill -STOP -1; exit 0`); err != nil {
		t.Fatal(err)
	}
	init, _ := st.PID()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", init))
	left := strings.Fields(string(text))
	if err != nil || len(left) != 3 {
		t.Errorf("%q are left, %v", left, err)
	}
	if err := st.Close(nil); err != nil {
		t.Error(err)
	}
	for _, word := range left {
		if pid, _ := strconv.Atoi(word); unix.Kill(pid, 0) != unix.ESRCH {
			t.Errorf("%d is there still", pid)
		}
	}
	if err := st.Close(nil); err != nil { // again
		t.Error(err)
	}
}

// TestStageFails: whichever call fails, it is told by its step, and nothing stays.
func TestStageFails(t *testing.T) {
	before := children(t)
	for _, x := range []struct {
		name   string
		change func(*Stage)
		step   string
		errno  error
	}{
		{"in init", func(st *Stage) { st.Init.Step("the last of init"); st.Init.Fail() }, "the last of init", unix.EEXIST},
		{"in the stage", func(st *Stage) { st.Enter.Step("the last of the stage"); st.Enter.Fail() }, "the last of the stage", unix.EEXIST},
		{"another file", func(st *Stage) {
			st.Enter.Step("the same file")
			st.Enter.Same(st.Enter.Open(AtCwd, "/usr", unix.O_PATH), 1, 2)
		}, "the same file", unix.ESTALE},
		{"a path through a link", func(st *Stage) { st.Enter.Step("no links"); st.Enter.Open(AtCwd, "/bin/sh", unix.O_PATH) }, "no links", unix.ELOOP},
		{"what is not refused", func(st *Stage) { st.Enter.Step("refused"); st.Enter.Refused("/") }, "refused", unix.EEXIST},
		{"namespaces that there are not", func(st *Stage) { st.Namespaces |= unix.CLONE_THREAD }, "new namespaces", unix.EINVAL},
	} {
		st, alive := stageFor(t)
		x.change(st)
		files := descriptors(t)
		_, _, err := inStage(t, st, "exit 0")
		if now := descriptors(t); now != files {
			t.Errorf("%s: %d descriptors, before %d", x.name, now, files)
		}
		var at *ProgramError
		if !errors.As(err, &at) || at.Step != x.step || !errors.Is(err, x.errno) {
			t.Errorf("%s: %v", x.name, err)
		}
		if pid, fd := st.PID(); pid != 0 || fd != -1 {
			t.Errorf("%s: init %d is left", x.name, pid)
		}
		_ = unix.Close(alive)
	}
	st, alive := stageFor(t)
	defer unix.Close(alive)
	c := &Child{Path: "/nowhere", Argv: []string{"x"}, Cgroup: -1, Stage: st}
	done := make(chan error)
	OnOwnThread(func() {
		_, _, err := c.Start()
		done <- err
	})
	var failed *SpawnError
	if err := <-done; !errors.As(err, &failed) || failed.Step != StepExec || failed.Errno != unix.ENOENT {
		t.Errorf("no such program: %v", err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		now := children(t)
		if now == before {
			break
		}
		if time.Now().After(end) {
			t.Errorf("children: %q, before %q", now, before)
			break
		}
	}
	bad := new(Program)
	bad.Symlink("a\x00b", AtCwd, "x")
	if bad.Err() == nil {
		t.Error("a NUL is taken")
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func children(t *testing.T) string {
	t.Helper()
	var all []string
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		all = append(all, strings.Fields(string(text))...)
	}
	return strings.Join(all, " ")
}
