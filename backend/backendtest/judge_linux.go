package backendtest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"sandboxd/backend"
	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// judge compares the two runs of one row. The order matters: a touch that
// succeeded must fail the row even where the control means nothing.
func judge(r Row, mode policy.Mode, control, inside *side) (failure, skip string) {
	got, ok := inside.results[r.Name]
	if !ok {
		return "it has no result", ""
	}
	switch {
	case got.OK && unenforced(r.Effect, inside) && (r.deniedIn(mode) || r.want == silent):
		return "", ownedUp(r.Effect)
	case r.want == silent:
		return judgeSilent(inside), ""
	case r.want == same:
		return judgeSame(got, control.results[r.Name]), ""
	case r.deniedIn(mode):
		failure = judgeDenied(r, mode, got, inside)
	case r.want == pinned:
		failure = judgePinned(r, mode, got, inside)
	case !got.OK:
		failure = "it must work and gives " + shown(got)
	}
	why := meaning(r, control)
	switch {
	case why == "":
		return failure, ""
	case r.needs != "" && !got.OK:
		return "", fmt.Sprintf("needs %s: outside the sandbox it gives %s", r.needs, shown(control.results[r.Name]))
	case failure == "":
		failure = why
	}
	return failure, ""
}

// judgeSilent: whatever the call answered, no signal may have arrived.
func judgeSilent(inside *side) string {
	if len(inside.signals) > 0 {
		return fmt.Sprintf("the host process got %v", inside.signals)
	}
	return ""
}

// unenforced tells whether the report owns up to an effect: nothing refuses it
// here.
func unenforced(e policy.Effect, inside *side) bool {
	return e != none && inside.enforcement.State(e).Status == backend.Unenforced
}

func ownedUp(e policy.Effect) string {
	return "the report says that " + e.String() + " is not enforced here"
}

// judgeSame: a program must not notice that somebody judges its call.
func judgeSame(got, outside attempt.Result) string {
	if got.OK != outside.OK || errnoOf(got) != errnoOf(outside) {
		return fmt.Sprintf("it gives %s, and outside the sandbox %s", shown(got), shown(outside))
	}
	return ""
}

func judgeDenied(r Row, mode policy.Mode, got attempt.Result, inside *side) string {
	status := inside.enforcement.State(r.Effect).Status
	if got.OK {
		return fmt.Sprintf("it is allowed (%s), and the report says %s", clip(string(got.Detail)), statusName(r.Effect, status))
	}
	if why := traces(r, inside); why != "" {
		return fmt.Sprintf("it is answered %s, yet %s", shown(got), why)
	}
	if strings.Contains(string(got.Detail), inside.fixture.secret) {
		return "the secret is in the answer"
	}
	if want := r.errnosIn(mode); !slices.Contains(want, errnoOf(got)) {
		return fmt.Sprintf("it is refused with %s, want %s", shown(got), strings.Join(want, " or "))
	}
	return ""
}

// judgePinned: the gap is open as long as the report says so, and not longer.
func judgePinned(r Row, mode policy.Mode, got attempt.Result, inside *side) string {
	if inside.enforcement.State(r.Effect).Status == backend.Enforced {
		return judgeDenied(r, mode, got, inside)
	}
	if !got.OK {
		return fmt.Sprintf("it is refused with %s, yet %s is reported as %s: the gap is closed, so say so", shown(got), r.Effect,
			inside.enforcement.State(r.Effect).Status)
	}
	return ""
}

// traces tells what a refused attempt has left behind.
func traces(r Row, inside *side) string {
	if heard := inside.fixture.ear.of(r.slug()); r.sends() && len(heard) > 0 {
		return fmt.Sprintf("a listener heard %q", heard)
	}
	places := []string{"outside"}
	if r.want == workspace {
		places = append(places, "ws")
	}
	for _, where := range places {
		changed, err := inside.fixture.changed(where, r)
		if err != nil {
			return err.Error()
		}
		if len(changed) > 0 {
			return strings.Join(changed, "; ")
		}
	}
	return ""
}

// meaning says why the control of a row proves nothing, or "".
func meaning(r Row, control *side) string {
	got := control.results[r.Name]
	if !got.OK {
		if slices.Contains(r.natural, errnoOf(got)) {
			return ""
		}
		return "the row means nothing: outside the sandbox it gives " + shown(got)
	}
	if r.want != denied {
		return ""
	}
	if r.sends() && len(control.fixture.ear.of(r.slug())) == 0 && strings.HasPrefix(r.Effect.String(), "net.") {
		return "the row means nothing: outside the sandbox no listener hears it"
	}
	if r.mutates() {
		if changed, err := control.fixture.changed("outside", r); err != nil || len(changed) == 0 {
			return fmt.Sprintf("the row means nothing: outside the sandbox it changes nothing (%v)", err)
		}
	}
	return ""
}

// overall judges what no single row can: everything that reached the host.
func overall(mode policy.Mode, rows []Row, control, inside *side) []Verdict {
	verdict := func(name string, e policy.Effect, failure string) Verdict {
		return Verdict{Row: Row{Name: name, Effect: e, Op: "-", want: denied}, Mode: mode, Failure: failure}
	}
	var all []Verdict
	failure := ""
	if heard := unexpected(rows, inside); len(heard) > 0 {
		failure = fmt.Sprintf("they heard %q", heard)
	}
	all = append(all, verdict("the host's listeners hear nothing", none, failure))
	failure = judgeSilent(inside)
	if len(control.signals) == 0 {
		failure = "it means nothing: outside the sandbox none arrives either"
	}
	signals := verdict("no signal reaches the host process", policy.ProcSignal, failure)
	if unenforced(policy.ProcSignal, inside) {
		signals.Failure, signals.Skip = "", ownedUp(policy.ProcSignal)
	}
	all = append(all, signals)
	failure = ""
	for _, path := range []string{"/dev/shm/" + inside.fixture.vars["hostshm"], "/dev/shm/" + inside.fixture.vars["spareshm"],
		inside.fixture.path("data", "file")} {
		if b, err := os.ReadFile(path); err != nil || string(b) != "original\n" {
			failure = fmt.Sprintf("%s holds %q (%v)", path, b, err)
		}
	}
	all = append(all, verdict("host segments and readable files keep their bytes", policy.FSWrite, failure))
	return append(all, verdict("no effect reported as enforced lets a touch through", none, consistent(rows, mode, inside)))
}

// unexpected is what the listeners heard, but for the rows whose effect is
// reported as not enforced.
func unexpected(rows []Row, inside *side) []string {
	return slices.DeleteFunc(inside.fixture.ear.all(), func(heard string) bool {
		return slices.ContainsFunc(rows, func(r Row) bool {
			return unenforced(r.Effect, inside) && strings.HasSuffix(heard, ": "+r.slug())
		})
	})
}

// consistent compares the report with what the attempts found, row by row.
func consistent(rows []Row, mode policy.Mode, inside *side) string {
	var lies []string
	for _, r := range rows {
		forbidden := r.deniedIn(mode) || r.want == pinned
		if forbidden && r.Effect != none && inside.results[r.Name].OK && inside.enforcement.State(r.Effect).Status == backend.Enforced {
			lies = append(lies, fmt.Sprintf("%s (%s)", r.Name, r.Effect))
		}
	}
	if len(lies) == 0 {
		return ""
	}
	return "these are allowed: " + strings.Join(lies, ", ")
}

func statusName(e policy.Effect, s backend.Status) string {
	if e == none {
		return "nothing of it"
	}
	return fmt.Sprintf("%s is %s", e, s)
}

// errnoOf is the errno of a result, or the signal that ended the attempt.
func errnoOf(r attempt.Result) string {
	if r.Signal != "" {
		return r.Signal
	}
	return r.Errno
}

func shown(r attempt.Result) string {
	if r.OK {
		return "success"
	}
	return fmt.Sprintf("%s (%s)", errnoOf(r), clip(string(r.Detail)))
}

func clip(s string) string { return fmt.Sprintf("%.120q", s) }

// judgeOwn: what a worker has of its own it may touch, and the host has no trace of it.
func judgeOwn(r Row, inside *side) string {
	got := inside.results[r.Name]
	if !got.OK {
		return "it is the worker's own, and gives " + shown(got)
	}
	if why := traces(r, inside); why != "" {
		return why
	}
	if strings.Contains(string(got.Detail), "outside") {
		return "it shows what is the host's: " + shown(got)
	}
	if args := inside.fixture.request(r).Args; strings.HasPrefix(r.Op, "create ") {
		if _, err := os.Lstat(string(args[0])); !os.IsNotExist(err) {
			return fmt.Sprintf("the host sees %q (%v)", args[0], err)
		}
	}
	return ""
}
