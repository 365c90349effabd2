package capture

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newCapture(t *testing.T, o Options) *Capture {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestKept compares what is kept with what a slice of the whole output says, for
// every small limit and for writes of every size around it.
func TestKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		limit, headOnly := 1+r.IntN(9), r.IntN(2) == 0
		k := newKept(limit, headOnly)
		var all []byte
		for range r.IntN(6) {
			p := make([]byte, r.IntN(2*limit+2))
			for i := range p {
				p[i] = byte(len(all) + i)
			}
			all = append(all, p...)
			if n, err := k.Write(p); n != len(p) || err != nil {
				t.Fatalf("%d of %d bytes written, %v", n, len(p), err)
			}
		}
		head, tail := all, []byte(nil)
		if len(all) > limit {
			head = all[:limit]
			if !headOnly {
				head, tail = all[:limit-limit/2], all[len(all)-limit/2:]
			}
		}
		o := k.output()
		if !bytes.Equal(o.Head, head) || !bytes.Equal(o.Tail, tail) || o.Bytes != int64(len(all)) || o.Truncated != (len(all) > limit) {
			t.Fatalf("limit %d, head only %v, wrote %v:\n got %+v\nwant %v and %v", limit, headOnly, all, o, head, tail)
		}
		if cap(k.head)+cap(k.tail) > limit {
			t.Fatalf("limit %d: %d bytes are held", limit, cap(k.head)+cap(k.tail))
		}
	}
}

// TestMemoryGrows: a large limit costs nothing until it is used.
func TestMemoryGrows(t *testing.T) {
	k := newKept(1<<40, false) // more than any machine has
	for range 100 {
		_, _ = k.Write([]byte("some words\n"))
	}
	if held := cap(k.head) + cap(k.tail); held > 4096 {
		t.Errorf("%d bytes are held for %d", held, k.bytes)
	}
}

func TestOptions(t *testing.T) {
	if _, err := New(Options{MaxOutput: -1}); err == nil {
		t.Error("a negative limit is taken")
	}
	c := newCapture(t, Options{})
	go func() { _, _ = c.File().Write(make([]byte, DefaultMaxOutput+1)); _ = c.File().Close() }()
	for c.Output().Bytes < DefaultMaxOutput+1 {
		time.Sleep(time.Millisecond)
	}
	if err := c.Drain(0); err != nil {
		t.Error(err)
	}
	if o := c.Output(); !o.Truncated || o.Omitted() != 1 {
		t.Errorf("the default keeps all but %d bytes of one too many", o.Omitted())
	}
}

func TestString(t *testing.T) {
	for _, tt := range []struct {
		o    Output
		want string
	}{
		{Output{}, ""},
		{Output{Head: []byte("all"), Bytes: 3}, "all"},
		{Output{Head: []byte("a\n"), Tail: []byte("z\n"), Bytes: 10, Truncated: true}, "a\n[6 bytes left out]\nz\n"},
		{Output{Head: []byte("ab"), Bytes: 10, Truncated: true}, "ab\n[8 bytes left out]\n"},
	} {
		if got := tt.o.String(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.o, got, tt.want)
		}
	}
}

// TestLastByte: what was written last is there, however short before the end it
// was, and without any grace.
func TestLastByte(t *testing.T) {
	for i := range 200 {
		c := newCapture(t, Options{})
		want := strings.Repeat("x", i*37)
		if _, err := io.WriteString(c.File(), want); err != nil {
			t.Fatal(err)
		}
		if err := c.Drain(0); err != nil {
			t.Fatal(err)
		}
		if o := c.Output(); string(o.Head) != want || o.Truncated {
			t.Fatalf("%d of %d bytes", o.Bytes, len(want))
		}
	}
}

// TestHeld: whoever holds the stream is given up after the grace, which is told,
// and nothing that came before is missing.
func TestHeld(t *testing.T) {
	for _, grace := range []time.Duration{0, 200 * time.Millisecond} {
		c := newCapture(t, Options{})
		holder := dup(t, c.File())
		if _, err := holder.WriteString("said"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := c.Drain(grace); !errors.Is(err, ErrHeld) {
			t.Errorf("grace %v: %v", grace, err)
		}
		if d := time.Since(began); d < grace || d > grace+5*time.Second || string(c.Output().Head) != "said" {
			t.Errorf("grace %v: %q after %v", grace, c.Output().Head, d)
		}
		if _, err := holder.WriteString("more"); err == nil {
			t.Error("what nobody reads can be written")
		}
		if err := c.Drain(grace); !errors.Is(err, ErrHeld) {
			t.Errorf("asked again, it says %v", err)
		}
	}
}

// TestHolderLeaves: within the grace, what it wrote counts.
func TestHolderLeaves(t *testing.T) {
	c := newCapture(t, Options{})
	holder := dup(t, c.File())
	go func() {
		time.Sleep(50 * time.Millisecond)
		_, _ = holder.WriteString("late")
		_ = holder.Close()
	}()
	if err := c.Drain(time.Minute); err != nil || string(c.Output().Head) != "late" {
		t.Errorf("%q, %v", c.Output().Head, err)
	}
}

// dup is another process' handle of the file, as it were.
func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := os.NewFile(uintptr(fd), "dup")
	t.Cleanup(func() { _ = d.Close() })
	return d
}
