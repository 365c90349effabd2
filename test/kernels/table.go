package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// counts are of checks and tests.
type counts struct{ Passed, Failed, Skipped int }

func count(results []*result) counts {
	var c counts
	for _, r := range results {
		if r.NotRun != "" && len(r.Checks) == 0 {
			c.Skipped++
		}
		for _, k := range r.Checks {
			if len(k.Problems) > 0 {
				c.Failed++
			} else {
				c.Passed++
			}
		}
		for _, t := range r.Tests {
			c.Passed += t.Passed
			c.Failed += len(t.Failed)
			c.Skipped += len(t.Skipped)
			if t.Trouble != "" {
				c.Failed++
			}
		}
	}
	return c
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

// writeReport prints the table, what failed, what was skipped, and the counts
// on the last line.
func writeReport(w io.Writer, results []*result) {
	legend := writeTable(w, results)
	legend.write(w)
	writeFailures(w, results)
	writeSkips(w, results)
	fmt.Fprintf(w, "\n%v\n", count(results))
}

// writeTable prints a row for each kernel, real or faked.
func writeTable(w io.Writer, results []*result) *gapLegend {
	legend := new(gapLegend)
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "machine\tkernel\tABI\terrata\tuserns\tcgroup2\tbackend\tread-only\tworkspace-write\tfull\tgaps\tpassed\tfailed\tskipped\tseconds\tretries")
	for _, r := range results {
		if len(r.Subjects) == 0 {
			fmt.Fprintf(t, "%s\t%s\n", r.Machine, r.word())
			continue
		}
		for i, s := range r.Subjects {
			cells := s.cells(r, legend)
			machines := []string{"", "", "", "", ""} // what is the machine's is in its first row
			if i == 0 {
				passed, failed, skipped := r.testCounts()
				machines = []string{fmt.Sprint(passed), fmt.Sprint(failed), fmt.Sprint(skipped), fmt.Sprintf("%.1f", r.Seconds), fmt.Sprint(max(0, len(r.Attempts)-1))}
			}
			fmt.Fprintln(t, strings.Join(append(cells, machines...), "\t"))
		}
	}
	t.Flush()
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	return legend
}

// word is for what has no row: what was not booted, and the documentation.
func (r *result) word() string {
	switch {
	case r.NotRun != "":
		return "not booted"
	case count([]*result{r}).Failed > 0:
		return "failed"
	}
	return "ok"
}

func (r *result) testCounts() (passed, failed, skipped int) {
	for _, t := range r.Tests {
		passed, failed, skipped = passed+t.Passed, failed+len(t.Failed), skipped+len(t.Skipped)
	}
	return passed, failed, skipped
}

func (s *subject) cells(r *result, legend *gapLegend) []string {
	release, userns, cgroup := "failed", "-", "-"
	if f := r.Facts; f != nil {
		release, userns, cgroup = f.Release, f.UserNamespaces, cgroupText(f.Controllers, f.CgroupKill)
	}
	for _, a := range s.Answers {
		if r.Facts == nil && a.Features != nil {
			release = a.Features.Kernel // --host
		}
	}
	abi, errata := s.landlock(r)
	if s.Fake != "" {
		abi += " faked"
	}
	return []string{
		subjectName(r.Machine, s.Fake), printable(release), abi, errata, printable(userns), cgroup, s.both(backendOf),
		s.both(levelIn("read-only")), s.both(levelIn("workspace-write")), s.both(levelIn("danger-full-access")), legend.letter(s),
	}
}

// landlock is the ABI and the mask of errata, as init found them or abicap
// pretends.
func (s *subject) landlock(r *result) (abi, errata string) {
	switch {
	case s.Fake != "":
		return s.Fake, "-"
	case r.Facts == nil:
		return "-", "-"
	case r.Facts.ABI == 0:
		return "none", "-"
	}
	return fmt.Sprint(r.Facts.ABI), mask(r.Facts.Errata)
}

// cgroupText says which of the usual parts of cgroup2 are missing.
func cgroupText(controllers []string, kill bool) string {
	var lacks []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(controllers, c) {
			lacks = append(lacks, c)
		}
	}
	if !kill {
		lacks = append(lacks, "kill")
	}
	if lacks == nil {
		return "all"
	}
	return "no " + strings.Join(lacks, ",")
}

// both is one word for both users, or root's and the user's.
func (s *subject) both(of func(*answers) string) string {
	var words []string
	for _, u := range users {
		if a := s.Answers[u.name]; a != nil {
			words = append(words, printable(of(a)))
		}
	}
	if words == nil {
		return "-"
	}
	return strings.Join(slices.Compact(words), "/")
}

func backendOf(a *answers) string {
	if a.Features == nil {
		return "?"
	}
	c, _ := a.Features.chosen()
	return cmp.Or(c.Backend, "-")
}

func levelIn(mode string) func(*answers) string {
	return func(a *answers) string {
		switch l := a.Runs[mode]; {
		case l == nil:
			return "?"
		case !l.Ran && l.Exit == statusRefused:
			return "refused"
		case !l.Ran:
			return "failed"
		default:
			return l.Level
		}
	}
}

// gapLegend gives each set of gaps a letter, so that the table stays narrow.
type gapLegend struct{ sets []string }

func (g *gapLegend) letter(s *subject) string {
	text := s.gaps()
	if text == "" {
		return "-"
	}
	i := slices.Index(g.sets, text)
	if i < 0 {
		i = len(g.sets)
		g.sets = append(g.sets, text)
	}
	return string(rune('a' + i%26))
}

func (g *gapLegend) write(w io.Writer) {
	if len(g.sets) > 0 {
		fmt.Fprintln(w, "\ngaps:")
	}
	for i, s := range g.sets {
		fmt.Fprintf(w, "  %c  %s\n", 'a'+i%26, strings.ReplaceAll(s, "\n", "\n     "))
	}
}

// gaps are the effects that confined modes do not fully enforce, a line for
// each mode, and for each user where they differ.
func (s *subject) gaps() string {
	var lines []string
	for _, mode := range []string{"read-only", "workspace-write"} {
		byUser := map[string]string{}
		for _, u := range users {
			if a := s.Answers[u.name]; a != nil {
				byUser[u.name] = gapsIn(a, mode)
			}
		}
		switch root, user := byUser["root"], byUser["user"]; {
		case root == user || byUser["user"] == "":
			lines = appendGaps(lines, mode, root)
		case byUser["root"] == "":
			lines = appendGaps(lines, mode, user)
		default:
			lines = appendGaps(appendGaps(lines, mode+" as root", root), mode+" as user", user)
		}
	}
	return strings.Join(lines, "\n")
}

func appendGaps(lines []string, what, gaps string) []string {
	if gaps == "" {
		return lines
	}
	return append(lines, what+": "+gaps)
}

func gapsIn(a *answers, mode string) string {
	l := a.Runs[mode]
	if l == nil || !l.Ran {
		return ""
	}
	var parts []string
	for _, status := range []string{"unenforced", "partial"} {
		if list := withStatus(l.Effects, status); list != nil {
			parts = append(parts, status+" "+printable(strings.Join(list, " ")))
		}
	}
	return strings.Join(parts, "; ")
}
