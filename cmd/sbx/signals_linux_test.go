package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandboxd/report"

	"sandboxd/backend/landlock"
)

// The tests here start the real command line as a process of its own, in a
// session of its own: what terminal the tests run on does not matter.

func needLandlock(t *testing.T) {
	t.Helper()
	if !landlockUsable() {
		t.Skip("this kernel has no Landlock")
	}
}

func needProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s", name)
	}
}

// sbx returns a command line in a new workspace, with a new home.
func sbx(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command("sbx", args...)
	c.Dir = t.TempDir()
	c.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), "LANG=C.UTF-8", "TERM=dumb", "PS1=$ ", "GORACE=" + raceOptions}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c
}

// counting is a script that counts signals until it is told to stop on stdin.
const counting = `n=0; trap 'n=$((n+1)); echo "got=$n."' %s; echo ready
while ! [ -e stop ]; do sleep 0.02; done
sleep 0.2; echo "count=$n."; exit 5`

func TestSignalsArriveOnce(t *testing.T) {
	needLandlock(t)
	for _, tty := range []string{"--tty=false", "--tty=true"} {
		for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2} {
			t.Run(unix.SignalName(sig)+tty, func(t *testing.T) {
				t.Parallel()
				c := sbx(t, "run", tty, "--", "sh", "-c", fmt.Sprintf(counting, strings.TrimPrefix(unix.SignalName(sig), "SIG")))
				out := start(t, c)
				out.waitFor(t, "ready")
				for n := range 2 { // one after the other: equal signals do not queue
					if err := c.Process.Signal(sig); err != nil {
						t.Fatal(err)
					}
					out.waitFor(t, fmt.Sprintf("got=%d.", n+1))
				}
				time.Sleep(100 * time.Millisecond) // for one too many
				stop(t, c)
				out.waitFor(t, "count=2.")
				if got := exitStatus(c.Wait()); got != 5 {
					t.Errorf("status %d, want 5", got)
				}
			})
		}
	}
}

// TestSignalsAtOnce: a signal that comes as soon as the command runs reaches
// it, too. It must not end sbx, which would leave its directories behind.
func TestSignalsAtOnce(t *testing.T) {
	needLandlock(t)
	for range 5 {
		c := sbx(t, "run", "--", "sh", "-c", fmt.Sprintf(counting, "TERM"))
		out := start(t, c)
		out.waitFor(t, "ready")
		if err := c.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "got=1.")
		stop(t, c)
		if got := exitStatus(c.Wait()); got != 5 {
			t.Errorf("status %d, want 5", got)
		}
		out.waitFor(t, "count=1.")
		nothingIn(t, c)
	}
}

// TestSetUpEndsOnSignal: a set-up that waits for something (here a FIFO that
// nobody reads) is refused, or ends when somebody asks it to.
func TestSetUpEndsOnSignal(t *testing.T) {
	needLandlock(t)
	c := sbx(t, "run", "--stdout", "fifo", "--", "true")
	if err := unix.Mkfifo(filepath.Join(c.Dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, c)
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	time.Sleep(300 * time.Millisecond)
	_ = c.Process.Signal(unix.SIGTERM) // it may have ended
	select {
	case err := <-ended:
		if exitStatus(err) == 0 {
			t.Error("the command ran")
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on after SIGTERM")
		_ = c.Process.Kill()
		<-ended
	}
	nothingIn(t, c)
}

func stop(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.Dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSignalEndsCommand: a command that does not catch it dies of it, and that
// is what sbx tells.
func TestSignalEndsCommand(t *testing.T) {
	needLandlock(t)
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		c := sbx(t, "run", "--report", "r.json", "--", "sh", "-c", "echo ready; exec sleep 60")
		out := start(t, c)
		out.waitFor(t, "ready")
		time.Sleep(200 * time.Millisecond) // the exec
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := exitStatus(c.Wait()); got != 128+int(sig) {
			t.Errorf("%s: status %d", unix.SignalName(sig), got)
		}
		r := readReport(t, filepath.Join(c.Dir, "r.json"))
		if r.Outcome.SignalName != unix.SignalName(sig) {
			t.Errorf("%s: outcome %+v", unix.SignalName(sig), r.Outcome)
		}
		nothingIn(t, c)
	}
}

func readReport(t *testing.T, file string) report.Report {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := validJSON("report", text); err != nil {
		t.Error(err)
	}
	var r report.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// nothingIn wants that the command's TMPDIR is empty again.
func nothingIn(t *testing.T, c *exec.Cmd) {
	t.Helper()
	for _, kv := range c.Env {
		if dir, ok := strings.CutPrefix(kv, "TMPDIR="); ok {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left in TMPDIR: %v, %v", left, err)
			}
		}
	}
}

// TestIgnoredSignalStaysIgnored: nohup(1) means the command, too.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	needLandlock(t)
	c := sbx(t)
	c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `trap '' HUP; exec sbx run -- sh -c 'echo ready; while ! [ -e stop ]; do sleep 0.02; done; exit 5'`}
	out := start(t, c)
	out.waitFor(t, "ready")
	if err := c.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	stop(t, c)
	if got := exitStatus(c.Wait()); got != 5 {
		t.Errorf("status %d, want 5", got)
	}
}

// TestBackgroundChildDoesNotHangCaller: what the command leaves behind is
// ended, so the caller's pipe closes.
func TestBackgroundChildDoesNotHangCaller(t *testing.T) {
	onBothWays(t, func(t *testing.T, run ...string) {
		for _, mode := range []string{"workspace-write", "danger-full-access"} {
			for _, how := range []string{"sleep 300 &", "setsid sleep 300 &", "(trap '' TERM HUP; exec sleep 300) &", "sleep 300 & kill -STOP $!"} {
				mark := fmt.Sprintf("300.%d", rand.Uint32())
				c := sbx(t, append(run, "-q", "--mode", mode, "--", "sh", "-c", strings.ReplaceAll(how, "300", mark)+"\necho $!")...)
				began := time.Now()
				got, err := c.Output()
				if err != nil || time.Since(began) > 5*time.Second {
					t.Errorf("%s, %q: %v after %v", mode, how, err, time.Since(began))
				}
				// setsid(1) forks only as a group's leader, which this child is not.
				if _, perr := strconv.Atoi(strings.TrimSpace(string(got))); perr != nil || len(running(mark)) > 0 {
					t.Errorf("%s, %q: process %q lives on", mode, how, got)
				}
				nothingIn(t, c)
			}
		}
	})
}

// transcript collects what a process writes.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
	end  bool
}

func (x *transcript) collect(r io.Reader) {
	buf := bufio.NewReader(r)
	for {
		b, err := buf.ReadByte()
		x.mu.Lock()
		if err != nil {
			x.end = true
			x.mu.Unlock()
			return
		}
		x.text.WriteByte(b)
		x.mu.Unlock()
	}
}

// waitFor waits until the text holds want, and returns what came up to then.
func (x *transcript) waitFor(t *testing.T, want string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		x.mu.Lock()
		text, end := x.text.String(), x.end
		if i := strings.Index(text, want); i >= 0 {
			x.text.Next(i + len(want))
			x.mu.Unlock()
			return text[:i+len(want)]
		}
		x.mu.Unlock()
		if end || time.Now().After(deadline) {
			t.Fatalf("%q did not come; got %q", want, text)
		}
	}
}

// rest waits for the end, and returns what nobody has waited for.
func (x *transcript) rest() string {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		x.mu.Lock()
		text, end := x.text.String(), x.end
		x.mu.Unlock()
		if end || time.Now().After(deadline) {
			return text
		}
	}
}

func start(t *testing.T, c *exec.Cmd) *transcript {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	x := &transcript{}
	go x.collect(r)
	t.Cleanup(func() { _ = c.Process.Kill(); r.Close() })
	return x
}

// onTerminal starts the command on a new terminal, of which it is the session's
// leader, and returns the other end. The variable CALLER has its name. prepare may
// change the terminal and the command before.
func onTerminal(t *testing.T, c *exec.Cmd, prepare ...func(worker *os.File)) (*os.File, *transcript) {
	t.Helper()
	master, worker, err := pty.Open()
	if err == nil {
		err = pty.Setsize(worker, &pty.Winsize{Rows: 33, Cols: 77, X: 770, Y: 660})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	c.Stdin, c.Stdout, c.Stderr = worker, worker, worker
	for _, p := range prepare {
		p(worker)
	}
	c.Env = append(c.Env, "CALLER="+worker.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	x := &transcript{}
	go x.collect(master)
	t.Cleanup(func() { _ = c.Process.Kill(); master.Close() })
	return master, x
}

func typeKeys(t *testing.T, master *os.File, keys string) {
	t.Helper()
	if _, err := master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// TestKeyboardSignalsArriveOnce: the terminal signals the whole foreground
// group, so sbx must not pass Ctrl-C and Ctrl-\ on as well.
func TestKeyboardSignalsArriveOnce(t *testing.T) {
	needLandlock(t)
	for key, name := range map[string]string{"\x03": "INT", "\x1c": "QUIT"} {
		c := sbx(t, "run", "--", "sh", "-c", fmt.Sprintf(counting, name))
		master, out := onTerminal(t, c)
		out.waitFor(t, "ready")
		for n := range 2 {
			typeKeys(t, master, key)
			out.waitFor(t, fmt.Sprintf("got=%d.", n+1))
		}
		time.Sleep(100 * time.Millisecond)
		stop(t, c)
		out.waitFor(t, "count=2.")
		if got := exitStatus(c.Wait()); got != 5 {
			t.Errorf("%s: status %d, want 5", name, got)
		}
	}
}

// TestTerminalIsTheCommands: the command sees the terminal as it is.
func TestTerminalIsTheCommands(t *testing.T) {
	needLandlock(t)
	// With namespaces terminals of the host's have no names inside.
	for _, backend := range confining() {
		c := sbx(t, "run", "--backend", backend, "--", "sh", "-c", `test -t 0 && test -t 1 && test -t 2 && : </dev/tty && stty size && echo name=$(tty).`)
		_, out := onTerminal(t, c)
		out.waitFor(t, "33 77")
		out.waitFor(t, map[string]string{landlock.Name: "name=/dev/pts/", landlock.NativeName: "name=not a tty."}[backend])
		if got := exitStatus(c.Wait()); got != 0 {
			t.Errorf("%s: status %d", backend, got)
		}
	}
}

// TestJobControl: Ctrl-Z stops sbx and its command together, fg continues both.
func TestJobControl(t *testing.T) {
	needLandlock(t)
	needProgram(t, "bash")
	c := sbx(t)
	c.Path, c.Args = "/bin/bash", []string{"bash", "--norc", "--noprofile", "--noediting", "-i"}
	if p, err := exec.LookPath("bash"); err == nil {
		c.Path = p
	}
	master, out := onTerminal(t, c)
	out.waitFor(t, "$ ")
	typeKeys(t, master, "stty -echo\n")
	out.waitFor(t, "$ ")
	typeKeys(t, master, `sbx run -- sh -c 'echo be''gun; read -r line; echo "li""ne=$line."; exit 5'`+"\n")
	out.waitFor(t, "begun")
	typeKeys(t, master, "\x1a")
	out.waitFor(t, "Stopped")
	typeKeys(t, master, "jobs; echo jo''bs-told\n")
	out.waitFor(t, "Stopped")
	out.waitFor(t, "jobs-told")
	typeKeys(t, master, "fg\n")
	out.waitFor(t, "sbx run")
	time.Sleep(200 * time.Millisecond)
	typeKeys(t, master, "hello\n")
	out.waitFor(t, "line=hello.")
	typeKeys(t, master, "echo st''atus=$?.\n")
	out.waitFor(t, "status=5.")
	// In the background, where it does not read, it goes on by itself.
	typeKeys(t, master, "sbx run -- sh -c 'echo by''itself; exit 6' & wait $!; echo bg''=$?.\n")
	out.waitFor(t, "byitself")
	out.waitFor(t, "bg=6.")
	// So does one with a terminal of its own, which leaves the caller's alone then.
	typeKeys(t, master, "sbx run --tty -- sh -c 'echo on''itsown; exit 7' & wait $!; echo bg''=$?.\n")
	out.waitFor(t, "onitsown")
	out.waitFor(t, "bg=7.")
	typeKeys(t, master, "sbx run --tty -- sh -c 'stty -a; echo be''gan; cat' &\n")
	out.waitFor(t, " icanon ")
	out.waitFor(t, " echo ")
	out.waitFor(t, "began")
	typeKeys(t, master, "fg\n")
	eventually(t, "raw", func() bool { return isRaw(settings(t, master)) })
	typeKeys(t, master, "to cat\r")
	out.waitFor(t, "to cat\r\nto cat\r\n")
	typeKeys(t, master, "\x04")
	out.waitFor(t, "$ ")
	typeKeys(t, master, "exit\n")
	_ = c.Wait()
}
