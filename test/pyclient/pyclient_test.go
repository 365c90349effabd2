// Package pyclient holds a client of sandboxd in another language, written from
// docs/protocol.md alone, and what it tries: check.py runs against any daemon.
// Here it meets a peer that is made with package protocol.
package pyclient

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/internal/listen"
)

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	if out, err := exec.Command(path, "-c", "import socket; socket.send_fds").CombinedOutput(); err != nil {
		t.Skipf("python3 is older than 3.9: %s", out)
	}
	return path
}

// TestClientInPython: a client that knows the page alone, and a peer that knows
// the package alone, understand each other.
func TestClientInPython(t *testing.T) {
	interpreter := python(t)
	p := newPeer(t)
	source, err := os.ReadFile("check.py")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^def check_(\w+)`).FindAllSubmatch(source, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 20 {
		t.Fatalf("only %d checks", len(names))
	}
	cmd := exec.Command(interpreter, "-B", "check.py", p.path)
	cmd.WaitDelay = time.Second
	done := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer done.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var ran []string
	for line := range strings.Lines(string(out)) {
		ran = append(ran, strings.TrimPrefix(strings.TrimSpace(line), "ok "))
	}
	if !slices.Equal(ran, names) {
		t.Errorf("ran %v\nwant %v", ran, names)
	}
	if n := p.greased.Load(); n < 100 {
		t.Errorf("the peer sent grease only %d times", n)
	}
	if n := p.ignored.Load(); n < 50 {
		t.Errorf("the client sent grease only %d times", n)
	}
}

// TestProgramInPython: the client as a program hands its own descriptors over.
func TestProgramInPython(t *testing.T) {
	interpreter := python(t)
	p := newPeer(t)
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte("a line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	cmd := exec.Command(interpreter, "-B", "sbxclient.py", "--", "sh", "-c", "cat; exit 5")
	cmd.Env = append(os.Environ(), "SANDBOXD_SOCKET="+p.path)
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 5 || string(out) != "a line\n" {
		t.Errorf("%v: %q", err, out)
	}
}

// TestPlaces: both clients look for a daemon at the same places, in the same order.
func TestPlaces(t *testing.T) {
	interpreter := python(t)
	home, run, open := t.TempDir(), t.TempDir(), t.TempDir()
	for dir, mode := range map[string]os.FileMode{home: 0o700, run: 0o700, open: 0o755} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, env := range []map[string]string{
		{},
		{"XDG_RUNTIME_DIR": run},
		{"XDG_RUNTIME_DIR": open},
		{"XDG_RUNTIME_DIR": "run"},
		{"XDG_STATE_HOME": home + "/s"},
		{"XDG_STATE_HOME": "s", "XDG_RUNTIME_DIR": run},
		{"SANDBOXD_SOCKET": "/told", "XDG_RUNTIME_DIR": run},
	} {
		for _, name := range []string{"XDG_RUNTIME_DIR", "XDG_STATE_HOME", listen.EnvSocket} {
			t.Setenv(name, env[name])
		}
		t.Setenv("HOME", home)
		cmd := exec.Command(interpreter, "-B", "-c", "import sbxclient; print('\\n'.join(sbxclient.candidates()))")
		out, err := cmd.Output()
		if want := strings.Join(listen.Candidates(), "\n"); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%v: %v\n%s\nwant\n%s", env, err, out, want)
		}
	}
}
