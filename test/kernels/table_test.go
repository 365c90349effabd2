package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"sandboxd/test/kernels/wire"
)

// sample is a run with everything that a report can have.
func sample() []*result {
	run := func(states ...string) *launch {
		return &launch{Ran: true, Level: "partial", Effects: effectsOf(states...)}
	}
	confined := func(states ...string) *answers {
		return &answers{
			Features: &features{Backends: []capability{{Backend: "landlock", Usable: true}}},
			Runs: map[string]*launch{
				"read-only": run(states...), "workspace-write": run(append(states, "unenforced fs.protected")...), "danger-full-access": {Ran: true, Level: "none"},
			},
		}
	}
	refused := func() *answers {
		return &answers{Features: &features{}, Runs: map[string]*launch{
			"read-only": {Exit: 125}, "workspace-write": {Exit: 125}, "danger-full-access": {Ran: true, Level: "none"},
		}}
	}
	both := func(a, b *answers) map[string]*answers { return map[string]*answers{"root": a, "user": b} }
	one := testFailure{"TestA/x", []string{"=== RUN   TestA/x", "    x_test.go:9: pid 1234 is wrong", "--- FAIL: TestA/x (0.01s)"}}
	two := testFailure{"TestA/x", []string{"    x_test.go:9: pid 987 is wrong"}}
	return []*result{
		{
			Machine: "5.10", Series: "5.10", Seconds: 12.34, Attempts: []attempt{{Failure: "the machine hung in doctor", console: []string{"the last line"}}, {}},
			Facts:    &wire.Facts{Release: "5.10.0-cloud", UserNamespaces: "ok", Controllers: []string{"cpu", "memory", "pids"}},
			Subjects: []*subject{{Answers: both(refused(), refused())}},
			Checks:   []check{{Name: "5.10: the machine"}, {Name: "5.10: features as root", Problems: []string{"fs.read: declared enforced, observed partial"}}},
		},
		{
			Machine: "7.3", Series: "7.3", Attempts: make([]attempt, 1),
			Facts: &wire.Facts{Release: "7.3-cloud", ABI: 11, Errata: 15, UserNamespaces: "ok", Controllers: []string{"cpu", "memory", "pids"}, CgroupKill: true},
			Subjects: []*subject{
				{Answers: both(confined("partial fs.hardlink"), confined("partial fs.hardlink"))},
				{Fake: "1", Answers: both(confined("partial fs.hardlink"), confined("partial fs.hardlink", "partial fs.ioctl"))},
			},
			Checks: []check{{Name: "7.3: the machine"}},
			Tests: []testRun{
				{Package: "p", User: "root", Passed: 3, Failed: []testFailure{one, {"TestA", nil}}, Skipped: []testSkip{{Test: "TestS", Declared: "said so"}}},
				{Package: "p", User: "user", Failed: []testFailure{two, {"TestA", nil}}, Skipped: []testSkip{{Test: "TestU", Reason: "no \x1b[2J"}}, Trouble: "it ended early"},
			},
		},
		{Machine: "9.9", NotRun: "not to be had: no mirror"},
		{Machine: "docs", Checks: []check{{Name: "docs: the table"}}},
	}
}

const sampleReport = `machine       kernel        ABI      errata  userns  cgroup2  backend   read-only  workspace-write  full  gaps  passed  failed  skipped  seconds  retries
5.10          5.10.0-cloud  none     -       ok      no kill  -         refused    refused          none  -     0       0       0        12.3     1
7.3           7.3-cloud     11       0xf     ok      all      landlock  partial    partial          none  a     3       4       2        0.0      0
7.3 as ABI 1  7.3-cloud     1 faked  -       ok      all      landlock  partial    partial          none  b
9.9           not booted
docs          ok

gaps:
  a  read-only: partial fs.hardlink
     workspace-write: unenforced fs.protected; partial fs.hardlink
  b  read-only as root: partial fs.hardlink
     read-only as user: partial fs.hardlink fs.ioctl
     workspace-write as root: unenforced fs.protected; partial fs.hardlink
     workspace-write as user: unenforced fs.protected; partial fs.hardlink fs.ioctl

FAIL 5.10: features as root
  fs.read: declared enforced, observed partial

observed on 5.10 as root; if it is right, and you can say why, expect.toml would say:

[abi.0.read-only]
refused = true
[abi.0.workspace-write]
refused = true
[abi.0.danger-full-access]
level = "none"
partial = []
unenforced = []

FAIL 7.3: p as user
  it ended early

RETRIED 5.10
  the machine hung in doctor
  the last line

FAIL p TestA/x
  on 7.3 (root, user)
      x_test.go:9: pid 1234 is wrong

SKIP 9.9: not to be had: no mirror

skipped tests:
      1  said so

skipped tests that nothing declares (a failure with SBX_MUST_RUN=1):
      1  "no \x1b[2J"
           TestU
           on 7.3 (user)

6 passed, 6 failed, 3 skipped
`

func TestReport(t *testing.T) {
	var b bytes.Buffer
	writeReport(&b, sample())
	if got := b.String(); got != sampleReport {
		t.Errorf("got\n%s\nwant\n%s", got, sampleReport)
	}
}

const document = "# Kernels\n\ntext | with | bars\n\n" + beginMark + "\n\n" + docHead + `
| 5.10 | old row |
| 6.1 | stays |
| gone | goes |

` + endMark + "\n\nafter\n"

var order = []string{"5.10", "6.1", "7.3", "7.3 as ABI 1"}

func TestDocument(t *testing.T) {
	rows := docRows(sample())
	updated, err := replaceRows(document, rows, order)
	if err != nil {
		t.Fatal(err)
	}
	want := "# Kernels\n\ntext | with | bars\n\n" + beginMark + "\n\n" + docHead + `
| 5.10 | 5.10 | none | - | ok | refused | refused | - | - |
| 6.1 | stays |
| 7.3 | 7.3 | 11 | 0xf | ok | partial | partial | fs.protected | fs.hardlink |
| 7.3 as ABI 1 | 7.3 | 1, faked | - | - | partial | partial | fs.protected | fs.hardlink/fs.hardlink fs.ioctl |

` + endMark + "\n\nafter\n"
	if updated != want {
		t.Errorf("got\n%s\nwant\n%s", updated, want)
	}
	if d := compareRows(updated, rows, order); d != nil {
		t.Errorf("its own text differs: %q", d)
	}
	again, err := replaceRows(updated, rows, order)
	if err != nil || again != updated {
		t.Errorf("a second time it is another: %v\n%s", err, again)
	}
	d := compareRows(document, rows, order)
	for _, want := range []string{"it has a row of gone, which is no declared machine", "the row of 5.10", "  is         | 5.10 | old row |", "it has no row of 7.3; it would be"} {
		if !slices.Contains(d, want) {
			t.Errorf("there is no %q in %q", want, d)
		}
	}
	if slices.ContainsFunc(d, func(s string) bool { return strings.Contains(s, "6.1 ") }) {
		t.Errorf("a machine that did not run is compared: %q", d)
	}
}

func TestDocumentWithoutMarks(t *testing.T) {
	for _, text := range []string{"", beginMark, endMark + beginMark, beginMark + endMark + beginMark + endMark} {
		if _, err := replaceRows(text, nil, order); err == nil {
			t.Errorf("%q is taken", text)
		}
		if d := compareRows(text, nil, order); len(d) != 1 {
			t.Errorf("%q: got %q", text, d)
		}
	}
}
