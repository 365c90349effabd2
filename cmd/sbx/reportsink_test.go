package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"
)

// TestReportWithoutReader: a pipe that is full, and that nobody reads, does not hold
// the caller for ever; a slow reader gets all.
func TestReportWithoutReader(t *testing.T) {
	text := bytes.Repeat([]byte("report "), 30_000)
	for _, read := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan []byte, 1)
		go func() {
			var all []byte
			if read {
				time.Sleep(100 * time.Millisecond)
				all, _ = io.ReadAll(r)
			}
			got <- all
		}()
		n, err := patient{w, map[bool]time.Duration{false: 50 * time.Millisecond, true: time.Minute}[read]}.Write(text)
		_ = w.Close()
		if all := <-got; read && (err != nil || n != len(text) || !bytes.Equal(all, text)) {
			t.Errorf("read: %d bytes, %v", len(all), err)
		}
		if !read && (err == nil || n >= len(text)) {
			t.Errorf("not read: %d bytes, %v", n, err)
		}
		_ = r.Close()
	}
}
