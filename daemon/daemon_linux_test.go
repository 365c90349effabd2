package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/confine"
	"sandboxd/internal/listen"
	"sandboxd/protocol"
	"sandboxd/report"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case GuardName:
		os.Exit(Guard())
	case mortalName:
		os.Exit(mortal())
	}
	if os.Args[0] == FrontName {
		err := Front(FrontOptions{Version: "test", Confine: func() (string, error) {
			return Confine(&confine.IDs{UID: 65534, GID: 65534}, raceEnabled) // such a program has threads that are not Go's
		}})
		if err != nil {
			fmt.Fprintln(os.Stderr, "front:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func needLandlock(t testing.TB) {
	t.Helper()
	if !landlock.New(landlock.Options{}).Probe().Usable {
		t.Skip("this kernel has no Landlock")
	}
}

// serve runs a daemon of this user until the test's end.
func serve(t testing.TB, change func(*Options)) (*Monitor, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandboxd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o := Options{
		Socket:   listen.Options{Path: filepath.Join(dir, "run", "s"), Mode: listen.User},
		Version:  "test",
		Features: func() any { return map[string]int{"schema": 1} },
		Log:      slog.New(slog.NewTextHandler(testLog{t}, nil)),
		NoAudit:  true,
	}
	if change != nil {
		change(&o)
	}
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, 0) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the daemon ended: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the daemon does not end")
		}
	})
	return m, m.Socket()
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	if testing.Verbose() {
		_, _ = os.Stderr.Write(b)
	}
	return len(b), nil
}

// client is one for tests, which waits for nothing that it has not asked for.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	r    *protocol.Reader
	last int64
	ws   string
	uid  int64 // of the daemon's hello
}

func dial(t testing.TB, socket string) *client {
	t.Helper()
	conn, err := listen.Dial(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, conn, t.TempDir())
}

// greet says hello, for a client with a workspace.
func greet(t testing.TB, conn *net.UnixConn, ws string) *client {
	t.Helper()
	c := &client{t: t, conn: conn, r: protocol.NewReader(conn, protocol.MaxAnswer), ws: ws}
	t.Cleanup(func() { _ = conn.Close() })
	hello := &protocol.ClientHello{Versions: []int64{1}, Client: protocol.Peer{Name: "test"}}
	hello.Grease()
	c.say(hello)
	h, ok := c.next().(*protocol.DaemonHello)
	if !ok || h.Version != 1 || h.Mode != "user" {
		t.Fatalf("hello: %+v", h)
	}
	c.uid = h.UID
	return c
}

func (c *client) say(m protocol.Message, files ...*os.File) {
	c.t.Helper()
	frame, err := protocol.AppendFrame(nil, m, protocol.MaxFrame)
	if err != nil {
		c.t.Fatal(err)
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if err := listen.Send(c.conn, frame, fds); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) next() protocol.Message {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	frame, err := c.r.ReadFrame()
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := protocol.ParseAnswer(frame)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

func (c *client) id() int64 {
	c.last++
	return c.last
}

func argv(words ...string) (list []protocol.Bytes) {
	for _, w := range words {
		list = append(list, protocol.Bytes(w))
	}
	return list
}

// launch starts a command with its outputs as streams.
func (c *client) launch(change func(*protocol.Launch), words ...string) int64 {
	c.t.Helper()
	m := &protocol.Launch{
		ID: c.id(), Argv: argv(words...), Dir: protocol.Bytes(c.ws), OutputWindow: 1 << 20,
		Stdio: &protocol.Stdio{Stdin: "null", Stdout: "stream", Stderr: "stream"},
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
	raw         protocol.Object
	failure     *protocol.Error
}

// finish waits for the end of a launch. Others' messages are passed over.
func (c *client) finish(id int64) *result {
	c.t.Helper()
	r := &result{}
	for {
		switch m := c.next().(type) {
		case *protocol.Started:
			if m.ID == id {
				r.started = m
			}
		case *protocol.Output:
			if m.ID != id {
				continue
			}
			to := &r.out
			if m.Stream == "stderr" {
				to = &r.errOut
			}
			if m.Offset != int64(to.Len()) {
				c.t.Fatalf("%s at %d, want %d", m.Stream, m.Offset, to.Len())
			}
			to.Write(m.Data)
			if !m.EOF {
				c.say(&protocol.Credit{ID: id, Stream: m.Stream, Bytes: int64(len(m.Data))})
			}
		case *protocol.Exit:
			if m.ID != id {
				continue
			}
			r.raw = m.Report
			if err := json.Unmarshal(m.Report, &r.report); err != nil {
				c.t.Fatal(err)
			}
			return r
		case *protocol.Error:
			if m.ID == id || m.ID == 0 {
				r.failure = m
				return r
			}
		}
	}
}

func (c *client) run(words ...string) *result {
	c.t.Helper()
	return c.finish(c.launch(nil, words...))
}

// until returns the next message of a type.
func until[M protocol.Message](c *client) M {
	c.t.Helper()
	for {
		switch m := c.next().(type) {
		case M:
			return m
		case *protocol.Error:
			c.t.Fatalf("%+v", m)
		}
	}
}

func TestLaunch(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	r := c.run("sh", "-c", "echo out; echo err >&2; echo $PWD; exit 3")
	if r.out.String() != "out\n"+c.ws+"\n" || r.errOut.String() != "err\n" || r.report.Outcome.ExitStatus() != 3 || !r.report.Ran {
		t.Errorf("out %q, err %q, %+v", r.out.String(), r.errOut.String(), r.report.Outcome)
	}
	if r.started == nil || r.started.Worker != r.report.ID || r.started.Backend != auto() || r.started.PlanHash == "" || r.started.Level != r.report.Level.String() {
		t.Errorf("started %+v, report %s %s", r.started, r.report.ID, r.report.Level)
	}
	// It is confined; the control is what this process can do.
	outside := t.TempDir()
	if r := c.run("sh", "-c", "echo x > "+outside+"/file"); r.report.Outcome.ExitStatus() == 0 {
		t.Error("it writes outside of its workspace")
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err == nil {
		t.Error("the file is there")
	}
	if err := os.WriteFile(filepath.Join(outside, "file"), nil, 0o600); err != nil {
		t.Errorf("the control: %v", err)
	}
	if r := c.run("no-such-command"); r.report.Ran || r.report.ExitStatus != 127 {
		t.Errorf("a command that is not there: %+v", r.report.Outcome)
	}
	bad := c.finish(c.launch(func(m *protocol.Launch) { m.Mode = "no-mode" }, "true"))
	if bad.failure == nil || bad.failure.Code != protocol.BadValue || bad.failure.Field != "mode" {
		t.Errorf("an unknown mode: %+v", bad.failure)
	}
	home := c.finish(c.launch(func(m *protocol.Launch) { m.Workspace = "/" }, "true"))
	if home.failure == nil || home.failure.Code != protocol.Refused {
		t.Errorf("a workspace of /: %+v", home.failure)
	}
}

// auto is the backend that an ordinary launch gets here.
func auto() string {
	c, err := backend.Select(backend.Usual(), Backends(nil))
	if err != nil {
		return err.Error()
	}
	return c.Backend.Name()
}

// refusedByKernel: the socket is refused, or is not there for the worker.
func refusedByKernel(errno string) bool {
	return errno == strconv.Itoa(int(unix.EACCES))+"\n" || auto() == landlock.NativeName && errno == strconv.Itoa(int(unix.ENOENT))+"\n"
}

// TestWorkerCannotAskTheDaemon: a sandboxed child that asks for a worker without a
// sandbox fails for a reason of the kernel's.
func TestWorkerCannotAskTheDaemon(t *testing.T) {
	needLandlock(t)
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("needs python3")
	}
	m, socket := serve(t, nil)
	const ask = `
import socket, sys
s = socket.socket(socket.AF_UNIX)
try: s.connect(sys.argv[1])
except OSError as e: print(e.errno); sys.exit(9)
print("connected")`
	c := dial(t, socket)
	for _, mode := range []string{"read-only", "workspace-write"} {
		r := c.finish(c.launch(func(m *protocol.Launch) { m.Mode = mode }, "/usr/bin/python3", "-c", ask, socket))
		if r.report.Outcome.ExitStatus() != 9 || !refusedByKernel(r.out.String()) {
			t.Errorf("%s: status %d, %q %q", mode, r.report.Outcome.ExitStatus(), r.out.String(), r.errOut.String())
		}
		r = c.finish(c.launch(func(m *protocol.Launch) { m.Mode = mode }, "sh", "-c", fmt.Sprintf("kill -9 %d; echo $?", m.front.cmd.Process.Pid)))
		if r.out.String() == "0\n" {
			t.Errorf("%s: the front can be killed", mode)
		}
	}
	r := c.finish(c.launch(func(m *protocol.Launch) { m.Mode = "danger-full-access" }, "/usr/bin/python3", "-c", ask, socket))
	if r.out.String() != "connected\n" {
		t.Errorf("the control: %q %q", r.out.String(), r.errOut.String())
	}
}

func TestStreams(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	// Much output through a small window, to the last byte.
	r := c.finish(c.launch(func(m *protocol.Launch) { m.OutputWindow = 1000 }, "sh", "-c", "seq 200000"))
	var want bytes.Buffer
	for i := range 200000 {
		fmt.Fprintln(&want, i+1)
	}
	if !bytes.Equal(r.out.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes came, of %d", r.out.Len(), want.Len())
	}
	// A worker that reads all that is sent.
	id := c.launch(func(m *protocol.Launch) { m.Stdio.Stdin = "stream" }, "sh", "-c", "sha256sum; echo done")
	started := until[*protocol.Started](c)
	room, sent := started.StdinWindow, int64(0)
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	for int(sent) < len(data) {
		for room == 0 {
			room += until[*protocol.Credit](c).Bytes
		}
		n := min(room, protocol.MaxChunk, int64(len(data))-sent)
		c.say(&protocol.Stdin{ID: id, Offset: sent, Data: data[sent : sent+n]})
		sent, room = sent+n, room-n
	}
	c.say(&protocol.Stdin{ID: id, Offset: sent, EOF: true})
	if r := c.finish(id); r.report.Outcome.ExitStatus() != 0 || !strings.HasSuffix(r.out.String(), "done\n") {
		t.Errorf("%+v %q", r.report.Outcome, r.out.String())
	}
	// One that reads nothing, and an end that comes before the start.
	id = c.launch(func(m *protocol.Launch) { m.Stdio.Stdin = "stream" }, "cat")
	c.say(&protocol.Stdin{ID: id, EOF: true})
	if r := c.finish(id); r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("%+v", r.report.Outcome)
	}
	// More than was granted ends the connection, and only that.
	other := dial(t, socket)
	id = other.launch(func(m *protocol.Launch) { m.Stdio.Stdin = "stream" }, "sleep", "300")
	until[*protocol.Started](other)
	for sent := int64(0); sent <= 16*stdinWindow; sent += protocol.MaxChunk { // the pipe takes some
		frame, err := protocol.AppendFrame(nil, &protocol.Stdin{ID: id, Offset: sent, Data: make([]byte, protocol.MaxChunk)}, protocol.MaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		if listen.Send(other.conn, frame, nil) != nil {
			break
		}
	}
	for {
		if e, ok := other.next().(*protocol.Error); ok {
			if e.Code != protocol.FlowControl || !e.Fatal {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	if r := c.run("true"); r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("%+v", r.report.Outcome)
	}
}

func TestDescriptorsAsStreams(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := &protocol.Launch{ID: c.id(), Argv: argv("sh", "-c", "echo direct; echo five >&5"), Dir: protocol.Bytes(c.ws), Stdio: &protocol.Stdio{Stdout: "descriptor"}, Descriptors: []protocol.PassedDescriptor{{To: 5}}}
	file := filepath.Join(t.TempDir(), "five")
	five, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	c.say(m, w, five)
	_ = w.Close()
	_ = five.Close()
	got := c.finish(m.ID)
	all, err := io.ReadAll(r)
	if text, _ := os.ReadFile(file); err != nil || string(all) != "direct\n" || string(text) != "five\n" || got.report.Outcome.ExitStatus() != 0 {
		t.Errorf("%q, %q, %v, %+v", all, text, err, got.report.Outcome)
	}
	// Descriptors that the message does not name are refused, and closed.
	c.say(&protocol.Ping{ID: c.id()}, r)
	if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.BadDescriptors || e.Fatal {
		t.Errorf("%+v", e)
	}
	c.say(&protocol.Ping{ID: c.id()})
	until[*protocol.Pong](c)
}

// alive tells whether the process lives.
func alive(pid int64) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z ")) && !bytes.Contains(stat, []byte(") X "))
}

func waitUntil(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func TestEndings(t *testing.T) {
	needLandlock(t)
	m, socket := serve(t, nil)
	c := dial(t, socket)
	// Canceled by the launch's id, and by the worker's name from another connection.
	id := c.launch(nil, "sleep", "300")
	until[*protocol.Started](c)
	c.say(&protocol.Cancel{ID: c.id(), Launch: id, Grace: new(int64)})
	if r := c.finish(id); r.report.Outcome.Kind != backend.Canceled {
		t.Errorf("%+v", r.report.Outcome)
	}
	id = c.launch(nil, "sleep", "300")
	worker := until[*protocol.Started](c).Worker
	other := dial(t, socket)
	other.say(&protocol.Cancel{ID: other.id(), Worker: worker})
	until[*protocol.CancelResult](other)
	if r := c.finish(id); r.report.Outcome.Signal != int(unix.SIGTERM) { // it was asked, and heard
		t.Errorf("%+v", r.report.Outcome)
	}
	// A signal.
	id = c.launch(nil, "sleep", "300")
	until[*protocol.Started](c)
	c.say(&protocol.Signal{ID: c.id(), Launch: id, Signal: "SIGHUP"})
	if r := c.finish(id); r.report.Outcome.Signal != int(unix.SIGHUP) {
		t.Errorf("%+v", r.report.Outcome)
	}
	// A timeout.
	if r := c.finish(c.launch(func(m *protocol.Launch) { m.Limits = &protocol.LaunchLimits{Timeout: 50} }, "sleep", "300")); r.report.Outcome.Kind != backend.TimedOut {
		t.Errorf("%+v", r.report.Outcome)
	}
	// Whoever asks for what is not there hears so.
	c.say(&protocol.Cancel{ID: c.id(), Worker: worker})
	if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.NotFound {
		t.Errorf("%+v", e)
	}
	// A client that goes takes its workers along, but for those that are to stay.
	gone := dial(t, socket)
	gone.launch(nil, "sh", "-c", "setsid sleep 300 & sleep 300")
	mortal := until[*protocol.Started](gone)
	gone.launch(func(m *protocol.Launch) { m.Keep = true }, "sleep", "300")
	kept := until[*protocol.Started](gone)
	_ = gone.conn.Close()
	waitUntil(t, "the end of the worker", func() bool { return !alive(mortal.PID) })
	time.Sleep(50 * time.Millisecond)
	if !alive(kept.PID) {
		t.Error("the worker that was to stay is gone")
	}
	c.say(&protocol.List{ID: c.id()})
	if l := until[*protocol.ListResult](c); len(l.Workers) != 1 || l.Workers[0].Worker != kept.Worker || !l.Workers[0].Kept {
		t.Errorf("%+v", l.Workers)
	}
	// The front's death is all workers' death, and the daemon serves on.
	c.launch(nil, "sleep", "300")
	victim := until[*protocol.Started](c)
	m.mu.Lock()
	pid := m.front.cmd.Process.Pid
	m.mu.Unlock()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	waitUntil(t, "the end of the workers", func() bool { return !alive(victim.PID) && !alive(kept.PID) })
	after := dial(t, socket)
	if r := after.run("true"); r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("%+v", r.report.Outcome)
	}
}

// TestHealthBesideASlowReader: who does not read what is sent holds up nobody else.
func TestHealthBesideASlowReader(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	slow := dial(t, socket)
	for range 8 {
		slow.launch(func(m *protocol.Launch) { m.OutputWindow = protocol.MaxWindow }, "sh", "-c", "yes")
	}
	c := dial(t, socket)
	var took []time.Duration
	for range 50 {
		begin := time.Now()
		c.say(&protocol.Health{ID: c.id()})
		if h := until[*protocol.HealthResult](c); h.Status != "ok" {
			t.Errorf("%+v", h)
		}
		took = append(took, time.Since(begin))
		time.Sleep(2 * time.Millisecond)
	}
	slices.Sort(took)
	t.Logf("health took %v in the middle, %v at most", took[25], took[49])
	if r := c.run("echo", "hello"); r.out.String() != "hello\n" {
		t.Errorf("%q", r.out.String())
	}
}

func TestEvents(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c, watcher := dial(t, socket), dial(t, socket)
	watcher.say(&protocol.Subscribe{ID: 9, Events: []string{"worker-started", "worker-ended", protocol.Grease()}})
	if s := until[*protocol.Subscribed](watcher); len(s.Events) != 2 {
		t.Errorf("%+v", s)
	}
	r := c.run("sh", "-c", "exit 4")
	begin, end := until[*protocol.Event](watcher), until[*protocol.Event](watcher)
	if begin.Kind != "worker-started" || begin.Seq != 1 || begin.Info.Worker != r.started.Worker || end.Kind != "worker-ended" || end.Seq != 2 || end.Info.State != "ended" || !bytes.Contains(end.Outcome, []byte("exited")) {
		t.Errorf("%+v, %+v", begin, end)
	}
	watcher.say(&protocol.Unsubscribe{ID: 10, Subscription: 9})
	if s := until[*protocol.SubscribeResult](watcher); s.ID != 9 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
	until[*protocol.UnsubscribeResult](watcher)
	c.say(&protocol.Inspect{ID: c.id(), Worker: r.started.Worker})
	if i := until[*protocol.InspectResult](c); !bytes.Equal(i.Report, r.raw) || i.Info.State != "ended" {
		t.Errorf("%+v", i)
	}
}

func TestCeilings(t *testing.T) {
	needLandlock(t)
	root := t.TempDir()
	_, socket := serve(t, func(o *Options) {
		o.Ceilings.Default = Ceiling{Mode: 2, Roots: []string{root}}
		o.Ceilings.Default.Limits.Time = time.Minute
	})
	c := dial(t, socket)
	c.ws = root
	inside := func(m *protocol.Launch) { m.Limits = &protocol.LaunchLimits{Timeout: 30000} }
	if r := c.finish(c.launch(inside, "true")); r.failure != nil || r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("the control: %+v %+v", r.failure, r.report.Outcome)
	}
	outside := protocol.Bytes(t.TempDir())
	for field, change := range map[string]func(*protocol.Launch){
		"mode":              func(m *protocol.Launch) { inside(m); m.Mode = "danger-full-access" },
		"workspace":         func(m *protocol.Launch) { inside(m); m.Workspace, m.Dir = outside, outside },
		"writable":          func(m *protocol.Launch) { inside(m); m.Writable = []protocol.Bytes{outside} },
		"limits.timeout_ms": func(m *protocol.Launch) {},
	} {
		r := c.finish(c.launch(change, "true"))
		if r.failure == nil || r.failure.Code != protocol.Ceiling || r.failure.Field != field {
			t.Errorf("%s: %+v", field, r.failure)
		}
	}
	if r := c.finish(c.launch(func(m *protocol.Launch) { m.Limits = &protocol.LaunchLimits{Timeout: 61000} }, "true")); r.failure == nil || r.failure.Field != "limits.timeout_ms" {
		t.Errorf("%+v", r.failure)
	}
}

// TestWorkersCeiling: one more than may be is refused, and there is room again when
// one has ended.
func TestWorkersCeiling(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, func(o *Options) { o.Ceilings.Default.Workers = 2 })
	c := dial(t, socket)
	first := c.launch(nil, "sleep", "300")
	until[*protocol.Started](c)
	c.launch(nil, "sleep", "300")
	until[*protocol.Started](c)
	if r := c.run("true"); r.failure == nil || r.failure.Code != protocol.Overloaded || !r.failure.Retryable {
		t.Errorf("a third worker: %+v", r.failure)
	}
	c.say(&protocol.Cancel{ID: c.id(), Launch: first, Grace: new(int64)})
	c.finish(first)
	if r := c.run("true"); r.failure != nil || r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("with room: %+v %+v", r.failure, r.report.Outcome)
	}
}

// TestRemembered: neither many workers that have ended nor long reports grow without
// an end, those that run stay, and no user pushes out another's.
func TestRemembered(t *testing.T) {
	h := &hall{workers: map[string]*worker{"runs": {info: protocol.WorkerInfo{Worker: "runs", State: "running"}}}}
	of := func(uid int64) (n, bytes int) {
		for _, w := range h.workers {
			if w.info.UID == uid && w.info.State == "ended" {
				n, bytes = n+1, bytes+len(w.report)
			}
		}
		return n, bytes
	}
	end := func(uid int64, name string, bytes int) {
		w := &worker{info: protocol.WorkerInfo{Worker: name, UID: uid}}
		h.workers[name] = w
		h.remember(w, make(protocol.Object, bytes))
		n, sum := of(uid)
		noted := h.past[uid]
		if noted == nil {
			noted = &past{}
		}
		if sum != noted.bytes || n != len(noted.names) || sum > rememberedBytes || n > remembered || h.workers["runs"] == nil {
			t.Fatalf("%s: %d bytes of %d, noted %+v", name, sum, n, noted)
		}
	}
	end(7, "another's", 10)
	for i := range 3 * remembered {
		end(1, fmt.Sprint("small ", i), 10)
	}
	if n, _ := of(1); n != remembered {
		t.Errorf("%d are remembered", n)
	}
	for i := range 5 {
		end(1, fmt.Sprint("large ", i), rememberedBytes/2)
	}
	if n, _ := of(1); n != 2 {
		t.Errorf("%d large ones are remembered", n)
	}
	end(1, "too large", protocol.MaxAnswer)
	end(1, "the next", 10)
	if h.workers["the next"] == nil {
		t.Error("the last one is not remembered")
	}
	if h.workers["another's"] == nil {
		t.Error("another user's is forgotten")
	}
	for uid := range int64(3 * rememberedOfAll) { // many users with much
		end(100+uid, fmt.Sprint("of ", uid), rememberedBytes-1)
	}
	all := 0
	for _, p := range h.past {
		all += p.bytes
	}
	if all > rememberedOfAll*rememberedBytes || h.workers["another's"] == nil {
		t.Errorf("%d bytes of all", all)
	}
}

// TestStopAtOnce: a daemon that is stopped while its front starts ends.
func TestStopAtOnce(t *testing.T) {
	for wait := range 12 {
		m, err := New(Options{Socket: listen.Options{Path: filepath.Join(t.TempDir(), "run", "s"), Mode: listen.User}, NoAudit: true, Features: func() any { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx, 0) }()
		time.Sleep(time.Duration(wait) * time.Millisecond)
		stop()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("stopped after %d ms, it does not end", wait)
		}
	}
}

// TestStrangers: what strangers send ends their connections at most.
func TestStrangers(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	good := dial(t, socket)
	hello := `{"type":"hello","versions":[1],"client":{"name":"t","version":""}}`
	frame := func(s string) string { return string([]byte{0, 0, byte(len(s) >> 8), byte(len(s))}) + s }
	for name, sent := range map[string]string{
		"nothing":          "",
		"zero length":      "\x00\x00\x00\x00",
		"a gigabyte":       "\x40\x00\x00\x00",
		"cut":              frame(hello)[:20],
		"no JSON":          frame("hello"),
		"no hello":         frame(`{"type":"ping","id":1}`),
		"unknown version":  frame(strings.Replace(hello, "[1]", "[99]", 1)),
		"noise":            strings.Repeat("\xff", 4096),
		"after hello, cut": frame(hello) + "\x00\x00",
		"after hello, bad": frame(hello) + frame("{}}"),
	} {
		conn, err := listen.Dial(context.Background(), socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(sent))
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		r := protocol.NewReader(conn, protocol.MaxAnswer)
		var last protocol.Message
		for {
			frame, err := r.ReadFrame()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) { // not all that was sent was read
					t.Errorf("%s: %v", name, err)
				}
				break
			}
			if last, err = protocol.ParseAnswer(frame); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if e, ok := last.(*protocol.Error); name != "nothing" && (!ok || !e.Fatal) {
			t.Errorf("%s: the last word is %+v", name, last)
		}
		_ = conn.Close()
	}
	// What is wrong and not fatal leaves the connection open.
	good.say(&protocol.Ping{ID: 5})
	until[*protocol.Pong](good)
	if r := good.run("true"); r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("%+v", r.report.Outcome)
	}
	// So many connections, and no more. Which of them come too late is not told.
	refused := make(chan bool)
	const more = 5
	for range protocol.MaxConnections - 1 + more {
		conn, err := listen.Dial(context.Background(), socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(frame(hello)))
		go func() {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			text, err := protocol.NewReader(conn, protocol.MaxAnswer).ReadFrame()
			if err != nil {
				refused <- false
				return
			}
			m, err := protocol.ParseAnswer(text)
			e, ok := m.(*protocol.Error)
			refused <- err == nil && ok && e.Code == protocol.TooManyConnections
		}()
	}
	n := 0
	for range protocol.MaxConnections - 1 + more {
		if <-refused {
			n++
		}
	}
	if n != more {
		t.Errorf("%d connections too many, %d refused", more, n)
	}
}
