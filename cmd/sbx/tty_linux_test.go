package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/policy"
)

func init() {
	programs["tty-size"] = tellSizes
	programs["tty-shell"] = jobShell
}

// tellSizes is a worker that tells its terminal's size, and again whenever it is
// told to paint.
func tellSizes() {
	told := make(chan os.Signal, 8)
	signal.Notify(told, unix.SIGWINCH)
	for n := 0; ; n++ {
		size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("paint %d: %d by %d, %d by %d.\n", n, size.Row, size.Col, size.Xpixel, size.Ypixel)
		<-told
	}
}

// jobShell is the least that a shell with job control does: it runs its arguments
// as a job in the foreground, says when the job has stopped, and continues it when
// it is told to (SIGUSR1). It leaves the terminal's modes alone.
func jobShell() {
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGUSR1)
	signal.Ignore(unix.SIGTTOU)
	c := exec.Command(os.Args[1], os.Args[2:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Foreground: true, Ctty: 0}
	if err := c.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("job %d.\n", c.Process.Pid)
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(c.Process.Pid, &ws, unix.WUNTRACED, nil); err == unix.EINTR {
			continue
		} else if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if !ws.Stopped() {
			os.Exit(ws.ExitStatus())
		}
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, os.Getpid())
		fmt.Printf("stopped by %s.\n", unix.SignalName(ws.StopSignal()))
		<-again
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, c.Process.Pid)
		_ = unix.Kill(-c.Process.Pid, unix.SIGCONT)
	}
}

// settings are those of the terminal whose master this is.
func settings(t *testing.T, master *os.File) unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

func isRaw(s unix.Termios) bool {
	return s.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG|unix.IEXTEN) == 0 && s.Oflag&unix.OPOST == 0 && s.Iflag&(unix.ICRNL|unix.IXON) == 0
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to this: %s", what)
		}
	}
}

var allModes = []string{"read-only", "workspace-write", "danger-full-access"}

// TestOwnTerminal: with --tty a worker leads a session whose terminal is a new one,
// which it can open again by both names. The control is a worker without.
func TestOwnTerminal(t *testing.T) {
	needLandlock(t)
	const script = `test -t 0 && test -t 1 && test -t 2 && : </dev/tty && : >/dev/tty && : <"$(tty)" && : >>"$(tty)" && echo reopened.
set -- $(cat /proc/$$/stat); echo "leads=$(test $1 = $5 && test $1 = $6 && test $1 = $8; echo $?)."
echo "name=$(tty)."; test "$(tty)" = "$CALLER"; echo "callers=$?."
for f in /proc/$$/fd/*; do ! readlink $f; done 2>/dev/null | sort | uniq -c; echo end.`
	for _, mode := range allModes {
		for _, own := range []bool{true, false} {
			args := []string{"run", "-q", "--env", "CALLER", "--mode", mode, "--report", filepath.Join(t.TempDir(), "r.json")}
			if !own && mode != "danger-full-access" { // with namespaces its terminal has no name inside
				args = slices.Insert(args, 1, "--backend", landlock.Name)
			}
			if own {
				args = append(args, "--tty")
			}
			c := sbx(t, append(args, "--", "sh", "-c", script)...)
			_, out := onTerminal(t, c)
			out.waitFor(t, "reopened.")
			out.waitFor(t, map[bool]string{true: "leads=0.", false: "leads=1."}[own])
			name := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(out.waitFor(t, "/dev/pts/")+out.waitFor(t, ".")), "name="), ".")
			out.waitFor(t, map[bool]string{true: "callers=1.", false: "callers=0."}[own])
			if list := strings.Fields(strings.TrimSuffix(out.waitFor(t, "end."), "end.")); len(list) != 2 || list[0] != "3" || list[1] != name {
				t.Errorf("%s, %v: its descriptors are %q, its terminal is %q", mode, own, list, name)
			}
			if got := exitStatus(c.Wait()); got != 0 {
				t.Errorf("%s, %v: status %d", mode, own, got)
			}
			r := readReport(t, args[len(args)-1-map[bool]int{true: 1}[own]])
			if r.TTY != own {
				t.Errorf("%s: the report says tty: %v", mode, r.TTY)
			}
			want := backend.Partial
			switch {
			case mode == "danger-full-access":
				want = backend.NotRequested
			case own:
				want = backend.Enforced
			}
			if got := r.Effects[policy.TTYInject]; got.Status != want {
				t.Errorf("%s, %v: tty.inject is %+v", mode, own, got)
			}
			nothingIn(t, c)
		}
	}
}

// TestCallersTerminalIsOutOfReach: what a confined worker with --tty cannot do to
// its caller's terminal, one without can.
func TestCallersTerminalIsOutOfReach(t *testing.T) {
	needLandlock(t)
	for name, attempt := range map[string]struct {
		script string
		done   func(said string, now unix.Termios) bool
	}{
		"write":    {`echo reach''ed >>$CALLER`, func(said string, _ unix.Termios) bool { return strings.Contains(said, "reached") }},
		"settings": {`stty intr ^G <$CALLER`, func(_ string, now unix.Termios) bool { return now.Cc[unix.VINTR] == 7 }},
		"open":     {`(exec 3<>$CALLER) && echo op''ened`, func(said string, _ unix.Termios) bool { return strings.Contains(said, "opened") }},
		"session":  {`setsid -w sh -c 'exec <$CALLER && echo ta''ken' `, func(said string, _ unix.Termios) bool { return strings.Contains(said, "taken") }},
	} {
		for _, mode := range []string{"read-only", "workspace-write"} {
			for _, own := range []bool{true, false} {
				args := []string{"run", "-q", "--env", "CALLER", "--mode", mode, "--", "sh", "-c", attempt.script + `; echo "status=$?."`}
				if own {
					args = append([]string{"run", "--tty"}, args[1:]...)
				} else { // with namespaces it is out of reach as well
					args = append([]string{"run", "--backend", landlock.Name}, args[1:]...)
				}
				c := sbx(t, args...)
				master, out := onTerminal(t, c)
				said := out.waitFor(t, "status=") + out.waitFor(t, ".")
				if got := attempt.done(said, settings(t, master)); got == own {
					t.Errorf("%s, %s, --tty %v: it is done: %v, and said %q", name, mode, own, got, said)
				}
				// With namespaces it is not there, and nothing can be made in its place.
				denied := strings.Contains(said, "Permission denied") || strings.Contains(said, "No such file") || strings.Contains(said, "Read-only file system")
				if denied != own {
					t.Errorf("%s, %s, --tty %v: %q", name, mode, own, said)
				}
				_ = c.Wait()
			}
		}
	}
}

// TestNewTerminals: with --tty a worker makes no terminals, as it could open its
// user's then; it does where that is accepted by name, and the report says so.
func TestNewTerminals(t *testing.T) {
	needLandlock(t)
	needProgram(t, "script")
	for _, name := range confining() {
		for _, accept := range []bool{false, true} {
			args := []string{"run", "-q", "--tty", "--backend", name, "--env", "CALLER", "--report", "r.json"}
			if accept {
				args = append(args, "--allow-gap", "tty.inject")
			}
			c := sbx(t, append(args, "--", "sh", "-c", `script -qec 'test -t 0 && echo ma''de' /dev/null; (: <>$CALLER) && echo rea''ched; echo end.`)...)
			_, out := onTerminal(t, c)
			said := out.waitFor(t, "end.")
			// With namespaces those that it makes are its own.
			reached := accept && name == landlock.Name
			if strings.Contains(said, "made") != accept || strings.Contains(said, "reached") != reached {
				t.Errorf("%s, accepted %v: %q", name, accept, said)
			}
			_ = c.Wait()
			want := map[bool]backend.Status{true: backend.Partial, false: backend.Enforced}[reached]
			if got := readReport(t, filepath.Join(c.Dir, "r.json")).Effects[policy.TTYInject]; got.Status != want {
				t.Errorf("%s, accepted %v: tty.inject is %+v", name, accept, got)
			}
		}
	}
}

// TestCallersTerminalIsGivenBack: it is raw while the worker runs, and as it was
// afterwards, however that ends. The worker's has the settings that it had.
func TestCallersTerminalIsGivenBack(t *testing.T) {
	needLandlock(t)
	const waits = `echo ready.; while ! [ -e stop ]; do sleep 0.02; done; exit 5`
	type ending struct {
		script string
		sig    syscall.Signal // sent to sbx
		status int
	}
	endings := map[string]ending{
		"exit":            {waits, 0, 5},
		"killed":          {`echo ready.; while ! [ -e stop ]; do sleep 0.02; done; kill -KILL $$`, 0, 137},
		"left raw":        {`stty raw -echo; ` + waits, 0, 5},
		"hung up":         {waits, unix.SIGHUP, 129},
		"interrupted":     {waits, unix.SIGINT, 130},
		"quit":            {waits, unix.SIGQUIT, 131},
		"terminated":      {waits, unix.SIGTERM, 143},
		"after its grace": {`trap '' TERM; ` + waits, unix.SIGTERM, 137},
	}
	for _, sig := range []syscall.Signal{unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS, unix.SIGTRAP} {
		endings["sbx dies of "+unix.SignalName(sig)] = ending{waits, sig, -1}
	}
	for name, e := range endings {
		t.Run(name, func(t *testing.T) {
			c := sbx(t, "run", "-q", "--grace", "0.3", "--tty", "--", "sh", "-c", "stty -a; "+e.script)
			before := unix.Termios{}
			master, out := onTerminal(t, c, func(worker *os.File) {
				s, err := unix.IoctlGetTermios(int(worker.Fd()), unix.TCGETS)
				if err != nil {
					t.Fatal(err)
				}
				s.Cc[unix.VINTR], s.Iflag = 7, s.Iflag|unix.IUTF8 // not what new ones have
				if err := unix.IoctlSetTermios(int(worker.Fd()), unix.TCSETS, s); err != nil {
					t.Fatal(err)
				}
				before = *s
			})
			out.waitFor(t, "intr = ^G")
			out.waitFor(t, " iutf8")
			out.waitFor(t, "ready.")
			if now := settings(t, master); !isRaw(now) {
				t.Errorf("it is not raw: %+v", now)
			}
			if e.sig != 0 {
				_ = c.Process.Signal(e.sig)
			} else {
				stop(t, c)
			}
			if got := exitStatus(c.Wait()); got != e.status {
				t.Errorf("status %d, want %d", got, e.status)
			}
			if now := settings(t, master); now != before {
				t.Errorf("it is %+v, was %+v", now, before)
			}
			if e.status == -1 { // it could not tidy up; its guard does, or the next run
				next := sbx(t, "run", "--", "true")
				next.Env = c.Env
				if out, err := next.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				waitUntil(t, "the end of the private temp", func() bool {
					left, err := os.ReadDir(temp(c))
					return err == nil && len(left) == 0
				})
			}
			nothingIn(t, c)
		})
	}
}

// TestFailedLaunchGivesTheTerminalBack: also where nothing ran.
func TestFailedLaunchGivesTheTerminalBack(t *testing.T) {
	needLandlock(t)
	for _, mode := range []string{"workspace-write", "danger-full-access"} {
		c := sbx(t, "run", "-q", "--mode", mode, "--tty", "--report", "r.json", "--", "./no-program")
		if err := os.WriteFile(filepath.Join(c.Dir, "no-program"), make([]byte, 100), 0o755); err != nil {
			t.Fatal(err)
		}
		var before unix.Termios
		master, out := onTerminal(t, c, func(worker *os.File) { before = settings(t, worker) })
		out.waitFor(t, "sbx: hint: run a script by its interpreter")
		if got := exitStatus(c.Wait()); got != 126 {
			t.Errorf("status %d", got)
		}
		if now := settings(t, master); now != before {
			t.Errorf("it is %+v, was %+v", now, before)
		}
		if r := readReport(t, filepath.Join(c.Dir, "r.json")); r.Ran || r.TTY {
			t.Errorf("the report says ran: %v, tty: %v", r.Ran, r.TTY)
		}
		nothingIn(t, c)
	}
}

// TestKeysReachTheWorker: as bytes, which its terminal makes signals of. sbx gets
// none.
func TestKeysReachTheWorker(t *testing.T) {
	needLandlock(t)
	for key, name := range map[string]string{"\x03": "INT", "\x1c": "QUIT"} {
		c := sbx(t, "run", "--tty", "--", "sh", "-c", fmt.Sprintf(counting, name))
		master, out := onTerminal(t, c)
		out.waitFor(t, "ready")
		for n := range 2 {
			typeKeys(t, master, key)
			out.waitFor(t, fmt.Sprintf("got=%d.", n+1))
		}
		time.Sleep(100 * time.Millisecond) // for one too many
		stop(t, c)
		out.waitFor(t, "count=2.")
		if got := exitStatus(c.Wait()); got != 5 {
			t.Errorf("%s: status %d, want 5", name, got)
		}
	}
	c := sbx(t, "run", "--tty", "--", "sh", "-c", `stty raw -echo; echo ready; head -c 7 | od -An -tx1; echo end.`)
	master, out := onTerminal(t, c)
	out.waitFor(t, "ready")
	typeKeys(t, master, "\x03\x1a\x1c\x04\r\x11\x13")
	out.waitFor(t, "03 1a 1c 04 0d 11 13")
	out.waitFor(t, "end.")
	_ = c.Wait()
}

// TestJobControlInside: an interactive shell in the worker's terminal stops and
// continues its jobs, while sbx and its caller notice nothing.
func TestJobControlInside(t *testing.T) {
	needLandlock(t)
	needProgram(t, "bash")
	for _, mode := range []string{"workspace-write", "danger-full-access"} {
		c := sbx(t, "run", "-q", "--mode", mode, "--env", "PS1", "--tty", "--", "bash", "--norc", "--noprofile", "-i")
		master, out := onTerminal(t, c)
		out.waitFor(t, "$ ")
		typeKeys(t, master, "echo beg''un; cat\r")
		out.waitFor(t, "begun")
		typeKeys(t, master, "one\r")
		out.waitFor(t, "one\r\none")
		typeKeys(t, master, "\x1a")
		out.waitFor(t, "Stopped")
		out.waitFor(t, "$ ")
		typeKeys(t, master, "jobs; echo to''ld\r")
		out.waitFor(t, "Stopped")
		out.waitFor(t, "told")
		typeKeys(t, master, "fg\r")
		out.waitFor(t, "cat")
		typeKeys(t, master, "two\r")
		out.waitFor(t, "two\r\ntwo")
		typeKeys(t, master, "\x03")
		out.waitFor(t, "^C")
		out.waitFor(t, "$ ")
		typeKeys(t, master, "exit 7\r")
		if got := exitStatus(c.Wait()); got != 7 {
			t.Errorf("%s: status %d", mode, got)
		}
	}
}

// TestSizeIsPassedOn: at start, at each change, and in pixels, from whichever of
// the streams is a terminal.
func TestSizeIsPassedOn(t *testing.T) {
	needLandlock(t)
	for _, redirect := range []string{"", "</dev/null", "</dev/null 2>/dev/null", "</dev/null >file"} {
		c := sbx(t)
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", "exec sbx run -q --tty -- tty-size " + redirect}
		master, out := onTerminal(t, c)
		see := func(want string) {
			t.Helper()
			if !strings.Contains(redirect, ">file") {
				out.waitFor(t, want)
				return
			}
			eventually(t, want, func() bool {
				text, _ := os.ReadFile(filepath.Join(c.Dir, "file"))
				return bytes.Contains(text, []byte(want))
			})
		}
		see("paint 0: 33 by 77, 770 by 660.")
		for n, size := range []pty.Winsize{{Rows: 12, Cols: 200, X: 1, Y: 2}, {Rows: 12, Cols: 200, X: 1, Y: 3}, {Rows: 0, Cols: 0}} {
			if err := pty.Setsize(master, &size); err != nil {
				t.Fatal(err)
			}
			if size.Rows == 0 { // a terminal that does not know its size
				size = pty.Winsize{Rows: 24, Cols: 80}
			}
			see(fmt.Sprintf("paint %d: %d by %d, %d by %d.", n+1, size.Rows, size.Cols, size.X, size.Y))
		}
		_ = c.Process.Signal(unix.SIGTERM)
		_ = c.Wait()
	}
}

// TestStoppedFromOutside: whoever stops sbx finds the terminal as it was, and the
// worker paints its screen anew when sbx goes on.
func TestStoppedFromOutside(t *testing.T) {
	needLandlock(t)
	for _, sig := range []syscall.Signal{unix.SIGTSTP, unix.SIGSTOP} {
		c := sbx(t, "sbx", "run", "-q", "--tty", "--", "tty-size")
		if p, err := exec.LookPath("tty-shell"); err == nil {
			c.Path, c.Args[0] = p, "tty-shell"
		} else {
			t.Fatal(err)
		}
		var before unix.Termios
		master, out := onTerminal(t, c, func(worker *os.File) { before = settings(t, worker) })
		out.waitFor(t, "job ")
		job, err := strconv.Atoi(strings.TrimSuffix(out.waitFor(t, "."), "."))
		if err != nil {
			t.Fatal(err)
		}
		paint := 0
		for _, changed := range []bool{false, true} {
			out.waitFor(t, fmt.Sprintf("paint %d: ", paint))
			eventually(t, "raw", func() bool { return isRaw(settings(t, master)) })
			if err := unix.Kill(job, sig); err != nil {
				t.Fatal(err)
			}
			out.waitFor(t, "stopped by "+unix.SignalName(sig)+".")
			if now := settings(t, master); sig == unix.SIGTSTP && now != before {
				t.Errorf("it is %+v, was %+v", now, before)
			}
			// As a shell does that had it meanwhile.
			if err := unix.IoctlSetTermios(int(master.Fd()), unix.TCSETS, &before); err != nil {
				t.Fatal(err)
			}
			if changed {
				if err := pty.Setsize(master, &pty.Winsize{Rows: 7, Cols: 8}); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Process.Signal(unix.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			if changed {
				out.waitFor(t, ": 7 by 8, 0 by 0.")
			} else {
				paint++
			}
			eventually(t, "raw again", func() bool { return isRaw(settings(t, master)) })
		}
		_ = unix.Kill(job, unix.SIGTERM)
		if got := exitStatus(c.Wait()); got == 0 {
			t.Errorf("status %d", got)
		}
		if now := settings(t, master); now != before {
			t.Errorf("%s: in the end it is %+v, was %+v", unix.SignalName(sig), now, before)
		}
	}
}

// TestStopWithoutAShell: in an orphaned process group, where nobody could continue
// it, SIGTSTP stops sbx no more than any other program.
func TestStopWithoutAShell(t *testing.T) {
	needLandlock(t)
	c := sbx(t, "run", "-q", "--tty", "--", "tty-size")
	master, out := onTerminal(t, c)
	out.waitFor(t, "paint 0: ")
	if err := c.Process.Signal(unix.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "paint 1: ")
	eventually(t, "raw again", func() bool { return isRaw(settings(t, master)) })
	typeKeys(t, master, "\x03")
	if got := exitStatus(c.Wait()); got != 130 {
		t.Errorf("status %d", got)
	}
}

// TestOnlyOutputIsATerminal: its keys keep their meaning, and Ctrl-C reaches the
// worker by way of sbx. What the worker's terminal made of a line's end is not
// changed once more.
func TestOnlyOutputIsATerminal(t *testing.T) {
	needLandlock(t)
	c := sbx(t, "run", "-q", "--tty", "--", "sh", "-c", fmt.Sprintf(counting, "INT"))
	var before unix.Termios
	master, out := onTerminal(t, c, func(worker *os.File) {
		before = settings(t, worker)
		c.Stdin = strings.NewReader("")
	})
	if got := out.waitFor(t, "ready\r\n"); got != "ready\r\n" {
		t.Errorf("%q", got)
	}
	now := settings(t, master)
	if now.Oflag&unix.OPOST != 0 || now.Lflag != before.Lflag || now.Iflag != before.Iflag {
		t.Errorf("it is %+v, was %+v", now, before)
	}
	typeKeys(t, master, "\x03")
	out.waitFor(t, "got=1.")
	stop(t, c)
	out.waitFor(t, "count=1.")
	if got := exitStatus(c.Wait()); got != 5 {
		t.Errorf("status %d", got)
	}
	if now := settings(t, master); now != before {
		t.Errorf("in the end it is %+v, was %+v", now, before)
	}
}

// TestTerminalOutputIsWhole: whatever the worker writes up to its end arrives,
// however slowly it is read.
func TestTerminalOutputIsWhole(t *testing.T) {
	needLandlock(t)
	c := sbx(t, "run", "-q", "--tty", "--report", "r.json", "--", "sh", "-c", "stty -opost; head -c 2000000 /dev/urandom >data; cat data")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for n := 0; ; n++ {
		part := io.LimitReader(out, 64<<10)
		if k, err := io.Copy(&got, part); err != nil || k == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	want, err := os.ReadFile(filepath.Join(c.Dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes arrived of %d", got.Len(), len(want))
	}
	if u := readReport(t, filepath.Join(c.Dir, "r.json")).Usage; u == nil || u.BytesOut == nil || *u.BytesOut != int64(len(want)) {
		t.Errorf("the report's usage is %+v", u)
	}
}

// TestTerminalHoldsBack: a worker whose output nobody reads waits, and sbx keeps
// no more of it than its buffers.
func TestTerminalHoldsBack(t *testing.T) {
	needLandlock(t)
	c := sbx(t, "run", "-q", "--tty", "--", "sh", "-c",
		`i=0; while :; do printf '%010000d' 0; i=$((i+1)); echo $i >new; mv new written; done`)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdout = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	written := func() string {
		text, _ := os.ReadFile(filepath.Join(c.Dir, "written"))
		return strings.TrimSpace(string(text))
	}
	eventually(t, "the worker waits", func() bool {
		before := written()
		time.Sleep(time.Second)
		return before != "" && written() == before
	})
	// The pipe, one buffer, and what a terminal holds (pty.c: 8 KiB, n_tty.c: 4 KiB).
	if n, err := strconv.Atoi(written()); err != nil || n*10000 > 64<<10+64<<10+16<<10+10000 {
		t.Errorf("%d bytes were written, %v", n*10000, err)
	}
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, r)
	if least, _ := strconv.ParseInt(written(), 10, 64); err != nil || n < least*10000 {
		t.Errorf("%d bytes arrived of %d, %v", n, least*10000, err)
	}
	if got := exitStatus(c.Wait()); got != 143 {
		t.Errorf("status %d", got)
	}
}

// TestTerminalHolder: a process that is not the worker's and has opened its terminal
// does not keep the caller.
func TestTerminalHolder(t *testing.T) {
	needLandlock(t)
	c := sbx(t, "run", "-q", "--tty", "--report", "r.json", "--", "sh", "-c", "tty; echo .; while ! [ -e stop ]; do sleep 0.02; done; echo end.; exit 5")
	out := start(t, c)
	name := strings.Fields(out.waitFor(t, "\n"))[0]
	holder, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	stop(t, c)
	out.waitFor(t, "end.")
	if got := exitStatus(c.Wait()); got != 5 {
		t.Errorf("status %d", got)
	}
	if r := readReport(t, filepath.Join(c.Dir, "r.json")); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "holds its output open") {
		t.Errorf("warnings %q", r.Warnings)
	}
}

// TestTerminalReaderIsGone: the worker's terminal hangs up, sbx says nothing, and
// the report is written. Where the worker has a pipe it gets SIGPIPE, as without
// sbx.
func TestTerminalReaderIsGone(t *testing.T) {
	needLandlock(t)
	for flags, status := range map[string]int{"--tty": 129, "--idle-timeout 60": 141} {
		c := sbx(t, append(append([]string{"run", "--report", "r.json"}, strings.Fields(flags)...), "--", "yes")...)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		c.Stdout, c.Stderr = w, &said
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Error(err)
		}
		r.Close()
		if got := exitStatus(c.Wait()); got != status || said.Len() > 0 {
			t.Errorf("%s: status %d, and %q", flags, got, &said)
		}
		if rep := readReport(t, filepath.Join(c.Dir, "r.json")); rep.ExitStatus != status || len(rep.Warnings) > 0 {
			t.Errorf("%s: the report has status %d and warnings %q", flags, rep.ExitStatus, rep.Warnings)
		}
		nothingIn(t, c)
	}
}

// TestForegroundIsGivenBack: an interactive shell puts a group of its own into the
// terminal's foreground. However it ends, a script that called sbx goes on.
func TestForegroundIsGivenBack(t *testing.T) {
	needLandlock(t)
	needProgram(t, "bash")
	for _, tty := range []string{"", "--tty"} {
		for script, status := range map[string]string{"true": "0", "kill -KILL $$": "137", "sleep 60": "124"} {
			c := sbx(t)
			c.Path = "/bin/sh"
			c.Args = []string{"sh", "-c", `sbx run -q --timeout 2 --grace 0 ` + tty + ` -- bash --norc -ic '` + script + `'; echo "status=$?."; stty sane && echo usable.`}
			if script != "sleep 60" {
				c.Args[2] = strings.Replace(c.Args[2], "--timeout 2", "--timeout 60", 1)
			}
			_, out := onTerminal(t, c)
			out.waitFor(t, "status="+status+".")
			out.waitFor(t, "usable.")
			if got := exitStatus(c.Wait()); got != 0 {
				t.Errorf("%s: status %d", script, got)
			}
		}
	}
}

// TestTerminalOfAnExhaustedUser: a worker that leaves its user no process more does
// not take sbx along, whose work goes on with the threads that it has.
func TestTerminalOfAnExhaustedUser(t *testing.T) {
	needLandlock(t)
	needProgram(t, "python3")
	const hog = `
import os, sys, time
kids = []
while True:
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        while True: time.sleep(100)
    kids.append(pid)
print('exhausted', len(kids) > 3, flush=True)
for line in sys.stdin: print('heard', line.strip()); print('x' * 200000, flush=True)
print('end.', flush=True)
`
	c := withFewProcesses(t, "run", "-q", "--tty", "--", "python3", "-c", hog)
	keys, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := start(t, c)
	out.waitFor(t, "exhausted True")
	for n := range 5 {
		if _, err := fmt.Fprintln(keys, n); err != nil {
			t.Fatalf("%v: %v; it said %q", err, c.Wait(), out.rest())
		}
		out.waitFor(t, fmt.Sprintf("heard %d", n))
		if err := c.Process.Signal(unix.SIGWINCH); err != nil {
			t.Fatal(err)
		}
	}
	keys.Close()
	out.waitFor(t, "end.")
	if got := exitStatus(c.Wait()); got != 0 {
		t.Errorf("status %d", got)
	}
}
