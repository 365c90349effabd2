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
	if err := tap.Drain(time.Minute, nil); err != nil { // it ends by itself, and not for the time
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
	if err := tap.Drain(50*time.Millisecond, nil); !errors.Is(err, ErrHeld) {
		t.Errorf("a holder is told as %v", err)
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
	if err := tap.Drain(time.Second, nil); err != nil {
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
