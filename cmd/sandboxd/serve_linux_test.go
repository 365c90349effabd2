package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/confine"
	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

func TestServes(t *testing.T) {
	p := serving(t)
	c := p.dial()
	if r := c.run("sh", "-c", "echo out; exit 3"); r.status() != 3 || r.out.String() != "out\n" {
		t.Error(r)
	}
	if c.mode != "user" {
		t.Error(c.mode)
	}
	// The front is confined, as /proc tells of each of its threads.
	front := p.front()
	all, err := confine.Threads(front)
	if err != nil || len(all) == 0 {
		t.Fatalf("%v, %v", all, err)
	}
	want := [4]int{os.Geteuid(), os.Geteuid(), os.Geteuid(), os.Geteuid()}
	if os.Geteuid() == 0 {
		want = [4]int{nobodys, nobodys, nobodys, nobodys}
		if ids, err := frontIDs(""); err != nil || ids.UID != nobodys { // there is an account
			want = [4]int{ids.UID, ids.UID, ids.UID, ids.UID}
		}
	}
	for _, th := range all {
		if !th.NoNewPrivs || th.Seccomp != 2 || th.UID != want || th.CapPrm|th.CapEff|th.CapAmb != 0 {
			t.Errorf("%+v", th)
		}
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", front)); os.Geteuid() == 0 && (err != nil || exe != filepath.Join(bin, "sandboxd")) {
		t.Errorf("%q, %v", exe, err)
	}
	p.signal(unix.SIGTERM)
	if s := p.status(); s != 0 {
		t.Errorf("status %d", s)
	}
	if _, err := os.Lstat(p.socket); err == nil {
		t.Error("the socket is still there")
	}
	if alive(int64(front)) {
		t.Error("the front lives on")
	}
	// What it wrote into the audit log is a whole chain.
	if out, err := exec.Command(filepath.Join(bin, "sbx"), "audit", "verify", "--dir", filepath.Join(p.dir, "audit")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDrain: a worker that ends in time is waited for and reported; a second signal
// waits for nobody.
func TestDrain(t *testing.T) {
	p := serving(t, "--drain", "1h")
	c, other := p.dial(), p.dial()
	gate := filepath.Join(c.ws, "gate")
	must(t, unix.Mkfifo(gate, 0o600))
	good := c.launch(nil, "sh", "-c", "read x <gate; exit 7")
	c.started()
	other.launch(nil, "sleep", "3600")
	stays := other.started()
	p.signal(unix.SIGTERM)
	waitFor(t, "the stop", func() bool {
		other.say(&protocol.Health{ID: other.id()})
		h, err := until[*protocol.HealthResult](other)
		return err == nil && h.Status == "stopping"
	})
	if r := other.run("true"); r.failure == nil || r.failure.Code != protocol.ShuttingDown {
		t.Errorf("a launch while it stops: %v", r)
	}
	must(t, os.WriteFile(gate, []byte("go\n"), 0))
	if r := c.finish(good); r.status() != 7 {
		t.Errorf("the worker that was waited for: %v", r)
	}
	p.signal(unix.SIGINT)
	if s := p.status(); s != 0 {
		t.Errorf("status %d", s)
	}
	if alive(stays.PID) {
		t.Error("a worker lives on")
	}
}

// TestReload: a changed configuration holds from SIGHUP on, a wrong one never, and the
// log goes on in a new file.
func TestReload(t *testing.T) {
	needLandlock(t)
	dir := publicDir(t)
	config, log := filepath.Join(dir, "config.toml"), filepath.Join(dir, "log")
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(config, []byte(text), 0o600))
	}
	write("[ceiling]\nmode = \"read-only\"\n")
	p := prepare(t, "--config", config, "--log-file", log, "--log-format", "json").start()
	logged := func(word string) func() bool {
		return func() bool { text, _ := os.ReadFile(log); return strings.Contains(string(text), word) }
	}
	waitFor(t, "the start", logged(`"msg":"serving"`))
	c := p.dial()
	mode := func(m string) *result {
		return c.finish(c.launch(func(l *protocol.Launch) { l.Mode = m }, "true"))
	}
	if r := mode("workspace-write"); r.failure == nil || r.failure.Code != protocol.Ceiling {
		t.Errorf("above the ceiling: %v", r)
	}
	if r := mode("read-only"); r.status() != 0 {
		t.Errorf("the control: %v", r)
	}
	must(t, os.Rename(log, log+".moved"))
	write("[ceiling]\nmode = \"workspace-write\"\n")
	p.signal(unix.SIGHUP)
	waitFor(t, "the reload", logged(`"msg":"reloaded"`))
	if r := mode("workspace-write"); r.status() != 0 {
		t.Errorf("below the new ceiling: %v", r)
	}
	must(t, os.Rename(log, log+".moved"))
	write("[ceiling]\nmode = \"danger-full-access\"\nmood = 1\n")
	p.signal(unix.SIGHUP)
	waitFor(t, "the reload", logged(`"msg":"reloaded"`))
	if r := mode("danger-full-access"); r.failure == nil || r.failure.Code != protocol.Ceiling {
		t.Errorf("the old ceiling holds: %v", r)
	}
	if !logged("mood")() {
		t.Error("the log does not say what is wrong")
	}
}

// TestLogPipe: a log that nobody reads stops nothing.
func TestLogPipe(t *testing.T) {
	needLandlock(t)
	p := prepare(t, "--verbose")
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	p.cmd.Stderr = w
	// Full from the start.
	fd := int(w.Fd()) // which makes it blocking
	must(t, unix.SetNonblock(fd, true))
	for {
		if _, err := unix.Write(fd, make([]byte, 4096)); err != nil {
			break
		}
	}
	must(t, unix.SetNonblock(fd, false))
	p.start()
	_ = w.Close()
	waitFor(t, "the socket", func() bool {
		c, err := listen.Dial(context.Background(), p.socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	for range 400 { // each is worth a line
		if c, err := net.Dial("unix", p.socket); err == nil {
			_, _ = c.Write([]byte("\x00\x00\x00\x05xxxxx"))
			_ = c.Close()
		}
	}
	c := p.place() // all of them are this user's
	if r := c.run("echo", "alive"); r.out.String() != "alive\n" {
		t.Error(r)
	}
	p.signal(unix.SIGHUP)
	p.signal(unix.SIGTERM)
	if s := p.status(); s != 0 {
		t.Errorf("status %d", s)
	}
}

// TestLogReaderGone: nor does a log whose reader has gone.
func TestLogReaderGone(t *testing.T) {
	needLandlock(t)
	p := prepare(t, "--verbose")
	r, w, err := os.Pipe()
	must(t, err)
	p.cmd.Stderr = w
	p.start()
	_ = w.Close()
	_ = r.Close()
	waitFor(t, "the socket", func() bool {
		conn, err := net.Dial("unix", p.socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	c := p.dial()
	for range 3 {
		p.signal(unix.SIGHUP) // each writes to the pipe
	}
	// A worker has not inherited that SIGPIPE is nothing: yes would run for ever.
	if r := c.run("sh", "-c", "(yes; echo $? >&2) | head -n 1"); r.out.String() != "y\n" {
		t.Error(r)
	}
	p.signal(unix.SIGTERM)
	if s := p.status(); s != 0 {
		t.Errorf("status %d", s)
	}
}

// TestLogDisk: a full disk costs lines of the log, and nothing else.
func TestLogDisk(t *testing.T) {
	needLandlock(t)
	needRoot(t)
	disk := publicDir(t)
	if err := unix.Mount("log", disk, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k"); err != nil {
		t.Skipf("needs to mount: %v", err)
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	fill := filepath.Join(disk, "fill")
	log := filepath.Join(disk, "log")
	p := prepare(t, "--log-file", log).start()
	read := func() string { text, _ := os.ReadFile(log); return string(text) }
	waitFor(t, "the start", func() bool { return strings.Contains(read(), "serving") })
	_ = os.WriteFile(fill, make([]byte, 1<<20), 0o600) // as far as it goes
	c := p.dial()
	// The log's last page takes lines until the next one does not fit.
	const line = len("time=2026-01-31T12:00:00.000Z level=INFO msg=reloaded\n")
	waitFor(t, "a full disk", func() bool {
		p.signal(unix.SIGHUP)
		return os.Getpagesize()-len(read())%os.Getpagesize() < line
	})
	for range 50 {
		p.signal(unix.SIGHUP)
		if r := c.run("echo", "alive"); r.out.String() != "alive\n" {
			t.Fatal(r)
		}
	}
	must(t, os.Remove(fill))
	waitFor(t, "the log", func() bool {
		p.signal(unix.SIGHUP)
		return strings.Contains(read(), "were lost") && strings.HasSuffix(read(), "\n")
	})
}

// TestKilled: whoever of the two is killed, no worker that depends on it stays, and
// there is a daemon again.
func TestKilled(t *testing.T) {
	p := serving(t)
	c := p.dial()
	c.launch(nil, "sleep", "3600")
	w := c.started()
	front := p.front()
	must(t, unix.Kill(front, unix.SIGKILL))
	waitFor(t, "the worker's end", func() bool { return !alive(w.PID) })
	c = p.dial() // waits for the next front
	if r := c.run("true"); r.status() != 0 {
		t.Error(r)
	}
	next := p.front()
	if next == front || next == 0 {
		t.Errorf("the front is %d, was %d", next, front)
	}
	for range 3 { // it comes back each time, later and later
		must(t, unix.Kill(p.front(), unix.SIGKILL))
		waitFor(t, "a front", func() bool { f := p.front(); return f != 0 && f != next })
		next = p.front()
	}
	if r := p.dial().run("true"); r.status() != 0 {
		t.Error(r)
	}
	// Both: the socket is stale, and the next daemon takes its place.
	must(t, unix.Kill(p.cmd.Process.Pid, unix.SIGSTOP)) // it cannot start another
	must(t, unix.Kill(p.front(), unix.SIGKILL))
	must(t, unix.Kill(p.cmd.Process.Pid, unix.SIGKILL))
	p.status()
	if _, err := listen.Dial(context.Background(), p.socket); err == nil {
		t.Fatal("somebody listens")
	}
	if _, err := os.Lstat(p.socket); err != nil {
		t.Fatal(err)
	}
	again := prepare(t)
	again.cmd.Args, again.socket = p.cmd.Args, p.socket
	again.start().wait()
	if r := again.dial().run("true"); r.status() != 0 {
		t.Error(r)
	}
	// The monitor alone: the front goes with it.
	front = again.front()
	must(t, unix.Kill(again.cmd.Process.Pid, unix.SIGKILL))
	waitFor(t, "the front's end", func() bool { return !alive(int64(front)) })
}

// TestTwoDaemons: the second is refused and leaves the first alone, also when the first
// has been stopped meanwhile.
func TestTwoDaemons(t *testing.T) {
	p := serving(t)
	second := prepare(t)
	second.cmd.Args = p.cmd.Args
	second.start()
	if s := second.status(); s != statusRefused || !strings.Contains(second.log.String(), fmt.Sprintf("pid %d", p.cmd.Process.Pid)) || !strings.Contains(second.log.String(), "hint: ") {
		t.Errorf("status %d, %s", s, second.log.String())
	}
	if r := p.dial().run("true"); r.status() != 0 {
		t.Error(r)
	}
}

// TestRefusals: what is wrong before anything is served is one line, one hint, and
// status 2; and nothing has changed.
func TestRefusals(t *testing.T) {
	needLandlock(t)
	dir := publicDir(t)
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		must(t, os.Chmod(path, mode))
		return path
	}
	plain := file("plain", "mine", 0o600)
	must(t, os.Mkdir(filepath.Join(dir, "public"), 0o700))
	must(t, os.Chmod(filepath.Join(dir, "public"), 0o777))
	must(t, os.Mkdir(filepath.Join(dir, "plain.d"), 0o700))
	inTheWay := filepath.Join(dir, "plain.d", "s")
	must(t, os.WriteFile(inTheWay, []byte("mine"), 0o600))
	self, err := os.Executable()
	must(t, err)
	sandboxd := filepath.Join(bin, "sandboxd")
	audit := filepath.Join(dir, "audit")
	usual := []string{sandboxd, "--socket", filepath.Join(dir, "run", "s"), "--audit-log", audit}
	for _, c := range []struct {
		name string
		argv []string
		say  string
	}{
		{"a flag", append(usual[:5:5], "--bogus"), "--bogus"},
		{"an argument", append(usual[:5:5], "word"), "word"},
		{"a log's format", append(usual[:5:5], "--log-format", "xml"), "xml"},
		{"a plain file", []string{sandboxd, "--socket", inTheWay, "--audit-log", audit}, "something else"},
		{"a public directory", []string{sandboxd, "--socket", filepath.Join(dir, "public", "s"), "--audit-log", audit}, "not trusted"},
		{"a name too long", []string{sandboxd, "--socket", filepath.Join(dir, "run", strings.Repeat("n", 200)), "--audit-log", audit}, "too long"},
		{"a group without --system", append(usual[:5:5], "--group", "root"), "--system"},
		{"no configuration", append(usual[:5:5], "--config", filepath.Join(dir, "none")), "no such file"},
		{"an open configuration", append(usual[:5:5], "--config", file("open.toml", "", 0o666)), "0666"},
		{"an unknown key", append(usual[:5:5], "--config", file("bad.toml", "[ceiling]\nmood = 1\n", 0o600)), ":2:1:"},
		{"a log in a public directory", append(usual[:5:5], "--log-file", filepath.Join(dir, "public", "log")), "directory"},
		{"an audit log that is a file", append(usual[:3:3], "--audit-log", plain), "audit log"},
		{"no Landlock", append([]string{self, "no-landlock"}, usual...), "Landlock"},
		{"few descriptors", append([]string{"prlimit", "--nofile=200:200"}, usual...), "200"},
		{"--system without a group", append(usual[:5:5], "--system"), "--system needs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, err := exec.LookPath(c.argv[0])
			if err != nil {
				t.Skipf("needs %s", c.argv[0])
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, c.argv[1:]...)
			out, _ := cmd.CombinedOutput()
			text := string(out)
			if cmd.ProcessState.ExitCode() != statusRefused || !strings.HasPrefix(text, "sandboxd: ") || !strings.Contains(text, c.say) || !strings.Contains(text, "\nsandboxd: hint: ") {
				t.Errorf("status %d, %s", cmd.ProcessState.ExitCode(), text)
			}
		})
	}
	if text, err := os.ReadFile(inTheWay); err != nil || string(text) != "mine" {
		t.Errorf("the plain file: %q, %v", text, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "run", "s")); err == nil {
		t.Error("a socket is left")
	}
}

// TestLongPath: a path beyond the 108 bytes of an address works, as its directory is
// opened.
func TestLongPath(t *testing.T) {
	needLandlock(t)
	p := prepare(t)
	dir := filepath.Join(p.dir, strings.Repeat("d", 100), strings.Repeat("e", 100))
	must(t, os.MkdirAll(dir, 0o700))
	p.socket = filepath.Join(dir, "s")
	p.cmd.Args[2] = p.socket
	p.start().wait()
	if r := p.dial().run("echo", "up"); r.out.String() != "up\n" {
		t.Error(r)
	}
}

// TestDescriptors: a user who opens and launches as much as there is exhausts nothing:
// it is refused, and the daemon is the same one afterwards.
func TestDescriptors(t *testing.T) {
	needLandlock(t)
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("needs prlimit")
	}
	p := prepare(t)
	prlimit, _ := exec.LookPath("prlimit")
	p.cmd.Args = append([]string{"prlimit", "--nofile=1024:1024", p.cmd.Path}, p.cmd.Args[1:]...)
	p.cmd.Path = prlimit
	p.start().wait()
	front := p.front()
	refused, ran := 0, 0
	var all []*client
	for range protocol.MaxConnections - 1 {
		c := p.dial()
		all = append(all, c)
		for range 2 {
			c.launch(func(m *protocol.Launch) { m.Stdio.Stdin = "stream" }, "sleep", "3600")
			if _, err := until[*protocol.Started](c); err != nil {
				if err.Code != protocol.Overloaded || !err.Retryable {
					t.Fatalf("%+v", err)
				}
				refused++
			} else {
				ran++
			}
		}
	}
	if refused == 0 || ran < 10 {
		t.Errorf("%d refused, %d ran", refused, ran)
	}
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	t.Logf("%d workers ran, %d were refused, the monitor has %d descriptors open", ran, refused, len(open))
	for _, c := range all {
		_ = c.conn.Close()
	}
	c := p.dial()
	waitFor(t, "room", func() bool { return c.run("true").status() == 0 })
	if p.front() != front {
		t.Error("the front is another one")
	}
}

// TestHealth: health answers at once while workers hang, are stopped, spin and flood,
// and while another client does not read.
func TestHealth(t *testing.T) {
	p := serving(t)
	c, slow := p.dial(), p.dial()
	slow.launch(func(m *protocol.Launch) { m.OutputWindow = protocol.MaxWindow }, "yes")
	slow.launch(func(m *protocol.Launch) { m.OutputWindow = protocol.MaxWindow }, "sh", "-c", "yes >&2")
	others := p.dial()
	for _, command := range []string{"sleep 3600", "trap '' TERM; while :; do :; done", "kill -STOP $$"} {
		others.launch(nil, "sh", "-c", command)
		others.started()
	}
	var took []time.Duration
	for range 200 {
		took = append(took, c.healthy())
	}
	slices.Sort(took)
	t.Logf("median %v, 99th of 100 %v, at most %v", took[100], took[197], took[199])
	if took[100] > 10*time.Millisecond {
		t.Errorf("median %v", took[100])
	}
}
