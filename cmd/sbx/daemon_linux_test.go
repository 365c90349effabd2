package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/daemon/daemontest"
)

// byDaemon is a command line that a daemon runs.
func byDaemon(t *testing.T, socket string, args ...string) *exec.Cmd {
	t.Helper()
	c := sbx(t, append([]string{"run", "--daemon", socket}, args...)...)
	return c
}

// TestTerminalByDaemon: a command has a terminal of its own, whose keys, screen and size
// are the caller's, which is given back.
func TestTerminalByDaemon(t *testing.T) {
	socket, _ := daemontest.Start(t)
	c := byDaemon(t, socket, "-q", "--tty", "--", "sh", "-c", `trap 'stty size; echo winch.' WINCH; trap 'echo int.; exit 3' INT; stty size; echo "$CALLER" $(tty); echo ready.; while :; do read x; echo "read:$x."; done`)
	master, out := onTerminal(t, c)
	out.waitFor(t, "33 77")
	if text := out.waitFor(t, "ready."); strings.Contains(text, " not a tty") {
		t.Errorf("%q", text)
	}
	if _, err := master.WriteString("typed\r"); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "read:typed.")
	if err := pty.Setsize(master, &pty.Winsize{Rows: 11, Cols: 22}); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "11 22")
	if _, err := master.WriteString("\x03"); err != nil { // Ctrl-C is the command's
		t.Fatal(err)
	}
	out.waitFor(t, "int.")
	if got := exitStatus(c.Wait()); got != 3 {
		t.Errorf("status %d", got)
	}
	// Input from a pipe comes to its end, also in the middle of a line.
	for _, in := range []string{"a line\n", "no line"} {
		c := byDaemon(t, socket, "-q", "--tty", "--", "cat")
		c.Stdin = strings.NewReader(in)
		text, err := c.Output()
		if got := strings.ReplaceAll(string(text), "\r", ""); err != nil || !strings.HasSuffix(got, in) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// TestSignalsByDaemon: what is sent to sbx comes to the command, and a killed sbx ends it,
// unless it is to be kept.
func TestSignalsByDaemon(t *testing.T) {
	socket, _ := daemontest.Start(t)
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		c := byDaemon(t, socket, "--", "sh", "-c", fmt.Sprintf("trap 'echo got.; exit 5' %s; echo ready.; while :; do sleep 0.01; done", strings.TrimPrefix(unix.SignalName(sig), "SIG")))
		out := start(t, c)
		out.waitFor(t, "ready.")
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "got.")
		if got := exitStatus(c.Wait()); got != 5 {
			t.Errorf("%v: status %d", sig, got)
		}
	}
	for _, keep := range []string{"--keep=false", "--keep=true"} {
		c := byDaemon(t, socket, keep, "--", "sh", "-c", "echo $$ > pid; exec sleep 300")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		pid := pidIn(t, filepath.Join(c.Dir, "pid"))
		_ = c.Process.Kill()
		_ = c.Wait()
		if keep == "--keep=false" {
			waitUntil(t, "the end of the command", func() bool { return gone(pid) })
			continue
		}
		ps := func(args ...string) string {
			text, err := sbx(t, append(args, "--daemon", socket)...).Output()
			if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			return string(text)
		}
		worker := strings.Fields(strings.Split(ps("ps"), "\n")[1])[0]
		if gone(pid) {
			t.Error("the command has ended with sbx")
		}
		if text := ps("inspect", worker); !strings.Contains(text, "kept") || !strings.Contains(text, "running") || !strings.Contains(text, "level    partial") {
			t.Errorf("%s", text)
		}
		ps("kill", "--grace", "0", worker)
		waitUntil(t, "the end of the kept command", func() bool { return gone(pid) })
		waitUntil(t, "its end in the list", func() bool { return strings.Contains(ps("ps", "--all"), "ended") })
		if text := ps("logs", worker); strings.Count(text, worker) != 2 || !strings.Contains(text, "canceled") {
			t.Errorf("%s", text)
		}
	}
	if text, err := sbx(t, "health", "--daemon", socket, "--json").Output(); err != nil || !strings.Contains(string(text), `"status": "ok"`) {
		t.Errorf("%s, %v", text, err)
	}
	for _, args := range [][]string{{"kill", "nosuch"}, {"inspect", "nosuch"}, {"logs", "nosuch"}, {"kill"}, {"inspect"}} {
		if got := exitStatus(sbx(t, append(args, "--daemon", socket)...).Run()); got != backend.StatusRefused {
			t.Errorf("%v: status %d", args, got)
		}
	}
}

// TestSilentDaemon: a daemon that does not answer is an error within --wait.
func TestSilentDaemon(t *testing.T) {
	dir, err := os.MkdirTemp("", "sbx-silent-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, command := range []string{"ls", "health"} {
		begin := time.Now()
		if got := exitStatus(sbx(t, command, "--daemon", filepath.Join(dir, "s"), "--wait", "0.2").Run()); got != backend.StatusRefused || time.Since(begin) > 10*time.Second {
			t.Errorf("%s: status %d after %v", command, got, time.Since(begin))
		}
	}
}

// notByDaemon are the scripts that do not run with a daemon, and why.
var notByDaemon = map[string]string{
	"audit":      "it runs nothing",
	"selection":  "what is explained is a launch of sbx itself",
	"leftovers":  "it looks into sbx's TMPDIR; a daemon has its own",
	"nolandlock": "it fakes sbx's kernel; a daemon has its own",
	"tty":        "the end of its input is a key there, once (docs/protocol.md): see TestTerminalByDaemon",
}

// TestScriptsByDaemon: what `sbx run` does it does with a daemon, too. The scripts are
// the same; what differs stands after the condition [daemon] in them.
func TestScriptsByDaemon(t *testing.T) {
	socket, _ := daemontest.Start(t)
	p := scripts()
	all, err := filepath.Glob(filepath.Join(p.Dir, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	p.Dir = ""
	without := maps.Clone(notByDaemon)
	for _, file := range all {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if _, left := without[name]; left {
			delete(without, name)
			continue
		}
		p.Files = append(p.Files, file)
	}
	if len(without) > 0 {
		t.Errorf("there are no scripts %v", slices.Sorted(maps.Keys(without)))
	}
	conditions := p.Condition
	p.Condition = func(cond string) (bool, error) {
		if cond == "daemon" {
			return true, nil
		}
		return conditions(cond)
	}
	p.Setup = func(e *testscript.Env) error {
		if err := setup(e); err != nil {
			return err
		}
		e.Setenv("SBX_DAEMON", socket)
		return nil
	}
	testscript.Run(t, p)
}
