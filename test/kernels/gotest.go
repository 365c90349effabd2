package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// testRun is what one test binary, or the shell cases, came to.
type testRun struct {
	Package string
	User    string
	Passed  int
	Failed  []testFailure
	Skipped []testSkip
	Seconds float64
	// Trouble is why the tests cannot be believed although none failed.
	Trouble string
}

type testFailure struct {
	Test   string
	Output []string // its end, escaped
}

type testSkip struct {
	Test   string
	Reason string
	// Declared is the reason in expect.toml or test/skips*.txt; without one a
	// skip is a failure when SBX_MUST_RUN=1.
	Declared string
}

func (t testRun) name() string { return t.Package + " as " + t.User }

// readTests counts the events of one test binary. Output of a test's own
// subtests is theirs.
func readTests(events io.Reader) (testRun, error) {
	var t testRun
	output := map[string][]string{}
	in := bufio.NewScanner(events)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return t, fmt.Errorf("test2json: %w", err)
		}
		if e.Test == "" {
			continue
		}
		switch e.Action {
		case "output":
			output[e.Test] = append(output[e.Test], e.Output)
		case "pass":
			t.Passed++
		case "fail":
			t.Failed = append(t.Failed, testFailure{e.Test, tail(strings.Join(output[e.Test], ""), 20)})
		case "skip":
			t.Skipped = append(t.Skipped, testSkip{Test: e.Test, Reason: lastWord(output[e.Test])})
		}
		if e.Action != "output" {
			delete(output, e.Test)
		}
	}
	// A test that began and did not end was cut off.
	for name, lines := range output {
		if len(lines) > 0 {
			t.Failed = append(t.Failed, testFailure{name, append(tail(strings.Join(lines, ""), 20), "it did not end")})
		}
	}
	return t, in.Err()
}

// lastWord is the line in which a skipped test said why, without its place in
// the source.
func lastWord(lines []string) string {
	list := tail(strings.Join(lines, ""), 1000)
	for i := len(list) - 1; i >= 0; i-- {
		line := strings.TrimSpace(list[i])
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		if place, reason, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			return reason
		}
		return line
	}
	return "no reason given"
}

// convert reads a test binary's output by way of the go command's own reader.
func convert(ctx context.Context, test2json string, j job, out jobOutput, userName string) testRun {
	var t testRun
	c := command(ctx, test2json, "-p", j.Package)
	c.Stdin = bytes.NewReader(out.stdout)
	text, err := output(c)
	if err == nil {
		t, err = readTests(strings.NewReader(text))
	}
	t.Package, t.User, t.Seconds = j.Package, userName, float64(out.Result.Millis)/1000
	switch {
	case err != nil:
		t.Trouble = err.Error()
	case out.Result.TimedOut:
		t.Trouble = fmt.Sprintf("ended after its %d s", j.Seconds)
	case out.Result.Exit != 0 && len(t.Failed) == 0:
		t.Trouble = fmt.Sprintf("exit %d although no test failed%s", out.Result.Exit, complaint(string(out.stderr)))
	case out.Result.Exit == 0 && t.Passed+len(t.Failed)+len(t.Skipped) == 0:
		t.Trouble = "no test ran"
	}
	return t
}

// declareSkips marks the skips that the data allows.
func (e *expectations) declareSkips(machine string, t *testRun, common []allowedSkip) {
	for i := range t.Skipped {
		lists := [][]allowedSkip{e.Skips, common}
		if slices.Contains(e.RunsHere, t.Skipped[i].Test) {
			lists = lists[:1]
		}
		for _, list := range lists {
			for _, s := range list {
				if t.Skipped[i].Declared == "" && s.covers(machine, t.Skipped[i].Test, t.Skipped[i].Reason, t.User) {
					t.Skipped[i].Declared = s.Reason
				}
			}
		}
	}
}

// undeclaredSkips makes failures of skips that nobody allowed.
func (r *result) undeclaredSkips() {
	for i := range r.Tests {
		t := &r.Tests[i]
		var kept []testSkip
		for _, s := range t.Skipped {
			if s.Declared != "" {
				kept = append(kept, s)
			} else {
				t.Failed = append(t.Failed, testFailure{s.Test, []string{"it skips, which nothing declares: " + s.Reason}})
			}
		}
		t.Skipped = kept
	}
}

// readSkips reads a list in the form of test/skips.txt: a test, a blank, why. It
// is for one user, or for both.
func readSkips(text, user string) []allowedSkip {
	var list []allowedSkip
	for line := range strings.Lines(text) {
		test, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		if test != "" && test[0] != '#' {
			list = append(list, allowedSkip{Test: test, Reason: strings.TrimSpace(reason), User: user})
		}
	}
	return list
}
