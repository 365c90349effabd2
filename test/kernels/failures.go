package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// writeFailures prints every failure once, with the places where it was seen.
func writeFailures(w io.Writer, results []*result) {
	fail := func(what string, lines []string) {
		fmt.Fprintf(w, "\nFAIL %s\n", what)
		for _, l := range lines {
			fmt.Fprintf(w, "  %s\n", l)
		}
	}
	for _, r := range results {
		for _, c := range r.Checks {
			if len(c.Problems) > 0 {
				fail(c.Name, c.Problems)
			}
		}
		for _, t := range r.Tests {
			if t.Trouble != "" {
				fail(r.Machine+": "+t.name(), []string{t.Trouble})
			}
		}
		writeObserved(w, r)
	}
	for _, r := range results {
		if n := len(r.Attempts); n > 1 && r.Attempts[n-1].Failure == "" {
			fmt.Fprintf(w, "\nRETRIED %s\n  %s\n", r.Machine, strings.Join(r.Attempts[0].story(), "\n  "))
		}
	}
	for _, g := range failureGroups(results) {
		fail(printable(g.name)+"\n  on "+g.where.String(), g.output)
	}
}

// failureGroup is one test that fails in the same way in several places.
type failureGroup struct {
	name   string
	output []string
	where  places
}

// failureGroups leaves out tests that failed because a subtest did.
func failureGroups(results []*result) []*failureGroup {
	var list []*failureGroup
	byKey := map[string]*failureGroup{}
	for _, r := range results {
		for _, t := range r.Tests {
			for _, f := range t.Failed {
				isChild := func(o testFailure) bool { return strings.HasPrefix(o.Test, f.Test+"/") }
				if slices.ContainsFunc(t.Failed, isChild) {
					continue
				}
				name := t.Package + " " + f.Test
				output := slices.DeleteFunc(slices.Clone(f.Output), isMark)
				key := name + "\n" + changing.ReplaceAllString(strings.Join(output, "\n"), "N")
				g := byKey[key]
				if g == nil {
					g = &failureGroup{name: name, output: output}
					byKey[key] = g
					list = append(list, g)
				}
				g.where.add(r.Machine, t.User)
			}
		}
	}
	return list
}

// changing is what differs in the output of the same failure: names of
// temporary directories, process ids, addresses, durations.
var changing = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(s|ms|µs)\b|[0-9]{3,}`)

// isMark tells a line of package testing from the test's own.
func isMark(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ")
}

// places are machines, and as which users on each.
type places []place

type place struct {
	machine string
	users   []string
}

func (p *places) add(machine, user string) {
	i := slices.IndexFunc(*p, func(q place) bool { return q.machine == machine })
	if i < 0 {
		i = len(*p)
		*p = append(*p, place{machine: machine})
	}
	if !slices.Contains((*p)[i].users, user) {
		(*p)[i].users = append((*p)[i].users, user)
	}
}

func (p places) String() string {
	var words []string
	for _, q := range p {
		words = append(words, q.machine+" ("+strings.Join(q.users, ", ")+")")
	}
	return strings.Join(words, ", ")
}

// writeObserved prints what a kernel answered that failed its checks, in the
// form of expect.toml.
func writeObserved(w io.Writer, r *result) {
	for _, s := range r.Subjects {
		section := "faked." + s.Fake
		if s.Fake == "" && r.Facts != nil {
			section = fmt.Sprintf("abi.%d", r.Facts.ABI)
		}
		name := subjectName(r.Machine, s.Fake)
		last := ""
		for _, u := range users {
			failed := func(c check) bool {
				return len(c.Problems) > 0 && strings.HasPrefix(c.Name, name+": ") && strings.HasSuffix(c.Name, " as "+u.name) && !strings.Contains(c.Name, ": doctor as ")
			}
			a := s.Answers[u.name]
			if a == nil || !slices.ContainsFunc(r.Checks, failed) {
				continue
			}
			if block := a.block(section); block != last {
				fmt.Fprintf(w, "\nobserved on %s as %s; if it is right, and you can say why, expect.toml would say:\n\n%s", name, u.name, block)
				last = block
			}
		}
	}
}

// writeSkips counts the reasons for which tests and machines were skipped.
func writeSkips(w io.Writer, results []*result) {
	for _, r := range results {
		if r.NotRun != "" && len(r.Checks) == 0 {
			fmt.Fprintf(w, "\nSKIP %s: %s\n", r.Machine, printable(r.NotRun))
		}
	}
	for _, declared := range []bool{true, false} {
		list := skipGroups(results, declared)
		if list == nil {
			continue
		}
		fmt.Fprintln(w, map[bool]string{true: "\nskipped tests:", false: "\nskipped tests that nothing declares (a failure with SBX_MUST_RUN=1):"}[declared])
		for _, g := range list {
			fmt.Fprintf(w, "  %5d  %s\n", g.count, printable(g.reason))
			if !declared {
				fmt.Fprintf(w, "           %s\n           on %s\n", printable(someOf(g.tests)), g.where)
			}
		}
	}
}

// skipGroup is one reason, and what gave it.
type skipGroup struct {
	reason string
	count  int
	tests  []string
	where  places
}

func skipGroups(results []*result, declared bool) []*skipGroup {
	var list []*skipGroup
	for _, r := range results {
		for _, t := range r.Tests {
			for _, s := range t.Skipped {
				if (s.Declared != "") != declared {
					continue
				}
				reason := cmp.Or(s.Declared, changing.ReplaceAllString(s.Reason, "N"))
				i := slices.IndexFunc(list, func(g *skipGroup) bool { return g.reason == reason })
				if i < 0 {
					i = len(list)
					list = append(list, &skipGroup{reason: reason})
				}
				g := list[i]
				g.count++
				if !slices.Contains(g.tests, s.Test) {
					g.tests = append(g.tests, s.Test)
				}
				g.where.add(r.Machine, t.User)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *skipGroup) int { return b.count - a.count })
	return list
}

func someOf(tests []string) string {
	const shown = 6
	if len(tests) > shown {
		return strings.Join(tests[:shown], " ") + fmt.Sprintf(" and %d more", len(tests)-shown)
	}
	return strings.Join(tests, " ")
}
