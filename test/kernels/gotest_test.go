package main

import (
	"slices"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"p"}
{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Test":"TestA/x","Output":"    x_test.go:9: wrong\tvalue \u001b[2J\n"}
{"Action":"output","Test":"TestA/x","Output":"--- FAIL: TestA/x (0.00s)\n"}
{"Action":"fail","Test":"TestA/x"}
{"Action":"fail","Test":"TestA"}
{"Action":"output","Test":"TestB","Output":"    b_test.go:7: needs root\n"}
{"Action":"output","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Test":"TestB"}
{"Action":"pass","Test":"TestC"}
{"Action":"output","Test":"TestD","Output":"=== RUN   TestD\n"}
{"Action":"output","Output":"FAIL\n"}
{"Action":"fail","Package":"p"}
`

func TestReadTests(t *testing.T) {
	got, err := readTests(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	if got.Passed != 1 || len(got.Skipped) != 1 || got.Skipped[0].Reason != "needs root" || got.Skipped[0].Test != "TestB" {
		t.Errorf("got %+v", got)
	}
	var failed []string
	for _, f := range got.Failed {
		failed = append(failed, f.Test)
	}
	if !slices.Equal(failed, []string{"TestA/x", "TestA", "TestD"}) {
		t.Errorf("failed: %q", failed)
	}
	if out := got.Failed[0].Output; len(out) != 2 || out[0] != `"    x_test.go:9: wrong    value \x1b[2J"` {
		t.Errorf("output of TestA/x: %q", out)
	}
	if out := got.Failed[2].Output; out[len(out)-1] != "it did not end" {
		t.Errorf("output of TestD, which was cut off: %q", out)
	}
	if _, err := readTests(strings.NewReader("{")); err == nil {
		t.Error("no error for what is no JSON")
	}
}

func TestDeclaredSkips(t *testing.T) {
	e := &expectations{RunsHere: []string{"TestA", "TestD"}, Skips: []allowedSkip{{Test: "TestA", Reason: "own", Machines: []string{"m"}}}}
	common := append(readSkips("# comment\n\nTestA common\nTestD elsewhere\n*/b no b here\n", ""), readSkips("TestC user only\n", "user")...)
	r := &result{Machine: "m", Tests: []testRun{{User: "root", Skipped: []testSkip{{Test: "TestA"}, {Test: "T/x/b"}, {Test: "TestC", Reason: "why"}, {Test: "TestD"}}}}}
	e.declareSkips("m", &r.Tests[0], common)
	var got []string
	for _, s := range r.Tests[0].Skipped {
		got = append(got, s.Declared)
	}
	if !slices.Equal(got, []string{"own", "no b here", "", ""}) {
		t.Errorf("got %q", got)
	}
	r.undeclaredSkips()
	if tr := r.Tests[0]; len(tr.Skipped) != 2 || len(tr.Failed) != 2 || tr.Failed[0].Test != "TestC" {
		t.Errorf("with SBX_MUST_RUN=1: %+v", tr)
	}
}
