package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/daemon/internal/link"
	"sandboxd/internal/audit"
	launcher "sandboxd/internal/launch"
	"sandboxd/internal/run"
	"sandboxd/internal/stream"
	"sandboxd/internal/terminal"
	"sandboxd/policy"
	"sandboxd/protocol"
	"sandboxd/report"
)

// launch is one that is under way.
type launch struct {
	m      *Monitor
	f      *front
	conn   link.Conn
	id     int64
	who    identity
	asker  audit.Request // the client, for the log
	files  []*os.File    // the client's, until the launch has them
	worker string
	keep   atomic.Bool
	places int // protected ones, counted until its end
	// refusal is why it is not begun; nil: it is.
	refusal *protocol.Error
	// planned is the answer to a launch that was only asked about.
	planned []byte
	policy  atomic.Pointer[policy.Policy] // of the launch, once it is made

	mu       sync.Mutex
	terminal *terminal.Remote // of the running worker, if it has one
	running  backend.Worker
	canceled bool
	grace    time.Duration
}

func newLaunch(m *Monitor, f *front, msg *link.Launch, c *connection, files []*os.File) *launch {
	return &launch{m: m, f: f, conn: msg.Conn, id: msg.Launch, who: c.who, asker: c.asker, files: files, worker: run.NewID()}
}

// cancel asks the worker to end, or the launch not to begin. A negative grace is
// the launch's own.
func (l *launch) cancel(grace time.Duration) {
	l.mu.Lock()
	l.canceled = true
	w := l.running
	if grace < 0 {
		grace = l.grace
	}
	l.mu.Unlock()
	if w != nil {
		w.Stop(grace)
	}
}

// signal is called under the monitor's lock; l may be nil.
func (l *launch) signal(name string) *protocol.Error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return protocol.Errorf(protocol.BadValue, "there is no signal %s", name)
	}
	if l == nil {
		return protocol.Errorf(protocol.NotFound, "the worker has ended")
	}
	l.mu.Lock()
	w := l.running
	l.mu.Unlock()
	if w == nil {
		return protocol.Errorf(protocol.NotFound, "the worker does not run yet, or no more")
	}
	if err := w.Signal(sig); err != nil {
		return protocol.Errorf(protocol.Internal, "%v", err)
	}
	return nil
}

func (l *launch) resize(rows, cols uint16) *protocol.Error {
	if l == nil {
		return protocol.Errorf(protocol.NotFound, "the worker has ended")
	}
	l.mu.Lock()
	t := l.terminal
	l.mu.Unlock()
	if t == nil {
		return protocol.Errorf(protocol.BadValue, "the worker has no terminal of its own")
	}
	if err := t.Resize(rows, cols); err != nil {
		return protocol.Errorf(protocol.NotFound, "the worker's terminal is closed")
	}
	return nil
}

// policyText is the worker's policy, as reports have it; l may be nil.
func (l *launch) policyText() ([]byte, *protocol.Error) {
	if l == nil {
		return nil, protocol.Errorf(protocol.NotFound, "the worker has ended")
	}
	text, err := json.Marshal(report.PolicyOf(*l.policy.Load())) // a worker has one
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "%v", err)
	}
	return text, nil
}

// run is the launch's life.
func (l *launch) run(frame []byte) {
	defer l.m.launches.Done()
	r, failure, err := l.execute(frame)
	l.letGo()
	link.CloseFiles(l.files)
	var text []byte
	if err == nil && l.planned == nil {
		aside(func() { text = reportText(r) })
	}
	var odd *link.OddError
	if errors.As(err, &odd) {
		l.m.endFront(l.f, err)
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.f.work, l)
	if c := l.f.conns[l.conn]; c != nil {
		delete(c.launches, l.id)
	}
	open, ran := l.f.ledger.End(l.conn, l.id)
	switch {
	case !open && !ran: // nobody has heard of it
		return
	case err != nil:
		l.m.tell(l.f, refused(l.conn, l.id, err), nil)
		return
	case l.planned != nil:
		l.m.tell(l.f, &link.Planned{Conn: l.conn, Launch: l.id}, l.planned)
		return
	}
	ended := &link.Ended{Conn: l.conn, Launch: l.id, Worker: l.worker}
	if failure != nil {
		ended.Message, ended.Hint = failure.Line, failure.Hint
	}
	l.m.tell(l.f, ended, text)
}

func refused(c link.Conn, id int64, err error) *link.Refused {
	var p *protocol.Error
	if !errors.As(err, &p) {
		p = protocol.Errorf(protocol.Internal, "%v", err)
	}
	return &link.Refused{Conn: c, Launch: id, Code: string(p.Code), Message: p.Message, Hint: p.Hint, Field: p.Field}
}

// reportText is the report as one line. Of denials only so many are kept as fit.
func reportText(r *report.Report) []byte {
	for {
		var line bytes.Buffer
		if err := r.WriteLine(&line); err != nil {
			return []byte("{}")
		}
		if line.Len() <= protocol.MaxAnswer-64<<10 || len(r.Denials) == 0 {
			return bytes.TrimSuffix(line.Bytes(), []byte("\n"))
		}
		half := len(r.Denials) / 2
		r.DenialsLost += len(r.Denials) - half
		r.Denials = r.Denials[:half]
	}
}

// execute runs the launch to its end, and has it in the audit log. The error is a
// refusal. This goroutine waits for the worker, and has done nothing else by then.
func (l *launch) execute(frame []byte) (r *report.Report, failure *run.Failure, err error) {
	var c *carried
	aside(func() { c, err = l.begin(frame) })
	if c == nil {
		return nil, nil, err
	}
	if c.running != nil {
		r, failure = c.running.Wait()
		link.CloseFiles(c.files)
		l.mu.Lock()
		canceled := l.canceled
		l.mu.Unlock()
		if !r.Ran && canceled && c.refusal == nil {
			c.refusal = errCanceled
		}
	}
	aside(func() { c.audited.end(r, c.plan, c.refusal) })
	return r, failure, c.refusal
}

// carried is a launch that is carried out.
type carried struct {
	audited *audited
	plan    string       // its hash
	running *run.Running // nil: it was refused before
	refusal error
	files   []*os.File // that are held until its end
}

// begin begins a launch. Without one, nothing is to be in the log.
func (l *launch) begin(frame []byte) (*carried, error) {
	parsed, err := protocol.ParseRequest(frame)
	if err != nil {
		return nil, link.Odd("hands on a launch that is none: %v", err)
	}
	m, ok := parsed.(*protocol.Launch)
	if !ok || m.ID != l.id || m.Attached() != len(l.files) {
		return nil, link.Odd("hands on another message than launch %d", l.id)
	}
	c := &carried{audited: l.audit(m)}
	if m.DryRun {
		if err := l.plan(m, c.audited); err != nil {
			c.refusal, l.planned = err, nil
		}
		return c, nil
	}
	if err := l.carryOut(m, c); err != nil {
		c.refusal = err
	}
	return c, nil
}

// carryOut starts a launch. A worker runs only after the log has it.
func (l *launch) carryOut(m *protocol.Launch, c *carried) error {
	if l.refusal != nil {
		return l.refusal
	}
	var started link.Started
	a := c.audited
	l.keep.Store(m.Keep)
	l.mu.Lock()
	l.grace = limitsOf(m).Grace
	l.mu.Unlock()
	o, err := l.options(m, a)
	if err != nil {
		return err
	}
	p := o.Policy
	streams, theirs, err := l.streams(m)
	if err != nil {
		return err
	}
	defer func() { link.CloseFiles(theirs) }()
	o.Stdin, o.Stdout, o.Stderr = streams[0], streams[1], streams[2]
	o.Files = l.passed(m)
	var refusal error // of what is asked before the worker starts
	o.Chosen = func(c backend.Choice, hash string) error {
		again := started.Backend != ""
		started.Backend, started.PlanHash, started.Level = c.Backend.Name(), hash, c.Plan.Enforcement().Level(p).String()
		if again { // with another plan than the log has
			refusal = a.allow(p, started.Backend, started.PlanHash, c.Plan.Enforcement())
		}
		return refusal
	}
	if !p.Mode().Confined() {
		started.PlanHash = run.PlanHash(p, backend.Choice{})
	}
	o.BeforeStart = func(_ *backend.Command, e backend.Enforcement) error {
		started.Level = e.Level(p).String()
		l.mu.Lock()
		canceled := l.canceled
		l.mu.Unlock()
		if canceled {
			refusal = errCanceled
		} else {
			refusal = a.allow(p, started.Backend, started.PlanHash, e)
		}
		return refusal
	}
	o.Begin = func() error {
		if err := a.wait(); err != nil {
			refusal = err
		}
		return refusal
	}
	if m.TTY != nil {
		o.Terminal = func(cmd *backend.Command) (*stream.Tap, error) {
			t, err := terminal.NewRemote(uint16(m.TTY.Rows), uint16(m.TTY.Cols), streams[0], streams[1])
			if err != nil {
				return nil, &backend.SetupError{Step: "terminal", Err: err, Hint: "see whether this system has /dev/ptmx and /dev/pts"}
			}
			l.mu.Lock()
			l.terminal = t
			l.mu.Unlock()
			end := t.Output.Worker
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Terminal = end, end, end, true
			return t.Output, nil
		}
	}
	o.Started = func(w backend.Worker) func() {
		if l.terminal != nil {
			l.terminal.Start()
		}
		words := m.Streams()
		started.Conn, started.Launch, started.Worker, started.PID = l.conn, l.id, l.worker, w.PID()
		started.Stdin, started.Stdout, started.Stderr = words.Stdin == protocol.StdioStream, words.Stdout == protocol.StdioStream, words.Stderr == protocol.StdioStream
		started.Warnings, started.Mode, started.Net = o.Warnings, p.Mode().String(), p.Net().String()
		l.started(w, &started, theirs)
		link.CloseFiles(theirs)
		theirs = nil
		return func() {
			l.mu.Lock()
			l.running = nil
			l.mu.Unlock()
		}
	}
	c.running = run.Start(&o)
	c.plan = started.PlanHash
	if m.TTY != nil || p.Limits().Idle > 0 { // what the worker writes is copied to them
		c.files = streams[:]
	} else {
		link.CloseFiles(streams[:]) // the worker has its own
	}
	return refusal
}

var errCanceled = protocol.Errorf(protocol.Canceled, "the launch was canceled before its worker started")

// options are what a launch is made of, but for its streams. The ceiling is checked.
func (l *launch) options(m *protocol.Launch, a *audited) (o run.Options, err error) {
	ceiling := l.m.ceiling(l.who)
	p, warnings, err := l.who.resolve(m, l.m.guards(l.who))
	if err != nil {
		return o, err
	}
	p = l.m.shared.Same(p)
	a.policy(p)
	l.policy.Store(&p)
	if !m.DryRun {
		if err := l.hold(len(p.Spec().Guarded)); err != nil {
			return o, err
		}
	}
	if err := ceiling.check(p, m); err != nil {
		return o, err
	}
	o = run.Options{
		ID: l.worker, As: l.who.as, Cache: &l.m.shared, Policy: p, Argv: words(m.Argv), Backends: l.m.backends(l.who, m.Backend, ceiling.Backends),
		UnsafeFiles: m.DescriptorsUnsafe, User: (*launcher.User)(l.m.asUser(l.who)), Version: l.m.o.Version, Profiles: words(m.Profiles), Warnings: warnings,
	}
	if len(o.Backends) == 0 && p.Mode().Confined() {
		return o, wrong("backend", errors.New("this daemon has no backend of that name"))
	}
	return o, nil
}

// plan says what would be launched, once the log has that it was asked.
func (l *launch) plan(m *protocol.Launch, a *audited) error {
	o, err := l.options(m, a)
	if err != nil {
		return err
	}
	d, err := run.Plan(o)
	if err != nil {
		return refusal(err)
	}
	if l.planned, err = json.Marshal(d); err != nil {
		return err
	}
	return a.planned(d)
}

// started tells the front that the worker runs.
func (l *launch) started(w backend.Worker, s *link.Started, ends []*os.File) {
	l.mu.Lock()
	l.running = w
	canceled := l.canceled
	l.mu.Unlock()
	if canceled {
		w.Stop(0)
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.f.ledger.Start(l.conn, l.id, l.worker) {
		l.m.tell(l.f, s, nil, ends...)
	}
}

// streams are the worker's standard streams, and the ends of those that are the
// front's to serve.
func (l *launch) streams(m *protocol.Launch) (streams [3]*os.File, theirs []*os.File, err error) {
	defer func() {
		if err != nil {
			link.CloseFiles(streams[:])
			link.CloseFiles(theirs)
			streams, theirs = [3]*os.File{}, nil
			err = protocol.Errorf(protocol.Overloaded, "%v", err)
		}
	}()
	words := m.Streams()
	for i, word := range []string{words.Stdin, words.Stdout, words.Stderr} {
		switch {
		case word == protocol.StdioDescriptor:
			streams[i], l.files = l.files[0], l.files[1:]
		case word == protocol.StdioNull && i == 0:
			streams[i], err = os.Open(os.DevNull)
		case word == protocol.StdioNull:
			streams[i], err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		default:
			var r, w *os.File
			if r, w, err = os.Pipe(); err == nil {
				if i == 0 {
					streams[i], theirs = r, append(theirs, w)
				} else {
					streams[i], theirs = w, append(theirs, r)
				}
			}
		}
		if err != nil {
			return streams, theirs, err
		}
	}
	return streams, theirs, nil
}

// passed are the client's other descriptors. They stay the launch's to close.
func (l *launch) passed(m *protocol.Launch) []backend.File {
	var list []backend.File
	for i, d := range m.Descriptors {
		list = append(list, backend.File{File: l.files[i], To: int(d.To)})
	}
	return list
}
