package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sandboxd/test/kernels/wire"
)

// check is one comparison of what a kernel answered with what it must answer.
type check struct {
	Name     string
	Problems []string // none: it passed
}

// subjectName names a kernel, real or faked, in the table and in failures.
func subjectName(machine, fake string) string {
	if fake == "" {
		return machine
	}
	return machine + " as ABI " + fake
}

// differences collects what is not as declared, a line each.
type differences []string

func (d *differences) add(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }

func (d *differences) compare(what string, want, got any) {
	if want != got {
		d.add("%s: declared %v, observed %v", what, word(want), word(got))
	}
}

// word shows a value in a difference.
func word(v any) string {
	if s := printable(fmt.Sprint(v)); s != "" {
		return s
	}
	return "none"
}

// checkFacts compares what init found with the machine's declaration, so that
// a variant which is not in effect cannot pass for one that is.
func (e *expectations) checkFacts(m machine, f wire.Facts) []string {
	var d differences
	want := e.Machines[m.Name]
	d.compare("Landlock ABI", want.ABI, f.ABI)
	d.compare("why no Landlock", want.Errno, f.ABIErrno)
	if want.Errata != nil {
		d.compare("Landlock errata", mask(*want.Errata), mask(f.Errata))
	}
	d.compare("user namespaces of an ordinary user", want.Userns, f.UserNamespaces)
	d.compare("seccomp notification of an ordinary user", want.Notify, f.SeccompNotify)
	d.compare("cgroup.kill", want.CgroupKill, f.CgroupKill)
	d.compare("audit netlink", want.Audit, f.Audit)
	for _, c := range e.Controllers {
		if !slices.Contains(f.Controllers, c) {
			d.add("cgroup2 has no %s controller", c)
		}
	}
	for _, p := range m.commandLine() {
		if !slices.Contains(strings.Fields(f.CommandLine), p) {
			d.add("the kernel was not told %s", p)
		}
	}
	for _, t := range f.Trouble {
		d.add("init: %s", printable(t))
	}
	return d
}

func mask(n int) string { return fmt.Sprintf("%#x", n) }

// checkFeatures compares `sbx features` with the declaration, and with what init
// found beside the product.
func checkFeatures(want answer, mode modeAnswer, notRequested []string, f *features, facts *wire.Facts) []string {
	var d differences
	chosen, usable := f.chosen()
	d.compare("backend", want.Backend, chosen.Backend)
	d.compare("a backend can be used", !mode.Refused, usable)
	if usable && !mode.Refused {
		d.effects(mode, notRequested, chosen.Effects)
	}
	if facts == nil {
		return d // init did not come so far
	}
	if facts.Release != "" {
		d.compare("kernel release", facts.Release, f.Kernel)
	}
	l, ok := f.backend("landlock")
	if !ok {
		d.add("landlock is not among the backends")
		return d
	}
	agree := func(what string, init, sbx any) {
		if init != sbx {
			d.add("%s: init finds %v, sbx says %v", what, word(init), word(sbx))
		}
	}
	agree("Landlock ABI", facts.ABI, l.Facts.ABI)
	agree("Landlock errata", mask(facts.Errata), mask(l.Facts.Errata))
	if facts.ABIErrno != "" && !strings.Contains(l.Reason, facts.ABIErrno) {
		d.add("why no Landlock: init finds %s, sbx says %q", facts.ABIErrno, l.Reason)
	}
	// The backend asks for a listener only if it has Landlock to go with it, and
	// under abicap the launch finds out that there is one already.
	if l.Usable && facts.SeccompNotify != "" {
		agree("seccomp notification", facts.SeccompNotify == "ok", l.Facts.Notify)
	}
	return d
}

// checkDoctor wants the canaries to agree with the report.
func checkDoctor(want answer, mode modeAnswer, doc *doctor) []string {
	var d differences
	d.compare("doctor finds all well", !mode.Refused, doc.OK)
	d.compare("exit status", map[bool]int{true: 1, false: 0}[mode.Refused], doc.Exit)
	if mode.Refused {
		if len(doc.Unusable) == 0 {
			d.add("it names no backend that cannot be used")
		}
		return d
	}
	if len(doc.Backends) == 0 {
		d.add("it tried no backend")
		return d
	}
	d.compare("backend", want.Backend, doc.Backends[0].Backend)
	d.compare("level", mode.Level, doc.Backends[0].Level)
	for _, c := range doc.Backends[0].Checks {
		if !c.OK {
			d.add("%s: wanted %s, got %s: %s", printable(c.Name), word(c.Want), word(c.Got), printable(c.Detail))
		}
	}
	return d
}

// statusRefused is the exit status of a launch that was refused.
const statusRefused = 125

// checkRun compares the report of a launch.
func checkRun(want answer, mode modeAnswer, notRequested []string, confined bool, l *launch) []string {
	var d differences
	if mode.Refused {
		d.compare("exit status", statusRefused, l.Exit)
		d.compare("exit status in the report", statusRefused, l.ExitStatus)
		d.compare("the command ran", false, l.Ran)
		d.compare("outcome", "refused", l.Outcome.Kind)
		return d
	}
	d.compare("exit status", 0, l.Exit)
	d.compare("exit status in the report", 0, l.ExitStatus)
	d.compare("the command ran", true, l.Ran)
	if l.Outcome.Kind != "exited" {
		d.add("outcome: declared exited, observed %s: %s", word(l.Outcome.Kind), printable(l.Outcome.Reason))
	}
	d.compare("level", mode.Level, l.Level)
	if confined {
		d.compare("backend", want.Backend, l.Backend)
		d.compare("notification listener", want.Listener, l.Facts != nil && l.Facts.Notify)
	} else {
		d.compare("backend", "", l.Backend)
	}
	if l.Ran {
		d.effects(mode, notRequested, l.Effects)
	}
	return d
}

// effects compares the states of all effects. What no list names must be
// enforced.
func (d *differences) effects(mode modeAnswer, notRequested []string, got map[string]effectState) {
	want := map[string]string{}
	for _, list := range mode.lists(notRequested) {
		for _, e := range list.effects {
			want[e] = list.status
		}
	}
	all := map[string]bool{}
	for _, names := range []func(func(string) bool){maps.Keys(want), maps.Keys(got)} {
		for n := range names {
			all[n] = true
		}
	}
	for _, e := range slices.Sorted(maps.Keys(all)) {
		w, g := want[e], got[e].Status
		if w == "" {
			w = "enforced"
		}
		if w == g {
			continue
		}
		gaps := ""
		if len(got[e].Gaps) > 0 {
			gaps = " (" + printable(strings.Join(got[e].Gaps, "; ")) + ")"
		}
		d.add("%s: declared %s, observed %s%s", printable(e), w, word(g), gaps)
	}
}

// pretended is what init would find on a kernel such as abicap plays.
func pretended(fake string, own *wire.Facts) *wire.Facts {
	f := new(wire.Facts)
	if own != nil {
		f.Release = own.Release
	}
	switch fake {
	case "off":
		f.ABIErrno = "EOPNOTSUPP"
	case "none":
		f.ABIErrno = "ENOSYS"
	default:
		f.ABI, _ = strconv.Atoi(fake)
	}
	return f
}

// checkAnswers makes all checks of one user on one kernel, real or faked.
func (e *expectations) checkAnswers(m machine, fake, user string, a *answers, facts *wire.Facts) []check {
	if fake != "" {
		facts = pretended(fake, facts)
	}
	var list []check
	add := func(what string, problems []string) {
		list = append(list, check{subjectName(m.Name, fake) + ": " + what + " as " + user, problems})
	}
	want, err := e.answer(m.Name, fake)
	if err != nil {
		add("expectations", []string{err.Error()})
		return list
	}
	for _, t := range a.Trouble {
		add("output", []string{t})
	}
	work, err := e.want(m.Name, fake, "workspace-write", user)
	if err != nil {
		add("expectations", []string{err.Error()})
		return list
	}
	if a.Features != nil {
		add("features", checkFeatures(want, work, e.NotRequested["workspace-write"], a.Features, facts))
	}
	if a.Doctor != nil {
		add("doctor", checkDoctor(want, work, a.Doctor))
	}
	for _, mode := range modes {
		l := a.Runs[mode]
		if l == nil {
			continue
		}
		w, err := e.want(m.Name, fake, mode, user)
		problems := []string{}
		if err != nil {
			problems = append(problems, err.Error())
		} else {
			problems = checkRun(want, w, e.NotRequested[mode], mode != "danger-full-access", l)
		}
		add("run --mode "+mode, problems)
	}
	return list
}

// block shows what was observed in the form of expect.toml, for a person to
// read, judge and paste.
func (a *answers) block(section string) string {
	var b strings.Builder
	if a.Features != nil {
		if c, ok := a.Features.chosen(); ok {
			fmt.Fprintf(&b, "[%s]\nbackend = %q\n", section, c.Backend)
		}
	}
	for _, mode := range modes {
		l := a.Runs[mode]
		if l == nil {
			continue
		}
		fmt.Fprintf(&b, "[%s.%s]\n", section, mode)
		if !l.Ran {
			fmt.Fprintf(&b, "refused = true\n")
			continue
		}
		fmt.Fprintf(&b, "level = %q\npartial = %s\nunenforced = %s\n", l.Level, quoted(withStatus(l.Effects, "partial")), quoted(withStatus(l.Effects, "unenforced")))
	}
	return b.String()
}

func withStatus(effects map[string]effectState, status string) []string {
	var list []string
	for e, s := range effects {
		if s.Status == status {
			list = append(list, e)
		}
	}
	slices.Sort(list)
	return list
}

func quoted(list []string) string {
	var q []string
	for _, s := range list {
		q = append(q, fmt.Sprintf("%q", s))
	}
	return "[" + strings.Join(q, ", ") + "]"
}
