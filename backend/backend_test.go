package backend

import (
	"errors"
	"strings"
	"testing"

	"sandboxd/policy"
)

// fake is a backend that holds all effects but the lost ones.
type fake struct {
	name   string
	usable bool
	lost   policy.EffectSet
	plan   error
}

func (f fake) Name() string { return f.name }
func (f fake) Probe() Capability {
	return Capability{Backend: f.name, Usable: f.usable, Reason: "not here", Fix: "install " + f.name}
}

func (f fake) Plan(p policy.Policy) (Plan, error) {
	if f.plan != nil {
		return nil, f.plan
	}
	states := map[policy.Effect]State{}
	for _, e := range policy.Effects() {
		states[e] = State{Status: Enforced, By: []string{f.name}}
		if f.lost.Has(e) {
			states[e] = State{Status: Unenforced, Gaps: []string{"a gap"}}
		}
	}
	e, err := NewEnforcement(states)
	return fakePlan{e}, err
}

type fakePlan struct{ e Enforcement }

func (p fakePlan) Enforcement() Enforcement   { return p.e }
func (p fakePlan) Describe() any              { return nil }
func (p fakePlan) Prepare() (Prepared, error) { return nil, errors.New("not in this test") }

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

func TestSelect(t *testing.T) {
	full := fake{name: "full", usable: true}
	gone := fake{name: "gone"}
	noUDP := fake{name: "noudp", usable: true, lost: policy.SetOf(policy.NetUDP)}
	noMeta := fake{name: "nometa", usable: true, lost: policy.SetOf(policy.FSMetadata)}
	cannot := fake{name: "cannot", usable: true, plan: Refuse("grant less", "it cannot be said")}
	for _, tt := range []struct {
		name       string
		change     func(*policy.Spec)
		candidates []Backend
		want       string
		// words that the refusal, reason and hint, must hold
		words string
	}{
		{"the first that holds", nil, []Backend{gone, noUDP, full}, "full", ""},
		{"what is no promise may be missing", nil, []Backend{noMeta, full}, "nometa", ""},
		{"required", func(s *policy.Spec) { s.Require = policy.SetOf(policy.FSMetadata) }, []Backend{noMeta, full}, "full", ""},
		{"full required", func(s *policy.Spec) { s.RequireFull = true }, []Backend{noMeta}, "", "fs.metadata --require"},
		{"a promise is lost", nil, []Backend{noUDP}, "", "net.udp --allow-gap"},
		{"a named loss", func(s *policy.Spec) { s.AllowGap = policy.SetOf(policy.NetUDP) }, []Backend{noUDP}, "noudp", ""},
		{"another loss is not the named one", func(s *policy.Spec) { s.AllowGap = policy.SetOf(policy.NetTCPBind) }, []Backend{noUDP}, "", "net.udp"},
		{"none usable", nil, []Backend{gone}, "", "not install gone"},
		{"none at all", nil, nil, "", "none"},
		{"cannot be expressed", nil, []Backend{cannot}, "", "cannot grant less"},
		{"an unset status", nil, []Backend{fake{name: "x", usable: true, plan: errors.New("no status")}}, "", "no status"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Select(testPolicy(t, tt.change), tt.candidates)
			if tt.want != "" {
				if err != nil || c.Backend.Name() != tt.want {
					t.Fatalf("got %v, %v", c.Backend, err)
				}
				return
			}
			var refusal *RefusalError
			if !errors.As(err, &refusal) {
				t.Fatalf("not refused: %v, %v", c, err)
			}
			for _, w := range strings.Fields(tt.words) {
				if !strings.Contains(refusal.Reason+" "+refusal.Hint, w) {
					t.Errorf("%q does not name %q", refusal.Reason+" / "+refusal.Hint, w)
				}
			}
		})
	}
	p := testPolicy(t, func(s *policy.Spec) { s.Mode = policy.FullAccess })
	if _, err := Select(p, []Backend{full}); err == nil {
		t.Error("a backend was chosen for no sandbox")
	}
	if _, err := Select(policy.Policy{}, []Backend{full}); err == nil {
		t.Error("a backend was chosen for the zero policy")
	}
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
