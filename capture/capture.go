// Package capture keeps what a worker writes, in bounded memory: for callers
// that start workers through package backend and want the output as bytes.
//
// The worker is never kept from writing and never ended for what it writes. What
// is more than the caller wants to keep is read, counted and thrown away.
package capture

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"sandboxd/internal/stream"
)

// DefaultMaxOutput is how many bytes of a stream are kept if nobody says: 1 MiB.
const DefaultMaxOutput = 1 << 20

// ErrHeld is Drain's error when a process that outlived the worker's tree holds
// the stream open. Nothing of what the tree wrote is missing then.
var ErrHeld = stream.ErrHeld

// Options say how much of a stream is kept.
type Options struct {
	// MaxOutput is how many bytes are kept; 0 means [DefaultMaxOutput]. There is
	// no way to keep output without a bound.
	MaxOutput int
	// HeadOnly keeps the first MaxOutput bytes. Otherwise it is the first and
	// the last half of them: how something began and how it ended is what a
	// reader of too long an output needs.
	HeadOnly bool
}

// Capture is one stream of one worker, or its output and error together. Its
// memory is up to 64 KiB, and what is kept: it grows with what is written.
type Capture struct {
	tap  *stream.Tap
	kept *kept
}

// New makes a pipe and begins to read it. It fails if MaxOutput is negative, or
// as [os.Pipe] does. [Capture.Drain] or [Capture.Close] must follow.
func New(o Options) (*Capture, error) {
	if o.MaxOutput < 0 {
		return nil, fmt.Errorf("capturing output: MaxOutput is %d", o.MaxOutput)
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = DefaultMaxOutput
	}
	c := &Capture{kept: newKept(o.MaxOutput, o.HeadOnly)}
	var err error
	if c.tap, err = stream.NewTap(c.kept); err != nil {
		return nil, fmt.Errorf("capturing output: %w", err)
	}
	return c, nil
}

// File is the end to write to, for backend.Command's Stdout or Stderr, or for
// both, which keeps the order of what is written to the two. It serves one
// launch. It need not be closed: Drain and Close do.
func (c *Capture) File() *os.File { return c.tap.Worker }

// Drain waits until all that the worker wrote has been read, and frees the pipe.
// It is called when backend.Worker's Wait has returned; the tree is gone then and
// nothing is waited for. A process that lives on and holds the stream (one that
// could not be ended, or any of the tree where the command's OwnTree was not set)
// is given up after grace, with [ErrHeld]; its next write fails with EPIPE. 0
// does not wait for it at all. Another error is why output was lost.
func (c *Capture) Drain(grace time.Duration) error {
	_ = c.tap.Worker.Close() // it would hold the stream as well; closed already is no matter
	return c.tap.Drain(grace, nil)
}

// Close is for a launch that failed. After Drain it does nothing.
func (c *Capture) Close() error {
	_ = c.Drain(0) // whose errors are about output, and there is none to want
	return nil
}

// Output is what has been kept so far, as a copy. It is complete after Drain, and
// may be called at any time.
func (c *Capture) Output() Output { return c.kept.output() }

// Output is what was kept of a stream.
type Output struct {
	// Head is what came first. It is all that came unless Truncated is set.
	Head []byte
	// Tail is what came last; empty unless Truncated is set. The cut heeds
	// neither lines nor characters.
	Tail []byte
	// Bytes counts all that was written, kept or not.
	Bytes int64
	// Truncated tells that bytes are left out, between Head and Tail.
	Truncated bool
}

// Omitted is how many bytes are left out.
func (o Output) Omitted() int64 { return o.Bytes - int64(len(o.Head)) - int64(len(o.Tail)) }

// String is the output, with a line in the place of what is left out, as in
// "[123 bytes left out]". The worker can write such a line, too: Truncated tells
// the truth.
func (o Output) String() string {
	if !o.Truncated {
		return string(o.Head)
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", bytes.TrimSuffix(o.Head, []byte("\n")), o.Omitted(), o.Tail)
}
