package backendtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/backend"
	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// Target is what the suite needs of a backend.
type Target struct {
	Backend backend.Backend
	// Skip gives, by row name, why a row cannot be asked of this backend.
	Skip map[string]string
	// Errno overrides, by row name, the errnos that a denial may have: the
	// dialect. Alternatives are separated by "|".
	Errno map[string]string
	// Instead gives, by errno, others that say the same here: where what is not granted
	// is not there, ENOENT is an answer as good as EACCES. Alternatives are separated by
	// "|".
	Instead map[string]string
	// Own gives, by row name, what of the worker's own a touch lands in that is denied
	// elsewhere, such as a /tmp that nobody else sees. The host must not see the touch,
	// and the answer nothing of the host's.
	Own map[string]string
	// Control is what [Outside] returned; nil has the suite ask again.
	Control *Control
}

// Control is what comes of the attempts outside of any sandbox. The mode and the
// backend have no part in it, so that one serves many runs.
type Control struct{ *side }

// Outside makes the attempts outside of any sandbox. It comes before the first
// launch: a backend may change what can be touched of this process. What it
// returns serves until the test t ends.
func Outside(t testing.TB) *Control {
	t.Helper()
	if err := os.Setenv(launcherSecret, random()); err != nil {
		t.Fatal(err)
	}
	return &Control{runControl(t, Rows())}
}

// Verdict is what came of one row.
type Verdict struct {
	Row  Row
	Mode policy.Mode
	// Failure says what is wrong; empty when the row holds.
	Failure string
	// Skip says why the row means nothing here.
	Skip string
}

// Denies tells whether the row wants a refusal in its mode.
func (v Verdict) Denies() bool { return v.Row.deniedIn(v.Mode) }

// Modes are the modes that the suite runs.
func Modes() []policy.Mode { return []policy.Mode{policy.WorkspaceWrite, policy.ReadOnly} }

// Run runs every row in every mode.
func Run(t *testing.T, target Target) {
	if target.Control == nil {
		target.Control = Outside(t)
	}
	for _, mode := range Modes() {
		t.Run(mode.String(), func(t *testing.T) { RunMode(t, target, mode) })
	}
}

// RunMode runs every row in one mode.
func RunMode(t *testing.T, target Target, mode policy.Mode) {
	for _, v := range Evaluate(t, target, mode) {
		t.Run(v.Row.slug(), func(t *testing.T) {
			switch {
			case v.Failure != "":
				t.Errorf("%s (catalogue %d, %s, %s): %s", v.Row.Name, v.Row.Catalogue, effectName(v.Row.Effect), v.Row.Op, v.Failure)
			case v.Skip != "":
				t.Skip(v.Skip)
			}
		})
	}
}

func effectName(e policy.Effect) string {
	if e == none {
		return "no effect"
	}
	return e.String()
}

// Evaluate runs every row in one mode and judges each. What keeps the suite
// from judging at all ends the test.
func Evaluate(t testing.TB, target Target, mode policy.Mode) []Verdict {
	t.Helper()
	rows := Rows()
	if err := checkRows(rows, target); err != nil {
		t.Fatal(err)
	}
	control := target.Control
	if control == nil {
		control = Outside(t)
	}
	inside := runInside(t, rows, target, mode)
	var verdicts []Verdict
	var ours []Row
	for _, r := range rows {
		v := Verdict{Row: r, Mode: mode}
		if why := target.Skip[r.Name]; why != "" {
			v.Skip = why
		} else if target.Own[r.Name] != "" {
			v.Failure = judgeOwn(v.Row, inside)
			ours = append(ours, r)
		} else {
			if o := target.Errno[r.Name]; o != "" {
				v.Row.errnos, v.Row.readOnly = strings.Split(o, "|"), nil
			}
			v.Row = v.Row.instead(target.Instead)
			v.Failure, v.Skip = judge(v.Row, mode, control.side, inside)
		}
		verdicts = append(verdicts, v)
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
		return slices.ContainsFunc(ours, func(o Row) bool { return o.Name == r.Name })
	})
	return append(verdicts, overall(mode, rows, control.side, inside)...)
}

// side is one of the two runs: the control or the sandboxed one.
type side struct {
	fixture     *fixture
	results     map[string]attempt.Result
	enforcement backend.Enforcement
	// signals are those that reached the host process.
	signals []string
}

func requests(f *fixture, rows []Row) []attempt.Request {
	all := make([]attempt.Request, 0, len(rows))
	for _, r := range rows {
		all = append(all, f.request(r))
	}
	return all
}

func runControl(t testing.TB, rows []Row) *side {
	t.Helper()
	f := newFixture(t, rows)
	names, err := attemptNames(f.Probe)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range requests(f, rows) {
		if !slices.Contains(names, q.Op) {
			t.Fatalf("row %q: the probe cannot attempt %q", q.ID, q.Op)
		}
	}
	defer f.leak()()
	env := []string{"TMPDIR=" + t.TempDir(), "SBX_TEST_GIVEN=" + given}
	return f.run(t, "control", rows, unconfined(f.Workspace, env))
}

func runInside(t testing.TB, rows []Row, target Target, mode policy.Mode) *side {
	t.Helper()
	f := newFixture(t, rows)
	p, err := Policy(mode, f.Place)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := target.Backend.Plan(p)
	if err != nil {
		t.Fatalf("planning: %v", err)
	}
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatalf("preparing: %v", err)
	}
	defer prepared.Close()
	defer f.leak()()
	var result backend.Result
	s := f.run(t, "worker", rows, confined(prepared, f.Workspace, &result))
	s.enforcement = result.Enforcement
	return s
}

func (f *fixture) run(t testing.TB, who string, rows []Row, start starter) *side {
	t.Helper()
	began := time.Now()
	results, err := batch(start, f.Probe, requests(f, rows))
	if err != nil {
		t.Fatalf("%s: %v", who, err)
	}
	if err := f.ear.settle(); err != nil {
		t.Fatalf("%s: waiting for the listeners: %v", who, err)
	}
	signals, err := f.victim.settle()
	if err != nil {
		t.Fatalf("%s: waiting for signals: %v", who, err)
	}
	t.Logf("%s: %d attempts in %v", who, len(rows), time.Since(began).Round(time.Millisecond))
	return &side{fixture: f, results: results, signals: signals}
}

func checkRows(rows []Row, target Target) error {
	names, slugs := map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		if names[r.Name] || slugs[r.slug()] {
			return fmt.Errorf("two rows are named %q", r.Name)
		}
		names[r.Name], slugs[r.slug()] = true, true
		for _, e := range r.natural {
			if slices.Contains(r.errnos, e) {
				return fmt.Errorf("row %q cannot tell a denial from its natural %s", r.Name, e)
			}
		}
	}
	for name := range target.Skip {
		if !names[name] {
			return fmt.Errorf("the target skips %q, which is no row", name)
		}
	}
	for name := range target.Own {
		if !names[name] {
			return fmt.Errorf("the target has %q for its own, which is no row", name)
		}
	}
	for name := range target.Errno {
		if !names[name] {
			return fmt.Errorf("the target has an errno for %q, which is no row", name)
		}
	}
	return nil
}

// instead is the row with the errnos that mean the same.
func (r Row) instead(of map[string]string) Row {
	for _, list := range []*[]string{&r.errnos, &r.readOnly} {
		for _, e := range *list {
			if also := of[e]; also != "" {
				*list = append(slices.Clone(*list), strings.Split(also, "|")...)
			}
		}
	}
	return r
}
