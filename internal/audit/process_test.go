//go:build unix

package audit

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests start this binary as another writer, told by this variable what to do.
const roleVariable = "AUDIT_TEST_ROLE"

func TestMain(m *testing.M) {
	role, dir, _ := strings.Cut(os.Getenv(roleVariable), " ")
	switch role {
	case "":
		os.Exit(m.Run())
	case "write":
		os.Exit(writeForEver(dir))
	case "limit":
		os.Exit(writeToLimit(dir))
	case "open":
		_, err := Open(dir, small())
		fmt.Println(err)
		os.Exit(0)
	}
	os.Exit(3)
}

func writer(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), roleVariable+"="+role+" "+dir)
	c.Stderr = os.Stderr
	return c
}

// writeForEver says each record that is in the log on its output.
func writeForEver(dir string) int {
	o := small()
	o.Keep = 4
	l, err := Open(dir, o)
	for i := 0; err == nil; i++ {
		var s Stamp
		if s, err = l.Request(Request{Worker: "k", PID: i}); err == nil {
			fmt.Println(s)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestKilledWriters: whenever a writer is killed, what it said to be in the log
// is there, and the chain is whole after the next opening.
func TestKilledWriters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	for round := range 20 {
		c := writer(t, "write", dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var told Stamp
		for i := 0; lines.Scan(); i++ {
			if s, err := ParseStamp(lines.Text()); err == nil { // the last line can be half a line
				told = s
			}
			if i == 20+7*round {
				_ = c.Process.Kill()
			}
		}
		var exit *exec.ExitError
		if err := c.Wait(); !errors.As(err, &exit) || exit.Exited() {
			t.Fatalf("the writer ended by itself: %v", err)
		}
		if told.Seq == 0 {
			t.Fatal("nothing was written")
		}
		l := mustOpen(t, dir, Options{Sync: SyncNone})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantWhole(t, dir, told)
	}
}

func TestSecondWriterIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, small())
	var e *Error
	if _, err := Open(dir, small()); !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("in the same process: %v", err)
	}
	out, err := writer(t, "open", dir).Output()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("process %d writes the audit log in %q", os.Getpid(), dir)) {
		t.Errorf("in another process: %s, %v", out, err)
	}
	launch(t, l, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := writer(t, "open", dir).Output(); err != nil || string(out) != "<nil>\n" {
		t.Errorf("after it was closed: %s, %v", out, err)
	}
	wantWhole(t, dir)
}

// writeToLimit appends until the kernel takes no more of a file, and tries on.
func writeToLimit(dir string) int {
	signal.Ignore(syscall.SIGXFSZ)
	l, err := Open(dir, Options{Sync: SyncNone})
	if err == nil {
		before := l.size
		_, err = l.Decision(Decision{Decision: Allow, Worker: "w"})
		record := l.size - before
		limit := uint64(l.size + 5*record + record/2) // in the middle of a line
		err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}))
	}
	if err != nil {
		fmt.Println(err)
		return 3
	}
	fmt.Println(refusesAfterFailure(l))
	return 0
}

// refusesAfterFailure appends until that fails, and tells what is wrong with how.
func refusesAfterFailure(l *Log) string {
	var err error
	for i := 0; err == nil && i < 100_000; i++ {
		_, err = l.Decision(Decision{Decision: Allow, Worker: "w"})
	}
	if err == nil {
		return "no append failed"
	}
	head := l.Head()
	for range 3 {
		if _, err := l.Decision(Decision{Decision: Allow}); err == nil {
			return "an append after the failure was taken"
		}
	}
	if l.Head() != head {
		return "the head went on"
	}
	return "refused: " + err.Error()
}

// TestFullFile: an append of which the kernel takes a part, or nothing, fails,
// and so do all later ones.
func TestFullFile(t *testing.T) {
	dir := t.TempDir()
	out, err := writer(t, "limit", dir).Output()
	if err != nil || !strings.HasPrefix(string(out), "refused: ") {
		t.Fatalf("%s, %v", out, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	if err != nil || strings.HasSuffix(string(b), "\n") {
		t.Fatalf("the last line is whole, or %v", err)
	}
	l := mustOpen(t, dir, small())
	launch(t, l, 1)
	if res := wantWhole(t, dir); !strings.Contains(fmt.Sprint(res.Notes), "what a crash left") {
		t.Errorf("the part that was written is not told of: %v", res.Notes)
	}
}
