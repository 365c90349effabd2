package backendtest

import (
	"os"
	"strings"
	"testing"

	"sandboxd/backend"
	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// The suite judges every backend, so its judgement is tested by itself: with
// answers that no kernel had to give.

func report(t *testing.T, of policy.Effect, status backend.Status) backend.Enforcement {
	t.Helper()
	states := map[policy.Effect]backend.State{}
	for _, e := range policy.Effects() {
		states[e] = backend.State{Status: backend.NotRequested}
	}
	states[of] = backend.State{Status: status, By: []string{"test"}, Gaps: []string{"a gap"}}
	e, err := backend.NewEnforcement(states)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// bare is a side without a host: a fixture with the row's two directories.
func bare(t *testing.T, r Row, result attempt.Result) *side {
	t.Helper()
	f := &fixture{root: t.TempDir(), ear: &ear{}, secret: "secret", vars: map[string]string{}, before: map[string]snapshot{}}
	for _, dir := range []string{"ws", "outside"} {
		if err := os.Mkdir(f.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.makeRow(r); err != nil {
		t.Fatal(err)
	}
	return &side{fixture: f, results: map[string]attempt.Result{r.Name: result}}
}

func TestJudge(t *testing.T) {
	var (
		ok      = attempt.Result{OK: true}
		refused = attempt.Result{Errno: "EACCES"}
		other   = attempt.Result{Errno: "EIO"}
		killed  = attempt.Result{Signal: "SIGSYS"}
		leaked  = attempt.Result{Errno: "EACCES", Detail: "it holds secret"}
		read    = deny(18, policy.FSRead, "r", "read {there}/secret", "EACCES")
		write   = deny(1, policy.FSWrite, "w", "create {there}/new", "EACCES")
		pin     = gap(1, policy.FSMetadata, "g", "chmod {there}/victim", "EACCES")
	)
	for _, c := range []struct {
		name            string
		row             Row
		outside, inside attempt.Result
		status          backend.Status
		mode            policy.Mode
		failure, skip   string // a part of each; empty for none
	}{
		{name: "denied", row: read, outside: ok, inside: refused},
		{name: "allowed", row: read, outside: ok, inside: ok, failure: "it is allowed"},
		{name: "another errno", row: read, outside: ok, inside: other, failure: "want EACCES"},
		{name: "no result", row: read, outside: ok, inside: attempt.Result{}, failure: "want EACCES"},
		{name: "the secret in an error", row: read, outside: ok, inside: leaked, failure: "secret"},
		{name: "control refused too", row: read, outside: refused, inside: refused, failure: "means nothing"},
		{name: "control refused, host lacks something", row: read.needing("x"), outside: refused, inside: refused, skip: "needs x"},
		{name: "allowed although the host lacks something", row: read.needing("x"), outside: refused, inside: ok, failure: "it is allowed"},
		{name: "control has its natural errno", row: read.naturally("EIO"), outside: other, inside: refused},
		{name: "control changes nothing", row: write, outside: ok, inside: refused, failure: "changes nothing"},
		{name: "killed where that is a denial", row: deny(29, none, "k", "x", "SIGSYS"), outside: ok, inside: killed},
		{name: "killed where it is not", row: read, outside: ok, inside: killed, failure: "want EACCES"},
		{name: "must work", row: allow(1, none, "a", "x"), outside: ok, inside: refused, failure: "must work"},
		{name: "must work and does", row: allow(1, none, "a", "x"), outside: ok, inside: ok},
		{name: "gap open", row: pin, outside: ok, inside: ok},
		{name: "gap closed", row: pin, outside: ok, inside: refused, failure: "the gap is closed"},
		{name: "gap enforced and closed", row: pin, outside: ok, inside: refused, status: backend.Enforced},
		{name: "gap enforced and open", row: pin, outside: ok, inside: ok, status: backend.Enforced, failure: "it is allowed"},
		{name: "workspace written", row: work(1, "ww", "x", "EACCES"), outside: ok, inside: ok},
		{name: "workspace written in read-only", row: work(1, "ww", "x", "EACCES"), outside: ok, inside: ok, mode: policy.ReadOnly, failure: "it is allowed"},
		{name: "same answer", row: alike(24, none, "s", "x"), outside: other, inside: other},
		{name: "another answer", row: alike(24, none, "s", "x"), outside: other, inside: refused, failure: "outside the sandbox"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mode, status := c.mode, c.status
			if mode == 0 {
				mode = policy.WorkspaceWrite
			}
			if status == 0 {
				status = backend.Partial
			}
			inside := bare(t, c.row, c.inside)
			inside.enforcement = report(t, max(c.row.Effect, policy.FSRead), status)
			failure, skip := judge(c.row, mode, bare(t, c.row, c.outside), inside)
			if !matches(failure, c.failure) || !matches(skip, c.skip) {
				t.Errorf("judge() = %q, %q; want %q, %q", failure, skip, c.failure, c.skip)
			}
		})
	}
}

func matches(got, part string) bool {
	if part == "" {
		return got == ""
	}
	return strings.Contains(got, part)
}

func TestJudgeSeesEffectsBehindARefusal(t *testing.T) {
	r := deny(1, policy.FSWrite, "w", "overwrite {there}/victim", "EACCES").elsewhere()
	refused := attempt.Result{Errno: "EACCES"}
	for name, touch := range map[string]func(*side) error{
		"a byte": func(s *side) error {
			return os.WriteFile(s.fixture.path("outside", "w", "victim"), []byte("Original\n"), 0o600)
		},
		"a file":   func(s *side) error { return os.WriteFile(s.fixture.path("outside", "w", "new"), nil, 0o600) },
		"a remove": func(s *side) error { return os.Remove(s.fixture.path("outside", "w", "victim")) },
	} {
		t.Run(name, func(t *testing.T) {
			inside := bare(t, r, refused)
			inside.enforcement = report(t, policy.FSWrite, backend.Enforced)
			if err := touch(inside); err != nil {
				t.Fatal(err)
			}
			if failure, _ := judge(r, policy.WorkspaceWrite, bare(t, r, attempt.Result{OK: true}), inside); !strings.Contains(failure, "yet") {
				t.Errorf("judge() = %q, want it to see %s", failure, name)
			}
		})
	}
}

func TestRowsAreConsistent(t *testing.T) {
	if err := checkRows(Rows(), Target{}); err != nil {
		t.Error(err)
	}
	for _, bad := range []Target{{Skip: map[string]string{"no such row": "x"}}, {Errno: map[string]string{"no such row": "x"}}} {
		if checkRows(Rows(), bad) == nil {
			t.Errorf("a target with a row that does not exist is accepted: %+v", bad)
		}
	}
}
