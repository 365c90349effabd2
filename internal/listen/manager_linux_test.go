package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	// activated answers one connection on each socket that it was given.
	children["activated"] = func([]string) string {
		all, err := FromManager()
		if err != nil {
			return err.Error()
		}
		var said []string
		// Whatever it starts gets none of them.
		inherited, err := exec.Command("/bin/sh", "-c", "ls -l /proc/self/fd").CombinedOutput()
		if err != nil || strings.Contains(string(inherited), "socket:") {
			return fmt.Sprintf("a child has %q, %v", inherited, err)
		}
		for _, in := range all {
			conn, err := in.Listener.Accept()
			if err != nil {
				return err.Error()
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
			if err := errors.Join(in.Listener.Check(), in.Listener.Close()); err != nil {
				return err.Error()
			}
			said = append(said, in.Name+"="+filepath.Base(in.Listener.Path()))
		}
		for _, e := range os.Environ() {
			if strings.HasPrefix(e, "LISTEN_P") || strings.HasPrefix(e, "LISTEN_FD") {
				return e + " is left"
			}
		}
		again, err := FromManager()
		return fmt.Sprint(strings.Join(said, " "), " ", len(again), err)
	}
}

func TestActivation(t *testing.T) {
	noLeak(t)
	dir := tempDir(t)
	cmd := child(t, "activated")
	for _, name := range []string{"a.sock", "b.sock"} {
		fd := bindRaw(t, filepath.Join(dir, name), unix.SOCK_STREAM)
		must(t, unix.Listen(fd, 5))
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	self, err := os.Executable()
	must(t, err)
	// The pid is the child's own only if it is set by it.
	sh := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, self, "-test.run=^$")
	sh.Env = append(cmd.Env, "LISTEN_FDS=2", "LISTEN_FDNAMES=first:second", "LISTEN_PIDFDID=1")
	sh.ExtraFiles, sh.Stderr = cmd.ExtraFiles, os.Stderr
	done := make(chan string, 2)
	for _, name := range []string{"a.sock", "b.sock"} {
		go func() {
			conn, err := Dial(context.Background(), filepath.Join(dir, name))
			if err != nil {
				done <- err.Error()
				return
			}
			defer conn.Close()
			buf := make([]byte, 10)
			n, _ := conn.Read(buf)
			done <- string(buf[:n])
		}()
	}
	if got := say(t, sh); got != "first=a.sock second=b.sock 0 <nil>" {
		t.Errorf("%q", got)
	}
	for range 2 {
		if got := <-done; got != "hello" {
			t.Errorf("a client got %q", got)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a.sock")); err != nil {
		t.Errorf("the manager's socket was removed: %v", err)
	}
}

func TestHandedInWrong(t *testing.T) {
	noLeak(t)
	dir := tempDir(t)
	socket := func(domain, kind int, addr unix.Sockaddr, listen bool) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		if addr != nil {
			must(t, unix.Bind(fd, addr))
		}
		if listen {
			must(t, unix.Listen(fd, 1))
		}
		return fd
	}
	at := func(name string) unix.Sockaddr { return &unix.SockaddrUnix{Name: filepath.Join(dir, name)} }
	file, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	for _, c := range []struct {
		fd   int
		want string
	}{
		{file, "not a socket"},
		{socket(unix.AF_UNIX, unix.SOCK_DGRAM, at("dgram"), false), "not a stream"},
		{socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, at("seq"), true), "not a stream"},
		{socket(unix.AF_UNIX, unix.SOCK_STREAM, at("bound"), false), "not a listening"},
		{socket(unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, true), "not a unix"},
		{socket(unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: "@sandboxd-test-" + strconv.Itoa(os.Getpid())}, true), "no path"},
		{socket(unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: "@"}, true), "no path"},
		{1 << 20, "bad file descriptor"},
	} {
		all, err := fromManager(strconv.Itoa(os.Getpid()), "1", "", c.fd)
		if all != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", c.want, all, err)
		}
		if _, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFD, 0); c.fd < 1<<20 && err != nil {
			t.Errorf("%s: it was closed", c.want)
		}
		if c.fd < 1<<20 {
			_ = unix.Close(c.fd)
		}
	}
	me := strconv.Itoa(os.Getpid())
	for _, c := range [][3]string{
		{"x", "1", ""}, {me, "", ""}, {me, "-1", ""}, {me, "65", ""}, {me, "99999999999999999999", ""}, {me, "1", "a:b"}, {me, "0", "a"}, {"", "1", ""},
	} {
		if _, err := fromManager(c[0], c[1], c[2], 3); err == nil {
			t.Errorf("%q: no error", c)
		}
	}
	for _, c := range [][3]string{{"", "", ""}, {"1", "1", ""}, {me, "0", ""}} {
		if all, err := fromManager(c[0], c[1], c[2], 1<<20); err != nil || len(all) != 0 {
			t.Errorf("%q: %v, %v", c, all, err)
		}
	}
}

func TestNotify(t *testing.T) {
	noLeak(t)
	long := filepath.Join(tempDir(t), strings.Repeat("long", 40))
	must(t, os.Mkdir(long, 0o700))
	hear := func(name string) *net.UnixConn {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		must(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		return c
	}
	dir, err := os.Open(long)
	must(t, err)
	defer dir.Close()
	ears := map[string]*net.UnixConn{
		filepath.Join(long, "..", "notify"): hear(filepath.Join(long, "..", "notify")),
		"@sandboxd-notify-" + me():          hear("@sandboxd-notify-" + me()),
		filepath.Join(long, "notify"):       hear(fmt.Sprintf("/proc/self/fd/%d/notify", dir.Fd())),
	}
	for name, ear := range ears {
		t.Setenv("NOTIFY_SOCKET", name)
		for _, state := range []string{Ready, Stopping, Alive, Status("all\nis\x00well")} {
			if sent, err := Notify(state); !sent || err != nil {
				t.Fatalf("%s: %v, %v", name, sent, err)
			}
			buf := make([]byte, 100)
			n, err := ear.Read(buf)
			if string(buf[:n]) != state {
				t.Errorf("%s: heard %q, %v", name, buf[:n], err)
			}
		}
	}
	if got := Status("all\nis\x00well"); got != "STATUS=all is well" {
		t.Errorf("%q", got)
	}
	for _, state := range []string{"", "READY=1\x00"} {
		if sent, err := Notify(state); sent || err == nil {
			t.Errorf("%q was sent", state)
		}
	}
	for _, name := range []string{"vsock:2:1234", "relative", "/", "@", "/nonexistent/notify", "/" + strings.Repeat("x/", 200)} {
		t.Setenv("NOTIFY_SOCKET", name)
		if sent, err := Notify(Ready); sent || err == nil {
			t.Errorf("%q: sent", name)
		}
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if sent, err := Notify(Ready); sent || err != nil {
		t.Errorf("nobody to tell: %v, %v", sent, err)
	}
}

func me() string { return strconv.Itoa(os.Getpid()) }

// TestNotifyDeaf: a manager that does not read costs a moment, and no more.
func TestNotifyDeaf(t *testing.T) {
	noLeak(t)
	path := filepath.Join(tempDir(t), "notify")
	fd := bindRaw(t, path, unix.SOCK_DGRAM)
	defer unix.Close(fd)
	t.Setenv("NOTIFY_SOCKET", path)
	start := time.Now()
	for i := range 100_000 {
		if _, err := Notify(Alive); err != nil {
			if took := time.Since(start); took < notifyWait/2 || took > 10*notifyWait {
				t.Errorf("after %d: %v, %v", i, took, err)
			}
			return
		}
	}
	t.Error("its queue has no end")
}

func TestWatchdogTimeout(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{
		{"", "", 0, false}, {"30000000", "", 30 * time.Second, false}, {"30000000", me(), 30 * time.Second, false}, {"1", "1", 0, false},
		{"0", "", 0, true}, {"-5", "", 0, true}, {"x", "", 0, true}, {"9223372036854775807", "", 0, true}, {"18446744073709551615", "", 0, true}, {"1", "x", 0, true},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got, err := WatchdogTimeout(); got != c.want || (err != nil) != c.bad {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}
