package daemon

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/internal/link"
	"sandboxd/policy"
	"sandboxd/protocol"
)

// stage is a launch on its session: its streams, and what is left to say of it.
type stage struct {
	s      *session
	id     int64
	mu     sync.Mutex
	worker string
	out    []*outStream
	in     *inStream
	open   int // streams whose end is still to be said
	exit   *protocol.Exit
	over   bool
	// canceled tells that what is not sent yet is not wanted any more.
	canceled bool
}

// outStream is an output of the worker on its way to the client.
type outStream struct {
	name    string
	file    *os.File // nil until the worker runs
	credit  protocol.Stream
	granted chan struct{} // one is waiting at most
	ended   chan struct{}
}

// inStream is what the client sends on its way to the worker.
type inStream struct {
	file   *os.File
	credit protocol.Stream // what the client may send
	queue  []protocol.Data
	eof    bool
	busy   bool // somebody writes
}

// launch asks the monitor for a worker.
func (s *session) launch(m *protocol.Launch, frame []byte, files []*os.File) {
	l := &stage{s: s, id: m.ID}
	words := m.Streams()
	for _, o := range []struct{ name, word string }{{"stdout", words.Stdout}, {"stderr", words.Stderr}} {
		if o.word != protocol.StdioStream {
			continue
		}
		out := &outStream{name: o.name, granted: make(chan struct{}, 1), ended: make(chan struct{})}
		_ = out.credit.Grant(m.OutputWindow) // the launch's range is the same
		l.out = append(l.out, out)
	}
	if words.Stdin == protocol.StdioStream {
		l.in = &inStream{}
	}
	l.open = len(l.out)
	s.mu.Lock()
	gone := s.launches == nil
	if !gone {
		s.launches[m.ID] = l
	}
	s.mu.Unlock()
	if !gone {
		s.hall.want(s.id, m.ID, protocol.WorkerInfo{UID: s.uid, Label: m.Label, Command: commandLine(m.Argv), Kept: m.Keep})
		s.hall.ask(&link.Launch{Conn: s.id, Launch: m.ID}, frame, files...)
	}
}

// commandLine is the beginning of one, for a person.
func commandLine(argv []protocol.Bytes) string {
	const longest = 256
	var b strings.Builder
	for i, a := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.WriteString(policy.Printable(string(a[:min(len(a), longest)]))); b.Len() > longest {
			break
		}
	}
	text := protocol.Text(b.String())
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return text
}

func (s *session) stage(id int64) *stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.launches[id]
}

// pollable is the file as one that a goroutine can wait for without a thread.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// started begins the streams.
func (s *session) started(m *link.Started, files []*os.File) {
	defer link.CloseFiles(files)
	l := s.stage(m.Launch)
	if l == nil {
		return
	}
	want := 0
	for _, has := range []bool{m.Stdin, m.Stdout, m.Stderr} {
		if has {
			want++
		}
	}
	var ends []*os.File
	for _, f := range files {
		p, err := pollable(f)
		if err != nil {
			break
		}
		ends = append(ends, p)
	}
	if len(ends) != want || want != len(l.out)+inOf(l) {
		link.CloseFiles(ends)
		_ = s.conn.Close() // there is no room for it here
		return
	}
	started := &protocol.Started{ID: m.Launch, Worker: m.Worker, PID: int64(m.PID), PlanHash: m.PlanHash, Backend: m.Backend, Level: m.Level, Warnings: m.Warnings}
	l.mu.Lock()
	l.worker = m.Worker
	if l.in != nil {
		l.in.file, ends = ends[0], ends[1:]
		_ = l.in.credit.Grant(stdinWindow)
		started.StdinWindow = stdinWindow
	}
	for i, o := range l.out {
		o.file = ends[i]
	}
	over := l.over
	if l.in != nil && l.in.eof && !over { // an end without data needs no credit
		l.in.busy = true
		go l.feed()
	}
	l.mu.Unlock()
	if over { // the session has ended meanwhile
		l.closeStreams()
		return
	}
	if s.say(started) != nil {
		return
	}
	for _, o := range l.out {
		go l.pump(o)
	}
}

func inOf(l *stage) int {
	if l.in != nil {
		return 1
	}
	return 0
}

// chunks are buffers for what is on its way. An idle stream holds none.
var chunks = sync.Pool{New: func() any { b := make([]byte, protocol.MaxChunk); return &b }}

// pump brings an output to the client, as far as the client has granted.
func (l *stage) pump(o *outStream) {
	defer o.file.Close()
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	var held []byte // was read to see whether there is more
	for {
		l.mu.Lock()
		room, offset, over := o.credit.Room(), o.credit.Offset(), l.over
		l.mu.Unlock()
		if over {
			return
		}
		if room == 0 {
			// The end of a stream needs no credit, nor what a cancel throws away.
			if len(held) == 0 {
				var end bool
				if held, end = l.lookAhead(raw); end {
					l.close(o, offset)
					return
				}
			}
			select {
			case <-o.granted:
			case <-o.ended:
				return
			}
			continue
		}
		var chunk *[]byte
		var n int
		var readErr error
		if len(held) > 0 {
			chunk = chunks.Get().(*[]byte)
			n = copy((*chunk)[:room], held)
			held = held[n:]
		} else {
			err = raw.Read(func(fd uintptr) bool {
				if chunk == nil {
					chunk = chunks.Get().(*[]byte)
				}
				for {
					if n, readErr = unix.Read(int(fd), (*chunk)[:room]); readErr != unix.EINTR {
						break
					}
				}
				if readErr == unix.EAGAIN {
					chunks.Put(chunk)
					chunk = nil
					return false
				}
				return true
			})
		}
		eof := err != nil || readErr != nil || n <= 0
		m := &protocol.Output{ID: l.id, Stream: o.name, Offset: offset, EOF: eof}
		if !eof {
			m.Data = (*chunk)[:n]
		}
		l.mu.Lock()
		over = l.over
		if !over {
			_ = o.credit.Advance(offset, len(m.Data), eof)
		}
		l.mu.Unlock()
		if !over {
			err = l.s.say(m)
		}
		if chunk != nil {
			chunks.Put(chunk)
		}
		if over || err != nil {
			return
		}
		if eof {
			l.closed()
			return
		}
	}
}

// lookAhead finds out whether an output whose command has ended is at its end, which
// needs no credit to be told: by reading a little of it, as a front may not poll(2).
// What a cancel gives up is at its end.
func (l *stage) lookAhead(raw syscall.RawConn) (held []byte, end bool) {
	l.mu.Lock()
	exit, canceled := l.exit != nil, l.canceled
	l.mu.Unlock()
	if !exit || canceled {
		return nil, exit
	}
	some := make([]byte, 512)
	err := raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), some)
			switch {
			case err == unix.EINTR:
				continue
			case n > 0:
				held = some[:n]
			case err != unix.EAGAIN:
				end = true
			}
			return
		}
	})
	return held, end || err != nil
}

// close says the end of an output.
func (l *stage) close(o *outStream, offset int64) {
	l.mu.Lock()
	over := l.over || o.credit.Advance(offset, 0, true) != nil
	l.mu.Unlock()
	if !over && l.s.say(&protocol.Output{ID: l.id, Stream: o.name, Offset: offset, EOF: true}) == nil {
		l.closed()
	}
}

// closed counts an output whose end was said.
func (l *stage) closed() {
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
	l.conclude()
}

// credit is what the client grants.
func (s *session) credit(m *protocol.Credit) error {
	l := s.stage(m.ID)
	if l == nil {
		return nil // it has ended on the way
	}
	for _, o := range l.out {
		if o.name != m.Stream {
			continue
		}
		l.mu.Lock()
		err := o.credit.Grant(m.Bytes)
		l.mu.Unlock()
		if err != nil {
			return answerTo(err, m.ID, m.Type())
		}
		select {
		case o.granted <- struct{}{}:
		default:
		}
		return nil
	}
	return protocol.Errorf(protocol.BadValue, "%s of this launch is not streamed", m.Stream).For(m.ID, m.Type())
}

func answerTo(err error, id int64, of string) error {
	var p *protocol.Error
	if errors.As(err, &p) {
		return p.For(id, of)
	}
	return err
}

// stdin takes a chunk for the worker.
func (s *session) stdin(m *protocol.Stdin) error {
	l := s.stage(m.ID)
	if l == nil {
		return nil // it has ended on the way
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in == nil {
		return protocol.Errorf(protocol.BadValue, "stdin of this launch is not streamed").For(m.ID, m.Type())
	}
	if err := l.in.credit.Advance(m.Offset, len(m.Data), m.EOF); err != nil {
		return answerTo(err, m.ID, m.Type())
	}
	if len(m.Data) > 0 {
		l.in.queue = append(l.in.queue, m.Data)
	}
	l.in.eof = m.EOF
	if !l.in.busy && l.in.file != nil {
		l.in.busy = true
		go l.feed()
	}
	return nil
}

// feed writes what is queued to the worker, and lets the client send as much more.
func (l *stage) feed() {
	for {
		l.mu.Lock()
		in := l.in
		switch {
		case len(in.queue) == 0:
			in.busy = false
			if in.eof || l.over {
				_ = in.file.Close()
			}
			l.mu.Unlock()
			return
		}
		data := in.queue[0]
		in.queue = in.queue[1:]
		file := in.file
		l.mu.Unlock()
		// A worker that has closed its end loses the rest, and the client goes on: so
		// it would be with a pipe to a program that reads no more.
		_, _ = file.Write(data)
		l.mu.Lock()
		grant := !in.eof && !l.over
		if grant {
			_ = in.credit.Grant(int64(len(data)))
		}
		l.mu.Unlock()
		if grant {
			_ = l.s.say(&protocol.Credit{ID: l.id, Stream: "stdin", Bytes: int64(len(data))})
		}
	}
}

// exited notes how it ended; it is said when all outputs are.
func (s *session) exited(m *link.Ended, report protocol.Object) {
	l := s.stage(m.Launch)
	if l == nil {
		return
	}
	l.mu.Lock()
	l.exit = &protocol.Exit{ID: m.Launch, Worker: m.Worker, Message: m.Message, Hint: m.Hint, Report: report}
	if l.worker == "" { // nothing ran, so there is no stream
		l.open = 0
	}
	l.mu.Unlock()
	l.wake()
	l.conclude()
}

// wake has the outputs that wait for credit look again.
func (l *stage) wake() {
	for _, o := range l.out {
		select {
		case o.granted <- struct{}{}:
		default:
		}
	}
}

func (l *stage) conclude() {
	l.mu.Lock()
	exit := l.exit
	done := exit != nil && l.open == 0 && !l.over
	if done {
		l.over = true
	}
	l.mu.Unlock()
	if done {
		l.closeStreams()
		l.s.finish(l.id, exit)
	}
}

// finish says the final answer.
func (s *session) finish(id int64, m protocol.Message) {
	s.mu.Lock()
	l := s.launches[id]
	delete(s.launches, id)
	s.inFlight.Close(id)
	s.mu.Unlock()
	if l != nil {
		l.end()
		_ = s.say(m)
	}
}

// end lets go of the streams. The worker gets EPIPE, and the end of its input.
func (l *stage) end() {
	l.mu.Lock()
	was := l.over
	l.over = true
	l.mu.Unlock()
	if !was {
		l.closeStreams()
	}
}

func (l *stage) closeStreams() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.out {
		select {
		case <-o.ended:
		default:
			close(o.ended)
		}
		if o.file != nil {
			_ = o.file.Close() // a pump that waits comes back
		}
	}
	if l.in != nil && l.in.file != nil {
		_ = l.in.file.Close()
	}
}

// outcomeOf takes the outcome out of a report.
func outcomeOf(report []byte) protocol.Object {
	var r struct {
		Outcome json.RawMessage `json:"outcome"`
	}
	if json.Unmarshal(report, &r) != nil {
		return nil
	}
	return protocol.Object(r.Outcome)
}
