package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sandboxd/backend"
	"sandboxd/daemon/daemontest"
	"sandboxd/protocol"
	"sandboxd/report"
)

func TestMain(m *testing.M) {
	daemontest.Main()
	os.Exit(m.Run())
}

func dial(t *testing.T, socket string) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := Dial(ctx, socket, "test", "1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func request(dir string, argv ...string) protocol.Launch {
	m := protocol.Launch{Dir: protocol.Bytes(dir)}
	for _, a := range argv {
		m.Argv = append(m.Argv, protocol.Bytes(a))
	}
	return m
}

func reportOf(t *testing.T, e *Exit) *report.Report {
	t.Helper()
	var r report.Report
	if err := json.Unmarshal(e.Report, &r); err != nil {
		t.Fatalf("%v: %s", err, e.Report)
	}
	return &r
}

// wait fails where a launch has no report.
func wait(t *testing.T, w *Worker, err error) (*Exit, *report.Report) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	e, err := w.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return e, reportOf(t, e)
}

func TestStreams(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := dial(t, socket)
	dir := t.TempDir()
	in := strings.Repeat("some input\n", 100_000) // more than any window
	for _, passes := range []bool{true, false} {
		c.hello.Capabilities = nil
		if passes {
			c.hello.Capabilities = protocol.History()
		}
		// Streams of this process' own.
		var out, errs bytes.Buffer
		w, err := c.Launch(t.Context(), Launch{Request: request(dir, "sh", "-c", "cat; echo done >&2; exit 3"), Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errs})
		e, r := wait(t, w, err)
		if out.String() != in || errs.String() != "done\n" || !r.Ran || r.ExitStatus != 3 || e.Worker != r.ID || w.Started().Worker != r.ID || e.OutputErr != nil {
			t.Errorf("%d bytes, %q, %+v, %v", out.Len(), &errs, r.Outcome, e.OutputErr)
		}
		// Files, handed on or copied.
		file, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		w, err = c.Launch(t.Context(), Launch{Request: request(dir, "sh", "-c", "echo a; echo b >&2"), Stdout: file, Stderr: file})
		wait(t, w, err)
		if text, err := os.ReadFile(file.Name()); len(text) != 4 || err != nil {
			t.Errorf("the file has %q, %v", text, err)
		}
		_ = file.Close()
		// Nothing at all: the command reads an end, and nobody reads it.
		w, err = c.Launch(t.Context(), Launch{Request: request(dir, "sh", "-c", "cat; yes | head -c 1000000")})
		if _, r := wait(t, w, err); r.ExitStatus != 0 {
			t.Errorf("%+v", r.Outcome)
		}
	}
}

func TestFiles(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := dial(t, socket)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	worker, err := c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "sh", "-c", "echo five >&5"), Files: []File{{5, w}}})
	_ = w.Close()
	wait(t, worker, err)
	if text, err := io.ReadAll(r); string(text) != "five\n" {
		t.Errorf("%q, %v", text, err)
	}
	c.hello.Capabilities = nil
	_, err = c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "true"), Files: []File{{5, r}}})
	wantCode(t, err, protocol.Unsupported)
}

func wantCode(t *testing.T, err error, code protocol.Code) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%v; want the code %s", err, code)
	}
}

func TestRefusals(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := dial(t, socket)
	m := request(t.TempDir(), "true")
	m.Mode = "no-such"
	_, err := c.Launch(t.Context(), Launch{Request: m})
	wantCode(t, err, protocol.BadValue)
	m = request(t.TempDir(), strings.Repeat("x", protocol.MaxString+1))
	_, err = c.Launch(t.Context(), Launch{Request: m})
	wantCode(t, err, protocol.TooLong)
	w, err := c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "no-such-command")})
	e, r := wait(t, w, err)
	if r.Ran || r.ExitStatus != 127 || e.Message == "" || w.Started() != nil {
		t.Errorf("%+v, %+v", e, r.Outcome)
	}
	_, err = c.Inspect(t.Context(), "00000000000000000000000000000000")
	wantCode(t, err, protocol.NotFound)
	wantCode(t, c.SignalWorker(t.Context(), "x", "SIGTERM"), protocol.NotFound)
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("after refusals: %v", err)
	}
}

func TestContextEndsALaunch(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := dial(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	w, err := c.Launch(ctx, Launch{Request: request(dir, "sh", "-c", "trap 'echo asked > asked; exit 5' TERM; echo > begun; sleep 100 & wait")})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := os.Stat(filepath.Join(dir, "begun")); err != nil; _, err = os.Stat(filepath.Join(dir, "begun")) {
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	_, r := wait(t, w, nil)
	if r.ExitStatus != 5 {
		t.Errorf("%+v", r.Outcome)
	}
	if _, err := os.Stat(filepath.Join(dir, "asked")); err != nil {
		t.Errorf("it was not asked: %v", err)
	}
	if _, err := c.Launch(ctx, Launch{Request: request(dir, "true")}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestManyLaunches: one connection with as many launches as it may have can still ask
// and cancel.
func TestManyLaunches(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := dial(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	var workers []*Worker
	for {
		w, err := c.Launch(ctx, Launch{Request: request(dir, "sleep", "100")})
		if err != nil {
			wantCode(t, err, protocol.TooManyRequests)
			break
		}
		workers = append(workers, w)
	}
	if len(workers) != protocol.MaxRequests-reserved {
		t.Errorf("%d launches", len(workers))
	}
	if _, err := c.Health(ctx); err != nil {
		t.Error(err)
	}
	if err := workers[0].Cancel(ctx, 0); err != nil {
		t.Error(err)
	}
	cancel() // all others
	for _, w := range workers {
		if _, r := wait(t, w, nil); r.Outcome.Kind != backend.Canceled && r.Outcome.Kind != backend.Signaled {
			t.Errorf("%+v", r.Outcome)
		}
	}
}

func TestControl(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c, other := dial(t, socket), dial(t, socket)
	ctx := t.Context()
	events, err := other.Subscribe(ctx, protocol.EventWorkerStarted, protocol.EventWorkerEnded)
	if err != nil {
		t.Fatal(err)
	}
	m := request(t.TempDir(), "sh", "-c", "trap 'echo usr1; exit 7' USR1; echo ready; while :; do sleep 0.01; done")
	m.Label = "control"
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := c.Launch(ctx, Launch{Request: m, Stdout: out})
	_ = out.Close()
	if err != nil {
		t.Fatal(err)
	}
	name := w.Started().Worker
	buf := make([]byte, 6)
	if _, err := io.ReadFull(r, buf); err != nil {
		t.Fatal(err)
	}
	list, err := other.List(ctx, false)
	if err != nil || len(list.Workers) != 1 || list.Workers[0].Worker != name || list.Workers[0].Label != "control" {
		t.Errorf("%+v, %v", list, err)
	}
	if got, err := other.Inspect(ctx, name); err != nil || got.Info.State != "running" || got.Report != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if h, err := other.Health(ctx); err != nil || h.Status != "ok" || h.Workers != 1 || h.Connections != 2 {
		t.Errorf("%+v, %v", h, err)
	}
	if f, err := other.Features(ctx); err != nil || !json.Valid(f) {
		t.Errorf("%s, %v", f, err)
	}
	if err := other.SignalWorker(ctx, name, "SIGUSR1"); err != nil {
		t.Error(err)
	}
	if _, rep := wait(t, w, nil); rep.ExitStatus != 7 {
		t.Errorf("%+v", rep.Outcome)
	}
	for _, f := range []func() error{
		func() error { return w.Cancel(ctx, -1) }, func() error { return w.Signal(ctx, "SIGTERM") }, // it has ended: no error
	} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	w, err = c.Launch(ctx, Launch{Request: request(t.TempDir(), "sleep", "100")})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.CancelWorker(ctx, w.Started().Worker, 0); err != nil {
		t.Error(err)
	}
	if _, rep := wait(t, w, nil); rep.Outcome.Kind != backend.Canceled {
		t.Errorf("%+v", rep.Outcome)
	}
	for _, want := range []string{protocol.EventWorkerStarted, protocol.EventWorkerEnded, protocol.EventWorkerStarted, protocol.EventWorkerEnded} {
		e, err := events.Next(ctx)
		if err != nil || e.Kind != want || e.Lost != 0 {
			t.Fatalf("%+v, %v", e, err)
		}
	}
	if err := events.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := events.Next(ctx); !errors.Is(err, ErrUnsubscribed) {
		t.Errorf("%v", err)
	}
}

// blocked is a writer that waits until it may.
type blocked struct {
	may  chan struct{}
	text bytes.Buffer
}

func (b *blocked) Write(p []byte) (int, error) { <-b.may; return b.text.Write(p) }

// TestSlowReader: a writer that blocks holds its own command, and nothing else.
func TestSlowReader(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := dial(t, socket)
	slow := &blocked{may: make(chan struct{})}
	w, err := c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "seq", "300000"), Stdout: slow})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var out bytes.Buffer
		fast, err := c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "seq", "100000"), Stdout: &out})
		if wait(t, fast, err); out.Len() != 588895 {
			t.Errorf("%d bytes", out.Len())
		}
	}
	if got := w.outputs[0].waiting(); got > window {
		t.Errorf("%d bytes wait", got)
	}
	close(slow.may)
	if wait(t, w, nil); slow.text.Len() != 1988895 || !strings.HasSuffix(slow.text.String(), "\n300000\n") {
		t.Errorf("%d bytes", slow.text.Len())
	}
	// A writer that fails does not hold it either, and is told.
	w, err = c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "seq", "300000"), Stdout: failing{}})
	if e, r := wait(t, w, err); !errors.Is(e.OutputErr, io.ErrShortWrite) || r.ExitStatus != 0 {
		t.Errorf("%v, %+v", e.OutputErr, r.Outcome)
	}
}

func (o *output) waiting() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.chunks {
		n += len(c)
	}
	return n
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestDaemonEnds(t *testing.T) {
	socket, stop := daemontest.Start(t)
	c := dial(t, socket)
	w, err := c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "sleep", "100"), Stdin: never{}, Stdout: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Subscribe(t.Context(), protocol.EventWorkerEnded)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	<-c.Ended()
	var ce *ConnError
	if e, err := w.Wait(); err == nil && reportOf(t, e).Outcome.Kind != backend.Canceled || err != nil && !errors.As(err, &ce) {
		t.Errorf("%+v, %v", e, err)
	}
	for err == nil {
		_, err = s.Next(t.Context())
	}
	if _, err := c.Health(t.Context()); !errors.As(err, &ce) || c.Err() == nil {
		t.Errorf("%v", err)
	}
	_, err = Dial(t.Context(), socket, "test", "")
	if !errors.As(err, &ce) || !errors.Is(err, ErrNoDaemon) || ce.Hint == "" {
		t.Errorf("%v", err)
	}
}

type never struct{}

func (never) Read([]byte) (int, error) { select {} }

// fake serves one connection with what a test says, after reading a hello.
func fake(t *testing.T, serve func(conn net.Conn, r *protocol.Reader)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbx-fake-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r := protocol.NewReader(conn, protocol.MaxFrame)
		if _, err := r.ReadFrame(); err == nil {
			serve(conn, r)
		}
		_, _ = io.Copy(io.Discard, conn)
	}()
	return path
}

func say(conn net.Conn, list ...any) {
	for _, m := range list {
		var frame []byte
		switch m := m.(type) {
		case protocol.Message:
			var err error
			if frame, err = protocol.AppendFrame(nil, m, protocol.MaxAnswer); err != nil {
				panic(err)
			}
		case string: // a frame's JSON
			frame = append([]byte{0, 0, byte(len(m) >> 8), byte(len(m))}, m...)
		case []byte:
			frame = m
		}
		_, _ = conn.Write(frame)
	}
}

var goodHello = &protocol.DaemonHello{Version: 1, Daemon: protocol.Peer{Name: "fake"}, Limits: protocol.DefaultLimits(), Mode: "user", Capabilities: []protocol.Capability{}}

// TestHostileHello: whatever answers, Dial ends with an error.
func TestHostileHello(t *testing.T) {
	for name, answer := range map[string]any{
		"garbage": []byte("HTTP/1.1 400 Bad Request\r\n"), "empty frame": []byte{0, 0, 0, 0}, "no JSON": "hello", "another message": &protocol.Pong{ID: 1},
		"a version not offered": `{"type":"hello","version":7,"daemon":{"name":"x","version":""},"capabilities":[],"limits":{},"mode":"user","uid":0}`,
		"a refusal":             protocol.Errorf(protocol.TooManyConnections, "full"), "silence": nil, "half a frame": []byte{0, 0, 1, 0, '{'},
		"an unknown message": string(protocol.GreaseMessage()), "an endless frame": []byte{0xff, 0xff, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			socket := fake(t, func(conn net.Conn, _ *protocol.Reader) {
				if answer != nil {
					say(conn, answer)
				}
			})
			c, err := Dial(ctx, socket, "test", "")
			if err == nil {
				_ = c.Close()
				t.Fatal("it is taken for a daemon")
			}
			if name == "a refusal" {
				wantCode(t, err, protocol.TooManyConnections)
			}
		})
	}
}

// TestHostileAnswers: a daemon that breaks the protocol is an error for each request
// that was under way, at once, and leaves nothing behind.
func TestHostileAnswers(t *testing.T) {
	started := &protocol.Started{ID: 1, Worker: "w", PID: 1, Level: "none"}
	exit := `{"type":"exit","id":1,"worker":"w","report":{}}`
	out := func(offset int64, n int) *protocol.Output {
		return &protocol.Output{ID: 1, Stream: "stdout", Offset: offset, Data: make([]byte, n)}
	}
	var flood []any
	flood = append(flood, started)
	for n := range int64(window/protocol.MaxChunk + 1) {
		flood = append(flood, out(n*protocol.MaxChunk, protocol.MaxChunk))
	}
	for name, answers := range map[string][]any{
		"garbage":                   {[]byte("\xff\xff\xff\xff")},
		"no JSON":                   {"x"},
		"an answer to nobody":       {&protocol.Pong{ID: 99}},
		"another answer":            {&protocol.Pong{ID: 1}},
		"output before the start":   {out(0, 1)},
		"output with a gap":         {started, out(5, 1)},
		"output of another stream":  {started, &protocol.Output{ID: 1, Stream: "stderr", Data: []byte("x")}},
		"more than was granted":     flood,
		"a second start":            {started, started},
		"a second end":              {started, exit, exit},
		"a second hello":            {goodHello},
		"too much credit":           {started, &protocol.Credit{ID: 1, Stream: "stdin", Bytes: protocol.MaxWindow}, &protocol.Credit{ID: 1, Stream: "stdin", Bytes: 1}},
		"a fatal error":             {protocol.Errorf(protocol.TooSlow, "x")},
		"an error of nobody's":      {protocol.Errorf(protocol.BadJSON, "x")},
		"the end":                   {[]byte(nil)},
		"half a frame, and the end": {[]byte{0, 0, 1, 0, '{'}},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			socket := fake(t, func(conn net.Conn, r *protocol.Reader) {
				say(conn, goodHello)
				_, _ = r.ReadFrame() // the launch
				say(conn, answers...)
				if strings.HasSuffix(name, "the end") {
					_ = conn.Close()
				}
			})
			c := dial(t, socket)
			slow := &blocked{may: make(chan struct{})}
			go func() {
				<-c.Ended()
				close(slow.may)
			}()
			w, err := c.Launch(t.Context(), Launch{Request: request("/", "true"), Stdout: slow})
			if err == nil {
				_, err = w.Wait()
			}
			if err == nil && name != "a second end" {
				t.Error("it is taken for a launch")
			}
			select {
			case <-c.Ended():
			case <-time.After(10 * time.Second):
				t.Fatal("the connection goes on")
			}
			if err := c.Ping(t.Context()); err == nil {
				t.Error("it answers")
			}
			for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+2; time.Sleep(time.Millisecond) { // the fake's
				if time.Now().After(end) {
					t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
				}
			}
		})
	}
}

// TestNewerDaemon: members and messages that this client does not know mean nothing.
func TestNewerDaemon(t *testing.T) {
	socket := fake(t, func(conn net.Conn, r *protocol.Reader) {
		hello, _ := protocol.Encode(goodHello)
		say(conn, string(protocol.GreaseAnswer(hello)), string(protocol.GreaseMessage()))
		_, _ = r.ReadFrame()
		pong, _ := protocol.Encode(&protocol.Pong{ID: 1})
		say(conn, `{"type":"from-the-future","id":1}`, string(protocol.GreaseAnswer(pong)))
	})
	if err := dial(t, socket).Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSilence: a request's ctx ends the wait for a daemon that hangs, and the connection
// can be closed.
func TestSilence(t *testing.T) {
	socket := fake(t, func(conn net.Conn, _ *protocol.Reader) { say(conn, goodHello) })
	c := dial(t, socket)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Health(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := c.Subscribe(ctx, protocol.EventStopping); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	launched := make(chan error)
	go func() {
		_, err := c.Launch(context.Background(), Launch{Request: request("/", "true")})
		launched <- err
	}()
	time.AfterFunc(50*time.Millisecond, func() { _ = c.Close() })
	var ce *ConnError
	if err := <-launched; !errors.As(err, &ce) {
		t.Errorf("%v", err)
	}
}

// TestNothingIsLeft: many launches and connections leave no descriptor and no goroutine.
func TestNothingIsLeft(t *testing.T) {
	socket, _ := daemontest.Start(t)
	once := func() {
		c, err := Dial(t.Context(), socket, "test", "")
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.Launch(t.Context(), Launch{Request: request(t.TempDir(), "echo", "x"), Stdin: strings.NewReader("x"), Stdout: io.Discard})
		wait(t, w, err)
		_ = c.Close()
		<-c.Ended()
	}
	count := func() int { // the daemon's are in this process, too, and end a little later
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list) + runtime.NumGoroutine()
	}
	for range 5 {
		once()
	}
	time.Sleep(100 * time.Millisecond)
	before := count()
	for range 30 {
		once()
	}
	for end := time.Now().Add(10 * time.Second); count() > before+5; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors and goroutines, %d before", count(), before)
		}
	}
}
