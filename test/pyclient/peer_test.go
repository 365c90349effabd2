package pyclient

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/protocol"
)

// peer speaks the daemon's side of the protocol and runs commands as they are,
// with no sandbox: it is the other end for a client, and no more.
type peer struct {
	t                *testing.T
	path             string
	greased, ignored atomic.Int64

	mu      sync.Mutex
	workers map[string]*launch
	subs    map[*subscription]bool
}

type subscription struct {
	c   *conn
	id  int64
	seq int64
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	dir, err := os.MkdirTemp("", "peer") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &peer{t: t, path: filepath.Join(dir, "socket"), workers: map[string]*launch{}, subs: map[*subscription]bool{}}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.path})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serving.Go(func() { (&conn{p: p, sock: c, launches: map[int64]*launch{}}).serve() })
		}
	})
	return p
}

// conn is one connection. Its reader is the only one that parses.
type conn struct {
	p    *peer
	sock *net.UnixConn

	writing  sync.Mutex
	answered int

	mu       sync.Mutex
	inFlight protocol.InFlight
	launches map[int64]*launch

	// Of the reader: descriptors that came with the frame's first byte, and
	// whether others came.
	files []*os.File
	stray bool
	start bool
}

// Read receives descriptors beside the bytes.
func (c *conn) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*253))
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(b, oob)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 || oobn > 0 && !c.start {
		c.stray = true
	}
	c.start = false
	messages, perr := unix.ParseSocketControlMessage(oob[:oobn])
	if perr != nil {
		return n, perr
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return n, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			c.files = append(c.files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return n, err
}

func (c *conn) dropFiles() {
	for _, f := range c.files {
		_ = f.Close()
	}
	c.files, c.stray = nil, false
}

// send writes an answer, now and then with grease, or with a message of grease
// before it.
func (c *conn) send(m protocol.Message) {
	c.writing.Lock()
	defer c.writing.Unlock()
	text, err := protocol.Encode(m)
	if err != nil {
		c.p.t.Errorf("%+v: %v", m, err)
		return
	}
	c.answered++
	var frames []byte
	add := func(text []byte) {
		frames = binary.BigEndian.AppendUint32(frames, uint32(len(text)))
		frames = append(frames, text...)
	}
	switch c.answered % 3 {
	case 1:
		text = protocol.GreaseAnswer(text)
		c.p.greased.Add(1)
	case 2:
		add(protocol.GreaseMessage())
		c.p.greased.Add(1)
	}
	add(text)
	_, _ = c.sock.Write(frames) // a client that is gone reads nothing
}

// finish sends a request's final answer.
func (c *conn) finish(m protocol.Message) {
	c.mu.Lock()
	c.inFlight.Close(protocol.ID(m))
	delete(c.launches, protocol.ID(m))
	c.mu.Unlock()
	c.send(m)
}

func (c *conn) serve() {
	defer c.end()
	r := protocol.NewReader(c, protocol.MaxFrame)
	open := false
	for {
		c.start = true
		frame, err := r.ReadFrame()
		if err == nil {
			var m protocol.Message
			if m, err = protocol.ParseRequest(frame); err == nil {
				err = c.handle(m, &open)
			} else {
				err = c.inUse(err)
			}
		}
		c.dropFiles()
		var e *protocol.Error
		switch {
		case errors.As(err, &e):
			c.send(e)
			if e.Fatal {
				return
			}
		case err != nil:
			return
		}
	}
}

// inUse: a mistake in a second request of an id must not look like the end of
// the first.
func (c *conn) inUse(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) && !e.Fatal && e.ID != 0 && e.Of != "stdin" && e.Of != "credit" {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.inFlight.Has(e.ID) {
			return protocol.Errorf(protocol.IDInUse, "request %d is in flight", e.ID).For(e.ID, e.Of)
		}
	}
	return err
}

func (c *conn) end() {
	c.dropFiles()
	_ = c.sock.Close()
	c.mu.Lock()
	var all []*launch
	for _, l := range c.launches {
		all = append(all, l)
	}
	c.mu.Unlock()
	for _, l := range all {
		l.stop()
	}
	c.p.mu.Lock()
	for s := range c.p.subs {
		if s.c == c {
			delete(c.p.subs, s)
		}
	}
	c.p.mu.Unlock()
}

func (c *conn) handle(m protocol.Message, open *bool) error {
	fail := func(code protocol.Code, format string, args ...any) error {
		return protocol.Errorf(code, format, args...).For(protocol.ID(m), m.Type())
	}
	hello, isHello := m.(*protocol.ClientHello)
	switch {
	case isHello && *open:
		return fail(protocol.HelloRepeated, "a second hello")
	case isHello:
		version, err := protocol.Negotiate(hello)
		if err != nil {
			return err
		}
		for _, name := range hello.Capabilities {
			if strings.HasPrefix(name, "grease-") {
				c.p.ignored.Add(1)
			}
		}
		*open = true
		c.send(&protocol.DaemonHello{
			Version: version, Daemon: protocol.Peer{Name: "peer", Version: "test"}, Capabilities: append(protocol.History(), protocol.Capability{Name: protocol.Grease(), Since: "2026-12"}),
			Limits: protocol.DefaultLimits(), Mode: "user", UID: int64(os.Getuid()),
		})
		return nil
	case !*open:
		return fail(protocol.HelloExpected, "%s came first", m.Type())
	}
	switch m := m.(type) {
	case *protocol.Stdin:
		return c.stdin(m)
	case *protocol.Credit:
		if l := c.launch(m.ID); l != nil {
			return l.credit(m)
		}
		return nil
	}
	id := protocol.ID(m)
	c.mu.Lock()
	err := c.inFlight.Open(id)
	c.mu.Unlock()
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.For(id, m.Type())
	}
	answer, err := c.request(m)
	if errors.As(err, &e) {
		c.finish(e.For(id, m.Type()))
	} else if answer != nil {
		c.finish(answer)
	}
	return nil
}

// request returns a final answer, or nil if it comes later.
func (c *conn) request(m protocol.Message) (protocol.Message, error) {
	if l, ok := m.(*protocol.Launch); ok {
		return nil, c.startLaunch(l)
	}
	if len(c.files) > 0 || c.stray {
		return nil, protocol.Errorf(protocol.BadDescriptors, "descriptors came with %s", m.Type())
	}
	switch m := m.(type) {
	case *protocol.Ping:
		return &protocol.Pong{ID: m.ID}, nil
	case *protocol.Health:
		return &protocol.HealthResult{ID: m.ID, Status: "ok", Uptime: 1, Workers: int64(len(c.p.list())), Connections: 1}, nil
	case *protocol.List:
		return &protocol.ListResult{ID: m.ID, Workers: c.p.list()}, nil
	case *protocol.Inspect:
		l, err := c.find(0, m.Worker)
		if err != nil {
			return nil, err
		}
		return &protocol.InspectResult{ID: m.ID, Info: l.info("running")}, nil
	case *protocol.Cancel:
		l, err := c.find(m.Launch, m.Worker)
		if err != nil {
			return nil, err
		}
		l.stop()
		return &protocol.CancelResult{ID: m.ID}, nil
	case *protocol.Signal:
		l, err := c.find(m.Launch, m.Worker)
		if err != nil {
			return nil, err
		}
		if err := l.cmd.Process.Signal(unix.SignalNum(m.Signal)); err != nil {
			return nil, protocol.Errorf(protocol.NotFound, "%v", err)
		}
		return &protocol.SignalResult{ID: m.ID}, nil
	case *protocol.Subscribe:
		s := &subscription{c: c, id: m.ID}
		var kinds []string
		for _, k := range m.Events {
			if k == protocol.EventWorkerStarted || k == protocol.EventWorkerEnded {
				kinds = append(kinds, k)
			}
		}
		c.send(&protocol.Subscribed{ID: m.ID, Events: kinds})
		c.p.mu.Lock()
		c.p.subs[s] = true
		c.p.mu.Unlock()
		return nil, nil
	case *protocol.Unsubscribe:
		c.p.mu.Lock()
		var found *subscription
		for s := range c.p.subs {
			if s.c == c && s.id == m.Subscription {
				found = s
				delete(c.p.subs, s)
			}
		}
		c.p.mu.Unlock()
		if found == nil {
			return nil, protocol.Errorf(protocol.NotFound, "no subscription %d", m.Subscription)
		}
		c.finish(&protocol.SubscribeResult{ID: found.id})
		return &protocol.UnsubscribeResult{ID: m.ID}, nil
	}
	return nil, protocol.Errorf(protocol.Unsupported, "this peer has no %s", m.Type())
}

func (c *conn) launch(id int64) *launch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.launches[id]
}

func (c *conn) find(id int64, worker string) (*launch, error) {
	l := c.launch(id)
	if worker != "" {
		c.p.mu.Lock()
		l = c.p.workers[worker]
		c.p.mu.Unlock()
	}
	if l == nil {
		return nil, protocol.Errorf(protocol.NotFound, "no such worker or launch")
	}
	return l, nil
}

func (c *conn) stdin(m *protocol.Stdin) error {
	l := c.launch(m.ID)
	if l == nil {
		return nil // it may have ended just now
	}
	l.mu.Lock()
	err := l.in.Advance(m.Offset, len(m.Data), m.EOF)
	l.mu.Unlock()
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.For(m.ID, m.Type())
	}
	l.input <- m // has room for a whole window
	return nil
}

func (p *peer) list() []protocol.WorkerInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []protocol.WorkerInfo
	for _, l := range p.workers {
		all = append(all, l.info("running"))
	}
	return all
}

func (p *peer) tell(kind string, l *launch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := "running"
	if kind == protocol.EventWorkerStarted {
		p.workers[l.worker] = l
	} else {
		delete(p.workers, l.worker)
		state = "ended"
	}
	for s := range p.subs {
		s.seq++
		info := l.info(state)
		s.c.send(&protocol.Event{ID: s.id, Seq: s.seq, Kind: kind, At: time.Now().UnixMilli(), Info: &info})
	}
}

const stdinWindow = 64 << 10

// launch is one command.
type launch struct {
	c      *conn
	req    *protocol.Launch
	worker string
	cmd    *exec.Cmd
	input  chan *protocol.Stdin

	mu   sync.Mutex
	more *sync.Cond // credit came
	in   protocol.Stream
	out  map[string]*protocol.Stream
	gone bool
}

func (l *launch) info(state string) protocol.WorkerInfo {
	return protocol.WorkerInfo{
		Worker: l.worker, State: state, PID: int64(l.cmd.Process.Pid), UID: int64(os.Getuid()), Label: l.req.Label,
		Command: protocol.Text(fmt.Sprintf("%q", l.req.Argv)), Mode: "danger-full-access", Net: "host", Level: "none",
	}
}

// stop kills the command's process group, and waits for no credit any more.
func (l *launch) stop() {
	_ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL)
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	l.more.Broadcast()
}

func (l *launch) credit(m *protocol.Credit) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.out[m.Stream]
	if s == nil {
		return nil
	}
	var e *protocol.Error
	if errors.As(s.Grant(m.Bytes), &e) {
		return e.For(m.ID, m.Type())
	}
	l.more.Broadcast()
	return nil
}

func (c *conn) startLaunch(m *protocol.Launch) error {
	if m.TTY != nil || m.DryRun || m.Keep {
		return protocol.Errorf(protocol.Unsupported, "this peer has no terminals, plans and kept workers")
	}
	if c.stray || len(c.files) != m.Attached() {
		return protocol.Errorf(protocol.BadDescriptors, "%d descriptors came, %d are named", len(c.files), m.Attached())
	}
	name := make([]byte, 16)
	_, _ = rand.Read(name) // never fails
	l := &launch{c: c, req: m, worker: hex.EncodeToString(name), input: make(chan *protocol.Stdin, stdinWindow+1), out: map[string]*protocol.Stream{}}
	l.more = sync.NewCond(&l.mu)
	var argv []string
	for _, a := range m.Argv {
		argv = append(argv, string(a))
	}
	l.cmd = exec.Command(argv[0], argv[1:]...)
	l.cmd.Dir, l.cmd.SysProcAttr = string(m.Dir), &syscall.SysProcAttr{Setpgid: true}
	for _, v := range append(m.HostEnv, m.Env...) {
		l.cmd.Env = append(l.cmd.Env, string(v.Name)+"="+string(v.Value))
	}
	var after []*os.File // ours, closed once the command has them
	defer func() {
		for _, f := range after {
			_ = f.Close()
		}
	}()
	passed := c.files
	take := func() *os.File { f := passed[0]; passed = passed[1:]; return f }
	var stdin *os.File
	readers := map[string]*os.File{}
	words := m.Streams()
	switch words.Stdin {
	case protocol.StdioStream:
		r, w, err := os.Pipe()
		if err != nil {
			return protocol.Errorf(protocol.Overloaded, "%v", err)
		}
		l.cmd.Stdin, stdin = r, w
		after = append(after, r)
		_ = l.in.Grant(stdinWindow) // is within the greatest window
	case protocol.StdioDescriptor:
		l.cmd.Stdin = take()
	}
	for _, s := range []struct {
		name, word string
		to         *io.Writer
	}{{"stdout", words.Stdout, &l.cmd.Stdout}, {"stderr", words.Stderr, &l.cmd.Stderr}} {
		switch s.word {
		case protocol.StdioStream:
			r, w, err := os.Pipe()
			if err != nil {
				return protocol.Errorf(protocol.Overloaded, "%v", err)
			}
			*s.to, readers[s.name] = w, r
			after = append(after, w)
			l.out[s.name] = &protocol.Stream{}
			_ = l.out[s.name].Grant(m.OutputWindow) // is within the greatest window
		case protocol.StdioDescriptor:
			*s.to = take()
		}
	}
	for i, d := range m.Descriptors {
		for len(l.cmd.ExtraFiles) < int(d.To)-3 {
			l.cmd.ExtraFiles = append(l.cmd.ExtraFiles, nil)
		}
		l.cmd.ExtraFiles = append(l.cmd.ExtraFiles[:d.To-3], passed[i])
	}
	if err := l.cmd.Start(); err != nil {
		if stdin != nil {
			_ = stdin.Close()
		}
		for _, r := range readers {
			_ = r.Close()
		}
		c.finish(&protocol.Exit{ID: m.ID, Worker: l.worker, Message: protocol.Text(err.Error()), Report: l.report(false, 127)})
		return nil
	}
	c.mu.Lock()
	c.launches[m.ID] = l
	c.mu.Unlock()
	started := &protocol.Started{ID: m.ID, Worker: l.worker, PID: int64(l.cmd.Process.Pid), Level: "none"}
	if stdin != nil {
		started.StdinWindow = stdinWindow
	}
	c.p.tell(protocol.EventWorkerStarted, l)
	c.send(started)
	if stdin != nil {
		go l.feed(stdin)
	}
	go l.run(readers)
	return nil
}

// feed writes standard input, and grants again what the command took.
func (l *launch) feed(to *os.File) {
	defer to.Close()
	broken := false
	for m := range l.input {
		if !broken {
			_, err := to.Write(m.Data)
			broken = err != nil // what nobody reads is taken all the same
		}
		if m.EOF {
			return
		}
		l.mu.Lock()
		_ = l.in.Grant(int64(len(m.Data))) // was taken from it
		l.mu.Unlock()
		l.c.send(&protocol.Credit{ID: l.req.ID, Stream: "stdin", Bytes: int64(len(m.Data))})
	}
}

// run sends the output as far as there is credit, and then the report.
func (l *launch) run(readers map[string]*os.File) {
	var streams sync.WaitGroup
	for name, r := range readers {
		streams.Go(func() { l.pump(name, r) })
	}
	streams.Wait()
	_ = l.cmd.Wait() // its state says how it ended
	_ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL)
	status := l.cmd.ProcessState.ExitCode()
	if ws := l.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		status = 128 + int(ws.Signal())
	}
	l.c.p.tell(protocol.EventWorkerEnded, l)
	l.c.mu.Lock()
	delete(l.c.launches, l.req.ID)
	l.c.mu.Unlock()
	l.c.finish(&protocol.Exit{ID: l.req.ID, Worker: l.worker, Report: l.report(true, status)})
}

func (l *launch) pump(name string, r *os.File) {
	defer r.Close()
	s := l.out[name]
	buf := make([]byte, protocol.MaxChunk)
	for {
		n, err := r.Read(buf) // one chunk ahead: the end needs no credit
		for rest := buf[:n]; len(rest) > 0 || err != nil; {
			l.mu.Lock()
			for len(rest) > 0 && s.Room() == 0 && !l.gone {
				l.more.Wait()
			}
			at, part := s.Offset(), rest[:min(len(rest), s.Room())]
			rest = rest[len(part):]
			last := err != nil && len(rest) == 0
			gone := l.gone
			aerr := s.Advance(at, len(part), last)
			l.mu.Unlock()
			if gone {
				return
			}
			if aerr != nil {
				l.c.p.t.Error(aerr)
			}
			l.c.send(&protocol.Output{ID: l.req.ID, Stream: name, Offset: at, Data: part, EOF: last})
			if last {
				return
			}
		}
	}
}

func (l *launch) report(ran bool, status int) protocol.Object {
	outcome := map[string]any{"kind": "exited", "code": status}
	if !ran {
		outcome = map[string]any{"kind": "exec-failed", "errno": "ENOENT"}
	}
	text, err := json.Marshal(map[string]any{"schema": 1, "id": l.worker, "ran": ran, "duration_seconds": 0.5, "outcome": outcome, "exit_status": status})
	if err != nil {
		l.c.p.t.Error(err)
	}
	return text
}

func init() { signal.Ignore(syscall.SIGPIPE) } // of standard input that nobody reads
