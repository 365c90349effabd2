package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sandboxd/test/kernels/wire"
)

// effectsOf makes a report's effects: "partial fs.ioctl" and the like.
func effectsOf(states ...string) map[string]effectState {
	m := map[string]effectState{}
	for _, s := range states {
		status, effect, _ := strings.Cut(s, " ")
		m[effect] = effectState{Status: status, Gaps: []string{"a reason"}}
	}
	return m
}

func TestEffectsDiffer(t *testing.T) {
	mode := modeAnswer{Level: "partial", Partial: []string{"fs.ioctl"}, Unenforced: []string{"proc.see"}}
	notRequested := []string{"limits.cpu"}
	right := []string{"enforced fs.read", "partial fs.ioctl", "unenforced proc.see", "not-requested limits.cpu"}
	for _, c := range []struct {
		name   string
		change string // a state that replaces the right one
		want   string
	}{
		{"as declared", "enforced fs.read", ""},
		{"an unexpected gap", "unenforced fs.read", "fs.read: declared enforced, observed unenforced (a reason)"},
		{"a gap that closed", "enforced fs.ioctl", "fs.ioctl: declared partial, observed enforced (a reason)"},
		{"a gap that widened", "unenforced fs.ioctl", "fs.ioctl: declared partial, observed unenforced (a reason)"},
		{"no longer asked for", "not-requested fs.read", "fs.read: declared enforced, observed not-requested (a reason)"},
		{"asked for at last", "enforced limits.cpu", "limits.cpu: declared not-requested, observed enforced (a reason)"},
		{"a new effect with a gap", "partial new.effect", "new.effect: declared enforced, observed partial (a reason)"},
		{"a new effect", "enforced new.effect", ""},
	} {
		var d differences
		d.effects(mode, notRequested, effectsOf(append(slices.Clone(right), c.change)...))
		if got := strings.Join(d, "\n"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	var d differences
	d.effects(mode, notRequested, effectsOf("enforced fs.read", "partial fs.ioctl", "not-requested limits.cpu"))
	if want := "proc.see: declared unenforced, observed none"; strings.Join(d, "\n") != want {
		t.Errorf("an effect that the report leaves out: got %q, want %q", d, want)
	}
}

func TestCheckRun(t *testing.T) {
	want := answer{Backend: "landlock", Listener: true}
	mode := modeAnswer{Level: "partial", Partial: []string{"tree.kill"}}
	good := func() *launch {
		l := &launch{Backend: "landlock", Ran: true, Level: "partial", Effects: effectsOf("partial tree.kill", "enforced fs.read"), Facts: &landlockFacts{Notify: true}}
		l.Outcome.Kind = "exited"
		return l
	}
	for _, c := range []struct {
		name   string
		change func(*launch)
		mode   modeAnswer
		want   string
	}{
		{"as declared", func(*launch) {}, mode, ""},
		{"another level", func(l *launch) { l.Level = "full" }, mode, "level: declared partial, observed full"},
		{"another backend", func(l *launch) { l.Backend = "" }, mode, "backend: declared landlock, observed none"},
		{"no listener", func(l *launch) { l.Facts.Notify = false }, mode, "notification listener: declared true, observed false"},
		{"a wrong status", func(l *launch) { l.Exit = 1 }, mode, "exit status: declared 0, observed 1"},
		{"it ran although it must not", func(*launch) {}, modeAnswer{Refused: true}, "the command ran: declared false, observed true"},
	} {
		l := good()
		c.change(l)
		got := strings.Join(checkRun(want, c.mode, nil, true, l), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	refused := &launch{Exit: 125, ExitStatus: 125}
	refused.Outcome.Kind = "refused"
	if got := checkRun(answer{}, modeAnswer{Refused: true}, nil, true, refused); got != nil {
		t.Errorf("a refusal: got %q", got)
	}
	if got := checkRun(want, mode, nil, true, refused); len(got) == 0 {
		t.Error("a refusal that nobody declared passes")
	}
}

func TestFeaturesAgreeWithInit(t *testing.T) {
	says := func(abi, errata int, notify bool, reason string) *features {
		return &features{Kernel: "6.1", Backends: []capability{{
			Backend: "landlock", Usable: abi > 0, Reason: reason, Facts: landlockFacts{abi, errata, notify}, Effects: effectsOf("enforced fs.read"),
		}}}
	}
	full, none := modeAnswer{Level: "full"}, modeAnswer{Refused: true}
	facts := wire.Facts{Release: "6.1", ABI: 2, Errata: 0xc, SeccompNotify: "ok"}
	off := wire.Facts{Release: "6.1", ABIErrno: "EOPNOTSUPP", SeccompNotify: "ok"}
	for _, c := range []struct {
		name  string
		f     *features
		facts wire.Facts
		want  string
	}{
		{"they agree", says(2, 0xc, true, ""), facts, ""},
		{"another ABI", says(3, 0xc, true, ""), facts, "Landlock ABI: init finds 2, sbx says 3"},
		{"other errata", says(2, 0, true, ""), facts, "Landlock errata: init finds 0xc, sbx says 0x0"},
		{"no notification", says(2, 0xc, false, ""), facts, "seccomp notification: init finds true, sbx says false"},
		{"another kernel", says(2, 0xc, true, ""), wire.Facts{Release: "6.2", ABI: 2, Errata: 0xc, SeccompNotify: "ok"}, "kernel release: declared 6.2, observed 6.1"},
		{"off, and why", says(0, 0, false, "disabled (EOPNOTSUPP)"), off, ""},
		{"off, and not why", says(0, 0, false, "not built (ENOSYS)"), off, `why no Landlock: init finds EOPNOTSUPP, sbx says "not built (ENOSYS)"`},
	} {
		want, mode := answer{Backend: "landlock"}, full
		if c.facts.ABI == 0 {
			want, mode = answer{}, none
		}
		if got := strings.Join(checkFeatures(want, mode, nil, c.f, &c.facts), "\n"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCheckDoctor(t *testing.T) {
	const well = `{"ok": true, "backends": [{"backend": "landlock", "level": "partial", "checks": [{"name": "read", "want": "refused", "got": "refused", "ok": true}]}]}`
	const ill = `{"ok": false, "backends": [{"backend": "landlock", "level": "partial", "checks": [{"name": "read", "want": "refused", "got": "allowed", "ok": false, "detail": "it was\nread"}]}]}`
	const none = `{"ok": false, "backends": [], "unusable": [{"backend": "landlock"}]}`
	for _, c := range []struct {
		text string
		exit int
		mode modeAnswer
		want string
	}{
		{well, 0, modeAnswer{Level: "partial"}, ""},
		{well, 1, modeAnswer{Level: "partial"}, "exit status"},
		{ill, 1, modeAnswer{Level: "partial"}, `read: wanted refused, got allowed: "it was\nread"`},
		{none, 1, modeAnswer{Refused: true}, ""},
		{none, 1, modeAnswer{Level: "partial"}, "it tried no backend"},
		{well, 0, modeAnswer{Refused: true}, "it names no backend"},
	} {
		d := &doctor{Exit: c.exit}
		if err := json.Unmarshal([]byte(c.text), d); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(checkDoctor(answer{Backend: "landlock"}, c.mode, d), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s, exit %d: got %q, want %q", c.text, c.exit, got, c.want)
		}
	}
}

func TestCheckFacts(t *testing.T) {
	errata := 0xc
	e := &expectations{
		Controllers: []string{"memory"},
		Machines:    map[string]machineFacts{"m": {ABI: 2, Errata: &errata, Userns: "EPERM", Notify: "ok", CgroupKill: true, Audit: true}},
	}
	m := machine{Name: "m", Parameters: []string{"audit=1"}}
	facts := func() wire.Facts {
		return wire.Facts{
			CommandLine: "quiet audit=1", ABI: 2, Errata: 0xc, UserNamespaces: "EPERM", SeccompNotify: "ok",
			Controllers: []string{"cpu", "memory"}, CgroupKill: true, Audit: true,
		}
	}
	if got := e.checkFacts(m, facts()); got != nil {
		t.Errorf("as declared: got %q", got)
	}
	for want, change := range map[string]func(*wire.Facts){
		"Landlock ABI: declared 2, observed 3":                                  func(f *wire.Facts) { f.ABI = 3 },
		"why no Landlock: declared none, observed ENOSYS":                       func(f *wire.Facts) { f.ABIErrno = "ENOSYS" },
		"Landlock errata: declared 0xc, observed 0xd":                           func(f *wire.Facts) { f.Errata = 0xd },
		"user namespaces of an ordinary user: declared EPERM, observed ok":      func(f *wire.Facts) { f.UserNamespaces = "ok" },
		"seccomp notification of an ordinary user: declared ok, observed EPERM": func(f *wire.Facts) { f.SeccompNotify = "EPERM" },
		"cgroup.kill: declared true, observed false":                            func(f *wire.Facts) { f.CgroupKill = false },
		"audit netlink: declared true, observed false":                          func(f *wire.Facts) { f.Audit = false },
		"cgroup2 has no memory controller":                                      func(f *wire.Facts) { f.Controllers = nil },
		"the kernel was not told audit=1":                                       func(f *wire.Facts) { f.CommandLine = "audit=10" },
		`init: "no\x1b[2J"`:                                                     func(f *wire.Facts) { f.Trouble = []string{"no\x1b[2J"} },
	} {
		f := facts()
		change(&f)
		if got := e.checkFacts(m, f); !slices.Equal(got, []string{want}) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// What the table and the data call an answer comes from the job's output.
func TestTakeAnswers(t *testing.T) {
	a := answers{Runs: map[string]*launch{}}
	jobs := map[string]job{}
	for _, j := range answerJobs(users[1], "3", "sbx", "abicap") {
		jobs[j.Name] = j
		if want := "abicap 3 sbx "; !strings.HasPrefix(strings.Join(j.Args, " "), want) {
			t.Errorf("%s runs %q", j.Name, j.Args)
		}
	}
	give := func(name, text string, exit int) {
		a.take(jobs[name], jobOutput{Result: wire.Result{Exit: exit}, stdout: []byte(text), stderr: []byte("complaint\x07\n")})
	}
	give("abi-3-features-user", `{"kernel": "7.3"}`, 0)
	give("abi-3-run-read-only-user", `{"ran": true, "level": "partial"}`, 3)
	give("abi-3-doctor-user", `Segmentation fault`, 139)
	if a.Features == nil || a.Features.Kernel != "7.3" {
		t.Errorf("features: %+v", a.Features)
	}
	if l := a.Runs["read-only"]; l == nil || l.Exit != 3 || l.Level != "partial" {
		t.Errorf("run: %+v", l)
	}
	if a.Doctor != nil || len(a.Trouble) != 1 || !strings.Contains(a.Trouble[0], `"complaint\a"`) {
		t.Errorf("doctor: %+v, trouble %q", a.Doctor, a.Trouble)
	}
	block := a.block("faked.3")
	if want := fmt.Sprintf("[faked.3.read-only]\nlevel = %q\n", "partial"); !strings.Contains(block, want) {
		t.Errorf("got %q, want %q in it", block, want)
	}
}
