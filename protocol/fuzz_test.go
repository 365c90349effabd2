package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"testing/iotest"
)

func seeds(f *testing.F) [][]byte {
	f.Helper()
	var all [][]byte
	for _, s := range sides() {
		files, err := filepath.Glob(filepath.Join(goldenDir, s.dir, "*.json"))
		if err != nil || len(files) == 0 {
			f.Fatalf("%d golden messages: %v", len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, bytes.TrimSpace(text))
		}
	}
	for _, h := range hostile() {
		if len(h.text) < 4096 {
			all = append(all, []byte(h.text))
		}
	}
	return append(all, []byte(`{"type":"exit","id":1,"worker":"w","report":{"a" : [ 1.5e3 , null , "\u0000\" \\" ]}}`))
}

// FuzzDecode: nothing panics; what is understood is JSON to another reader as
// well, and is the same after encoding and decoding; what is refused has an
// answer that can be sent.
func FuzzDecode(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, s := range sides() {
			m, err := s.parse(text)
			if err != nil {
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("%T: %v", err, err)
				}
				if _, err := Encode(e); err != nil {
					t.Fatalf("the answer to it cannot be sent: %v", err)
				}
				continue
			}
			if !json.Valid(text) {
				t.Fatal("encoding/json does not take it for JSON")
			}
			if _, ok := m.(*Unknown); ok {
				continue
			}
			once, err := Encode(m)
			if err != nil {
				t.Fatalf("%+v cannot be encoded: %v", m, err)
			}
			again, err := s.parse(once)
			if err != nil {
				t.Fatalf("%s is not understood: %v", once, err)
			}
			twice, err := Encode(again)
			if err != nil || !bytes.Equal(once, twice) || reflect.TypeOf(m) != reflect.TypeOf(again) {
				t.Fatalf("%v\n%s\n%s", err, once, twice)
			}
		}
	})
}

// asking notes how large the buffers are that it is to fill.
type asking struct {
	r    io.Reader
	most int
}

func (a *asking) Read(b []byte) (int, error) {
	a.most = max(a.most, len(b))
	return a.r.Read(b)
}

// FuzzFrame: nothing panics; the frames that are read are the bytes that were
// sent, however they arrive; and no more memory is taken than arrives.
func FuzzFrame(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(append([]byte{0, 0, byte(len(s) >> 8), byte(len(s))}, s...), false)
	}
	f.Add([]byte{0, 0, 0, 0}, true)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1}, true)
	f.Add([]byte{0, 0, 0, 1, 'a', 0, 0, 0, 2, 'b'}, true)
	f.Fuzz(func(t *testing.T, sent []byte, slow bool) {
		var src io.Reader = bytes.NewReader(sent)
		if slow {
			src = iotest.OneByteReader(src)
		}
		asked := &asking{r: src}
		r := NewReader(asked, MaxFrame)
		at := 0
		for {
			frame, err := r.ReadFrame()
			if asked.most > 2*len(sent)+firstStep {
				t.Fatalf("there was a buffer of %d bytes for %d", asked.most, len(sent))
			}
			if err == io.EOF {
				if at != len(sent) {
					t.Fatalf("the end came after %d of %d bytes", at, len(sent))
				}
				return
			}
			if err != nil {
				var e *Error
				if !errors.As(err, &e) || !e.Fatal {
					t.Fatalf("%T: %v", err, err)
				}
				return
			}
			if len(frame) == 0 || !bytes.Equal(frame, sent[at+prefix:at+prefix+len(frame)]) {
				t.Fatalf("read %q at %d", frame, at)
			}
			at += prefix + len(frame)
		}
	})
}
