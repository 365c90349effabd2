package run

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/launch"
	"sandboxd/internal/quota"
	"sandboxd/internal/scratch"
	"sandboxd/internal/stream"
	"sandboxd/internal/sys"
	"sandboxd/policy"
	"sandboxd/report"
)

// Options are one launch.
type Options struct {
	// ID names the launch in the report; empty is a new one.
	ID string
	// As, if it is set, runs what looks up the caller's paths with the caller's rights.
	As     func(func()) error
	Policy policy.Policy
	Argv   []string
	// Backends are the candidates in order of preference. They are not called
	// in danger-full-access.
	Backends              []backend.Backend
	Stdin, Stdout, Stderr *os.File
	// User is who the worker runs as in danger-full-access; nil is the caller. A
	// backend knows of itself.
	User *launch.User
	// Files and UnsafeFiles: see backend.Command.
	Files       []backend.File
	UnsafeFiles bool
	// OwnTree: see backend.Command.
	OwnTree  bool
	Version  string
	Profiles []string
	Warnings []string
	// Groups, if it is set, gives what the caller found out of cgroups, which a
	// launch in danger-full-access closes. A backend has its own.
	Groups func() *cgroup.Host
	// Chosen, if it is set, is called with the backend that will confine the worker,
	// before BeforeStart; not in danger-full-access. It is called again if the launch
	// turns out to need another plan, which BeforeStart is not. An error ends the launch.
	Chosen func(c backend.Choice, planHash string) error
	// Cache, if it is set, has what launches share.
	Cache *Cache
	// BeforeStart is called when nothing stands against the launch any more, to
	// do what must not happen for a launch that is refused.
	BeforeStart func(*backend.Command, backend.Enforcement) error
	// Begin, if it is set, is called after BeforeStart and Terminal, when nothing is left
	// but to start the worker: see backend.Command.
	Begin func() error
	// Terminal, if it is set, gives the command a terminal of its own. It is called
	// right after BeforeStart and returns what copies the terminal's output.
	Terminal func(*backend.Command) (*stream.Tap, error)
	// Started is called once the worker runs, to forward signals to it. The
	// returned function is called when it has ended.
	Started func(backend.Worker) (stop func())
}

// Failure is why nothing ran, for a person: one line and a hint.
type Failure struct {
	Line string
	Hint string
}

// Execute runs the launch to its end. The report is never nil; failure is nil
// when the command ran.
func Execute(o Options) (*report.Report, *Failure) { return Start(&o).Wait() }

// Refused is the report of a launch that was refused before [Execute] could be called.
func Refused(o Options, err error) (*report.Report, *Failure) {
	return (&Running{policy: o.Policy, report: o.report(), err: err}).Wait()
}

// Running is a launch from its start on. It holds nothing of how that was made: it may
// wait for long, and there may be many.
type Running struct {
	policy policy.Policy
	report *report.Report
	err    error // why nothing runs
	worker *watched
	ended  func()   // what Options.Started has returned
	close  []func() // what is left to do in the end, from the last one on
}

// Start starts the launch. Whatever comes of it, Wait is to be called.
func Start(o *Options) *Running {
	l := &Running{policy: o.Policy, report: o.report()}
	l.err = l.start(o)
	return l
}

// Wait waits for the end, and says what came of it.
func (l *Running) Wait() (*report.Report, *Failure) {
	if l.err == nil {
		l.wait()
	}
	for i := len(l.close) - 1; i >= 0; i-- {
		l.close[i]()
	}
	r := l.report
	r.DescribePolicy(l.policy) // a report of one that runs for long holds no copy
	r.Ended = time.Now()
	r.Duration = r.Ended.Sub(r.Started).Seconds()
	failure := explain(l.policy, r, l.err)
	r.ExitStatus = r.Status()
	return r, failure
}

func (o *Options) report() *report.Report {
	r := &report.Report{
		Schema: report.SchemaVersion, ID: cmp.Or(o.ID, NewID()), Version: o.Version, Started: time.Now(),
		Profiles: o.Profiles, Warnings: o.Warnings,
	}
	for _, a := range o.Argv {
		r.Argv = append(r.Argv, policy.Raw(a))
	}
	return r
}

func (l *Running) start(o *Options) error {
	r := l.report
	dir, path, err := o.find()
	if err != nil {
		return err
	}
	defer dir.Close()
	r.Executable = policy.Raw(path)
	cmd := backend.Command{Path: path, Argv: o.Argv, Dir: dir, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Files: o.Files, UnsafeFiles: o.UnsafeFiles, OwnTree: o.OwnTree, Begin: o.Begin}
	var w backend.Worker
	var taps []*stream.Tap
	if o.Policy.Mode() == policy.FullAccess {
		d := newDirect(o.Policy, cmd.OwnTree, o.Groups)
		l.close = append(l.close, d.close)
		if e := d.enforcement(nil, nil); e.Missing(o.Policy) != 0 {
			return backend.Refuse(fmt.Sprintf("accept that with --allow-gap %s", e.Missing(o.Policy)),
				"this host cannot enforce %s: %s", e.Missing(o.Policy), strings.Join(e.Gaps(e.Missing(o.Policy)), "; "))
		}
		if err := o.beforeStart(&cmd, d.enforcement(nil, nil), &taps); err != nil {
			return err
		}
		d.user = o.User
		w, err = d, d.start(o.Policy, cmd)
	} else {
		var prepared backend.Prepared
		w, prepared, err = startConfined(o, r, cmd, &taps)
		if prepared != nil {
			l.close = append(l.close, func() {
				if err := prepared.Close(); err != nil {
					r.Warnings = append(r.Warnings, err.Error())
				}
			})
		}
	}
	if err != nil {
		for _, t := range taps {
			t.Discard()
		}
		return err
	}
	for _, t := range taps {
		t.Launched()
	}
	l.worker = watch(w, o.Policy.Limits(), taps)
	r.Ran, r.TTY = true, o.Terminal != nil
	if o.Started != nil {
		l.ended = o.Started(l.worker)
	}
	return nil
}

// wait waits for the worker that was started.
func (l *Running) wait() {
	if l.ended != nil {
		defer l.ended()
	}
	r, res := l.report, l.worker.Wait()
	if l.worker.lost != nil {
		r.OutputLost = l.worker.lost.Error()
	}
	r.Outcome, r.Survivors = res.Outcome, res.Survivors
	r.Level, r.Effects = res.Enforcement.Level(l.policy), res.Enforcement.Map()
	r.Denials, r.DenialsLost, r.Usage, r.Descriptors = res.Denials, res.DenialsLost, res.Usage, res.Descriptors
	r.Warnings = append(r.Warnings, res.Warnings...)
}

// find opens where the command starts, and finds the command.
func (o *Options) find() (dir *os.File, path string, err error) {
	look := func() {
		if dir, err = openDir(o.Policy.Cwd()); err != nil {
			err = &backend.SetupError{Step: "cwd", Err: err, Hint: "name an existing directory with --cwd"}
			return
		}
		if path, err = LookPath(o.Argv[0], envValue(o.Policy.Env(), "PATH"), o.Policy.Cwd()); err != nil {
			_ = dir.Close()
		}
	}
	if o.As == nil {
		look()
	} else if aerr := o.As(look); aerr != nil {
		err = &backend.SetupError{Step: "identity", Err: aerr}
	}
	return dir, path, err
}

func (o *Options) beforeStart(cmd *backend.Command, e backend.Enforcement, taps *[]*stream.Tap) (err error) {
	if o.BeforeStart != nil {
		if err := o.BeforeStart(cmd, e); err != nil {
			return err
		}
	}
	if o.Terminal != nil {
		t, err := o.Terminal(cmd)
		if err == nil {
			*taps = []*stream.Tap{t}
		}
		return err
	}
	*taps, err = tapOutputs(cmd, o.Policy.Limits())
	return err
}

// replanner is a backend that knows what avoids a set-up failure: itself with another
// plan, or as unusable here. Either goes through selection again, which takes this or
// another candidate, if it holds what the policy needs; what is taken then is what the
// report says. A failure of which it knows nothing ends the launch: what a workspace
// can bring about must not choose the backend.
type replanner interface {
	Replan(error) (backend.Backend, bool)
}

// mostReplans bounds how often one launch selects again.
const mostReplans = 4

// discarder is a plan that holds something until it is prepared, which it is not now.
type discarder interface{ Discard() error }

func startConfined(o *Options, r *report.Report, cmd backend.Command, taps *[]*stream.Tap) (backend.Worker, backend.Prepared, error) {
	candidates := o.Backends
	if e := o.Cache.use(o.Policy, candidates); e != nil {
		shared := use{e.prepared, func() error { return o.Cache.release(e) }}
		w, err := o.startShared(r, e, cmd, taps)
		if err != nil {
			_ = shared.Close()
			return nil, nil, err
		}
		return w, shared, nil
	}
	var failed error
	var first string
	for attempt := range 1 + mostReplans {
		choice, err := backend.Select(o.Policy, candidates)
		if err != nil {
			if failed != nil && len(candidates) == 1 { // a named backend says itself what is wrong
				err = failed
			}
			return nil, nil, err
		}
		hash := ""
		if o.Chosen != nil {
			hash = PlanHash(o.Policy, choice)
			if err := o.Chosen(choice, hash); err != nil {
				return nil, nil, errors.Join(err, discard(choice))
			}
		}
		if attempt == 0 {
			first = choice.Backend.Name()
			if err := o.beforeStart(&cmd, choice.Plan.Enforcement(), taps); err != nil {
				return nil, nil, errors.Join(err, discard(choice))
			}
		}
		describe(r, choice)
		prepared, err := choice.Plan.Prepare()
		if err != nil {
			return nil, nil, err
		}
		w, err := start(choice.Backend, prepared, cmd)
		if err == nil {
			if now := choice.Backend.Name(); now != first {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s could not be used here after all (%v); the command ran with %s", first, failed, now))
			}
			return w, o.Cache.add(o.Policy, candidates, choice, hash, prepared), nil
		}
		_ = prepared.Close()
		known, ok := choice.Backend.(replanner)
		if !ok {
			return nil, nil, err
		}
		next, ok := known.Replan(err)
		if !ok {
			return nil, nil, err
		}
		failed = err
		candidates = replace(candidates, choice.Backend, next)
	}
	return nil, nil, &backend.SetupError{Step: "replan", Err: fmt.Errorf("the launch failed again with every other plan: %w", failed)}
}

func discard(c backend.Choice) error {
	if d, ok := c.Plan.(discarder); ok {
		return d.Discard()
	}
	return nil
}

// startShared starts a worker of what an earlier launch has prepared. What fails is
// not kept: the next launch begins anew.
func (o *Options) startShared(r *report.Report, e *entry, cmd backend.Command, taps *[]*stream.Tap) (backend.Worker, error) {
	if o.Chosen != nil {
		if err := o.Chosen(e.choice, e.hash); err != nil {
			return nil, err
		}
	}
	if err := o.beforeStart(&cmd, e.choice.Plan.Enforcement(), taps); err != nil {
		return nil, err
	}
	describe(r, e.choice)
	w, err := start(e.choice.Backend, e.prepared, cmd)
	var exec *backend.ExecError
	if err != nil && !errors.As(err, &exec) {
		o.Cache.forget(e)
	}
	return w, err
}

// start starts a worker, after what has to be over by then.
func start(b backend.Backend, prepared backend.Prepared, cmd backend.Command) (backend.Worker, error) {
	if in, ok := b.(backend.Beginner); cmd.Begin != nil && (!ok || !in.Begins()) {
		if err := cmd.Begin(); err != nil {
			return nil, err
		}
		cmd.Begin = nil
	}
	return prepared.Start(cmd)
}

// describe notes what confines the worker.
func describe(r *report.Report, c backend.Choice) {
	capability := c.Backend.Probe()
	r.Backend, r.BackendFacts, r.Dialect = c.Backend.Name(), capability.Facts, capability.Dialect
	r.Passed, r.DenialsCover = c.Passed, capability.DenialsCover
}

func replace(list []backend.Backend, old, now backend.Backend) []backend.Backend {
	out := make([]backend.Backend, len(list))
	for i, b := range list {
		if b == old {
			b = now
		}
		out[i] = b
	}
	return out
}

// direct is the worker of danger-full-access: no sandbox is called, but
// descriptors, environment, limits, tree and outcome are the launcher's as ever.
type direct struct {
	proc    *launch.Process
	user    *launch.User // nil is the caller
	temp    string
	ownTree bool
	groups  cgroup.Host
	limits  map[policy.Effect]backend.State
	given   []backend.Descriptor
	bounds  *launch.Bounds
	// Where the temp is limited: the file system that it is, or what it is
	// measured with.
	fs      *quota.FS
	measure *quota.Tree
}

func newDirect(p policy.Policy, ownTree bool, known func() *cgroup.Host) *direct {
	d := &direct{ownTree: ownTree}
	if known != nil {
		d.groups = *known()
	} else {
		d.groups = cgroup.Probe()
	}
	var disk *quota.Host
	if p.Limits().Disk > 0 {
		host := quota.Probe()
		disk = &host
	}
	d.limits = launch.LimitStates(p.Limits(), launch.Host{Groups: &d.groups, Disk: disk, UserLimit: os.Getuid() > 0})
	return d
}

// Unconfined is what danger-full-access enforces here.
func Unconfined(p policy.Policy) backend.Enforcement {
	d := newDirect(p, true, nil)
	defer d.close()
	return d.enforcement(nil, nil)
}

func (d *direct) start(p policy.Policy, cmd backend.Command) (err error) {
	if d.given, err = launch.Descriptors(cmd.Files, cmd.UnsafeFiles); err != nil {
		return err
	}
	limit, err := d.makeTemp(p.Limits())
	defer func() {
		if err != nil {
			err = errors.Join(err, d.removeTemp())
		}
	}()
	if err != nil {
		return &backend.SetupError{Step: "temp", Err: err}
	}
	env := p.Env()
	for _, v := range p.Spec().TempEnv {
		dir := filepath.Join(d.temp, v.Sub)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return &backend.SetupError{Step: "temp", Err: err}
		}
		for made := dir; made != d.temp; made = filepath.Dir(made) {
			if err := d.user.Own(made); err != nil {
				return &backend.SetupError{Step: "temp", Err: err}
			}
		}
		env = append(env, v.Name+"="+dir)
	}
	if d.bounds, err = launch.Bound(p.Limits(), launch.Host{Groups: &d.groups, UserLimit: os.Getuid() > 0}, d.user != nil); err != nil {
		return err
	}
	<-sys.SpareThreads(0) // the worker may use up what this user may have
	d.proc, err = launch.Start(launch.Request{
		Path: cmd.Path, Argv: cmd.Argv, Env: env, Dir: cmd.Dir,
		Stdio: [3]*os.File{cmd.Stdin, cmd.Stdout, cmd.Stderr}, Files: cmd.Files, Terminal: cmd.Terminal, OwnTree: cmd.OwnTree, Bounds: d.bounds, Quota: limit, User: d.user, Begin: cmd.Begin,
	})
	if err != nil {
		err = errors.Join(err, d.bounds.Discard())
	}
	return err
}

// makeTemp makes the private temp, and says how it is limited.
func (d *direct) makeTemp(l policy.Limits) (*launch.Quota, error) {
	var err error
	if d.limits[policy.LimitsDisk].Status == backend.Enforced {
		uid, gid := d.user.IDs()
		if d.fs, err = quota.Mount(os.TempDir(), l.Disk, uid, gid); err != nil {
			return nil, err
		}
		d.temp = d.fs.Dir()
		return &launch.Quota{Limits: l, Dir: d.temp, Meter: d.fs}, nil
	}
	if d.temp, err = scratch.Mine().Mkdir(os.TempDir()); err != nil {
		return nil, err
	}
	if err := d.user.Own(d.temp); err != nil {
		return nil, err
	}
	if d.limits[policy.LimitsDisk].Status != backend.Partial {
		return nil, nil
	}
	if d.measure, err = quota.Measure(l.Disk, d.temp); err != nil {
		return nil, err
	}
	return &launch.Quota{Limits: l, Dir: d.temp, Meter: d.measure}, nil
}

func (d *direct) removeTemp() error {
	if d.fs != nil {
		return d.fs.Remove()
	}
	if d.measure != nil {
		d.measure.Close()
	}
	if d.temp == "" {
		return nil
	}
	return scratch.Mine().Remove(d.temp)
}

func (d *direct) close() { _ = d.groups.Close() }

func (d *direct) enforcement(survivors, unknown []int) backend.Enforcement {
	e := backend.Unconfined(d.tree(survivors, unknown))
	for effect, s := range d.limits {
		e = e.With(effect, s)
	}
	return e
}

// tree says how the tree is ended. What nothing confines may leave its cgroup,
// if its user may move it, but not its ancestors.
func (d *direct) tree(survivors, unknown []int) backend.State {
	s := backend.State{Status: backend.Partial}
	if d.groups.Kill.Can() {
		s.By = append(s.By, d.groups.Kill.By)
		s.Gaps = append(s.Gaps, "an unconfined process may move itself to another cgroup of its user")
	}
	if d.ownTree {
		s.By = append(s.By, "subreaper")
		s.Gaps = append(s.Gaps, "a tree that forks faster than it can be swept may survive; survivors are reported")
	}
	if len(unknown) > 0 {
		s.Gaps = append(s.Gaps, fmt.Sprintf("%d processes are of the tree, or of other children of this launcher: they were left alone", len(unknown)))
	}
	switch {
	case len(survivors) > 0:
		return backend.State{Status: backend.Unenforced, Gaps: []string{fmt.Sprintf("%d processes of the tree survived", len(survivors))}}
	case len(s.By) == 0:
		return backend.State{Status: backend.Unenforced, Gaps: []string{"processes that leave the worker's session are not found by this launcher"}}
	}
	return s
}

func (d *direct) PID() int                      { return d.proc.PID() }
func (d *direct) Signal(sig os.Signal) error    { return d.proc.Signal(sig) }
func (d *direct) Stop(grace time.Duration) bool { return d.proc.Stop(grace) }

func (d *direct) Wait() backend.Result {
	outcome, survivors := d.proc.Wait()
	r := backend.Result{
		Outcome: outcome, Survivors: survivors, Enforcement: d.enforcement(survivors, d.proc.Unknown()),
		Usage: d.proc.Usage(), Warnings: d.proc.Warnings(), Descriptors: d.given,
	}
	if err := errors.Join(d.bounds.Discard(), d.removeTemp()); err != nil {
		r.Warnings = append(r.Warnings, err.Error())
	}
	return r
}

// explain turns an error into the report's outcome and a person's words.
func explain(p policy.Policy, r *report.Report, err error) *Failure {
	if err == nil {
		return nil
	}
	var (
		refused *backend.RefusalError
		setup   *backend.SetupError
		exec    *backend.ExecError
		errno   syscall.Errno
	)
	switch {
	case errors.As(err, &exec):
		r.Outcome = backend.Outcome{Kind: backend.ExecFailed, Errno: errnoName(exec.Errno), Reason: exec.Error()}
		return explainExec(p, r, exec)
	case errors.As(err, &refused):
		r.Outcome = backend.Outcome{Kind: backend.Refused, Reason: refused.Reason}
		return &Failure{refused.Reason, refused.Hint}
	case errors.As(err, &setup):
		r.Outcome = backend.Outcome{Kind: backend.SetupFailed, Step: setup.Step, Reason: setup.Err.Error()}
		if errors.As(setup.Err, &errno) {
			r.Outcome.Errno = errnoName(errno)
		}
		hint := setup.Hint
		if hint == "" {
			hint = "`sbx doctor` tries the same steps on this host"
		}
		return &Failure{setup.Error(), hint}
	}
	r.Outcome = backend.Outcome{Kind: backend.SetupFailed, Step: "unknown", Reason: err.Error()}
	return &Failure{Line: err.Error()}
}

// explainExec says whether it was the sandbox that refused to execute. The
// denial is inferred: the policy grants no execution there, EACCES is this
// backend's answer, and its layer was engaged.
func explainExec(p policy.Policy, r *report.Report, e *backend.ExecError) *Failure {
	switch e.Errno {
	case syscall.ENOENT:
		if f := explainUngranted(p, r, e); f != nil {
			return f
		}
		if r.Executable != "" {
			return &Failure{fmt.Sprintf("cannot execute %q: its interpreter or loader is missing", e.Path), "check its #! line, or its ELF interpreter with `file`"}
		}
		if strings.Contains(e.Path, "/") {
			return &Failure{fmt.Sprintf("command not found: %q", e.Path), "a path is taken from where the command starts (--cwd)"}
		}
		return &Failure{fmt.Sprintf("command not found: %q", e.Path), "it is searched in PATH; pass another with --env PATH=..."}
	case syscall.ENOEXEC:
		return &Failure{fmt.Sprintf("cannot execute %q: not a program of this machine, and no #! line", e.Path), "run a script by its interpreter, as in: sbx run -- sh SCRIPT"}
	case syscall.EACCES:
		if f := explainUngranted(p, r, e); f != nil {
			return f
		}
	}
	return &Failure{Line: fmt.Sprintf("cannot execute %q: %v", e.Path, e.Errno)}
}

// explainUngranted says that no grant covers a program that is there, outside, if that
// is so: it is refused (EACCES), or not there for the worker (ENOENT). It is a denial if
// that is how the backend denies.
func explainUngranted(p policy.Policy, r *report.Report, e *backend.ExecError) *Failure {
	real, err := filepath.EvalSymlinks(e.Path)
	if err != nil || !p.Mode().Confined() || r.Backend == "" || p.Allows(real, policy.Exec|policy.Read) {
		return nil
	}
	d := backend.Denial{
		Effect: policy.FSExec, Operation: "execve", Path: policy.Raw(real), Errno: errnoName(e.Errno), Certainty: backend.Inferred,
		Source: "execve", Rule: "no grant lets the worker execute this path", Suggestion: "--readable " + ShellQuote(real), Count: 1,
	}
	if p.Spec().ExecOnly {
		d.Suggestion = "--allow-exec " + ShellQuote(real)
	}
	f := &Failure{Line: fmt.Sprintf("cannot execute %q: %v", e.Path, e.Errno)}
	fits := r.Dialect != nil && r.Dialect.Fits(d.Effect.String(), d.Errno)
	if fits {
		r.Denials = append(r.Denials, d)
	}
	if fits || e.Errno == syscall.ENOENT { // it is there, and was not for the worker
		f.Hint = fmt.Sprintf("no grant lets it be executed: add %s", d.Suggestion)
	}
	return f
}

func openDir(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil && errors.Is(err, os.ErrPermission) {
		// A directory that may be entered but not listed: by O_PATH.
		f, err = openPath(path)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() {
		err = &os.PathError{Op: "enter", Path: path, Err: syscall.ENOTDIR}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func envValue(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// ShellQuote quotes a word for a POSIX shell, so that a hint can be pasted.
func ShellQuote(s string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._-+:@%,=", c)
	}
	if s != "" && strings.IndexFunc(s, func(c rune) bool { return !plain(c) }) < 0 {
		return s
	}
	if p := policy.Printable(s); p != s {
		return "$'" + strings.ReplaceAll(strings.Trim(p, `"`), "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// NewID returns a random name for a launch: 32 hexadecimal digits.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read's contract since Go 1.24
	return hex.EncodeToString(b[:])
}
