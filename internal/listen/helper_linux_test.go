package listen

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv names what the test binary does as a child, with its arguments.
const childEnv = "LISTEN_TEST_CHILD"

var children = map[string]func(args []string) string{}

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		fmt.Println(children[child](strings.Split(os.Getenv(childEnv+"_ARGS"), "\n")))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child prepares the test binary to run one of children. The child's word is its
// last line; it may say more before, and ends when its input does.
func child(t *testing.T, what string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+what, childEnv+"_ARGS="+strings.Join(args, "\n"),
		"GORACE=atexit_sleep_ms=0") // under the race detector each would end a second later
	cmd.Stderr = os.Stderr
	return cmd
}

// as lets a child be another user, who could not reach the test binary.
func as(t *testing.T, cmd *exec.Cmd, uid, gid uint32, groups ...uint32) *exec.Cmd {
	t.Helper()
	dir := tempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd.Path = filepath.Join(dir, "child")
	out, err := os.OpenFile(cmd.Path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, self); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cmd.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
	return cmd
}

func say(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the child: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// running is a child that said its first line and waits.
type running struct {
	*exec.Cmd
	first string
	out   *bufio.Reader
	in    io.Closer
}

func begin(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &running{Cmd: cmd, out: bufio.NewReader(out), in: in}
	t.Cleanup(r.kill)
	first, err := r.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the child said %q: %v", first, err)
	}
	r.first = strings.TrimSpace(first)
	return r
}

func (r *running) kill() {
	_ = r.Process.Kill()
	_ = r.Wait()
}

// end closes the child's input and returns its last word.
func (r *running) end() string {
	_ = r.in.Close()
	rest, _ := io.ReadAll(r.out)
	_ = r.Wait()
	return strings.TrimSpace(string(rest))
}

func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "listen")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noLeak fails the test if it ends with other descriptors open than it began
// with. Nothing is left to finalizers: no collection is asked for.
func noLeak(t *testing.T) {
	t.Helper()
	before := openFDs(t)
	t.Cleanup(func() {
		var after map[string]string
		for range 100 {
			after = openFDs(t)
			if len(after) <= len(before) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		for fd, what := range after {
			if before[fd] != what {
				t.Errorf("descriptor %s is left open on %s", fd, what)
			}
		}
	})
}

// openFDs lists what is open, but for what Go's own runtime opens when it needs it.
func openFDs(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		what, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(what, "anon_inode:[event") && !strings.HasSuffix(what, "/fd") {
			all[e.Name()] = what
		}
	}
	return all
}

func mode(t *testing.T, path string) info {
	t.Helper()
	st, err := lstatAt(unix.AT_FDCWD, path)
	must(t, err)
	return st
}

// open listens in a new directory.
func open(t *testing.T) *Listener {
	t.Helper()
	l, err := Open(Options{Path: filepath.Join(tempDir(t), "d.sock")})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// pair is a connection with both its ends.
func pair(t *testing.T, kind int) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		must(t, err)
		_ = f.Close()
		conns[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return conns[0], conns[1]
}

func setsockopt(t *testing.T, c *net.UnixConn, opt, value int) error {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, err)
	var serr error
	must(t, raw.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, value) }))
	return serr
}

func contextFor(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// kernelAtLeast compares the running kernel.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	f := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	a, _ := strconv.Atoi(f[0])
	b, _ := strconv.Atoi(f[1])
	return a > major || a == major && b >= minor
}

// keep keeps a value alive to here.
func keep(v any) { runtime.KeepAlive(v) }
