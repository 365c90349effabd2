package rootfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
	"sandboxd/policy"
	"sandboxd/profiles"
)

func resolve(t *testing.T, ws string, more func(*profiles.Request)) policy.Policy {
	t.Helper()
	req := profiles.Request{Dir: ws, HostEnv: os.Environ(), Home: os.Getenv("HOME"), UID: os.Getuid(), GID: os.Getgid()}
	if more != nil {
		more(&req)
	}
	spec, _, err := profiles.Resolve(req)
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inside runs a script in a policy's tree.
func inside(t *testing.T, p policy.Policy, script string) (output string, status int) {
	t.Helper()
	l, err := Compile(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range p.Spec().Create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	var alive [2]int
	if err := unix.Pipe2(alive[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(alive[0])
	defer unix.Close(alive[1])
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
	namespaces := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET)
	h := Host{Root: t.TempDir(), Temp: t.TempDir(), Shm: t.TempDir(), UID: os.Geteuid(), GID: os.Getegid()}
	if os.Geteuid() != 0 {
		namespaces |= unix.CLONE_NEWUSER
		h.UserNS = true
	}
	enter := new(sys.Program)
	enter.Step("loopback")
	enter.LoopbackUp(true)
	enter.Step("the working directory")
	enter.Chdir(enter.Open(sys.AtCwd, p.Cwd(), unix.O_PATH))
	enter.DropCapabilities(true)
	enter.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1)
	st := &sys.Stage{Namespaces: namespaces, Init: l.Program(h), Idle: Idle(alive[0], nil), Enter: enter}
	c := &sys.Child{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: p.Env(), Files: []sys.ChildFile{{From: int(null.Fd()), To: 0}, {From: int(w.Fd()), To: 1}, {From: int(w.Fd()), To: 2}}, Cgroup: -1, Stage: st}
	type started struct {
		pid, pidfd int
		err        error
	}
	ended := make(chan bool)
	done := make(chan started)
	go func() {
		runtime.LockOSThread()
		pid, pidfd, err := c.Start()
		done <- started{pid, pidfd, err}
		<-ended
	}()
	s := <-done
	defer close(ended)
	if s.err != nil {
		t.Fatal(s.err)
	}
	defer unix.Close(s.pidfd)
	_ = w.Close()
	text, _ := io.ReadAll(r)
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(s.pid, &ws, 0, nil); err != nil {
		t.Error(err)
	}
	if err := st.Close(nil); err != nil {
		t.Error(err)
	}
	return string(text), ws.ExitStatus()
}

// needNamespaces skips where none can be made.
func needNamespaces(t *testing.T) {
	t.Helper()
	for _, f := range []string{"/proc/sys/kernel/unprivileged_userns_clone", "/proc/sys/user/max_user_namespaces"} {
		if text, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(text)) == "0" && os.Geteuid() != 0 {
			t.Skipf("%s is 0", f)
		}
	}
}

// TestTree: what is granted is there, as it is granted, and nothing else of the host.
func TestTree(t *testing.T) {
	needNamespaces(t)
	secret := t.TempDir() // beside the workspace
	if err := os.WriteFile(secret+"/secret", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	ws := t.TempDir()
	data := t.TempDir()
	for _, f := range []string{ws + "/old", data + "/old"} {
		if err := os.WriteFile(f, []byte("old\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := resolve(t, ws, func(r *profiles.Request) { r.Readable = []string{data} })
	for _, x := range []struct{ script, want string }{
		{"pwd; cat old; echo new >new; cat new; rm old", ws + "\nold\nnew\n"},
		{"cat " + data + "/old; echo x >" + data + "/old", "old\nsh: 1: cannot create " + data + "/old: Read-only file system\n"},
		{"chmod 600 " + data + "/old 2>&1 | grep -o Read-only", "Read-only\n"},
		{"ls " + secret + " 2>&1 | grep -o 'No such file'", "No such file\n"},
		{"ls / | tr '\\n' ' ' | grep -c ' run '", "0\n"},
		{"touch /new /etc/new 2>/dev/null || echo no", "no\n"},
		{"echo x >/tmp/x && cat /tmp/x; echo y >/dev/shm/y && cat /dev/shm/y", "x\ny\n"},
		{"set -- /proc/[0-9]*; echo $#", "2\n"},
		{"echo >/dev/null && head -c3 /dev/zero | wc -c && chmod 600 /dev/null 2>&1 | grep -o Read-only", "3\nRead-only\n"},
		{"mknod /dev/pts/x c 1 3 2>/dev/null; ls /dev/pts", "ptmx\n"},
		{"readlink /bin; cat /etc/passwd | head -1 | cut -d: -f1; id -u", "usr/bin\nroot\n" + fmt.Sprint(os.Geteuid()) + "\n"},
		{"getent hosts localhost | grep -c localhost", "1\n"},
		{"grep -c ' / / rw' /proc/self/mountinfo; grep -c ' - ext4.* / ' /proc/self/mountinfo", "0\n0\n"},
	} {
		out, _ := inside(t, p, x.script)
		if out != x.want {
			t.Errorf("%s: %q, want %q", x.script, out, x.want)
		}
	}
	if _, err := os.Stat(ws + "/new"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(ws + "/old"); err == nil {
		t.Error("what was removed is there")
	}
	if text, _ := os.ReadFile(data + "/old"); string(text) != "old\n" {
		t.Errorf("%q", text)
	}
}

// TestTreeChanged: what is not what was granted is not bound.
func TestTreeChanged(t *testing.T) {
	needNamespaces(t)
	data := t.TempDir()
	p := resolve(t, t.TempDir(), func(r *profiles.Request) { r.Readable = []string{data} })
	l, err := Compile(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	program := l.Program(Host{Root: t.TempDir(), Temp: t.TempDir(), Shm: t.TempDir(), UserNS: os.Geteuid() != 0, UID: os.Geteuid(), GID: os.Getegid(),
		Inode: func(path string) (dev, ino uint64, ok bool) { return 1, 2, path == data }})
	for _, dir := range p.Spec().Create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	namespaces := uintptr(unix.CLONE_NEWNS)
	if os.Geteuid() != 0 {
		namespaces |= unix.CLONE_NEWUSER
	}
	st := &sys.Stage{Namespaces: namespaces, Init: program, Idle: new(sys.Program), Enter: new(sys.Program)}
	done := make(chan error)
	sys.OnOwnThread(func() {
		_, _, err := (&sys.Child{Path: "/bin/true", Argv: []string{"true"}, Cgroup: -1, Stage: st}).Start()
		done <- err
	})
	var at *sys.ProgramError
	if err := <-done; !errors.As(err, &at) || at.Errno != unix.ESTALE || !strings.Contains(at.Step, data) {
		t.Errorf("%v", err)
	}
}
