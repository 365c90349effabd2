package backend

import (
	"testing"

	"sandboxd/policy"
)

func testPolicy(t *testing.T, change func(*policy.Spec)) policy.Policy {
	t.Helper()
	s := policy.Spec{Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w"}
	if change != nil {
		change(&s)
	}
	p, err := policy.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEnforcementMustBeComplete(t *testing.T) {
	good := func() map[policy.Effect]State {
		m := map[policy.Effect]State{}
		for _, e := range policy.Effects() {
			m[e] = State{Status: Enforced, By: []string{"x"}}
		}
		return m
	}
	for name, change := range map[string]func(map[policy.Effect]State){
		"a missing effect":         func(m map[policy.Effect]State) { delete(m, policy.FSRead) },
		"the zero status":          func(m map[policy.Effect]State) { m[policy.FSRead] = State{} },
		"enforced by nothing":      func(m map[policy.Effect]State) { m[policy.FSRead] = State{Status: Enforced} },
		"partial without a gap":    func(m map[policy.Effect]State) { m[policy.FSRead] = State{Status: Partial, By: []string{"x"}} },
		"unenforced without a gap": func(m map[policy.Effect]State) { m[policy.FSRead] = State{Status: Unenforced} },
	} {
		m := good()
		change(m)
		if _, err := NewEnforcement(m); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	e, err := NewEnforcement(good())
	if err != nil {
		t.Fatal(err)
	}
	p := testPolicy(t, nil)
	if e.Level(p) != LevelFull {
		t.Errorf("everything enforced is level %s", e.Level(p))
	}
	weaker := e.With(policy.ProcSee, State{Status: Partial, By: []string{"x"}, Gaps: []string{"g"}})
	if weaker.Level(p) != LevelPartial || e.Level(p) != LevelFull {
		t.Error("With changed the level wrongly, or the original")
	}
	measured := e.With(policy.LimitsDisk, State{Status: Partial, By: []string{"x"}, Gaps: []string{"g"}})
	for _, required := range []policy.EffectSet{0, policy.SetOf(policy.LimitsDisk)} {
		p := testPolicy(t, func(s *policy.Spec) { s.Limits.Disk, s.Require = policy.MinDisk, required })
		if got := measured.Missing(p); got != required || measured.Level(p) != LevelPartial || e.Missing(p) != 0 {
			t.Errorf("a measured limit, %q is required: %q is missing, level %s", required, got, measured.Level(p))
		}
		none := e.With(policy.LimitsDisk, State{Status: Unenforced, Gaps: []string{"g"}})
		if got := none.Missing(p); got != policy.SetOf(policy.LimitsDisk) {
			t.Errorf("a limit that nothing holds: %q is missing", got)
		}
	}
	full := testPolicy(t, func(s *policy.Spec) { s.Mode = policy.FullAccess })
	if Unconfined(State{Status: Enforced, By: []string{"x"}}).Level(full) != LevelNone {
		t.Error("danger-full-access has a level")
	}
}

func TestExitStatus(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, tt := range []struct {
		o    Outcome
		want int
	}{
		{Outcome{Kind: Exited, Code: code(0)}, 0}, {Outcome{Kind: Exited, Code: code(125)}, 125}, {Outcome{Kind: Exited, Code: code(255)}, 255},
		{Outcome{Kind: Signaled, Signal: 9}, 137}, {Outcome{Kind: Signaled, Signal: 31}, 159}, {Outcome{Kind: TimedOut}, 124},
		{Outcome{Kind: Refused}, 125}, {Outcome{Kind: SetupFailed}, 125}, {Outcome{Kind: ExecFailed, Errno: "ENOENT"}, 127},
		{Outcome{Kind: ExecFailed, Errno: "EACCES"}, 126}, {Outcome{Kind: ExecFailed, Errno: "ENOEXEC"}, 126}, {Outcome{}, 125},
		{Outcome{Kind: Exited}, 125}, // an exit without a status is not success
	} {
		if got := tt.o.ExitStatus(); got != tt.want {
			t.Errorf("%+v: %d, want %d", tt.o, got, tt.want)
		}
	}
}
