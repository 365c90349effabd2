package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

func frames(t *testing.T, texts ...string) []byte {
	t.Helper()
	var out []byte
	for _, text := range texts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(text)))
		out = append(out, text...)
	}
	return out
}

func TestReadFrame(t *testing.T) {
	long := strings.Repeat("x", MaxFrame)
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole":           func(r io.Reader) io.Reader { return r },
		"a byte at once":  iotest.OneByteReader,
		"half at once":    iotest.HalfReader,
		"data with error": iotest.DataErrReader,
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(wrap(bytes.NewReader(frames(t, "a", "{}", long, "b"))), MaxFrame)
			for _, want := range []string{"a", "{}", long, "b"} {
				got, err := r.ReadFrame()
				if err != nil || string(got) != want {
					t.Fatalf("%.20q, %v, want %.20q", got, err, want)
				}
			}
			if _, err := r.ReadFrame(); err != io.EOF {
				t.Errorf("the end is %v", err)
			}
		})
	}
}

// TestReadsNoFurther: descriptors belong to the frame in whose bytes they came.
func TestReadsNoFurther(t *testing.T) {
	src := bytes.NewReader(frames(t, "one", "two"))
	r := NewReader(src, MaxFrame)
	if _, err := r.ReadFrame(); err != nil || src.Len() != 7 {
		t.Errorf("%d bytes are left: %v", src.Len(), err)
	}
}

func TestBadFrames(t *testing.T) {
	whole := string(frames(t, `{"type":"ping","id":1}`))
	for name, c := range map[string]struct {
		sent string
		code Code
	}{
		"length 0":             {"\x00\x00\x00\x00", FrameEmpty},
		"a byte too long":      {"\x00\x10\x00\x01" + strings.Repeat("x", MaxFrame+1), FrameTooLarge},
		"4 GiB":                {"\xff\xff\xff\xff", FrameTooLarge},
		"2 GiB, negative":      {"\x80\x00\x00\x00", FrameTooLarge},
		"little-endian":        {"\x16\x00\x00\x00" + whole[4:], FrameTooLarge},
		"text":                 {"GET / HTTP/1.1\r\n\r\n", FrameTooLarge},
		"half a prefix":        {whole[:2], Truncated},
		"a prefix alone":       {whole[:4], Truncated},
		"all but the last one": {whole[:len(whole)-1], Truncated},
	} {
		_, err := NewReader(strings.NewReader(c.sent), MaxFrame).ReadFrame()
		var e *Error
		if !errors.As(err, &e) || e.Code != c.code || !e.Fatal {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken")
	_, err := NewReader(io.MultiReader(strings.NewReader(whole[:9]), iotest.ErrReader(broken)), MaxFrame).ReadFrame()
	if !errors.Is(err, broken) {
		t.Errorf("an I/O error is told as %v", err)
	}
}

// TestMemoryIsPaidFor: a prefix alone takes no memory; what arrives does.
func TestMemoryIsPaidFor(t *testing.T) {
	allocated := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	for _, sent := range []string{"\x00\x10\x00\x00abc", "\x40\x00\x00\x00abc", "\x00\x00\x00\x00"} {
		n := allocated(func() {
			if _, err := NewReader(strings.NewReader(sent), MaxFrame).ReadFrame(); err == nil {
				t.Error("a frame was read")
			}
		})
		if n > 16<<10 {
			t.Errorf("%q: %d bytes were allocated", sent, n)
		}
	}
	// Between frames a large buffer is not kept.
	r := NewReader(bytes.NewReader(frames(t, "a", strings.Repeat("x", MaxFrame), "b")), MaxFrame)
	for range 3 {
		if _, err := r.ReadFrame(); err != nil {
			t.Fatal(err)
		}
		if cap(r.buf) > kept {
			t.Errorf("%d bytes are kept", cap(r.buf))
		}
	}
}

// TestHostileMemory: refusing a message costs no more than a few times its
// length.
func TestHostileMemory(t *testing.T) {
	for name, h := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = ParseRequest([]byte(h.text))
		runtime.ReadMemStats(&after)
		if n := int(after.TotalAlloc - before.TotalAlloc); n > 64<<10+16*len(h.text) {
			t.Errorf("%s: %d bytes were allocated for %d", name, n, len(h.text))
		}
	}
}

type calls struct {
	bytes.Buffer
	n int
}

func (c *calls) Write(b []byte) (int, error) { c.n++; return c.Buffer.Write(b) }

func TestWriter(t *testing.T) {
	if frame, err := AppendFrame([]byte("x"), &Ping{ID: 1}, 22); err != nil || string(frame) != "x\x00\x00\x00\x16"+`{"type":"ping","id":1}` {
		t.Errorf("%q, %v", frame, err)
	}
	if frame, err := AppendFrame(nil, &Ping{ID: 1}, 21); err == nil {
		t.Errorf("a byte more than may be: %q", frame)
	}
	var to calls
	w := NewWriter(&to, 100)
	if err := w.Write(&Ping{ID: 1}); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if err := w.Write(&Launch{ID: 2, Argv: []Bytes{Bytes(strings.Repeat("x", 100))}}); !errors.As(err, &e) || e.Code != FrameTooLarge {
		t.Errorf("a long frame: %v", err)
	}
	if err := w.Write(&Ping{}); !errors.As(err, &e) {
		t.Errorf("a message that is none: %v", err)
	}
	if err := w.Write(&Ping{ID: 3}); err != nil {
		t.Fatal(err)
	}
	if want := frames(t, `{"type":"ping","id":1}`, `{"type":"ping","id":3}`); !bytes.Equal(to.Bytes(), want) || to.n != 2 {
		t.Errorf("%d writes: %q", to.n, to.Bytes())
	}
	broken := errors.New("broken")
	if err := NewWriter(failing{broken}, 100).Write(&Ping{ID: 1}); !errors.Is(err, broken) {
		t.Errorf("an I/O error is told as %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestStream(t *testing.T) {
	var s Stream
	code := func(err error) Code {
		var e *Error
		if errors.As(err, &e) {
			return e.Code
		}
		return ""
	}
	if s.Room() != 0 || code(s.Advance(0, 1, false)) != FlowControl {
		t.Error("something may be sent without credit")
	}
	if s.Grant(40000) != nil || s.Room() != MaxChunk || code(s.Advance(0, MaxChunk+1, false)) != FlowControl {
		t.Error("a chunk is longer than it may be")
	}
	if s.Advance(0, MaxChunk, false) != nil || s.Room() != 40000-MaxChunk || s.Offset() != MaxChunk {
		t.Error("a chunk was not counted")
	}
	if code(s.Advance(0, 1, false)) != BadOffset || code(s.Advance(MaxChunk+1, 1, false)) != BadOffset {
		t.Error("a chunk may be anywhere")
	}
	if code(s.Advance(MaxChunk, 40000-MaxChunk+1, false)) != FlowControl {
		t.Error("more than the credit may be sent")
	}
	if code(s.Grant(MaxWindow)) != FlowControl || code(s.Grant(-1)) != FlowControl || s.Grant(MaxWindow-(40000-MaxChunk)) != nil {
		t.Error("the window is not held")
	}
	if s.Advance(MaxChunk, 0, true) != nil || !s.Ended() || code(s.Advance(MaxChunk, 0, true)) != BadOffset {
		t.Error("the end is not the end")
	}
}

func TestInFlight(t *testing.T) {
	var f InFlight
	var e *Error
	for id := range int64(MaxRequests) {
		if err := f.Open(id + 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Open(1); !errors.As(err, &e) || e.Code != IDInUse {
		t.Error(err)
	}
	if err := f.Open(1000); !errors.As(err, &e) || e.Code != TooManyRequests || !e.Retryable {
		t.Error(err)
	}
	if !f.Has(1) || f.Has(1000) {
		t.Error("the set is another")
	}
	f.Close(1)
	f.Close(1)
	if f.Len() != MaxRequests-1 || f.Open(1) != nil {
		t.Error("an id cannot be used again")
	}
}
