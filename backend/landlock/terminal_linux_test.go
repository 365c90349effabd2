package landlock

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"

	"sandboxd/backend"
	"sandboxd/policy"
)

// TestTerminalIsTheWorkers: a worker opens its own terminal by name, although no
// grant covers it, and although it runs as another user. Without Command.Terminal
// that user has no right to it.
func TestTerminalIsTheWorkers(t *testing.T) {
	requireLandlock(t)
	users := map[string]*User{"the caller": nil}
	if os.Geteuid() == 0 {
		users["another user"] = &User{UID: 65534, GID: 65533}
	}
	for name, user := range users {
		for _, mode := range []policy.Mode{policy.ReadOnly, policy.WorkspaceWrite} {
			const script = `: <$(tty) && : >$(tty) && echo by_name.; : 2>&- </dev/tty && echo own.`
			got := onTerminal(t, user, mode, true, script)
			if got != "by_name.own." {
				t.Errorf("%s, %s: %q", name, mode, got)
			}
			if got := onTerminal(t, user, mode, false, script); strings.Contains(got, "own.") || user != nil && strings.Contains(got, "by_name.") {
				t.Errorf("%s, %s, a terminal that is not the worker's: %q", name, mode, got)
			}
		}
	}
}

// onTerminal runs a script on a new terminal, and returns what it says there.
func onTerminal(t *testing.T, user *User, mode policy.Mode, own bool, script string) string {
	t.Helper()
	ws := "/usr" // that every user may enter
	p := testPolicy(t, ws, func(s *policy.Spec) {
		s.Mode = mode
		s.Grants = append(s.Grants[1:], policy.Grant{Path: "/dev/tty", Kind: policy.File, Access: policy.Read | policy.Write | policy.Ioctl, Reason: "its own"})
	})
	plan, err := New(Options{User: user, Namespaces: native()}).Plan(p)
	if err != nil {
		t.Fatal(err)
	}
	if s := plan.Enforcement().State(policy.TTYInject); s.Status != backend.Enforced {
		t.Errorf("tty.inject is %+v", s)
	}
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := prepared.Close(); err != nil {
			t.Error(err)
		}
	}()
	master, worker, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	w, err := prepared.Start(backend.Command{
		Path: sh, Argv: []string{"sh", "-c", script}, Dir: dir, Stdin: worker, Stdout: worker, Stderr: worker, Terminal: own, OwnTree: true,
	})
	_ = worker.Close()
	if err != nil {
		t.Fatal(err)
	}
	w.Wait()
	said, _ := io.ReadAll(master) // up to EIO: the worker's end is closed
	return strings.Join(strings.Fields(string(said)), "")
}
