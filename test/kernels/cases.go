package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sandboxd/test/kernels/wire"
)

// caseList are shell cases that guests run, each as a job of its own: those with
// the tag "run" of a directory with reports/*.sh. What they have in common
// stands in the directory's program run-reports, as a here-document.
type caseList struct {
	ids     []string
	texts   map[string]string // with the prelude
	skipped []testSkip
}

const caseTag = "run"

// absent are programs that guests lack. A case that calls one without asking
// for it first ("command -v") cannot run there.
var absent = []string{"cargo", "docker", "g++", "gcc", "gdb", "go", "java", "node", "npm", "rustc", "strace", "systemd-run", "tmux", "uv"}

var caseID = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// readCases sorts out which cases can run.
func readCases(dir string) (*caseList, error) {
	files, err := filepath.Glob(filepath.Join(dir, "reports", "*.sh"))
	if err != nil {
		return nil, err
	}
	common, err := prelude(filepath.Join(dir, "run-reports"))
	if err != nil {
		return nil, err
	}
	missing := slices.Clone(absent)
	for _, name := range userland {
		if _, err := lookSystem(name); err != nil {
			missing = append(missing, name)
		}
	}
	c := &caseList{texts: map[string]string{}}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		id := strings.TrimSuffix(filepath.Base(f), ".sh")
		if !caseID.MatchString(id) || !slices.Contains(tagsOf(string(text)), caseTag) {
			continue
		}
		if program := needs(string(text), missing); program != "" {
			reason := "the guests have no " + program
			c.skipped = append(c.skipped, testSkip{Test: id, Reason: reason, Declared: reason})
			continue
		}
		c.ids = append(c.ids, id)
		c.texts[id] = common + string(text)
	}
	if len(c.ids) == 0 {
		return nil, withHint(fmt.Errorf("%s has no cases with the tag %s", dir, caseTag), "they are in reports/*.sh, with a line \"# tag: run\"")
	}
	return c, nil
}

// prelude is what stands before each case: the first here-document whose end is
// a line "P".
func prelude(program string) (string, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	_, rest, begun := strings.Cut(string(text), "<<'P'\n")
	common, _, ended := strings.Cut(rest, "\nP\n")
	if !begun || !ended {
		return "", fmt.Errorf("%s has no prelude for the cases: a here-document that ends with P", program)
	}
	return common + "\n", nil
}

var tagLine = regexp.MustCompile(`(?m)^# tag: ([a-z]+)`)

func tagsOf(text string) []string {
	var tags []string
	for _, m := range tagLine.FindAllStringSubmatch(text, -1) {
		tags = append(tags, m[1])
	}
	return tags
}

// needs is the first of the programs that a case calls unasked.
func needs(text string, programs []string) string {
	var code strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			code.WriteString(line)
		}
	}
	for _, p := range programs {
		name := regexp.QuoteMeta(p)
		asks := regexp.MustCompile(`command -v ` + name + `\b`)
		// The prelude's helper repo calls git.
		calls := regexp.MustCompile(`(^|[\n;|&({]|-- |timeout [0-9]+ )\s*` + name + `( |$)`)
		if p == "git" {
			calls = regexp.MustCompile(calls.String() + `|(^|\n)repo `)
		}
		if calls.MatchString(code.String()) && !asks.MatchString(code.String()) {
			return p
		}
	}
	return ""
}

// refusedSBX stands before sbx where that must refuse to run anything. What a
// case finds then is no matter: each launch that it asks for counts.
const refusedSBX = casesDir + "/sbx"

const refusedScript = `#!/bin/sh
` + sbxPath + ` "$@"
status=$?
echo "sbx $1: $status" >>"$SBX_STATUSES"
exit $status
`

var sbxStatus = regexp.MustCompile(`(?m)^sbx run: ([0-9]+)$`)

// add adds the cases to the guests' files.
func (c *caseList) add(to *cpio) {
	to.Text(refusedSBX, 0o755, refusedScript)
	for _, id := range c.ids {
		to.Text(casesDir+"/"+id+".sh", 0o644, c.texts[id])
	}
}

const secondsPerCase = 100

// jobs run all cases as one user. refused: on a machine where sbx must refuse.
func (c *caseList) jobs(u user, refused bool) []job {
	var list []job
	for _, id := range c.ids {
		file := casesDir + "/" + id + ".sh"
		j := job{
			Job: wire.Job{
				Name: "case-" + id + "-" + u.name, Args: []string{"/usr/bin/bash", file}, Dir: u.home + "/work", UID: u.uid,
				Env: []string{"SBX=" + sbxPath, "BUGDIR=/var/tmp/cases-" + u.name, "TERM=xterm"}, Seconds: secondsPerCase,
			},
			Kind: kindCase, Case: id, Refused: refused,
		}
		if refused {
			statuses := "/var/tmp/" + j.Name
			j.Args = []string{"/usr/bin/bash", "-c", `bash "$0"; echo; cat "$SBX_STATUSES"`, file}
			j.Env = append(j.Env, "SBX="+refusedSBX, "SBX_STATUSES="+statuses) // of two SBX the last counts
		}
		list = append(list, j)
	}
	return list
}

var caseLine = regexp.MustCompile(`(?m)^(PASS|FAIL|SKIP)(?:: *(.*))?$`)

// count adds a case to the user's results. What it left running is no matter:
// the guest ends it, as run-reports does.
func (t *testRun) count(j job, out jobOutput, gap declaredCase) {
	t.Seconds += float64(out.Result.Millis) / 1000
	word, detail := "HANG", ""
	lines := caseLine.FindAllStringSubmatch(string(out.stdout), -1)
	switch {
	case len(lines) > 0:
		word, detail = lines[len(lines)-1][1], lines[len(lines)-1][2]
	case !out.Result.TimedOut:
		word, detail = "FAIL", fmt.Sprintf("exit %d without a word", out.Result.Exit)
	}
	if j.Refused {
		gap = declaredCase{} // which is about what happens in a sandbox
		if word != "HANG" && word != "SKIP" {
			word, detail = refusal(out.stdout)
		}
	}
	t.add(j.Case, word, detail, gap, tail(string(out.stderr), 8))
}

// refusal judges a case by what sbx answered to it.
func refusal(stdout []byte) (word, detail string) {
	statuses := sbxStatus.FindAllStringSubmatch(string(stdout), -1)
	if statuses == nil {
		return "FAIL", "it did not call sbx run"
	}
	for _, s := range statuses {
		if s[1] != fmt.Sprint(statusRefused) {
			return "FAIL", "sbx must refuse, and exits with " + s[1]
		}
	}
	return "PASS", ""
}

// add counts one case. gap is the declaration that it fails, if there is one.
func (t *testRun) add(id, word, detail string, gap declaredCase, stderr []string) {
	detail = printable(strings.TrimSpace(detail))
	switch {
	case word == "SKIP":
		t.Skipped = append(t.Skipped, testSkip{Test: id, Reason: detail, Declared: "a case says that it cannot run: " + detail})
	case word == "PASS" && (gap.ID == "" || gap.ByChance):
		t.Passed++
	case word == "PASS":
		t.Failed = append(t.Failed, testFailure{id, []string{"it passes, but expect.toml says that it fails: " + gap.Reason}})
	case gap.ID != "":
		t.Skipped = append(t.Skipped, testSkip{Test: id, Reason: detail, Declared: id + " fails as declared: " + gap.Reason})
	default:
		t.Failed = append(t.Failed, testFailure{id, append([]string{word + ": " + detail}, stderr...)})
	}
}

// declared is why a case must, or may, fail on a machine.
func (e *expectations) declared(machine, id, user string) declaredCase {
	for _, c := range e.Cases {
		if c.covers(machine, id, user) {
			return c
		}
	}
	return declaredCase{}
}
