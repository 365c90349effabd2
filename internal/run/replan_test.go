package run

import (
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/report"
)

// stand is a backend whose launches fail, or end at once.
type stand struct {
	name     string
	fails    error
	unusable string
	lost     policy.EffectSet
	replan   func(*stand) (backend.Backend, bool)
	starts   *int
}

func (s *stand) Name() string { return s.name }
func (s *stand) Probe() backend.Capability {
	return backend.Capability{Backend: s.name, Usable: s.unusable == "", Reason: s.unusable, Fix: "fix " + s.name}
}
func (s *stand) Plan(policy.Policy) (backend.Plan, error) {
	states := map[policy.Effect]backend.State{}
	for _, e := range policy.Effects() {
		states[e] = backend.State{Status: backend.Enforced, By: []string{s.name}}
		if s.lost.Has(e) {
			states[e] = backend.State{Status: backend.Unenforced, Gaps: []string{"a gap"}}
		}
	}
	e, err := backend.NewEnforcement(states)
	return standPlan{s, e}, err
}
func (s *stand) Replan(error) (backend.Backend, bool) {
	if s.replan == nil {
		return nil, false
	}
	return s.replan(s)
}

type standPlan struct {
	s *stand
	e backend.Enforcement
}

func (p standPlan) Enforcement() backend.Enforcement   { return p.e }
func (p standPlan) Describe() any                      { return p.s.name }
func (p standPlan) Prepare() (backend.Prepared, error) { return p, nil }
func (p standPlan) Close() error                       { return nil }
func (p standPlan) Start(backend.Command) (backend.Worker, error) {
	*p.s.starts++
	if p.s.fails != nil {
		return nil, p.s.fails
	}
	return ended{p.e}, nil
}

type ended struct{ e backend.Enforcement }

func (ended) PID() int                { return 1 }
func (ended) Signal(os.Signal) error  { return nil }
func (ended) Stop(time.Duration) bool { return false }
func (w ended) Wait() backend.Result {
	return backend.Result{Outcome: backend.Outcome{Kind: backend.Exited}, Enforcement: w.e}
}

// TestReplan: a start that fails selects again only if its backend says that it is
// unusable here; what runs then holds what is needed, and the report is about it.
func TestReplan(t *testing.T) {
	defer signal.Reset() // launches catch some
	refused := &backend.SetupError{Step: "namespaces", Err: syscall.EPERM}
	unusable := func(s *stand) (backend.Backend, bool) {
		c := *s
		c.unusable = "it cannot be done here"
		return &c, true
	}
	again := func(s *stand) (backend.Backend, bool) {
		c := *s
		return &c, true
	}
	weaker := policy.SetOf(policy.ProcSee)
	for _, tt := range []struct {
		name            string
		replan          func(*stand) (backend.Backend, bool)
		fails           error
		require         policy.EffectSet
		alone           bool
		ran             string // the backend; empty if nothing did
		strong, weak    int    // starts
		chosen          string
		failure, passed string
	}{
		{"it starts", unusable, nil, 0, false, "strong", 1, 0, "strong", "", "weak: strong enforces more"},
		{"it is unusable", unusable, refused, 0, false, "weak", 1, 1, "strong weak", "", "strong: it cannot be done here"},
		{"a failure of the launch alone", nil, refused, 0, false, "", 1, 0, "strong", "namespaces", ""},
		{"what is needed is lost", unusable, refused, weaker, false, "", 1, 0, "strong", "no backend can run this", ""},
		{"a named backend", unusable, refused, 0, true, "", 1, 0, "strong", "namespaces", ""},
		{"without an end", again, refused, 0, false, "", 1 + mostReplans, 0, "strong strong strong strong strong", "failed again", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var starts [2]int
			strong := &stand{name: "strong", fails: tt.fails, replan: tt.replan, starts: &starts[0]}
			weak := &stand{name: "weak", lost: weaker, starts: &starts[1]}
			p, err := policy.New(policy.Spec{Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/", Cwd: "/", Require: tt.require, Env: []string{"PATH=/usr/bin:/bin"}})
			if err != nil {
				t.Fatal(err)
			}
			var chosen []string
			before := 0
			o := Options{
				Policy: p, Argv: []string{"sh"}, Backends: []backend.Backend{weak, strong}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
				Chosen: func(c backend.Choice, _ string) error {
					chosen = append(chosen, c.Backend.Name())
					return nil
				},
				BeforeStart: func(*backend.Command, backend.Enforcement) error { before++; return nil },
			}
			if tt.alone {
				o.Backends = o.Backends[1:]
			}
			r, failure := Execute(o)
			if got := strings.Join(chosen, " "); got != tt.chosen || starts != [2]int{tt.strong, tt.weak} || before != 1 {
				t.Errorf("chosen %q, starts %v, told %d times", got, starts, before)
			}
			if tt.ran == "" {
				if r.Ran || failure == nil || !strings.Contains(failure.Line, tt.failure) || r.Outcome.ExitStatus() != backend.StatusRefused {
					t.Fatalf("%+v, %+v", r.Outcome, failure)
				}
				return
			}
			if failure != nil || !r.Ran || r.Backend != tt.ran {
				t.Fatalf("%+v: %+v", failure, r)
			}
			want := backend.Enforced
			if tt.ran == "weak" {
				want = backend.Unenforced
			}
			if r.Effects[policy.ProcSee].Status != want || (r.Level == backend.LevelFull) != (tt.ran == "strong") {
				t.Errorf("level %s, %+v", r.Level, r.Effects[policy.ProcSee])
			}
			if told := warned(r); told != (tt.ran == "weak") {
				t.Errorf("told of it: %v, %q", told, r.Warnings)
			}
			if tt.ran == "weak" && !slices.ContainsFunc(r.Passed, func(s string) bool { return strings.HasPrefix(s, tt.passed) }) {
				t.Errorf("passed %q", r.Passed)
			}
		})
	}
}

func warned(r *report.Report) bool {
	return slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.HasPrefix(w, "strong could not be used here after all") })
}
