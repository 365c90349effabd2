package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var lines = Lines{
	Lost:  func(n uint64) []byte { return fmt.Appendf(nil, "lost %d\n", n) },
	Stuck: func(err error) []byte { return fmt.Appendf(nil, "stuck: %v\n", err) },
}

// slow is a pipe that nobody reads, until it is opened.
type slow struct {
	gate chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
	fail error
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.gate
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return 0, s.fail
	}
	return s.got.Write(b)
}
func (s *slow) Reopen() error { return nil }
func (s *slow) Close() error  { return nil }

// TestNobodyReads: a log that nobody reads costs lines, not time, and says how many.
func TestNobodyReads(t *testing.T) {
	s := &slow{gate: make(chan struct{})}
	l := New(s, lines)
	const lines = 3 * queuedLines
	begin := time.Now()
	for i := range lines {
		fmt.Fprintf(l, "line %d\n", i)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("%d lines took %v", lines, took)
	}
	close(s.gate)
	l.Close(10 * time.Second)
	kept, told := 0, 0
	for line := range strings.Lines(s.got.String()) {
		n := 0
		if _, err := fmt.Sscanf(line, "lost %d\n", &n); err != nil {
			kept++
		}
		told += n // it is told once for each gap
	}
	if kept < queuedLines || kept+told != lines {
		t.Errorf("%d kept, %d told lost, of %d", kept, told, lines)
	}
}

// TestCloseDoesNotWait: the end of a program does not wait for a reader.
func TestCloseDoesNotWait(t *testing.T) {
	s := &slow{gate: make(chan struct{})}
	defer close(s.gate)
	l := New(s, lines)
	fmt.Fprintln(l, "a line")
	begin := time.Now()
	l.Close(50 * time.Millisecond)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestFailure: lines that cannot be written are counted, and told when others can.
func TestFailure(t *testing.T) {
	s := &slow{gate: make(chan struct{}), fail: errors.New("no space")}
	close(s.gate)
	l := New(s, lines)
	for range 3 {
		fmt.Fprintln(l, "lost one")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		missed := l.missed
		l.mu.Unlock()
		if missed == 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d are missed", missed)
		}
	}
	s.mu.Lock()
	s.fail = nil
	s.mu.Unlock()
	fmt.Fprintln(l, "kept")
	l.Close(10 * time.Second)
	if got := s.got.String(); got != "kept\nlost 3\n" {
		t.Errorf("%q", got)
	}
}

func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := OpenFile(path, 100, 2)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 39) + "\n"
	for range 9 {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int{"log": 1, "log.1": 2, "log.2": 2} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), name))
		if err != nil || len(text) != want*len(line) {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("too many are kept")
	}
	// Whoever moved it gets a new one when it is opened anew.
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := f.Reopen(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("new\n")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new\n" {
		t.Errorf("%q, %v", text, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestStuck: where the file cannot be opened anew, the one before goes on and says so.
func TestStuck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := OpenFile(path, 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := New(f, lines)
	if err := errors.Join(os.Rename(path, path+".moved"), os.Symlink("elsewhere", path)); err != nil {
		t.Fatal(err)
	}
	l.Reopen()
	fmt.Fprintln(l, "a line")
	l.Close(10 * time.Second)
	text, err := os.ReadFile(path + ".moved")
	if err != nil || !strings.HasPrefix(string(text), "stuck: ") || !strings.HasSuffix(string(text), "a line\n") {
		t.Errorf("%q, %v", text, err)
	}
}

// TestOpenRefuses: no other file is written through a log's name.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(target, nil, 0o600))
	must(os.Symlink(target, filepath.Join(dir, "link")))
	must(os.WriteFile(filepath.Join(dir, "open"), nil, 0o600))
	must(os.Chmod(filepath.Join(dir, "open"), 0o666))
	must(os.WriteFile(filepath.Join(dir, "two"), nil, 0o600))
	must(os.Link(filepath.Join(dir, "two"), filepath.Join(dir, "names")))
	must(os.Mkdir(filepath.Join(dir, "dir"), 0o700))
	must(os.Mkdir(filepath.Join(dir, "public"), 0o700))
	must(os.Chmod(filepath.Join(dir, "public"), 0o777))
	for _, name := range []string{"link", "open", "two", "dir", "public/log", "missing/log"} {
		if f, err := OpenFile(filepath.Join(dir, name), 100, 1); err == nil {
			t.Errorf("%s is opened", name)
			_ = f.Close()
		}
	}
	f, err := OpenFile(target, 100, 1)
	if err != nil {
		t.Fatalf("the control: %v", err)
	}
	_ = f.Close()
}
