package stream

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	if err := tap.Drain(time.Millisecond, nil); err != nil { // much less than the reader takes
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
	if err := tap.Drain(50*time.Millisecond, nil); !errors.Is(err, ErrHeld) {
		t.Errorf("a holder is told as %v", err)
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
	if err := tap.Drain(time.Second, nil); err != nil {
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
	go func() { drained <- tap.Drain(50*time.Millisecond, nil) }()
	select {
	case err := <-drained:
		if !errors.Is(err, ErrHeld) {
			t.Errorf("a holder is told as %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the caller is kept")
	}
	<-ended
}

// pipe is a pipe whose reader does not read by itself.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// TestReaderDoesNotRead: a reader who takes nothing is waited for, and given up
// when somebody wants an end; meanwhile the worker is not idle.
func TestReaderDoesNotRead(t *testing.T) {
	const grace = 50 * time.Millisecond
	r, w := pipe(t)
	tap := tap(t, w)
	go func() { // more than the two pipes and the buffer hold
		_, _ = tap.Worker.Write(make([]byte, 1<<20))
	}()
	for !tap.taking.Load() || tap.Bytes() < 2*firstBuffer { // it is not waited for at the beginning
		time.Sleep(time.Millisecond)
	}
	time.Sleep(4 * grace)
	if idle := time.Since(tap.Last()); idle > 2*grace {
		t.Errorf("the worker is called idle for %v", idle)
	}
	hurry, drained := make(chan struct{}), make(chan error, 1)
	go func() { drained <- tap.Drain(grace, hurry) }()
	select {
	case err := <-drained:
		t.Fatalf("the reader was given up in silence: %v", err)
	case <-time.After(4 * grace):
	}
	close(hurry)
	if err := <-drained; !errors.Is(err, ErrNotTaken) {
		t.Errorf("a reader that does not read is told as %v", err)
	}
	_ = r.Close() // the copy ends
	if err := tap.Drain(grace, nil); err != nil {
		t.Errorf("a reader that went away is %v", err)
	}
}

// TestSlowReaderInAHurry: a reader who reads loses nothing.
func TestSlowReaderInAHurry(t *testing.T) {
	hurry := make(chan struct{})
	close(hurry)
	to := &slow{pause: 10 * time.Millisecond}
	tap := tap(t, to)
	sent := make([]byte, 1<<20)
	if _, err := tap.Worker.Write(sent); err != nil {
		t.Fatal(err)
	}
	_ = tap.Worker.Close()
	if err := tap.Drain(2*time.Second, hurry); err != nil || to.Len() != len(sent) {
		t.Errorf("%d of %d bytes, %v", to.Len(), len(sent), err)
	}
}

// TestNonBlockingOutput: the worker can make the open file non-blocking that the
// tap writes to, where it shares it.
func TestNonBlockingOutput(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe(ends[:]); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(ends[0]), "r"), os.NewFile(uintptr(ends[1]), "w") // blocking, as standard output is
	defer r.Close()
	defer w.Close()
	if err := unix.SetNonblock(ends[1], true); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 2<<20)); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("the control: a full pipe gives %v", err)
	}
	tap := tap(t, w)
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	got := make(chan []byte)
	go func() { b, _ := io.ReadAll(r); got <- b }()
	if _, err := tap.Worker.Write(sent); err != nil {
		t.Error(err)
	}
	_ = tap.Worker.Close()
	if err := tap.Drain(time.Second, nil); err != nil {
		t.Error(err)
	}
	_ = w.Close()
	if b := <-got; !bytes.HasSuffix(b, sent) {
		t.Errorf("%d bytes arrived, or others than were sent", len(b))
	}
}

// TestLostOutput: an output that cannot be written is told.
func TestLostOutput(t *testing.T) {
	tap := tap(t, failing{})
	_, _ = tap.Worker.WriteString("x")
	_ = tap.Worker.Close()
	if err := tap.Drain(time.Second, nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("it is told as %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, unix.ENOSPC }
