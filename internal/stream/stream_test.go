package stream

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

func tap(t *testing.T, to io.Writer) *Tap {
	t.Helper()
	tap, err := NewTap(to)
	if err != nil {
		t.Fatal(err)
	}
	return tap
}

// slow is a reader that takes its time.
type slow struct {
	bytes.Buffer
	pause time.Duration
}

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(s.pause)
	return s.Buffer.Write(p)
}

func TestEverythingArrives(t *testing.T) {
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	to := &slow{pause: 5 * time.Millisecond}
	tap := tap(t, to)
	if _, err := tap.Worker.Write(sent); err != nil {
		t.Fatal(err)
	}
	_ = tap.Worker.Close()
	if err := tap.Drain(time.Millisecond); err != nil { // much less than the reader takes
		t.Fatal(err)
	}
	if !bytes.Equal(to.Bytes(), sent) || tap.Bytes() != int64(len(sent)) {
		t.Errorf("%d of %d bytes arrived, %d counted", to.Len(), len(sent), tap.Bytes())
	}
}

// TestHolder: a process that outlives the worker and holds its output keeps the
// caller no longer than the grace, and loses nothing that was written.
func TestHolder(t *testing.T) {
	var to bytes.Buffer
	tap := tap(t, &to)
	defer tap.Worker.Close()
	if _, err := tap.Worker.WriteString("said"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := tap.Drain(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 5*time.Second || to.String() != "said" {
		t.Errorf("%q after %v", to.String(), d)
	}
}

func TestReaderGoesAway(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tap := tap(t, w)
	_ = r.Close()
	for i := 0; ; i++ {
		if _, err := tap.Worker.Write(make([]byte, 1<<16)); err != nil {
			break // as it would be without the tap
		}
		if i > 100 {
			t.Fatal("the worker writes on to nobody")
		}
	}
	if err := tap.Drain(time.Second); err != nil {
		t.Errorf("a reader that went away is %v", err)
	}
}

func TestLast(t *testing.T) {
	tap := tap(t, io.Discard)
	defer tap.Worker.Close()
	began := tap.Last()
	time.Sleep(20 * time.Millisecond)
	_, _ = tap.Worker.WriteString("x")
	for range 1000 {
		if tap.Last().Sub(began) >= 20*time.Millisecond {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("a byte did not count as activity")
}

// TestChattyHolder: a process that outlives the worker and writes for ever does
// not keep the caller.
func TestChattyHolder(t *testing.T) {
	tap := tap(t, io.Discard)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := tap.Worker.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}()
	drained := make(chan error, 1)
	go func() { drained <- tap.Drain(50 * time.Millisecond) }()
	select {
	case err := <-drained:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the caller is kept")
	}
	<-ended
}

// onTerminal is a tap on a new terminal that changes nothing of what it is sent.
func onTerminal(t *testing.T, to io.Writer) *Tap {
	t.Helper()
	m, worker, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := term.MakeRaw(int(worker.Fd())); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(m.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	return NewTerminalTap(os.NewFile(uintptr(fd), "master"), worker, to)
}

// another opens the worker's end once more, as a worker does.
func another(t *testing.T, tap *Tap) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(tap.Worker.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "worker")
}

// TestTerminal: everything arrives, however slowly it is read; a worker may close
// its terminal and open it again.
func TestTerminal(t *testing.T) {
	sent := make([]byte, 256<<10)
	_, _ = rand.Read(sent)
	to := &slow{pause: time.Millisecond}
	tap := onTerminal(t, to)
	for part := range slices.Chunk(sent, 64<<10) {
		worker := another(t, tap)
		tap.Launched()
		if _, err := worker.Write(part); err != nil {
			t.Fatal(err)
		}
		_ = worker.Close()
	}
	if err := tap.Drain(time.Minute); err != nil { // it ends by itself, and not for the time
		t.Fatal(err)
	}
	if !bytes.Equal(to.Bytes(), sent) || tap.Bytes() != int64(len(sent)) {
		t.Errorf("%d of %d bytes arrived, %d counted", to.Len(), len(sent), tap.Bytes())
	}
}

// TestTerminalHolder: as TestHolder.
func TestTerminalHolder(t *testing.T) {
	var to bytes.Buffer
	tap := onTerminal(t, &to)
	holder := another(t, tap)
	defer holder.Close()
	if _, err := holder.WriteString("said"); err != nil {
		t.Fatal(err)
	}
	if err := tap.Drain(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if to.String() != "said" {
		t.Errorf("%q", to.String())
	}
	if _, err := holder.WriteString("more"); !errors.Is(err, syscall.EIO) { // hung up
		t.Errorf("writing to a terminal that nobody reads: %v", err)
	}
}

// TestTerminalReaderGoesAway: the worker's terminal hangs up.
func TestTerminalReaderGoesAway(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tap := onTerminal(t, w)
	worker := another(t, tap)
	defer worker.Close()
	_ = r.Close()
	for i := 0; ; i++ {
		if _, err := worker.Write(make([]byte, 1<<10)); errors.Is(err, syscall.EIO) {
			break
		} else if err != nil || i > 1000 {
			t.Fatalf("the worker writes on to nobody: %v", err)
		}
	}
	if err := tap.Drain(time.Second); err != nil {
		t.Errorf("a reader that went away is %v", err)
	}
}

// TestDiscard: a tap whose worker never was ends.
func TestDiscard(t *testing.T) {
	pipe := tap(t, io.Discard)
	for _, tap := range []*Tap{pipe, onTerminal(t, io.Discard)} {
		tap.Discard()
		select {
		case <-tap.done:
		case <-time.After(time.Minute):
			t.Error("it goes on")
		}
	}
}
