package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend/landlock"
	"sandboxd/internal/listen"
	"sandboxd/internal/sys"
	"sandboxd/protocol"
	"sandboxd/report"
)

// bin has the programs under test: as users have them, without cgo and the race
// detector, and where every user can run them.
var bin string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "no-landlock" {
		noLandlock(os.Args[2:])
	}
	os.Exit(func() int {
		self, err := os.Executable()
		if err == nil {
			bin = filepath.Dir(self)
			if _, err := os.Stat(filepath.Join(bin, "sandboxd")); err == nil {
				return m.Run() // they were built beside the test, for a user without Go
			}
		}
		if bin, err = os.MkdirTemp("", "sandboxd-bin-"); err == nil {
			defer os.RemoveAll(bin)
			err = os.Chmod(bin, 0o755)
		}
		if err == nil {
			cmd := exec.Command("go", "build", "-o", bin, "sandboxd/cmd/sandboxd", "sandboxd/cmd/sbx")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			cmd.Stderr = os.Stderr
			err = cmd.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "building:", err)
			return 1
		}
		return m.Run()
	}())
}

// noLandlock runs a program where the kernel seems to have no Landlock.
func noLandlock(argv []string) {
	runtime.LockOSThread()
	err := sys.SetNoNewPrivs()
	if err == nil {
		_, err = sys.InstallFilter([]sys.SockFilter{
			{Code: 0x20, K: 0}, // load the call's number
			{Code: 0x15, Jf: 1, K: unix.SYS_LANDLOCK_CREATE_RULESET},
			{Code: 0x06, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EOPNOTSUPP)},
			{Code: 0x06, K: unix.SECCOMP_RET_ALLOW},
		}, false)
	}
	if err == nil {
		err = syscall.Exec(argv[0], argv, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "no-landlock:", err)
	os.Exit(99)
}

func needLandlock(t testing.TB) {
	t.Helper()
	if !landlock.New(landlock.Options{}).Probe().Usable {
		t.Skip("needs Landlock")
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publicDir is a directory that other users can pass through.
func publicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandboxd-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// process is a sandboxd.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	dir    string
	socket string
	log    *buffer
	done   chan struct{}
}

// buffer can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }
func (b *buffer) String() string              { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

// prepare makes a daemon that is not started, with a place of its own.
func prepare(t testing.TB, args ...string) *process {
	t.Helper()
	dir := publicDir(t)
	p := &process{t: t, dir: dir, socket: filepath.Join(dir, "run", "socket"), log: &buffer{}, done: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(bin, "sandboxd"), append([]string{"--socket", p.socket, "--audit-log", filepath.Join(dir, "audit")}, args...)...)
	p.cmd.Stderr = p.log
	p.cmd.WaitDelay = 10 * time.Second
	return p
}

// start starts it; it is killed at the test's end, with all that it started.
func (p *process) start() *process {
	p.t.Helper()
	must(p.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(20 * time.Second):
			p.t.Error("the daemon does not end")
			_ = p.cmd.Process.Kill()
		}
		if p.t.Failed() {
			p.t.Logf("it ended with %v; the log:\n%.8000s", p.cmd.ProcessState, p.log.String())
		}
	})
	return p
}

// serving starts it and waits until it serves.
func serving(t testing.TB, args ...string) *process {
	t.Helper()
	needLandlock(t)
	return prepare(t, args...).start().wait()
}

func (p *process) wait() *process {
	p.t.Helper()
	waitFor(p.t, "the daemon", func() bool {
		select {
		case <-p.done:
			p.t.Fatalf("the daemon has ended: %v\n%s", p.cmd.ProcessState, p.log.String())
		default:
		}
		return strings.Contains(p.log.String(), "serving")
	})
	return p
}

// status waits for its end.
func (p *process) status() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.t.Fatal("the daemon does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// front is the pid of its front, 0 if there is none.
func (p *process) front() int {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", p.cmd.Process.Pid, task.Name()))
		for word := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(word)
			line, _ := os.ReadFile("/proc/" + word + "/cmdline")
			if bytes.HasPrefix(line, []byte("sandboxd-front\x00")) && alive(int64(pid)) {
				return pid
			}
		}
	}
	return 0
}

// alive tells whether the process lives.
func alive(pid int64) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z ")) && !bytes.Contains(stat, []byte(") X "))
}

func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// client is a connection for one goroutine.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	r    *protocol.Reader
	last int64
	ws   string
	mode string
}

func (p *process) dial() *client {
	p.t.Helper()
	conn, err := listen.Dial(context.Background(), p.socket)
	must(p.t, err)
	c, err := greet(p.t, conn, p.t.TempDir())
	must(p.t, err)
	return c
}

// place dials until there is a place among the user's connections: the last of the
// others may still be on their way.
func (p *process) place() (c *client) {
	p.t.Helper()
	waitFor(p.t, "a place", func() bool {
		conn, err := listen.Dial(context.Background(), p.socket)
		must(p.t, err)
		c, err = greet(p.t, conn, p.t.TempDir())
		return err == nil
	})
	return c
}

// dialAs connects as another user: the kernel keeps who called connect(2).
func (p *process) dialAs(uid, gid int, groups []int, ws string) (c *client, err error) {
	p.t.Helper()
	done := make(chan struct{})
	fd := -1
	sys.OnOwnThread(func() {
		defer close(done)
		if err = sys.SetIDs(uid, gid, groups); err != nil {
			return
		}
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: p.socket})
		}
	})
	<-done
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(file)
	must(p.t, err)
	return greet(p.t, conn.(*net.UnixConn), ws)
}

func greet(t testing.TB, conn *net.UnixConn, ws string) (*client, error) {
	t.Cleanup(func() { _ = conn.Close() })
	c := &client{t: t, conn: conn, r: protocol.NewReader(conn, protocol.MaxAnswer), ws: ws}
	hello := &protocol.ClientHello{Versions: []int64{1}, Client: protocol.Peer{Name: "test"}}
	said := c.trySay(hello)
	m, err := c.tryNext() // who is refused may hear so before it has said anything
	if err != nil {
		return nil, errors.Join(said, err)
	}
	switch m := m.(type) {
	case *protocol.DaemonHello:
		c.mode = m.Mode
		return c, nil
	case *protocol.Error:
		return nil, m
	}
	return nil, fmt.Errorf("answered with %T", m)
}

func (c *client) trySay(m protocol.Message) error {
	frame, err := protocol.AppendFrame(nil, m, protocol.MaxFrame)
	if err != nil {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(30 * time.Second))
	_, err = c.conn.Write(frame)
	return err
}

func (c *client) tryNext() (protocol.Message, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(60 * time.Second))
	frame, err := c.r.ReadFrame()
	if err != nil {
		return nil, err
	}
	return protocol.ParseAnswer(frame)
}

func (c *client) say(m protocol.Message) { c.t.Helper(); must(c.t, c.trySay(m)) }

func (c *client) id() int64 { c.last++; return c.last }

// launch starts a command with its outputs as streams.
func (c *client) launch(change func(*protocol.Launch), words ...string) int64 {
	c.t.Helper()
	m := &protocol.Launch{ID: c.id(), Dir: protocol.Bytes(c.ws), OutputWindow: 1 << 20, Stdio: &protocol.Stdio{Stdin: "null", Stdout: "stream", Stderr: "stream"}}
	for _, w := range words {
		m.Argv = append(m.Argv, protocol.Bytes(w))
	}
	if change != nil {
		change(m)
	}
	c.say(m)
	return m.ID
}

// result is all that came of a launch.
type result struct {
	started     *protocol.Started
	out, errOut bytes.Buffer
	report      report.Report
	failure     *protocol.Error
}

func (r *result) status() int {
	if r.failure != nil || !r.report.Ran {
		return -1
	}
	return r.report.Outcome.ExitStatus()
}

func (r *result) String() string {
	return fmt.Sprintf("status %d, out %.300q, err %.300q, failure %+v, outcome %+v", r.status(), r.out.String(), r.errOut.String(), r.failure, r.report.Outcome)
}

// tryFinish waits for the end of a launch. Others' messages are passed over.
func (c *client) tryFinish(id int64) (*result, error) {
	r := &result{}
	for {
		m, err := c.tryNext()
		if err != nil {
			return r, err
		}
		if e, ok := m.(*protocol.Error); ok && (e.ID == id || e.ID == 0) {
			r.failure = e
			return r, nil
		}
		if protocol.ID(m) != id {
			continue
		}
		switch m := m.(type) {
		case *protocol.Started:
			r.started = m
		case *protocol.Output:
			to := &r.out
			if m.Stream == "stderr" {
				to = &r.errOut
			}
			to.Write(m.Data)
			if !m.EOF {
				if err := c.trySay(&protocol.Credit{ID: id, Stream: m.Stream, Bytes: int64(len(m.Data))}); err != nil {
					return r, err
				}
			}
		case *protocol.Exit:
			return r, json.Unmarshal(m.Report, &r.report)
		}
	}
}

func (c *client) finish(id int64) *result {
	c.t.Helper()
	r, err := c.tryFinish(id)
	must(c.t, err)
	return r
}

func (c *client) run(words ...string) *result {
	c.t.Helper()
	return c.finish(c.launch(nil, words...))
}

// until returns the next message of a type, or the error of the daemon's.
func until[M protocol.Message](c *client) (none M, _ *protocol.Error) {
	c.t.Helper()
	for {
		m, err := c.tryNext()
		must(c.t, err)
		switch m := m.(type) {
		case M:
			return m, nil
		case *protocol.Error:
			return none, m
		}
	}
}

// started waits for the start of the launch that was asked for last.
func (c *client) started() *protocol.Started {
	c.t.Helper()
	s, err := until[*protocol.Started](c)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// healthy asks for the daemon's health and says how long that took.
func (c *client) healthy() time.Duration {
	c.t.Helper()
	begin := time.Now()
	c.say(&protocol.Health{ID: c.id()})
	if h, err := until[*protocol.HealthResult](c); err != nil || h.Status != "ok" {
		c.t.Fatalf("%+v, %v", h, err)
	}
	return time.Since(begin)
}
