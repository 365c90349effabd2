package daemon

import (
	"errors"
	"os"
	"testing"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/run"
	"sandboxd/policy"
)

// TestCanceledBeforeStart: a launch that is canceled between its plan and its start
// leaves no descriptor open.
func TestCanceledBeforeStart(t *testing.T) {
	needLandlock(t)
	dir := t.TempDir()
	p, err := policy.New(policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: dir, Cwd: dir,
		Grants: []policy.Grant{{Path: policy.Raw(dir), Kind: policy.Tree, Access: policy.Read | policy.Write, Reason: "workspace"}, {Path: "/usr", Kind: policy.Tree, Access: policy.Read | policy.Exec, Reason: "system"}},
		Env:    []string{"PATH=/usr/bin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	canceled := errors.New("canceled")
	once := func() {
		reached := false
		r, _ := run.Execute(run.Options{
			Policy: p, Argv: []string{"true"}, Backends: []backend.Backend{landlock.New(landlock.Options{})}, Stdin: null, Stdout: null, Stderr: null,
			BeforeStart: func(*backend.Command, backend.Enforcement) error { reached = true; return canceled },
		})
		if r.Ran || !reached {
			t.Fatalf("it ran: %v, it was asked: %v", r.Ran, reached)
		}
	}
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	once()
	before := count()
	for range 20 {
		once()
	}
	if now := count(); now > before+2 {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}
