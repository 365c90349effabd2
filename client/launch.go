package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"sandboxd/protocol"
)

const (
	// window is how many bytes of each streamed output may be under way.
	window = 256 << 10
	// answerTime is how long the daemon may take, beside the launch's grace, to end a
	// launch that is canceled. It is a daemon that hangs if it takes longer.
	answerTime = 30 * time.Second
	// defaultGrace is the protocol's.
	defaultGrace = 2 * time.Second
)

// Launch is a command to be run.
type Launch struct {
	// Request says what, and what it may do. Its ID, Stdio, OutputWindow and
	// Descriptors are the package's to set.
	Request protocol.Launch
	// Stdin is what the command reads; nil is nothing. An *os.File is handed to the
	// command as it is, if the daemon can. Another reader is read by a goroutine, which
	// ends after the read that follows the command's end.
	Stdin io.Reader
	// Stdout and Stderr get what the command writes; nil is nobody. An *os.File is
	// handed to the command as it is, if the daemon can. Another writer is written to
	// by one goroutine each; one that blocks blocks the command and nothing else.
	// With a terminal all output comes to Stdout, and Stderr is nil.
	Stdout, Stderr io.Writer
	// Files are those that the command gets beside these.
	Files []File
}

// File is a descriptor for the command.
type File struct {
	// To is its number in the command, from 3.
	To   int
	File *os.File
}

// Exit is how a launch ended.
type Exit struct {
	// Worker is the worker's name. Empty for a dry run.
	Worker string
	// Report is the report, as docs/report.md describes it: JSON, which package report
	// reads. Its "ran" says whether the command was executed.
	Report []byte
	// Plan is what would have been done: of a dry run alone.
	Plan []byte
	// Message and Hint say, for a person, why nothing ran.
	Message, Hint string
	// OutputErr is why output did not reach Stdout or Stderr: their own error.
	OutputErr error
}

// Worker is a launch under way.
type Worker struct {
	c       *Client
	id      int64
	outputs [2]*output // stdout and stderr, as far as they are streamed
	begun   chan struct{}
	done    chan struct{} // the final answer is there, or never will be
	pumps   sync.WaitGroup

	mu      sync.Mutex
	wake    *sync.Cond // of what the input waits for
	started *protocol.Started
	input   protocol.Stream
	final   protocol.Message
	err     error
}

// Launch asks for a launch, and returns when the command runs, or when it is sure that
// nothing will. The error is a refusal, or the connection's end. A launch that fails
// later, so that there is a report, is a worker that has ended: see [Worker.Wait].
//
// The end of ctx cancels the launch, now and later, with the launch's own grace.
func (c *Client) Launch(ctx context.Context, l Launch) (*Worker, error) {
	w := &Worker{c: c, begun: make(chan struct{}), done: make(chan struct{})}
	w.wake = sync.NewCond(&w.mu)
	m := l.Request
	files, err := w.plan(&m, &l)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.ID, err = c.open(w, true); err != nil {
		return nil, err
	}
	w.id = m.ID
	var fds []int
	for _, f := range files {
		// Fd makes it blocking, as the command expects it: the mode is the open
		// file's, which both share.
		fds = append(fds, int(f.Fd()))
	}
	if err := c.send(&m, fds); err != nil {
		c.drop(w.id)
		return nil, err
	}
	for _, o := range w.outputs {
		if o != nil {
			w.pumps.Go(func() { o.pump(w) })
		}
	}
	stop := context.AfterFunc(ctx, func() { w.abandon(graceOf(&m)) })
	go func() {
		<-w.done
		stop()
	}()
	select {
	case <-w.begun:
	case <-w.done:
		w.pumps.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if e, ok := w.final.(*protocol.Error); ok {
			return nil, e
		}
		if w.err != nil {
			return nil, w.err
		}
		return w, nil
	}
	if l.Stdin != nil && w.Started().StdinWindow > 0 {
		go w.feed(l.Stdin)
	}
	return w, nil
}

func graceOf(m *protocol.Launch) time.Duration {
	if m.Limits == nil || m.Limits.Grace == nil {
		return defaultGrace
	}
	return time.Duration(*m.Limits.Grace) * time.Millisecond
}

// plan says where the streams lead, and returns the files to be sent, in order.
func (w *Worker) plan(m *protocol.Launch, l *Launch) (files []*os.File, err error) {
	passes := w.c.Has(protocol.CapDescriptors)
	m.OutputWindow = window
	m.Descriptors = nil
	if m.TTY != nil {
		if l.Stderr != nil {
			return nil, errors.New("a terminal has one output: leave out Stderr")
		}
		m.Stdio = nil
		w.outputs[0] = newOutput("stdout", l.Stdout)
	} else {
		m.Stdio = &protocol.Stdio{}
		m.Stdio.Stdin, files = wordOf(l.Stdin, passes, files)
		m.Stdio.Stdout, files = wordOf(l.Stdout, passes, files)
		m.Stdio.Stderr, files = wordOf(l.Stderr, passes, files)
		if m.Stdio.Stdout == protocol.StdioStream {
			w.outputs[0] = newOutput("stdout", l.Stdout)
		}
		if m.Stdio.Stderr == protocol.StdioStream {
			w.outputs[1] = newOutput("stderr", l.Stderr)
		}
	}
	for _, f := range l.Files {
		if !passes {
			return nil, protocol.Errorf(protocol.Unsupported, "this daemon takes no descriptors")
		}
		m.Descriptors = append(m.Descriptors, protocol.PassedDescriptor{To: int64(f.To)})
		files = append(files, f.File)
	}
	return files, nil
}

// wordOf is where a standard stream leads, and the files with it, if it is to be sent.
func wordOf(stream any, passes bool, files []*os.File) (string, []*os.File) {
	switch f := stream.(type) {
	case nil:
		return protocol.StdioNull, files
	case *os.File:
		if passes {
			return protocol.StdioDescriptor, append(files, f)
		}
	}
	return protocol.StdioStream, files
}

// Started is what the daemon said when the command began to run; nil if it did not.
func (w *Worker) Started() *protocol.Started {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started
}

// Wait waits for the end of the launch: of the worker's whole tree, and of its output,
// which has been written when Wait returns. It may be called by several. The error is a
// [*protocol.Error] of the daemon's or the connection's end; how the worker ended is
// then not known.
func (w *Worker) Wait() (*Exit, error) {
	<-w.done
	w.pumps.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	var lost error
	for _, o := range w.outputs {
		if o != nil {
			lost = errors.Join(lost, o.failed)
		}
	}
	switch m := w.final.(type) {
	case *protocol.Exit:
		return &Exit{Worker: m.Worker, Report: m.Report, Message: m.Message, Hint: m.Hint, OutputErr: lost}, nil
	case *protocol.Planned:
		return &Exit{Plan: m.Plan}, nil
	case *protocol.Error:
		return nil, m
	}
	return nil, errGone // answer took nothing else
}

// Done is closed when the final answer is there, or never will be.
func (w *Worker) Done() <-chan struct{} { return w.done }

// Cancel ends the worker: SIGTERM to its tree, and after grace SIGKILL; a negative grace
// is the launch's own. It returns when that was set going. A launch that has ended is
// no error.
func (w *Worker) Cancel(ctx context.Context, grace time.Duration) error {
	return w.unlessDone(w.c.cancel(ctx, protocol.Cancel{Launch: w.id}, grace))
}

// Signal sends a signal, by its name ("SIGHUP"), to the command. One that has ended is no
// error.
func (w *Worker) Signal(ctx context.Context, signal string) error {
	_, err := ask[*protocol.SignalResult](ctx, w.c, func(id int64) protocol.Message {
		return &protocol.Signal{ID: id, Launch: w.id, Signal: signal}
	})
	return w.unlessDone(err)
}

// Resize tells the command's own terminal its size.
func (w *Worker) Resize(ctx context.Context, rows, cols uint16) error {
	_, err := ask[*protocol.ResizeResult](ctx, w.c, func(id int64) protocol.Message {
		return &protocol.Resize{ID: id, Launch: w.id, Size: protocol.Size{Rows: int64(rows), Cols: int64(cols)}}
	})
	return w.unlessDone(err)
}

// unlessDone is the error of a request about the launch, unless it crossed the
// launch's final answer.
func (w *Worker) unlessDone(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) && e.Code == protocol.NotFound {
		select {
		case <-w.done:
			return nil
		default:
		}
	}
	return err
}

// abandon cancels a launch that nobody wants any more, and ends the connection if the
// daemon does not do it: a worker that nobody can end is not left to itself.
func (w *Worker) abandon(grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace+answerTime)
	defer cancel()
	for ctx.Err() == nil {
		var full *protocol.Error
		if err := w.Cancel(ctx, -1); !errors.As(err, &full) || full.Code != protocol.TooManyRequests {
			break
		}
		time.Sleep(5 * time.Millisecond) // many are canceled at once: it is answered soon
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		w.c.end(fmt.Errorf("it did not end a launch within %v of its cancellation", grace+answerTime))
	}
}

// answer is called by the goroutine that reads, and waits for nobody.
func (w *Worker) answer(m protocol.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch m := m.(type) {
	case *protocol.Started:
		if w.started != nil {
			return errors.New("a second started")
		}
		if err := w.input.Grant(m.StdinWindow); err != nil {
			return err
		}
		w.started = m
		close(w.begun)
	case *protocol.Credit:
		if err := w.input.Grant(m.Bytes); err != nil {
			return err
		}
		w.wake.Broadcast()
	case *protocol.Output:
		o := w.output(m.Stream)
		if o == nil || w.started == nil {
			return fmt.Errorf("output of %q that was not asked for", m.Stream)
		}
		return o.add(m)
	case *protocol.Error:
		if protocol.Final(m) {
			w.finish(m, nil)
		}
	case *protocol.Exit, *protocol.Planned:
		w.finish(m, nil)
	default:
		return fmt.Errorf("%s as an answer to launch", m.Type())
	}
	return nil
}

func (w *Worker) output(stream string) *output {
	for _, o := range w.outputs {
		if o != nil && o.stream == stream {
			return o
		}
	}
	return nil
}

func (w *Worker) lost(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finish(nil, err)
}

// finish is called under the lock, and does it once.
func (w *Worker) finish(m protocol.Message, err error) {
	if w.final != nil || w.err != nil {
		return
	}
	w.final, w.err = m, err
	for _, o := range w.outputs {
		if o != nil {
			o.end()
		}
	}
	close(w.done)
	w.wake.Broadcast()
}

// feed sends what the reader gives, as far as the daemon takes it.
func (w *Worker) feed(r io.Reader) {
	buf := make([]byte, protocol.MaxChunk)
	for {
		w.mu.Lock()
		for w.input.Room() == 0 && w.final == nil && w.err == nil {
			w.wake.Wait()
		}
		room, offset, over := w.input.Room(), w.input.Offset(), w.final != nil || w.err != nil
		w.mu.Unlock()
		if over {
			return
		}
		n, err := r.Read(buf[:room])
		if n == 0 && err == nil {
			continue
		}
		w.mu.Lock()
		over = w.final != nil || w.err != nil
		bad := w.input.Advance(offset, n, err != nil)
		w.mu.Unlock()
		// An error counts as the end: the command must not wait for more.
		if over || bad != nil || w.c.send(&protocol.Stdin{ID: w.id, Offset: offset, Data: buf[:n], EOF: err != nil}, nil) != nil || err != nil {
			return
		}
	}
}

// output is one streamed output: what has come waits in chunks, at most a window of it,
// until it is written.
type output struct {
	stream string
	to     io.Writer
	failed error // read after the pump's end

	mu     sync.Mutex
	more   *sync.Cond
	flow   protocol.Stream
	chunks [][]byte
	ended  bool
}

func newOutput(stream string, to io.Writer) *output {
	o := &output{stream: stream, to: to}
	if to == nil {
		o.to = io.Discard
	}
	o.more = sync.NewCond(&o.mu)
	_ = o.flow.Grant(window) // less than may be granted
	return o
}

func (o *output) add(m *protocol.Output) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.flow.Advance(m.Offset, len(m.Data), m.EOF); err != nil {
		return fmt.Errorf("%s: %w", o.stream, err)
	}
	if len(m.Data) > 0 {
		o.chunks = append(o.chunks, m.Data)
	}
	o.more.Signal()
	return nil
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.more.Signal()
}

// pump writes what comes and grants as much again, until the launch has ended. What
// cannot be written is thrown away, so that the command can end.
func (o *output) pump(w *Worker) {
	used := 0
	for {
		o.mu.Lock()
		for len(o.chunks) == 0 && !o.ended {
			o.more.Wait()
		}
		if len(o.chunks) == 0 {
			o.mu.Unlock()
			return
		}
		chunk := o.chunks[0]
		o.chunks = o.chunks[1:]
		o.mu.Unlock()
		if o.failed == nil {
			if _, err := o.to.Write(chunk); err != nil {
				o.failed = fmt.Errorf("%s: %w", o.stream, err)
			}
		}
		if used += len(chunk); used < window/2 {
			continue
		}
		o.mu.Lock()
		over := o.ended || o.flow.Ended()
		if !over && o.flow.Grant(int64(used)) != nil {
			over = true
		}
		o.mu.Unlock()
		if !over {
			_ = w.c.send(&protocol.Credit{ID: w.id, Stream: o.stream, Bytes: int64(used)}, nil) // else the connection has ended
		}
		used = 0
	}
}
