package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// runAll runs the machines and the host's part, and reports on both.
func (o *options) runAll(ctx context.Context, work string, e *expectations, all, picked []machine) error {
	var results []*result
	x := &matrix{expect: e, work: work, out: o.out, progress: newProgress(), mustRun: os.Getenv("SBX_MUST_RUN") == "1"}
	var err error
	if o.boots {
		results, err = o.runMatrix(ctx, x, picked)
	}
	if o.host && err == nil && ctx.Err() == nil {
		host, herr := runOnHost(ctx, work, e, x.progress)
		if herr != nil {
			r := &result{Machine: "host"}
			r.fail("faked ABIs", printable(herr.Error()))
			host = append(host, r)
		}
		results = append(results, host...)
	}
	if err == nil && ctx.Err() == nil {
		err = o.report(results, all, x.mustRun)
	}
	switch {
	case o.out != "" || x.out == "":
	case err == nil || ctx.Err() != nil:
		os.RemoveAll(x.out)
	default:
		x.progress.say("consoles and outputs are in %s", x.out)
	}
	return err
}

// provide fetches the kernels while it builds what the guests get.
func (o *options) provide(ctx context.Context, work string, p *progress, picked []machine, cases *caseList) (map[string]fetched, map[string]*initramfs, error) {
	type built struct {
		base map[string]*initramfs
		err  error
	}
	ctx, cancel := context.WithCancel(ctx) // neither is of use without the other
	defer cancel()
	done := make(chan built, 1)
	go func() {
		p.say("building the guests' programs")
		base := map[string]*initramfs{}
		var err error
		for _, name := range archesOf(picked) {
			if base[name], err = newInitramfs(ctx, work, name, contents{o.userland, cases}); err != nil {
				cancel()
				break
			}
		}
		done <- built{base, err}
	}()
	had, err := o.fetch(ctx, p, picked)
	if err != nil {
		cancel()
	}
	b := <-done
	if err == nil || errors.Is(err, context.Canceled) && b.err != nil {
		err = b.err // the first of the two
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range archesOf(picked) {
		if err := b.base[name].addPrograms(ctx, had.debs[name]); err != nil {
			return nil, nil, err
		}
		p.say("the initramfs for %s has %d MB", name, b.base[name].size>>20)
	}
	return had.kernels, b.base, nil
}

// had is what was fetched.
type had struct {
	kernels map[string]fetched  // by machine
	debs    map[string][]string // programs, by architecture
}

func (o *options) fetch(ctx context.Context, p *progress, picked []machine) (had, error) {
	h := had{map[string]fetched{}, map[string][]string{}}
	for _, name := range archesOf(picked) {
		if err := o.fetchFor(ctx, p, arches[name], picked, h); err != nil {
			return h, err
		}
	}
	return h, nil
}

// fetchFor gets what the machines of one architecture need.
func (o *options) fetchFor(ctx context.Context, p *progress, of arch, picked []machine, h had) error {
	f, release, err := openFetcher(ctx, o.cache, of, p.say)
	if err != nil {
		return err
	}
	defer release()
	if of.name != hostArch {
		if h.debs[of.name], err = f.programs(ctx, o.userland); err != nil {
			return err
		}
	}
	for _, m := range picked {
		if m.Arch != of.name {
			continue
		}
		k, err := f.kernel(ctx, m.Series)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h.kernels[m.Name] = fetched{k, err}
	}
	return nil
}

func (o *options) runMatrix(ctx context.Context, x *matrix, picked []machine) ([]*result, error) {
	x.limit, x.parallel = time.Duration(o.limit)*time.Second, o.parallel
	var err error
	if x.only, err = regexp.Compile(o.jobs); err != nil {
		return nil, fmt.Errorf("--jobs: %w", err)
	}
	for file, user := range map[string]string{"test/skips.txt": "", "test/skips-user.txt": "user"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		x.skips = append(x.skips, readSkips(string(text), user)...)
	}
	if o.cases != "" {
		if x.cases, err = readCases(o.cases); err != nil {
			return nil, err
		}
	}
	if x.test2json, err = toolPath(ctx, "test2json"); err != nil {
		return nil, err
	}
	if x.kernels, x.base, err = o.provide(ctx, x.work, x.progress, picked, x.cases); err != nil {
		return nil, err
	}
	if x.out == "" {
		if x.out, err = os.MkdirTemp("", "kernels-out-"); err != nil {
			return nil, err
		}
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go x.progress.watch(watching)
	return x.run(ctx, picked), nil
}

func toolPath(ctx context.Context, name string) (string, error) {
	out, err := output(command(ctx, "go", "tool", "-n", name))
	return strings.TrimSpace(out), err
}

// report prints and writes everything about a finished run.
func (o *options) report(results []*result, all []machine, mustRun bool) error {
	if mustRun {
		for _, r := range results {
			r.undeclaredSkips()
		}
	}
	var docs result
	if o.checkDoc != "" {
		docs.Checks = append(docs.Checks, checkDoc(o.checkDoc, results, all))
	}
	var err error
	if o.doc != "" {
		err = updateDoc(o.doc, results, all)
	}
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, results))
	}
	if len(docs.Checks) > 0 {
		docs.Machine = "docs"
		results = append(slices.Clone(results), &docs)
	}
	writeReport(os.Stdout, results)
	if err == nil && count(results).Failed > 0 {
		err = errFailed
	}
	return err
}

// runShell boots a machine for a person. QEMU has the terminal, so it stays in
// this program's process group.
func (o *options) runShell(ctx context.Context, work string, m machine) error {
	p := newProgress()
	kernels, base, err := o.provide(ctx, work, p, []machine{m}, nil)
	if err != nil {
		return err
	}
	f := kernels[m.Name]
	if f.err != nil {
		return f.err
	}
	b, err := prepare(work, m, f.kernel, base[m.Arch], nil, "sbx.shell")
	if err != nil {
		return err
	}
	p.say("booting %s; leave with `exit`, or end the machine with Ctrl-a x", f.kernel.Version)
	// mon: keeps Ctrl-C for the guest. The second line is where the results go
	// otherwise.
	c := exec.CommandContext(ctx, b.arch.qemu, b.qemu("mon:stdio", "")...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && b.arch.done == 1 && exit.ExitCode()%2 == 1 {
		err = nil // the guest's own end
	}
	return err
}
