package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"sandboxd/test/kernels/wire"
)

// matrix boots machines and collects what came of them.
type matrix struct {
	expect    *expectations
	skips     []allowedSkip         // of test/skips*.txt
	base      map[string]*initramfs // by architecture
	kernels   map[string]fetched    // by machine
	work      string                // temporary
	out       string                // for people
	limit     time.Duration
	only      *regexp.Regexp // names of jobs
	parallel  int
	cases     *caseList // nil: none
	test2json string
	mustRun   bool
	progress  *progress
}

type fetched struct {
	kernel kernel
	err    error
}

// result is what one machine came to.
type result struct {
	Machine string
	Series  string `json:",omitempty"`
	Version string `json:",omitempty"` // of the package
	// NotRun is why the machine was not booted.
	NotRun   string `json:",omitempty"`
	Seconds  float64
	Attempts []attempt
	Facts    *wire.Facts `json:",omitempty"`
	Subjects []*subject
	Checks   []check
	Tests    []testRun
}

// subject is the kernel as itself or as a faked ABI: one row of the table.
type subject struct {
	Fake string `json:",omitempty"`
	// Answers are by the users' names.
	Answers map[string]*answers
}

// jobOutput is how a job ended and what it printed.
type jobOutput struct {
	Result         wire.Result
	stdout, stderr []byte
}

// run boots the machines, a few at a time, and returns their results in order.
// Those that take longest go first, so that none of them is alone at the end.
func (x *matrix) run(ctx context.Context, list []machine) []*result {
	results := make([]*result, len(list))
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x.weight(list[b]), x.weight(list[a])) })
	slots := make(chan struct{}, x.parallel)
	var wg sync.WaitGroup
	for _, i := range order {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = x.machine(ctx, list[i])
		})
	}
	wg.Wait()
	return results
}

// machine boots one machine, once more if it died by itself.
func (x *matrix) machine(ctx context.Context, m machine) *result {
	r := &result{Machine: m.Name}
	f := x.kernels[m.Name]
	if f.err != nil {
		r.NotRun = f.err.Error()
		if x.mustRun || !errors.Is(f.err, errNotToBeHad) {
			r.fail("kernel", r.NotRun)
		}
		return r
	}
	r.Series, r.Version = f.kernel.Series, f.kernel.Version
	jobs := x.jobs(m)
	dir := filepath.Join(x.work, m.Name)
	defer os.RemoveAll(dir)
	b, err := prepare(dir, m, f.kernel, x.base[m.Arch], jobs)
	if err == nil {
		err = os.MkdirAll(filepath.Join(x.out, m.Name), 0o755)
	}
	if err != nil {
		r.fail("preparation", err.Error())
		return r
	}
	var a attempt
	for try, again := 1, true; again && try <= 2 && ctx.Err() == nil; try++ {
		b.console = filepath.Join(x.out, m.Name, fmt.Sprintf("console-%d.txt", try))
		b.results = filepath.Join(x.out, m.Name, fmt.Sprintf("results-%d.bin", try))
		done := x.progress.start(m.Name, b)
		a = b.run(ctx, x.limit)
		done()
		a.Failure, again = a.verdict(b.arch.done)
		r.Attempts = append(r.Attempts, a)
		r.Seconds += a.Seconds
		if a.Failure != "" && ctx.Err() == nil {
			x.progress.say("%s: %s, after %.0f s", m.Name, a.Failure, a.Seconds)
		}
	}
	outputs, trouble := collect(a.records, jobs)
	if ctx.Err() != nil {
		r.NotRun = "interrupted"
		return r
	}
	if err := keep(filepath.Join(x.out, m.Name), outputs); err != nil {
		r.fail("output", err.Error())
	}
	x.judge(ctx, m, r, a, jobs, outputs, trouble)
	x.progress.say("%s: done in %.1f s", m.Name, r.Seconds)
	return r
}

func (x *matrix) jobs(m machine) []job {
	list := jobsOf(m)
	if x.cases != nil {
		for _, u := range users {
			list = append(list, x.cases.jobs(u, x.refuses(m))...)
		}
	}
	return slices.DeleteFunc(list, func(j job) bool { return !x.only.MatchString(j.Name) })
}

// What of a machine's time tests do not take, in seconds: see testPackage.takes.
const (
	bootTakes      = 5
	answerTakes    = 0.5
	highResolution = 1.5 // times as long
)

// weight is about how long a machine takes, in seconds.
func (x *matrix) weight(m machine) float64 {
	n := float64(bootTakes)
	for _, j := range x.jobs(m) {
		switch {
		case j.Kind != kindTest:
			n += answerTakes
		case j.ofBackend && x.refuses(m): // they skip
		default:
			n += j.takes
		}
	}
	if m.HighRes {
		n *= highResolution
	}
	return n
}

// refuses tells whether sbx must refuse to confine anything on a machine.
func (x *matrix) refuses(m machine) bool {
	w, err := x.expect.want(m.Name, "", "workspace-write", "user")
	return err == nil && w.Refused
}

func (r *result) fail(what string, problems ...string) {
	r.Checks = append(r.Checks, check{r.Machine + ": " + what, problems})
}

// judge compares everything with the data.
func (x *matrix) judge(ctx context.Context, m machine, r *result, a attempt, jobs []job, outputs map[string]jobOutput, trouble []string) {
	if a.Failure != "" {
		trouble = append(a.story(), trouble...)
	}
	r.Checks = append(r.Checks, check{m.Name + ": the machine", trouble})
	r.subject("") // it has a row, whatever came of it
	for _, rec := range a.records {
		if rec.Facts != nil {
			r.Facts = rec.Facts
			r.Checks = append(r.Checks, check{m.Name + ": the kernel", x.expect.checkFacts(m, *rec.Facts)})
			break
		}
	}
	if r.Facts == nil && a.Failure == "" {
		r.fail("the kernel", "init said nothing about it")
	}
	for _, j := range jobs {
		out, ok := outputs[j.Name]
		if !ok {
			if a.Failure == "" {
				r.fail(j.Name, "the guest did not run it")
			}
			continue
		}
		user := userName(j.UID)
		switch {
		case j.Kind == kindTest:
			t := convert(ctx, x.test2json, j, out, user)
			x.expect.declareSkips(m.Name, &t, x.skips)
			r.Tests = append(r.Tests, t)
		case j.Kind == kindCase:
			r.cases(user, x.cases.skipped).count(j, out, x.expect.declared(m.Name, j.Case, user))
		case out.Result.TimedOut:
			r.fail(j.Name, fmt.Sprintf("ended after its %d s%s", j.Seconds, complaint(string(out.stderr))))
		default:
			r.subject(j.Fake).of(user).take(j, out)
		}
	}
	for _, s := range r.Subjects {
		for _, u := range users {
			if got := s.Answers[u.name]; got != nil {
				r.Checks = append(r.Checks, x.expect.checkAnswers(m, s.Fake, u.name, got, r.Facts)...)
			}
		}
	}
}

// cases are the results of one user's cases.
func (r *result) cases(user string, skipped []testSkip) *testRun {
	const name = "cases"
	for i := range r.Tests {
		if r.Tests[i].Package == name && r.Tests[i].User == user {
			return &r.Tests[i]
		}
	}
	r.Tests = append(r.Tests, testRun{Package: name, User: user, Skipped: slices.Clone(skipped)})
	return &r.Tests[len(r.Tests)-1]
}

func userName(uid int) string {
	for _, u := range users {
		if u.uid == uid {
			return u.name
		}
	}
	return fmt.Sprint(uid)
}

func (r *result) subject(fake string) *subject {
	for _, s := range r.Subjects {
		if s.Fake == fake {
			return s
		}
	}
	s := &subject{Fake: fake, Answers: map[string]*answers{}}
	r.Subjects = append(r.Subjects, s)
	return s
}

func (s *subject) of(user string) *answers {
	if s.Answers[user] == nil {
		s.Answers[user] = &answers{Runs: map[string]*launch{}}
	}
	return s.Answers[user]
}

// collect puts the pieces of each job together. A job without a result did not
// end. Trouble is what the guest says of jobs, except of cases: they leave
// processes behind on purpose.
func collect(records []wire.Record, jobs []job) (outputs map[string]jobOutput, trouble []string) {
	outputs = map[string]jobOutput{}
	pieces := map[string]*jobOutput{}
	at := func(name string) *jobOutput {
		if pieces[name] == nil {
			pieces[name] = new(jobOutput)
		}
		return pieces[name]
	}
	for _, r := range records {
		switch {
		case r.Output != nil && r.Output.Err:
			at(r.Output.Job).stderr = append(at(r.Output.Job).stderr, r.Output.Data...)
		case r.Output != nil:
			at(r.Output.Job).stdout = append(at(r.Output.Job).stdout, r.Output.Data...)
		case r.Result != nil:
			p := at(r.Result.Name)
			p.Result = *r.Result
			outputs[r.Result.Name] = *p
			isCase := slices.ContainsFunc(jobs, func(j job) bool { return j.Name == r.Result.Name && j.Kind == kindCase })
			if r.Result.Trouble != "" && !isCase {
				trouble = append(trouble, printable(r.Result.Name+": "+r.Result.Trouble))
			}
		}
	}
	return outputs, trouble
}

// keep writes what each job printed, for people to look into.
func keep(dir string, outputs map[string]jobOutput) error {
	var errs []error
	for name, o := range outputs {
		for suffix, text := range map[string][]byte{".out": o.stdout, ".err": o.stderr} {
			if len(text) > 0 {
				errs = append(errs, os.WriteFile(filepath.Join(dir, name+suffix), text, 0o644))
			}
		}
	}
	return errors.Join(errs...)
}

// writeJSON writes all results for programs.
func writeJSON(file string, results []*result) error {
	text, err := json.MarshalIndent(map[string]any{"results": results, "count": count(results)}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
