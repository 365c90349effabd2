// Package logfile writes a program's log so that the program never waits for it: not
// for a pipe that nobody reads, and not for a disk that is full. What finds no room is
// dropped, and how much that was is said when there is room again.
package logfile

import (
	"io"
	"sync"
	"time"
)

// Limits of what waits to be written.
const (
	queuedLines = 1024
	queuedBytes = 1 << 20
)

// Sink is where lines go.
type Sink interface {
	io.Writer
	// Reopen begins anew at the same place, where that means something.
	Reopen() error
	Close() error
}

// Log is an [io.Writer] of whole lines that never blocks.
type Log struct {
	sink Sink
	say  Lines

	mu     sync.Mutex
	queue  [][]byte
	bytes  int
	missed uint64 // since the last line that said how many
	reopen bool
	closed bool
	wake   chan struct{} // one is waiting at most
	done   chan struct{}
}

// Lines makes the lines that a Log has to say itself.
type Lines struct {
	// Lost says how many lines were dropped, Stuck that the file could not be opened
	// anew, so that the one before goes on.
	Lost  func(n uint64) []byte
	Stuck func(error) []byte
}

// New writes to sink, which is the Log's to close.
func New(sink Sink, say Lines) *Log {
	l := &Log{sink: sink, say: say, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.run()
	return l
}

// Write takes a line. It neither fails nor waits.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) >= queuedLines || l.bytes+len(line) > queuedBytes {
		l.missed++
		return len(line), nil
	}
	l.queue = append(l.queue, append([]byte(nil), line...)) // the caller's buffer is used again
	l.bytes += len(line)
	l.nudge()
	return len(line), nil
}

func (l *Log) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Reopen opens the file anew before the next line, for whoever moved it.
func (l *Log) Reopen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.reopen = true
		l.nudge()
	}
}

// Close writes what waits, for at most so long. What a pipe does not take by then is
// lost.
func (l *Log) Close(patience time.Duration) {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.wake)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(patience):
	}
}

func (l *Log) run() {
	defer close(l.done)
	for range l.wake {
		l.drain()
	}
	l.drain()
	_ = l.sink.Close()
}

func (l *Log) drain() {
	for {
		l.mu.Lock()
		queue, missed, reopen := l.queue, l.missed, l.reopen
		l.queue, l.bytes, l.missed, l.reopen = nil, 0, 0, false
		l.mu.Unlock()
		if reopen {
			if err := l.sink.Reopen(); err != nil {
				queue = append([][]byte{l.say.Stuck(err)}, queue...)
			}
		}
		if len(queue) == 0 && missed == 0 {
			return
		}
		for i, line := range queue {
			if _, err := l.sink.Write(line); err != nil {
				missed += uint64(len(queue) - i)
				break
			}
		}
		if missed > 0 {
			if _, err := l.sink.Write(l.say.Lost(missed)); err == nil {
				continue
			}
			// It is said with the next line that comes.
			l.mu.Lock()
			l.missed += missed
			empty := len(l.queue) == 0
			l.mu.Unlock()
			if empty {
				return
			}
		}
	}
}

// Stream is a sink that is open already, as the standard error is.
type Stream struct{ io.Writer }

// Reopen does nothing.
func (Stream) Reopen() error { return nil }

// Close does nothing: it is somebody else's.
func (Stream) Close() error { return nil }
