package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	children["daemon"] = func(args []string) string {
		l, err := Open(Options{Path: args[0]})
		var running *AlreadyRunning
		if errors.As(err, &running) {
			fmt.Println("running", running.PID)
			return ""
		}
		if err != nil {
			fmt.Println(err)
			return ""
		}
		fmt.Println("won", os.Getpid())
		untilEOF()
		return fmt.Sprint(l.Close())
	}
	children["dial"] = func(args []string) string {
		conn, err := Dial(context.Background(), args[0])
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return "connected"
	}
	// connect without the checks of Dial: what the modes alone hold.
	children["connect"] = func(args []string) string {
		_, err := net.Dial("unix", args[0])
		return fmt.Sprint(err)
	}
	// listen on a socket that somebody else bound.
	children["listen"] = func([]string) string {
		if err := unix.Listen(3, 1); err != nil {
			return err.Error()
		}
		fmt.Println("listening")
		untilEOF()
		return ""
	}
}

func TestOpen(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o277, 0o777} {
		t.Run(fmt.Sprintf("%04o", umask), func(t *testing.T) {
			noLeak(t)
			base := tempDir(t)
			dir := filepath.Join(base, "new")
			path := filepath.Join(dir, "d.sock")
			old := syscall.Umask(umask)
			l, err := Open(Options{Path: path})
			syscall.Umask(old)
			must(t, err)
			defer l.Close()
			if m := mode(t, dir).mode & 0o7777; m != 0o700 {
				t.Errorf("the directory has mode %04o", m)
			}
			if m := mode(t, path).mode; m != unix.S_IFSOCK|0o600 {
				t.Errorf("the socket has mode %o", m)
			}
			if m := mode(t, path+".lock").mode; m != unix.S_IFREG|0o600 {
				t.Errorf("the lock has mode %o", m)
			}
			if l.Path() != path {
				t.Errorf("Path is %q", l.Path())
			}
			conn, err := Dial(t.Context(), path)
			must(t, err)
			defer conn.Close()
			server, err := l.Accept()
			must(t, err)
			defer server.Close()
			must(t, l.Check())
			must(t, l.Close())
			must(t, l.Close())
			if err := l.Check(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Check after Close: %v", err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
			if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoDaemon) {
				t.Errorf("Dial after Close: %v", err)
			}
			if text, err := os.ReadFile(path + ".lock"); err != nil || len(text) != 0 {
				t.Errorf("the lock says %q, %v", text, err)
			}
			again, err := Open(Options{Path: path})
			must(t, err)
			must(t, again.Close())
		})
	}
}

// TestNeverOpen: between bind and listen, where a socket is on its way to its
// mode, it has no more than 0600 and refuses.
func TestNeverOpen(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := tempDir(t)
	must(t, os.Chmod(dir, 0o700))
	p, err := openPlace(filepath.Join(dir, "d.sock"), User, -1)
	must(t, err)
	defer p.close()
	fd, err := newSocket()
	must(t, err)
	defer unix.Close(fd)
	must(t, narrow(fd))
	must(t, p.bind(fd))
	if m := mode(t, p.path).mode; m != unix.S_IFSOCK|0o600 {
		t.Errorf("the socket has mode %o when it is bound", m)
	}
	if _, err := net.Dial("unix", p.path); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a socket that does not listen: %v", err)
	}
}

func TestOptions(t *testing.T) {
	good := filepath.Join(tempDir(t), "d.sock")
	for name, o := range map[string]Options{
		"relative": {Path: "d.sock"}, "dots": {Path: filepath.Dir(good) + "/x/../d.sock"}, "nul": {Path: good + "\x00"},
		"slash": {Path: good + "/"}, "root": {Path: "/d.sock"}, "mode": {Path: good, Mode: 7},
		"backlog": {Path: good, Backlog: -1}, "group": {Path: good, Group: "root"}, "no group": {Path: good, Mode: System},
		"unknown group": {Path: good, Mode: System, Group: "no such group"}, "group -1": {Path: good, Mode: System, Group: "4294967295"},
		"missing": {Path: filepath.Dir(good) + "/a/b/d.sock"}, "long name": {Path: filepath.Dir(good) + "/" + strings.Repeat("n", maxName+1)},
	} {
		noLeak(t)
		if l, err := Open(o); err == nil {
			_ = l.Close()
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := os.Stat(filepath.Dir(good) + "/a"); err == nil {
		t.Error("two levels were made")
	}
}

// TestSocketDirectories: a directory in which others could act is refused, and nothing
// is made in it.
func TestSocketDirectories(t *testing.T) {
	chmod := func(m os.FileMode) func(*testing.T, string) string {
		return func(t *testing.T, base string) string {
			dir := filepath.Join(base, "d")
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chmod(dir, m))
			return dir
		}
	}
	above := func(m os.FileMode, uid int) func(*testing.T, string) string {
		return func(t *testing.T, base string) string {
			up := filepath.Join(base, "up")
			must(t, os.MkdirAll(up+"/d", 0o700))
			must(t, os.Chown(up, uid, -1))
			must(t, os.Chmod(up, m))
			return up + "/d"
		}
	}
	link := func(uid int, last bool) func(*testing.T, string) string {
		return func(t *testing.T, base string) string {
			must(t, os.MkdirAll(base+"/up/d", 0o700))
			must(t, os.Chmod(base+"/up", 0o755))
			if last {
				must(t, os.Symlink("up/d", base+"/l"))
				return base + "/l"
			}
			must(t, os.Symlink(base+"/up/../up", base+"/l"))
			must(t, os.Lchown(base+"/l", uid, -1))
			return base + "/l/d"
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.T, string) string
		root bool
		want error // nil: it is good
	}{
		{"0700", chmod(0o700), false, nil},
		{"2700", chmod(0o700 | os.ModeSetgid), false, nil},
		{"0750", chmod(0o750), false, ErrUntrusted},
		{"0710", chmod(0o710), false, ErrUntrusted},
		{"0701", chmod(0o701), false, ErrUntrusted},
		{"0707", chmod(0o707), false, ErrUntrusted},
		{"1777", chmod(0o777 | os.ModeSticky), false, ErrUntrusted},
		{"0500", chmod(0o500), false, ErrUntrusted},
		{"foreign", func(t *testing.T, base string) string {
			dir := chmod(0o700)(t, base)
			must(t, os.Chown(dir, 4711, -1))
			return dir
		}, true, ErrUntrusted},
		{"root's", func(*testing.T, string) string { return "/root" }, false, ErrUntrusted},
		{"link", link(os.Geteuid(), true), false, ErrUntrusted},
		{"link to nothing", func(t *testing.T, base string) string {
			must(t, os.Symlink("nothing", base+"/l"))
			return base + "/l"
		}, false, ErrUntrusted},
		{"link above", link(os.Geteuid(), false), false, nil},
		{"link above of another", link(4711, false), true, ErrUntrusted},
		{"loop above", func(t *testing.T, base string) string {
			must(t, os.Symlink("l", base+"/l"))
			return base + "/l/d"
		}, false, unix.ELOOP},
		{"file", func(t *testing.T, base string) string {
			must(t, os.WriteFile(base+"/f", nil, 0o600))
			return base + "/f"
		}, false, unix.ENOTDIR},
		{"below 0777", above(0o777, -1), false, ErrUntrusted},
		{"below 0772", above(0o772, -1), false, ErrUntrusted},
		{"below 1777", above(0o777|os.ModeSticky, -1), false, nil},
		{"below 0775", above(0o775, -1), false, nil},
		{"below another's", above(0o755, 4711), true, ErrUntrusted},
		{"below another's 1777", above(0o777|os.ModeSticky, 4711), true, ErrUntrusted},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				needRoot(t)
			}
			if c.name == "root's" && os.Geteuid() == 0 {
				c.want = nil
				if mode(t, "/root").mode&0o077 != 0 {
					c.want = ErrUntrusted
				}
			}
			noLeak(t)
			dir := c.make(t, tempDir(t))
			path := filepath.Join(dir, "listen-test.sock")
			l, err := Open(Options{Path: path})
			if err == nil {
				_ = l.Close()
				_ = os.Remove(path + ".lock")
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			var e *Error
			if c.want == ErrUntrusted && (!errors.As(err, &e) || e.Hint == "") {
				t.Errorf("no hint: %v", err)
			}
			if entries, _ := os.ReadDir(dir); c.want != nil && dir != "/root" && len(entries) != 0 {
				t.Errorf("%v was made", entries)
			}
		})
	}
}

func TestSystemAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("is about an ordinary user")
	}
	if _, err := Open(Options{Path: filepath.Join(tempDir(t), "d.sock"), Mode: System, Group: "0"}); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

// TestSystemSocket: the group connects, and nobody else.
func TestSystemSocket(t *testing.T) {
	needRoot(t)
	const group = 4242
	base := tempDir(t)
	must(t, os.Chmod(base, 0o755))
	path := filepath.Join(base, "sys", "d.sock")
	old := syscall.Umask(0o077)
	l, err := Open(Options{Path: path, Mode: System, Group: strconv.Itoa(group)})
	syscall.Umask(old)
	must(t, err)
	defer l.Close()
	if st := mode(t, filepath.Dir(path)); st.mode&0o7777 != 0o710 || st.uid != 0 || st.gid != group {
		t.Errorf("the directory is %+v", st)
	}
	if st := mode(t, path); st.mode != unix.S_IFSOCK|0o660 || st.uid != 0 || st.gid != group {
		t.Errorf("the socket is %+v", st)
	}
	if st := mode(t, path+".lock"); st.mode&0o777 != 0o600 || st.uid != 0 {
		t.Errorf("the lock is %+v", st)
	}
	if got := say(t, as(t, child(t, "dial", path), 1001, 1001, group)); got != "connected" {
		t.Errorf("a member of the group: %s", got)
	}
	for _, what := range []string{"dial", "connect"} {
		if got := say(t, as(t, child(t, what, path), 1001, 1001)); !strings.Contains(got, "permission denied") {
			t.Errorf("%s of one who is not in the group: %s", what, got)
		}
	}
	// The socket's mode holds by itself.
	must(t, os.Chmod(filepath.Dir(path), 0o711))
	if got := say(t, as(t, child(t, "connect", path), 1001, 1001)); !strings.Contains(got, "permission denied") {
		t.Errorf("in an open directory: %s", got)
	}
	must(t, l.Close())
	for _, m := range []os.FileMode{0o700, 0o711, 0o730, 0o755, 0o770} {
		must(t, os.Chmod(filepath.Dir(path), m))
		if l, err := Open(Options{Path: path, Mode: System, Group: strconv.Itoa(group)}); !errors.Is(err, ErrUntrusted) {
			_ = l.Close()
			t.Errorf("mode %04o: %v", m, err)
		}
	}
	must(t, os.Chmod(filepath.Dir(path), 0o750))
	if l, err := Open(Options{Path: path, Mode: System, Group: "4243"}); !errors.Is(err, ErrUntrusted) {
		_ = l.Close()
		t.Errorf("another group's directory: %v", err)
	}
	l, err = Open(Options{Path: path, Mode: System, Group: strconv.Itoa(group)})
	must(t, err)
	must(t, l.Close())
	// Another daemon is about to finish the directory.
	must(t, os.RemoveAll(filepath.Dir(path)))
	must(t, os.Mkdir(filepath.Dir(path), 0o700))
	time.AfterFunc(20*time.Millisecond, func() {
		if err := errors.Join(os.Chown(filepath.Dir(path), 0, group), os.Chmod(filepath.Dir(path), 0o710)); err != nil {
			t.Error(err)
		}
	})
	l, err = Open(Options{Path: path, Mode: System, Group: strconv.Itoa(group)})
	must(t, err)
	must(t, l.Close())
	must(t, os.Chown(base, 0, 4243))
	must(t, os.Chmod(base, 0o775))
	if l, err := Open(Options{Path: path, Mode: System, Group: strconv.Itoa(group)}); !errors.Is(err, ErrUntrusted) {
		_ = l.Close()
		t.Errorf("below a directory of another group: %v", err)
	}
}

// bindRaw makes a socket without a lock.
func bindRaw(t *testing.T, path string, kind int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	return fd
}

func TestStale(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, string){
		"closed":   func(t *testing.T, path string) { _ = unix.Close(bindRaw(t, path, unix.SOCK_STREAM)) },
		"datagram": func(t *testing.T, path string) { _ = unix.Close(bindRaw(t, path, unix.SOCK_DGRAM)) },
		"killed": func(t *testing.T, path string) {
			d := begin(t, child(t, "daemon", path))
			if !strings.HasPrefix(d.first, "won") {
				t.Fatal(d.first)
			}
			d.kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			noLeak(t)
			path := filepath.Join(tempDir(t), "d.sock")
			leave(t, path)
			before := mode(t, path)
			l, err := Open(Options{Path: path})
			must(t, err)
			defer l.Close()
			if before.kind() != unix.S_IFSOCK {
				t.Error("there was no socket")
			}
			conn, err := Dial(t.Context(), path)
			must(t, err)
			_ = conn.Close()
		})
	}
}

func TestInTheWay(t *testing.T) {
	for _, c := range []struct {
		name string
		root bool
		put  func(*testing.T, string)
	}{
		{"file", false, func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("mine"), 0o600)) }},
		{"directory", false, func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }},
		{"fifo", false, func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o600)) }},
		{"link to nothing", false, func(t *testing.T, path string) { must(t, os.Symlink("nothing", path)) }},
		{"link to a stale socket", false, func(t *testing.T, path string) {
			_ = unix.Close(bindRaw(t, path+"2", unix.SOCK_STREAM))
			must(t, os.Symlink(path+"2", path))
		}},
		{"listener", false, func(t *testing.T, path string) {
			fd := bindRaw(t, path, unix.SOCK_STREAM)
			must(t, unix.Listen(fd, 5))
			t.Cleanup(func() { _ = unix.Close(fd) })
		}},
		{"listener with a full backlog", false, func(t *testing.T, path string) {
			fd := bindRaw(t, path, unix.SOCK_STREAM)
			must(t, unix.Listen(fd, 0))
			c, err := net.Dial("unix", path)
			must(t, err)
			t.Cleanup(func() { _ = c.Close(); _ = unix.Close(fd) })
		}},
		{"datagrams", false, func(t *testing.T, path string) {
			fd := bindRaw(t, path, unix.SOCK_DGRAM)
			t.Cleanup(func() { _ = unix.Close(fd) })
		}},
		{"sequenced packets", false, func(t *testing.T, path string) {
			fd := bindRaw(t, path, unix.SOCK_SEQPACKET)
			must(t, unix.Listen(fd, 5))
			t.Cleanup(func() { _ = unix.Close(fd) })
		}},
		{"another's stale socket", true, func(t *testing.T, path string) {
			_ = unix.Close(bindRaw(t, path, unix.SOCK_STREAM))
			must(t, os.Chown(path, 4711, -1))
		}},
		{"lock is a link", false, func(t *testing.T, path string) { must(t, os.Symlink("elsewhere", path+".lock")) }},
		{"lock is a fifo", false, func(t *testing.T, path string) { must(t, unix.Mkfifo(path+".lock", 0o600)) }},
		{"lock is a directory", false, func(t *testing.T, path string) { must(t, os.Mkdir(path+".lock", 0o700)) }},
		{"lock is open to others", false, func(t *testing.T, path string) {
			must(t, os.WriteFile(path+".lock", nil, 0o600))
			must(t, os.Chmod(path+".lock", 0o604))
		}},
		{"lock has another name", false, func(t *testing.T, path string) {
			must(t, os.WriteFile(path+"2", []byte("precious"), 0o600))
			must(t, os.Link(path+"2", path+".lock"))
		}},
		{"lock is another's", true, func(t *testing.T, path string) {
			must(t, os.WriteFile(path+".lock", nil, 0o600))
			must(t, os.Chown(path+".lock", 4711, -1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				needRoot(t)
			}
			dir := tempDir(t)
			path := filepath.Join(dir, "d.sock")
			noLeak(t)
			// Cleanups run in reverse: noLeak's must see what put closes.
			c.put(t, path)
			before := snapshot(t, dir)
			l, err := Open(Options{Path: path})
			if err == nil {
				_ = l.Close()
			}
			var e *Error
			if !errors.As(err, &e) || e.Hint == "" {
				t.Fatalf("%v: no error with a hint", err)
			}
			if after := snapshot(t, dir); after != before && !strings.HasPrefix(c.name, "lock") {
				t.Errorf("before:\n%safter:\n%s", before, after)
			}
			if text, err := os.ReadFile(path + "2"); c.name == "lock has another name" && string(text) != "precious" {
				t.Errorf("the other name's file says %q, %v", text, err)
			}
			if !strings.HasPrefix(c.name, "lock") && !errors.Is(err, ErrInTheWay) {
				t.Error(err)
			}
		})
	}
}

// snapshot lists a directory but for the lock.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), lockSuffix) {
			fmt.Fprintf(&b, "%s %+v\n", e.Name(), mode(t, filepath.Join(dir, e.Name())))
		}
	}
	return b.String()
}

func TestAlreadyRunning(t *testing.T) {
	noLeak(t)
	path := filepath.Join(tempDir(t), "d.sock")
	d := begin(t, child(t, "daemon", path))
	if want := fmt.Sprint("won ", d.Process.Pid); d.first != want {
		t.Fatalf("%q, want %q", d.first, want)
	}
	_, err := Open(Options{Path: path})
	var running *AlreadyRunning
	if !errors.As(err, &running) || running.PID != d.Process.Pid || running.Path != path {
		t.Errorf("%v", err)
	}
	// The lock alone is the proof: a daemon whose socket was removed runs.
	must(t, os.Remove(path))
	if _, err := Open(Options{Path: path}); !errors.As(err, &running) {
		t.Errorf("without the socket: %v", err)
	}
	// The file may say anything.
	for _, text := range []string{"", "x", "-1\n", "99999999999999999999\n", strings.Repeat("1", 1000)} {
		must(t, os.WriteFile(path+".lock", []byte(text), 0o600))
		if _, err := Open(Options{Path: path}); !errors.As(err, &running) || running.PID != 0 {
			t.Errorf("lock %q: %v", text, err)
		}
	}
	if got := d.end(); got != "<nil>" {
		t.Errorf("its end: %s", got)
	}
	l, err := Open(Options{Path: path})
	must(t, err)
	must(t, l.Close())
}

// TestOldDaemonLeavesTheNew: whatever became of its lock and its socket, a daemon
// removes no other's.
func TestOldDaemonLeavesTheNew(t *testing.T) {
	noLeak(t)
	old := open(t)
	path := old.Path()
	must(t, os.Remove(path))
	if err := old.Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check: %v", err)
	}
	must(t, os.Remove(path+".lock")) // now a new one can start
	young, err := Open(Options{Path: path})
	must(t, err)
	defer young.Close()
	if err := old.Check(); err == nil {
		t.Error("Check finds nothing")
	}
	must(t, old.Close())
	must(t, young.Check())
	conn, err := Dial(t.Context(), path)
	must(t, err)
	_ = conn.Close()
	if text, _ := os.ReadFile(path + ".lock"); string(text) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("the new lock says %q", text)
	}

	// The lock removed, the socket not: it may be about to be another's.
	third := open(t)
	must(t, os.Remove(third.Path()+".lock"))
	must(t, third.Close())
	if _, err := os.Lstat(third.Path()); err != nil {
		t.Errorf("removed without the lock: %v", err)
	}

	// Another directory put in the place of the socket's.
	moved := open(t)
	dir := filepath.Dir(moved.Path())
	must(t, os.Rename(dir, dir+"2"))
	t.Cleanup(func() { _ = os.RemoveAll(dir + "2") })
	must(t, os.Mkdir(dir, 0o700))
	next, err := Open(Options{Path: moved.Path()})
	must(t, err)
	if err := moved.Check(); err == nil {
		t.Error("Check does not find that the directory was moved")
	}
	must(t, moved.Close())
	must(t, next.Check())
	must(t, next.Close())

	// A file put in the socket's place.
	fourth := open(t)
	must(t, os.Remove(fourth.Path()))
	must(t, os.WriteFile(fourth.Path(), nil, 0o600))
	must(t, fourth.Close())
	if _, err := os.Lstat(fourth.Path()); err != nil {
		t.Errorf("another file was removed: %v", err)
	}
}

// TestRace: of two daemons that start at once exactly one wins, over nothing and
// over a stale socket, in a directory that is there or is not.
func TestRace(t *testing.T) {
	for round := range 50 {
		path := filepath.Join(tempDir(t), "new", "d.sock")
		if round%2 == 1 {
			must(t, os.Mkdir(filepath.Dir(path), 0o700))
			_ = unix.Close(bindRaw(t, path, unix.SOCK_STREAM))
		}
		var said [2]*running
		cmds := [2]*running{}
		var wg sync.WaitGroup
		for i := range cmds {
			wg.Go(func() { said[i] = begin(t, child(t, "daemon", path)) })
		}
		wg.Wait()
		won, lost := 0, 0
		for _, d := range said {
			if d == nil {
				t.Fatal("no child")
			}
			if strings.HasPrefix(d.first, "won") {
				won++
			}
			if strings.HasPrefix(d.first, "running") {
				lost++
			}
		}
		if won != 1 || lost != 1 {
			t.Fatalf("round %d: %q and %q", round, said[0].first, said[1].first)
		}
		conn, err := Dial(t.Context(), path)
		must(t, err)
		_ = conn.Close()
		for _, d := range said {
			_ = d.end()
		}
	}
}

// TestRaceOfEnds: daemons come and go, and somebody removes the lock whenever
// nobody holds it; at no time are there two, and while one holds the place it is
// reached.
func TestRaceOfEnds(t *testing.T) {
	noLeak(t)
	path := filepath.Join(tempDir(t), "d.sock")
	var holders, wins atomic.Int32
	var wg sync.WaitGroup
	stop := time.Now().Add(time.Second)
	for range 4 {
		wg.Go(func() {
			for time.Now().Before(stop) {
				l, err := Open(Options{Path: path})
				var running *AlreadyRunning
				if errors.As(err, &running) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				wins.Add(1)
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d daemons at once", n)
				}
				if conn, err := Dial(context.Background(), path); err != nil {
					t.Error(err)
				} else {
					_ = conn.Close()
				}
				holders.Add(-1)
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		p, err := openPlace(path, User, -1)
		if err != nil {
			t.Error(err)
			return
		}
		defer p.close()
		for time.Now().Before(stop) {
			if l, err := p.lock(); err == nil {
				_ = unix.Unlinkat(p.fd, l.name, 0)
				_ = l.file.Close()
			}
		}
	})
	wg.Wait()
	if wins.Load() < 4 {
		t.Errorf("only %d wins", wins.Load())
	}
}

func TestLongPath(t *testing.T) {
	noLeak(t)
	dir := tempDir(t)
	for range 3 {
		dir = filepath.Join(dir, strings.Repeat("long", 50))
	}
	must(t, os.MkdirAll(dir, 0o700))
	path := filepath.Join(dir, strings.Repeat("n", maxName))
	for range 2 {
		l, err := Open(Options{Path: path})
		must(t, err)
		if _, err := Open(Options{Path: path}); err == nil {
			t.Fatal("opened twice")
		}
		conn, err := Dial(t.Context(), path)
		must(t, err)
		server, err := l.Accept()
		must(t, err)
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if n, err := server.Read(make([]byte, 1)); n != 1 {
			t.Error(err)
		}
		_, _ = conn.Close(), server.Close()
		must(t, l.Close())
		_ = unix.Close(bindAt(t, dir, strings.Repeat("n", maxName))) // stale for the second round
	}
}

func bindAt(t *testing.T, dir, name string) int {
	t.Helper()
	p, err := openPlace(filepath.Join(dir, name), User, -1)
	must(t, err)
	defer p.close()
	fd, err := newSocket()
	must(t, err)
	must(t, p.bind(fd))
	return fd
}

func TestDial(t *testing.T) {
	listenAt := func(t *testing.T, path string) {
		fd := bindRaw(t, path, unix.SOCK_STREAM)
		must(t, unix.Listen(fd, 5))
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	for _, c := range []struct {
		name string
		root bool
		put  func(*testing.T, string)
		want error
	}{
		{"listening", false, listenAt, nil},
		{"nothing", false, func(*testing.T, string) {}, ErrNoDaemon},
		{"no directory", false, func(t *testing.T, path string) { must(t, os.Remove(filepath.Dir(path))) }, ErrNoDaemon},
		{"stale", false, func(t *testing.T, path string) { _ = unix.Close(bindRaw(t, path, unix.SOCK_STREAM)) }, ErrNoDaemon},
		{"bound only", false, func(t *testing.T, path string) {
			fd := bindRaw(t, path, unix.SOCK_STREAM)
			t.Cleanup(func() { _ = unix.Close(fd) })
		}, ErrNoDaemon},
		{"file", false, func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, ErrInTheWay},
		{"link to a socket", false, func(t *testing.T, path string) {
			listenAt(t, path+"2")
			must(t, os.Symlink(path+"2", path))
		}, ErrInTheWay},
		{"datagrams", false, func(t *testing.T, path string) {
			fd := bindRaw(t, path, unix.SOCK_DGRAM)
			t.Cleanup(func() { _ = unix.Close(fd) })
		}, unix.EPROTOTYPE},
		{"directory of the group's", false, func(t *testing.T, path string) {
			listenAt(t, path)
			must(t, os.Chmod(filepath.Dir(path), 0o770))
		}, ErrUntrusted},
		{"directory of everybody's", false, func(t *testing.T, path string) {
			listenAt(t, path)
			must(t, os.Chmod(filepath.Dir(path), 0o777|os.ModeSticky))
		}, ErrUntrusted},
		{"directory that others read", false, func(t *testing.T, path string) {
			listenAt(t, path)
			must(t, os.Chmod(filepath.Dir(path), 0o755))
		}, nil},
		{"another's directory", true, func(t *testing.T, path string) {
			listenAt(t, path)
			must(t, os.Chown(filepath.Dir(path), 4711, -1))
		}, ErrUntrusted},
		{"another's socket", true, func(t *testing.T, path string) {
			listenAt(t, path)
			must(t, os.Chown(path, 4711, -1))
		}, ErrUntrusted},
		{"another listens", true, func(t *testing.T, path string) {
			f := os.NewFile(uintptr(bindRaw(t, path, unix.SOCK_STREAM)), "socket")
			defer f.Close()
			cmd := as(t, child(t, "listen"), 4711, 4711)
			cmd.ExtraFiles = []*os.File{f}
			if r := begin(t, cmd); r.first != "listening" {
				t.Fatal(r.first)
			}
		}, ErrUntrusted},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				needRoot(t)
			}
			noLeak(t)
			dir := filepath.Join(tempDir(t), "d")
			must(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, "d.sock")
			c.put(t, path)
			conn, err := Dial(t.Context(), path)
			if err == nil {
				_ = conn.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestDialInAnothersDirectory: an ordinary user meets another's daemon.
func TestDialInAnothersDirectory(t *testing.T) {
	needRoot(t)
	base := tempDir(t)
	must(t, os.Chmod(base, 0o755))
	must(t, os.Mkdir(base+"/d", 0o700))
	must(t, os.Chown(base+"/d", 4711, 4711))
	d := begin(t, as(t, child(t, "daemon", base+"/d/d.sock"), 4711, 4711))
	if !strings.HasPrefix(d.first, "won") {
		t.Fatal(d.first)
	}
	must(t, os.Chmod(base+"/d", 0o755))
	must(t, os.Chmod(base+"/d/d.sock", 0o666))
	if got := say(t, as(t, child(t, "dial", base+"/d/d.sock"), 1001, 1001)); !strings.Contains(got, "belongs to user 4711") {
		t.Error(got)
	}
	if got := say(t, as(t, child(t, "connect", base+"/d/d.sock"), 1001, 1001)); got != "<nil>" {
		t.Errorf("control: %s", got)
	}
	if got := say(t, as(t, child(t, "dial", base+"/d/d.sock"), 4711, 4711)); got != "connected" {
		t.Errorf("its own user: %s", got)
	}
}

func TestDialFullBacklog(t *testing.T) {
	noLeak(t)
	path := filepath.Join(tempDir(t), "d.sock")
	l, err := Open(Options{Path: path, Backlog: 1})
	must(t, err)
	defer l.Close()
	var conns []*net.UnixConn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for {
		c, err := Dial(contextFor(t, 100*time.Millisecond), path)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		must(t, err)
		if conns = append(conns, c); len(conns) > 10 {
			t.Fatal("a backlog of 1 takes everybody")
		}
	}
	// Who waits gets in when there is room.
	time.AfterFunc(100*time.Millisecond, func() {
		if c, err := l.Accept(); err == nil {
			_ = c.Close()
		}
	})
	c, err := Dial(contextFor(t, 10*time.Second), path)
	must(t, err)
	conns = append(conns, c)
}

func TestDefaultPath(t *testing.T) {
	home, run := tempDir(t), tempDir(t)
	for _, c := range []struct {
		name string
		mode os.FileMode // of XDG_RUNTIME_DIR
		env  map[string]string
		want string
	}{
		{"runtime", 0o700, map[string]string{"XDG_RUNTIME_DIR": run, "HOME": home}, run},
		{"runtime is open", 0o750, map[string]string{"XDG_RUNTIME_DIR": run, "HOME": home}, home + "/.local/state"},
		{"runtime is relative", 0o700, map[string]string{"XDG_RUNTIME_DIR": "run", "HOME": home}, home + "/.local/state"},
		{"no runtime", 0o700, map[string]string{"HOME": home}, home + "/.local/state"},
		{"state", 0o700, map[string]string{"HOME": home, "XDG_STATE_HOME": home + "/s"}, home + "/s"},
		{"relative state", 0o700, map[string]string{"HOME": home, "XDG_STATE_HOME": "s"}, home + "/.local/state"},
		{"nothing", 0o700, nil, ""},
		{"home is not ours", 0o700, map[string]string{"HOME": "/proc/1"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME", EnvSocket} {
				t.Setenv(name, c.env[name])
			}
			must(t, os.Chmod(run, c.mode))
			got, err := DefaultPath(User)
			if c.name == "home is not ours" && os.Geteuid() == 0 {
				return
			}
			if c.want == "" && err == nil || c.want != "" && got != c.want+"/sandboxd/socket" {
				t.Errorf("%q, %v", got, err)
			}
			all := Candidates()
			if all[len(all)-1] != "/run/sandboxd/socket" || c.want != "" && all[0] != got {
				t.Errorf("%q", all)
			}
		})
	}
	if got, err := DefaultPath(System); err != nil || got != "/run/sandboxd/socket" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestAuto: a daemon that was told nothing is found by a client that was told
// nothing, also one of another environment.
func TestAuto(t *testing.T) {
	noLeak(t)
	home, run := tempDir(t), tempDir(t)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv(EnvSocket, "")
	t.Setenv("HOME", home)
	if _, err := os.Stat("/run/sandboxd"); err == nil {
		t.Skip("a system's daemon is installed")
	}
	if _, _, err := DialAuto(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Fatal(err)
	}
	l, err := Open(Options{})
	must(t, err)
	defer l.Close()
	want := home + "/.local/state/sandboxd/socket"
	t.Setenv("XDG_RUNTIME_DIR", run)
	conn, path, err := DialAuto(t.Context())
	if err != nil || path != want || l.Path() != want {
		t.Fatalf("%q and %q, %v", path, l.Path(), err)
	}
	_ = conn.Close()
	for dir := filepath.Dir(want); dir != home; dir = filepath.Dir(dir) {
		if m := mode(t, dir).mode & 0o7777; m != 0o700 {
			t.Errorf("%s has mode %04o", dir, m)
		}
	}
	// Who is told where goes nowhere else.
	t.Setenv(EnvSocket, home+"/elsewhere")
	if _, path, err := DialAuto(t.Context()); !errors.Is(err, ErrNoDaemon) || path != "" {
		t.Errorf("told of another place: %q, %v", path, err)
	}
	t.Setenv(EnvSocket, "")
	// A place that is not trusted is not passed over.
	must(t, os.Mkdir(run+"/sandboxd", 0o700))
	must(t, os.Chmod(run+"/sandboxd", 0o777))
	if _, path, err := DialAuto(t.Context()); !errors.Is(err, ErrUntrusted) || !strings.HasPrefix(path, run) {
		t.Errorf("%q, %v", path, err)
	}
}

// TestShortage: with any number of descriptors left, opening and connecting
// succeed or fail, leave none open, and leave no socket behind.
func TestShortage(t *testing.T) {
	path := filepath.Join(tempDir(t), "d.sock")
	if got := say(t, child(t, "shortage", path)); got != "opened" {
		t.Error(got)
	}
}

func init() {
	children["shortage"] = func(args []string) string {
		// The first one opens what Go needs for itself.
		first, err := Open(Options{Path: args[0] + "1"})
		if err != nil {
			return err.Error()
		}
		taken := exhaust()
		for free := range 20 {
			CloseAll(taken[len(taken)-free:])
			taken = taken[:len(taken)-free]
			l, err := Open(Options{Path: args[0]})
			if err == nil {
				_ = l.Close()
			}
			if _, serr := os.Lstat(args[0]); !errors.Is(serr, fs.ErrNotExist) {
				return fmt.Sprintf("with %d: a socket is left after %v, %v", free, err, serr)
			}
			conn, derr := Dial(context.Background(), first.Path())
			if derr == nil {
				_ = conn.Close()
			}
			again := exhaust()
			if len(again) != free {
				return fmt.Sprintf("with %d: %d are left after %v and %v", free, len(again), err, derr)
			}
			taken = append(taken, again...)
			if err == nil && derr == nil {
				return "opened"
			}
			for _, err := range []error{err, derr} {
				if err != nil && !errors.Is(err, unix.EMFILE) {
					return fmt.Sprintf("with %d: %v", free, err)
				}
			}
		}
		return "20 are not enough"
	}
}

// TestWithoutProc: where no handle has a name, a path that fits into an address
// does, and a longer one is refused.
func TestWithoutProc(t *testing.T) {
	needRoot(t)
	if !kernelAtLeast(6, 6) {
		t.Skip("fchmodat2 is of Linux 6.6")
	}
	dir := tempDir(t)
	cmd := child(t, "without proc", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if got := say(t, cmd); got != "well" {
		t.Error(got)
	}
}

func init() {
	children["without proc"] = func(args []string) string {
		if err := unix.Mount("none", "/proc", "tmpfs", 0, ""); err != nil {
			return err.Error()
		}
		path := filepath.Join(args[0], "d", "d.sock")
		for range 2 {
			l, err := Open(Options{Path: path})
			if err != nil {
				return err.Error()
			}
			if st, err := lstatAt(unix.AT_FDCWD, path); err != nil || st.mode != unix.S_IFSOCK|0o600 {
				return fmt.Sprintf("%+v, %v", st, err)
			}
			conn, err := Dial(context.Background(), path)
			if err != nil {
				return err.Error()
			}
			_ = conn.Close()
			if err := l.Close(); err != nil {
				return err.Error()
			}
			fd, err := newSocket() // stale for the second round
			if err != nil {
				return err.Error()
			}
			if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd)); err != nil {
				return err.Error()
			}
		}
		long := filepath.Join(args[0], strings.Repeat("long", 30))
		if _, err := Open(Options{Path: long + "/d.sock"}); !errors.Is(err, ErrTooLong) {
			return fmt.Sprint("a long path: ", err)
		}
		return "well"
	}
}
