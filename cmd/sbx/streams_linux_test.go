package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onBothWays runs a test without and with a copy between the command and its
// output, which --idle-timeout needs.
func onBothWays(t *testing.T, f func(t *testing.T, run ...string)) {
	t.Parallel()
	needLandlock(t)
	for name, run := range map[string][]string{"direct": {"run"}, "copied": {"run", "--idle-timeout", "1m"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, run...)
		})
	}
}

// atOnce bounds what must not wait for anything; machines may be busy.
const atOnce = 10 * time.Second

// waitAtOnce waits for a command that was started, and returns its status.
func waitAtOnce(t *testing.T, c *exec.Cmd) int {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		return exitStatus(err)
	case <-time.After(atOnce):
		_ = c.Process.Kill()
		t.Fatalf("%q hangs: %v", c.Args, <-ended)
		return -1
	}
}

// newPipe is a pipe whose ends a test closes when it likes, or at its end.
func newPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// startPiped starts a command whose standard output is a pipe, and returns the
// end to read. What it writes to its standard error is in the buffer once it has
// ended.
func startPiped(t *testing.T, c *exec.Cmd) (*os.File, *bytes.Buffer) {
	t.Helper()
	r, w := newPipe(t)
	stderr := &bytes.Buffer{}
	c.Stdout, c.Stderr = w, stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() { _ = c.Process.Kill() })
	return r, stderr
}

func TestStdin(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	socket := func(t *testing.T) (*os.File, *os.File) {
		t.Helper()
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, ours := os.NewFile(uintptr(pair[0]), "theirs"), os.NewFile(uintptr(pair[1]), "ours")
		t.Cleanup(func() { _ = theirs.Close(); _ = ours.Close() })
		return theirs, ours
	}
	for name, tt := range map[string]struct {
		stdin  func(t *testing.T) *os.File
		args   []string
		want   string
		status int
	}{
		"null": {func(*testing.T) *os.File { return nil }, []string{"--", "cat"}, "", 0},
		"file": {func(t *testing.T) *os.File {
			f, err := os.Open(writeFile(t, "first\nsecond\n"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			return f
		}, []string{"--", "cat"}, "first\nsecond\n", 0},
		"pipe with data": {func(t *testing.T) *os.File {
			r, w := newPipe(t)
			_, _ = w.WriteString("data")
			_ = w.Close()
			return r
		}, []string{"--", "cat"}, "data", 0},
		"open pipe, not read": {func(t *testing.T) *os.File {
			r, _ := newPipe(t)
			return r
		}, []string{"--", "echo", "done"}, "done\n", 0},
		// The control of the one before: what reads it waits.
		"open pipe, read": {func(t *testing.T) *os.File {
			r, w := newPipe(t)
			_, _ = w.WriteString("said")
			return r
		}, []string{"--timeout", "0.5", "--", "cat"}, "said", 124},
		"unix socket": {func(t *testing.T) *os.File {
			theirs, ours := socket(t)
			_, _ = ours.WriteString("by socket")
			_ = ours.Close()
			return theirs
		}, []string{"--", "cat"}, "by socket", 0},
		"open unix socket, not read": {func(t *testing.T) *os.File {
			theirs, _ := socket(t)
			return theirs
		}, []string{"--", "true"}, "", 0},
		"network socket": {connected, []string{"--", "cat"}, "", 125},
		// The control: it is the network that is refused.
		"network socket, with the network": {connected, []string{"-q", "--net", "host", "--", "cat"}, "by network", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := sbx(t, append([]string{"run"}, tt.args...)...)
			if f := tt.stdin(t); f != nil { // a nil *os.File in an io.Reader is not nil
				c.Stdin = f
			}
			out, stderr := startPiped(t, c)
			status := waitAtOnce(t, c)
			got, err := io.ReadAll(out)
			if string(got) != tt.want || err != nil || status != tt.status {
				t.Errorf("got %q, %v, status %d; want %q, %d\n%s", got, err, status, tt.want, tt.status, stderr)
			}
			nothingIn(t, c)
		})
	}
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// connected is a TCP connection that says "by network" and ends.
func connected(t *testing.T) *os.File {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Skipf("no network here: %v", err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Skipf("no network here: %v", err)
	}
	defer c.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(far, "by network")
	_ = far.Close()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestClosedStandardDescriptors: one that the caller closed is the null device,
// so that no file that the command opens takes its number.
func TestClosedStandardDescriptors(t *testing.T) {
	onBothWays(t, func(t *testing.T, run ...string) {
		for fd, closing := range []string{"<&-", ">&-", "2>&-"} {
			c := sbx(t)
			c.Path = "/bin/sh"
			c.Args = []string{"sh", "-c", "exec sbx " + strings.Join(run, " ") + " -- sh -c 'link=$(readlink /proc/$$/fd/" + strconv.Itoa(fd) + "); echo $link > link; cat; echo x; exit 3' " + closing}
			startPiped(t, c)
			if status := waitAtOnce(t, c); status != 3 {
				t.Errorf("%s: status %d", closing, status)
			}
			want := "/dev/null"
			if fd > 0 && len(run) > 1 {
				want = "pipe:"
			}
			if got, err := os.ReadFile(filepath.Join(c.Dir, "link")); err != nil || !strings.HasPrefix(string(got), want) {
				t.Errorf("%s is %q, %v", closing, got, err)
			}
		}
	})
}

// TestOffsetIsShared: a file is passed as it is, so what the command does not
// read is there for whoever reads next.
func TestOffsetIsShared(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	c := sbx(t)
	c.Path, c.Args = "/bin/sh", []string{"sh", "-c", "sbx run -- dd bs=6 count=1 status=none; echo; cat"}
	in, err := os.Open(writeFile(t, "first\nsecond\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c.Stdin = in
	if got, err := c.Output(); string(got) != "first\n\nsecond\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFullDisk: the command's own write fails, and its own status comes through.
// With a copy it writes to a pipe, which takes all; then sbx says it.
func TestFullDisk(t *testing.T) {
	onBothWays(t, func(t *testing.T, run ...string) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		defer full.Close()
		c := sbx(t, append(run, "--report", "r.json", "--", "sh", "-c", "echo x || exit 9")...)
		stderr := &bytes.Buffer{}
		c.Stdout, c.Stderr = full, stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		status := waitAtOnce(t, c)
		r := readReport(t, filepath.Join(c.Dir, "r.json"))
		if len(run) == 1 {
			if status != 9 || strings.Contains(stderr.String(), "sbx: ") || r.OutputLost != "" {
				t.Errorf("status %d, lost %q\n%s", status, r.OutputLost, stderr)
			}
			return
		}
		if status != 125 || !strings.HasPrefix(stderr.String(), "sbx: output was lost: ") || !strings.Contains(r.OutputLost, "no space left") ||
			r.Outcome.ExitStatus() != 0 || r.ExitStatus != 125 {
			t.Errorf("status %d, lost %q\n%s", status, r.OutputLost, stderr)
		}
	})
}

// TestEveryByte: 64 MiB of random bytes arrive as they were.
func TestEveryByte(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	ws := t.TempDir()
	file, err := os.Create(filepath.Join(ws, "random"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sent := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(file, sent), rand.NewChaCha8([32]byte{}), 64<<20); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x", sent.Sum(nil))
	for name, run := range map[string][]string{"direct": {"run"}, "copied": {"run", "--idle-timeout", "1m"}} {
		for to, flags := range map[string][]string{"pipe": nil, "file": {"--stdout", "out"}} {
			t.Run(name+" to a "+to, func(t *testing.T) {
				c := sbx(t, append(append(run, flags...), "--", "cat", "random")...)
				c.Dir = ws
				out, stderr := startPiped(t, c)
				got := sha256.New()
				if _, err := io.Copy(got, out); err != nil {
					t.Fatal(err)
				}
				if status := waitAtOnce(t, c); status != 0 {
					t.Fatalf("status %d\n%s", status, stderr)
				}
				if to == "file" {
					f, err := os.Open(filepath.Join(ws, "out"))
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					if _, err := io.Copy(got, f); err != nil {
						t.Fatal(err)
					}
				}
				if h := fmt.Sprintf("%x", got.Sum(nil)); h != want {
					t.Errorf("the hash is %s, want %s", h, want)
				}
			})
		}
	}
}

// TestConversation: each byte arrives before the command goes on, for it goes on
// only when it is answered.
func TestConversation(t *testing.T) {
	onBothWays(t, func(t *testing.T, run ...string) {
		c := sbx(t, append(run, "--", "sh", "-c", `while printf '?' && read -r word; do printf '%s' "$word"; done; exit 4`)...)
		in, say := newPipe(t)
		c.Stdin = in
		out, stderr := startPiped(t, c)
		_ = in.Close()
		_ = out.SetReadDeadline(time.Now().Add(atOnce))
		for i := range 100 {
			want := "?"
			if i > 0 {
				want = fmt.Sprintf("word%d?", i-1)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
				t.Fatalf("turn %d: %q, %v\n%s", i, got, err, stderr)
			}
			if _, err := fmt.Fprintf(say, "word%d\n", i); err != nil {
				t.Fatal(err)
			}
		}
		_ = say.Close()
		if status := waitAtOnce(t, c); status != 4 {
			t.Errorf("status %d", status)
		}
	})
}

// TestSlowReader: nothing is missing for one who takes longer than the command.
func TestSlowReader(t *testing.T) {
	onBothWays(t, func(t *testing.T, run ...string) {
		c := sbx(t, append(run, "--", "sh", "-c", "seq 300000; printf 'the end'")...)
		out, stderr := startPiped(t, c)
		var got bytes.Buffer
		for buf := make([]byte, 64<<10); ; time.Sleep(10 * time.Millisecond) {
			n, err := out.Read(buf)
			got.Write(buf[:n])
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if status := waitAtOnce(t, c); status != 0 || stderr.Len() > 0 {
			t.Errorf("status %d\n%s", status, stderr)
		}
		var want bytes.Buffer
		for i := range 300000 {
			want.WriteString(strconv.Itoa(i + 1))
			want.WriteByte('\n')
		}
		want.WriteString("the end")
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%d of %d bytes, or others", got.Len(), want.Len())
		}
	})
}

// TestReaderLeaves: a command whose reader goes away ends as it does alone, by
// SIGPIPE, and sbx has nothing to say.
func TestReaderLeaves(t *testing.T) {
	leave := func(t *testing.T, c *exec.Cmd) (status int, stderr string) {
		t.Helper()
		out, errs := startPiped(t, c)
		if _, err := io.ReadFull(out, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		_ = out.Close()
		return waitAtOnce(t, c), errs.String()
	}
	t.Run("the control", func(t *testing.T) {
		c := exec.Command("yes")
		leave(t, c)
		if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != unix.SIGPIPE {
			t.Errorf("yes alone: %v", c.ProcessState)
		}
	})
	onBothWays(t, func(t *testing.T, run ...string) {
		c := sbx(t, append(run, "--report", "r.json", "--", "yes")...)
		if status, stderr := leave(t, c); status != 141 || stderr != "" {
			t.Errorf("status %d\n%s", status, stderr)
		}
		if r := readReport(t, filepath.Join(c.Dir, "r.json")); r.Outcome.SignalName != "SIGPIPE" || r.OutputLost != "" {
			t.Errorf("outcome %+v, lost %q", r.Outcome, r.OutputLost)
		}
		nothingIn(t, c)
	})
}

// TestNobodyReadsMessages: what sbx itself has to say to nobody ends nothing.
func TestNobodyReadsMessages(t *testing.T) {
	onBothWays(t, func(t *testing.T, run ...string) {
		r, w := newPipe(t)
		_ = r.Close()
		c := sbx(t, append(run, "-v", "--report", "r.json", "--", "sh", "-c", "exit 6")...)
		c.Stdout, c.Stderr = w, w
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if status := waitAtOnce(t, c); status != 6 {
			t.Errorf("status %d", status)
		}
		readReport(t, filepath.Join(c.Dir, "r.json"))
		nothingIn(t, c)
	})
}

// TestReaderDoesNotRead: the command waits for it as it would alone, in the
// memory of sbx nothing grows, and sbx ends when somebody wants it to.
func TestReaderDoesNotRead(t *testing.T) {
	const block = 64 << 10
	counting := fmt.Sprintf("n=0; while printf '%%%ds' x; do n=$((n+1)); echo $n > written; done", block)
	onBothWays(t, func(t *testing.T, run ...string) {
		c := sbx(t, append(run, "--", "sh", "-c", counting)...)
		out, stderr := startPiped(t, c)
		written := func() int {
			text, _ := os.ReadFile(filepath.Join(c.Dir, "written"))
			n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			return n
		}
		// It fills two pipes of 64 KiB and the copy's buffer, at most.
		n := still(t, written)
		if n > 64 {
			t.Errorf("%d KiB were taken that nobody read", n*block>>10)
		}
		if peak := peakMemory(t, c.Process.Pid); peak > 100<<20 {
			t.Errorf("sbx takes %d MiB", peak>>20)
		}
		// The control: it is the reader that it waits for.
		if _, err := io.CopyN(io.Discard, out, 10*block); err != nil {
			t.Fatal(err)
		}
		if now := still(t, written); now < n+9 {
			t.Errorf("%d blocks were written before they were read, and %d afterwards", n, now)
		}
		// Nobody reads what is left, and sbx ends nevertheless.
		_ = c.Process.Signal(unix.SIGTERM)
		if status := waitAtOnce(t, c); status != 143 {
			t.Errorf("status %d\n%s", status, stderr)
		}
		if lost := strings.Contains(stderr.String(), "output was lost"); lost != (len(run) > 1) {
			t.Errorf("it says %q", stderr)
		}
		nothingIn(t, c)
	})
}

// still waits until a number grows no more.
func still(t *testing.T, number func() int) int {
	t.Helper()
	last, since := -1, time.Now()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if n := number(); n != last || n == 0 {
			last, since = n, time.Now()
		} else if time.Since(since) > 400*time.Millisecond {
			return n
		}
	}
	t.Fatalf("it grows and grows: %d", last)
	return last
}

// peakMemory is VmHWM of proc_pid_status(5), in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatalf("no VmHWM in %q", status)
	}
	return kib << 10
}

// TestTimeIsUpForReader: what bounds the command bounds the wait for its reader,
// whoever of the two is slow.
func TestTimeIsUpForReader(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	for name, tt := range map[string]struct {
		command []string
		status  int
	}{
		"the command goes on": {[]string{"yes"}, 124},
		"the command ended":   {[]string{"seq", "15000"}, 125}, // more than one pipe holds, and less than two
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := sbx(t, append([]string{"run", "--idle-timeout", "1m", "--timeout", "0.5", "--grace", "0", "--"}, tt.command...)...)
			_, stderr := startPiped(t, c)
			if status := waitAtOnce(t, c); status != tt.status || !strings.Contains(stderr.String(), "output was lost: its reader did not take it in time") {
				t.Errorf("status %d\n%s", status, stderr)
			}
			nothingIn(t, c)
		})
	}
}

// TestReaderIsNotIdleness: a command that waits for its reader is not idle.
func TestReaderIsNotIdleness(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	c := sbx(t, "run", "--idle-timeout", "1", "--", "seq", "50000") // more than two pipes hold
	out, stderr := startPiped(t, c)
	time.Sleep(2200 * time.Millisecond)
	got, err := io.ReadAll(out)
	if status := waitAtOnce(t, c); status != 0 || err != nil || !bytes.HasSuffix(got, []byte("\n50000\n")) {
		t.Errorf("status %d, %d bytes, %v\n%s", status, len(got), err, stderr)
	}
}
