package launch

import (
	"errors"
	"os"
	"testing"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/policy"
)

// TestBoundsThatFail: a worker that cannot be bounded never runs, and the
// launcher is told at which step.
func TestBoundsThatFail(t *testing.T) {
	h := cgroup.Probe()
	defer h.Close()
	if !h.Kill.Can() || !h.Pids.Can() {
		t.Skipf("no cgroup can be had here: %s%s", h.Kill.Why, h.Pids.Why)
	}
	for _, ownTree := range []bool{false, true} {
		b, err := Bound(policy.Limits{Pids: 50}, Host{Groups: &h}, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.group.Remove(); err != nil { // so that nothing can be put in
			t.Fatal(err)
		}
		dir, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		ran := t.TempDir() + "/ran"
		_, err = Start(Request{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "echo > " + ran}, Dir: dir, OwnTree: ownTree, Bounds: b,
			Stdio: [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
		})
		var setup *backend.SetupError
		if !errors.As(err, &setup) || setup.Step != "limits" {
			t.Errorf("the error is %v", err)
		}
		if _, err := os.Lstat(ran); err == nil {
			t.Error("the worker ran")
		}
		if left := children(); len(left) > 0 {
			t.Errorf("children are left: %v", left)
		}
	}
}
