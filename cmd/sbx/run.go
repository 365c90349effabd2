package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/run"
	"sandboxd/internal/stream"
	"sandboxd/internal/terminal"
	"sandboxd/policy"
	"sandboxd/profiles"
	"sandboxd/report"
)

// policyFlags are the flags from which a policy is resolved; run, and profile
// resolve and diff, share them.
type policyFlags struct {
	mode, net, workspace, cwd, cache      string
	netAllow                              []string
	readable, writable, deny, execs, envs []string
	profiles, require, allowGap           []string
	noProject                             bool
	ownTerminal                           bool // of run alone
	unguarded                             bool // as well
}

func (f *policyFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.mode, "mode", "", "ceiling: read-only, workspace-write or danger-full-access (default workspace-write)")
	fs.StringVar(&f.net, "net", "", "network: none, loopback, proxy or host; host is not confined (default none)")
	fs.StringArrayVar(&f.netAllow, "net-allow", nil, "let the command reach this host, through a proxy: NAME, *.NAME, ADDRESS or NETWORK, and :PORTS (default 80,443); repeatable; stands for --net proxy")
	fs.StringVar(&f.workspace, "workspace", "", "tree that the work is about (default the current directory)")
	fs.StringVar(&f.cwd, "cwd", "", "where the command starts (default the current directory)")
	fs.Var((*listValue)(&f.readable), "readable", "let the worker also read `PATH`, a file or a tree (repeatable)")
	fs.Var((*listValue)(&f.writable), "writable", "let the worker also write `PATH` (repeatable)")
	fs.Var((*listValue)(&f.deny), "deny", "keep `PATTERN` out of reach although a grant covers it (repeatable)")
	fs.Var((*listValue)(&f.execs), "allow-exec", "allow the execution of `FILE` and of what it needs, and of nothing else (repeatable)")
	fs.Var((*listValue)(&f.envs), "env", "pass the variable `K[=V]` to the worker (repeatable)")
	fs.Var((*listValue)(&f.profiles), "profile", "apply a profile, by `NAME` or path (repeatable)")
	fs.Var((*commaValue)(&f.require), "require", "refuse unless these are enforced: full, or `EFFECT,...`")
	fs.Var((*commaValue)(&f.allowGap), "allow-gap", "accept that these are not enforced: `EFFECT,...`")
	fs.StringVar(&f.cache, "cache", profiles.CacheWorkspace, "where tools keep caches: workspace (kept between sandboxed runs of it) or private (cold each time)")
	fs.BoolVar(&f.noProject, "no-project-profile", false, "ignore the workspace's own "+profiles.ProjectFile+", which can only tighten")
	completions(c)
}

// noEmptyFlags refuses a flag that was given an empty value, as an unset
// variable in a script does: it must not silently mean the default.
func noEmptyFlags(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() != "bool" && f.Value.String() == "" {
			err = refuse("give it a value, or leave it out", "--%s is empty", f.Name)
		}
	})
	return err
}

// listValue is a flag that may be repeated. Unlike a comma-separated one it
// takes every value as it is: a path may hold a comma.
type listValue []string

func (l *listValue) String() string         { return strings.Join(*l, " ") }
func (l *listValue) Set(value string) error { *l = append(*l, value); return nil }
func (l *listValue) Type() string           { return "value" }

// commaValue is a list of words, none of which holds a comma.
type commaValue []string

func (l *commaValue) String() string { return strings.Join(*l, ",") }
func (l *commaValue) Set(value string) error {
	*l = append(*l, strings.Split(value, ",")...)
	return nil
}
func (l *commaValue) Type() string { return "words" }

// completions offers the closed sets of words.
func completions(c *cobra.Command) {
	fixed := func(words ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return words, cobra.ShellCompDirectiveNoFileComp
		}
	}
	var effects []string
	for _, e := range policy.Effects() {
		effects = append(effects, e.String())
	}
	for flag, f := range map[string]func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective){
		"mode":      fixed("read-only", "workspace-write", "danger-full-access"),
		"net":       fixed("none", "loopback", "proxy", "host"),
		"cache":     fixed(profiles.CacheWorkspace, profiles.CachePrivate),
		"require":   fixed(append([]string{"full"}, effects...)...),
		"allow-gap": fixed(effects...),
	} {
		_ = c.RegisterFlagCompletionFunc(flag, f) // fails only for an unknown flag name
	}
}

// request turns the flags into what profiles resolves.
func (f *policyFlags) request() (profiles.Request, error) {
	req := profiles.Request{
		Workspace: f.workspace, Cwd: f.cwd, Readable: f.readable, Writable: f.writable, Deny: f.deny, AllowExec: f.execs,
		NetAllow: f.netAllow, Env: f.envs, Profiles: f.profiles, Cache: f.cache, NoProjectProfile: f.noProject, OwnTerminal: f.ownTerminal, Unguarded: f.unguarded,
		HostEnv: os.Environ(), UID: os.Geteuid(), GID: os.Getegid(), Home: homeDir(),
	}
	req.Dir, _ = os.Getwd() // a directory that is gone leaves it empty; profiles refuses if it is needed
	var err error
	if f.mode != "" {
		if req.Mode, err = policy.ParseMode(f.mode); err != nil {
			return req, refuse("choose one of them with --mode", "%v", err)
		}
	}
	if f.net != "" {
		if req.Net, err = policy.ParseNet(f.net); err != nil {
			return req, refuse("choose one of them with --net", "%v", err)
		}
	}
	for _, word := range f.require {
		if word == "full" {
			req.RequireFull = true
			continue
		}
		e, err := policy.ParseEffect(word)
		if err != nil {
			return req, refuse("--require takes full, or effects as `sbx features` lists them", "%v", err)
		}
		req.Require |= policy.SetOf(e)
	}
	for _, word := range f.allowGap {
		e, err := policy.ParseEffect(word)
		if err != nil {
			return req, refuse("--allow-gap takes effects as `sbx features` lists them", "%v", err)
		}
		req.AllowGap |= policy.SetOf(e)
	}
	return req, nil
}

// homeDir is HOME, or the user database's word where HOME is unset.
func homeDir() string {
	if home := os.Getenv("HOME"); home != "" {
		return home
	}
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		return u.HomeDir
	}
	return ""
}

// resolve makes the policy of the flags, and the notices that come with it.
func (f *policyFlags) resolve(limits policy.Limits, weakened ...policy.Weakening) (policy.Policy, []profiles.Notice, error) {
	req, err := f.request()
	if err != nil {
		return policy.Policy{}, nil, err
	}
	req.PrivateTemp = limits.Disk > 0
	spec, notices, err := profiles.Resolve(req)
	if err != nil {
		return policy.Policy{}, notices, asRefusal(err)
	}
	spec.Limits = limits
	spec.Weakened = append(spec.Weakened, weakened...)
	p, err := policy.New(spec)
	if err != nil {
		return policy.Policy{}, notices, refuse("see `sbx run --help`", "%v", err)
	}
	return p, notices, nil
}

type runFlags struct {
	policyFlags
	backend              string
	report               string
	stdout, stderr       string
	json, dryRun, quiet  bool
	explainSelection     bool
	verbose              bool
	told                 int
	passFD               []string
	passFDUnsafe         bool
	dieWithParent        bool
	daemon, label        string
	keep                 bool
	limits               limitFlags
	outStream, errStream io.Writer
}

func newRun(stdout, stderr io.Writer) *cobra.Command {
	f := &runFlags{outStream: stdout, errStream: stderr}
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGS...]",
		Short: "Run a command confined, and report what was enforced",
		Long: `Run COMMAND confined to the workspace, the current directory by default: it may
read the system, the toolchains on PATH and the workspace, write the workspace
and a private temporary directory, and has no network. Everything after the
first -- is the command.

Flags that let the command do more (--writable, --readable, --net host,
--allow-gap, --env of an injection variable, --mode danger-full-access) appear
as such in the report.

A flag that is not given takes its value from the variable SBX_ and its name,
as in SBX_MODE or SBX_ALLOW_GAP.

Exit status: the command's own; 128+n when signal n ended it; 125 when sbx
refused or could not set it up (nothing ran); 126 when it cannot be executed;
127 when it was not found. sbx's own lines on stderr begin with "sbx: ".`,
		Example: `  sbx run -- make -j4 test
  sbx run --mode read-only -- grep -r TODO .
  sbx run --report report.json -- npm test
  sbx run --require fs.protected -- ./untrusted.sh
  sbx run --tty -- bash -i
  sbx run --daemon auto --label tests -- make test
  sbx run --dry-run -- true`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := flagsFromEnvironment(c); err != nil {
				return err
			}
			return f.run(c, args)
		},
	}
	f.register(c)
	fs := c.Flags()
	f.limits.register(fs)
	fs.SetInterspersed(false) // what follows the command is the command's
	fs.StringVar(&f.backend, "backend", "auto", "backend: auto or one of "+strings.Join(backendNames(), ", "))
	fs.StringVar(&f.report, "report", "", "write the report as JSON to `FILE` or to descriptor fd:N")
	fs.StringVar(&f.stdout, "stdout", "", "send the command's standard output to `FILE`")
	fs.StringVar(&f.stderr, "stderr", "", "send the command's standard error to `FILE`")
	fs.StringArrayVar(&f.passFD, "pass-fd", nil, "give the command descriptor `N[:M]` of the caller, as its M; repeatable")
	fs.BoolVar(&f.passFDUnsafe, "pass-fd-unsafe", false, "let --pass-fd pass sockets, directories and what else leads on")
	fs.BoolVar(&f.dieWithParent, "die-with-parent", false, "end the command when the process that started sbx has ended")
	fs.StringVar(&f.daemon, "daemon", "", "let the daemon at `SOCKET` launch it, or auto for whichever there is")
	fs.BoolVar(&f.keep, "keep", false, "let the command live on when this sbx ends; needs --daemon")
	fs.StringVar(&f.label, "label", "", "`TEXT` that sbx ps shows; needs --daemon")
	fs.BoolVarP(&f.ownTerminal, "tty", "t", false, "give the command a terminal of its own, out of reach of yours")
	fs.BoolVar(&f.json, "json", false, "write the report as JSON to stdout; needs --stdout FILE, or --dry-run")
	fs.BoolVar(&f.dryRun, "dry-run", false, "run nothing: print the policy, the plan and what would be enforced")
	fs.BoolVar(&f.explainSelection, "explain-selection", false, "run nothing: print why each backend was or was not taken")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "print no warnings")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "print the report on stderr when the command has ended")
	_ = c.RegisterFlagCompletionFunc("backend", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return append([]string{"auto"}, backendNames()...), cobra.ShellCompDirectiveNoFileComp
	})
	return c
}

func (f *runFlags) run(c *cobra.Command, args []string) error {
	if err := noEmptyFlags(c); err != nil {
		return err
	}
	if f.dryRun && f.explainSelection {
		return refuse("choose one", "--dry-run and --explain-selection print different things")
	}
	nothingRuns := f.dryRun || f.explainSelection
	if len(args) == 0 && !nothingRuns {
		return refuse("as in: sbx run -- make test", "no command given")
	}
	if f.quiet && f.verbose {
		return refuse("choose one", "--quiet and --verbose contradict each other")
	}
	if f.ownTerminal && (f.stdout != "" || f.stderr != "" || f.json && !f.dryRun && !f.explainSelection) {
		return refuse("redirect the standard output of sbx itself, and use --report FILE; or leave out --tty",
			"--tty gives the command one terminal for all of its output, which --stdout, --stderr and --json cannot divide")
	}
	if f.json && !nothingRuns && f.stdout == "" {
		return refuse("use --report FILE or --report fd:N, or send the command's output elsewhere with --stdout FILE",
			"--json would mix the report into the command's own output")
	}
	if f.stdout != "" && (f.stdout == f.report || f.stdout == f.stderr) || f.stderr != "" && f.stderr == f.report {
		return refuse("name a file for each", "--stdout, --stderr and --report name the same file")
	}
	if f.daemon != "" {
		return f.runByDaemon(args)
	}
	if f.keep || f.label != "" {
		return refuse("give --daemon auto as well", "--keep and --label are for a daemon's commands")
	}
	backends, err := chooseBackends(f.backend, nothingRuns)
	if err != nil {
		return err
	}
	var caught <-chan *signals
	var groups func() *cgroup.Host
	if !nothingRuns {
		if err := enoughRoom(); err != nil {
			return err
		}
		limitThreads()
		// A terminal is given back by the process that gets the signals.
		known, done, err := keep(f.ownTerminal || watches(backends) && f.mode != policy.FullAccess.String(), f.dieWithParent)
		if done {
			return err
		}
		caught = catchSignals()
		groups = prewarm(backends, known)
	}
	files, err := f.passedFiles()
	if err != nil {
		return err
	}
	f.unguarded = f.backend == landlock.Name
	p, notices, err := f.resolve(f.limits.limits(), f.weakening()...)
	if err != nil {
		return err // one line and one hint: what else is odd can wait
	}
	if p.Mode() == policy.FullAccess && groups != nil && !f.ownTerminal { // a profile may have it
		if done, err := keepUnconfined(backends, groups(), f.dieWithParent); done {
			return err
		}
	}
	f.tell(notices)
	if p.Mode() == policy.FullAccess && f.backend != "auto" {
		return refuse("leave out --backend, or choose another mode", "danger-full-access calls no backend, so --backend %s means nothing", f.backend)
	}
	opts := run.Options{
		Policy: p, Argv: args, Backends: backends, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Files: files, UnsafeFiles: f.passFDUnsafe, OwnTree: true, Version: versionString(), Profiles: f.profiles,
		Warnings: warningsOf(notices), Groups: groups,
	}
	switch {
	case f.dryRun:
		return f.printPlan(opts)
	case f.explainSelection:
		return f.printSelection(p, backends)
	}
	return f.launch(opts, caught)
}

func (f *runFlags) launch(opts run.Options, caught <-chan *signals) error {
	sink, err := openReport(f.report, opts.Policy, opts.Files)
	if err != nil {
		return err
	}
	defer sink.close()
	var outputs []*os.File
	defer func() {
		for _, o := range outputs {
			_ = o.Close()
		}
	}()
	signals := <-caught
	opts.BeforeStart = func(cmd *backend.Command, e backend.Enforcement) error {
		f.warnWeak(opts.Policy, e)
		outputs, err = f.openOutputs(cmd, opts.Policy.Workspace())
		signals.beforeWorker()
		return err
	}
	var own *terminal.Terminal
	defer func() { own.Close() }() // also if something panics
	if f.ownTerminal {
		opts.Terminal = func(cmd *backend.Command) (*stream.Tap, error) {
			if own, err = terminal.Open(os.Stdin, os.Stdout, os.Stderr); err != nil {
				return nil, &backend.SetupError{Step: "terminal", Err: err, Hint: "leave out --tty, or see whether this system has /dev/ptmx and /dev/pts"}
			}
			end := own.Output.Worker
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Terminal = end, end, end, true
			return own.Output, nil
		}
	}
	parent := make(chan struct{})
	if f.dieWithParent && keeper == nil { // a keeper's launcher hears of it from its keeper
		if err := onParentsDeath(func() { close(parent) }); err != nil {
			return err
		}
	}
	sweep, guard := &sweeping{}, &guarding{}
	defer sweep.wait()
	opts.Started = func(w backend.Worker) func() {
		sweep.start()
		guard.start(watches(opts.Backends) && opts.Policy.Mode().Confined())
		if own != nil {
			own.Start()
		}
		endWithKeeper(w)
		if f.dieWithParent {
			go func() {
				<-parent
				w.Stop(opts.Policy.Limits().Grace)
			}()
		}
		return signals.forwardTo(w, opts.Policy.Limits().Grace, own == nil)
	}
	hideFromWorker()
	r, failure := run.Execute(opts)
	if err := guard.end(); err != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("nobody would have ended the command's processes had sbx been killed: %v", err))
	}
	own.Close() // before anything is told
	if own == nil {
		reclaimTerminal()
	}
	if failure != nil {
		complain(f.errStream, failure.Line, failure.Hint)
	}
	return f.finish(r, sink)
}

// finish tells what happened, and makes the exit status of it.
func (f *runFlags) finish(r *report.Report, sink *reportSink) error {
	f.afterwards(r)
	if err := sink.write(r); err != nil {
		// The command's effects are done, but the caller must not take a
		// missing report for a good one.
		return refuse("the command ended with status "+strconv.Itoa(r.ExitStatus), "writing the report: %v", err)
	}
	if f.json {
		if err := r.WriteJSON(f.outStream); err != nil {
			return refuse("", "writing the report: %v", err)
		}
	}
	if r.ExitStatus != r.Outcome.ExitStatus() {
		return &exitError{r.ExitStatus, "output was lost: " + r.OutputLost, "the command itself ended with status 0"}
	}
	if r.ExitStatus != 0 {
		return &exitError{status: r.ExitStatus}
	}
	return nil
}

// openOutputs opens --stdout and --stderr, which no refused launch may touch.
func (f *runFlags) openOutputs(cmd *backend.Command, workspace string) (opened []*os.File, err error) {
	for _, redirect := range []struct {
		path string
		to   **os.File
	}{{f.stdout, &cmd.Stdout}, {f.stderr, &cmd.Stderr}} {
		if redirect.path == "" {
			continue
		}
		file, err := openOutput(redirect.path, workspace)
		if err != nil {
			return opened, err
		}
		opened = append(opened, file)
		*redirect.to = file
	}
	return opened, nil
}

// afterwards tells what happened, as loudly as asked.
func (f *runFlags) afterwards(r *report.Report) {
	if f.verbose {
		var b strings.Builder
		rest := *r
		rest.Warnings = r.Warnings[min(len(r.Warnings), f.told):]
		rest.WriteText(&b)
		for line := range strings.Lines(b.String()) {
			fmt.Fprintf(f.errStream, "sbx: %s", line)
		}
		return
	}
	if f.quiet {
		return
	}
	for _, w := range r.Warnings[min(len(r.Warnings), f.told):] {
		complain(f.errStream, "warning: "+w, "")
	}
	if r.OutputLost != "" && r.ExitStatus == r.Outcome.ExitStatus() {
		complain(f.errStream, "warning: output was lost: "+r.OutputLost, "")
	}
	if len(r.Survivors) > 0 {
		complain(f.errStream, fmt.Sprintf("warning: processes of the command survived: %v", r.Survivors), "end them with kill -9")
	}
}

func (f *runFlags) tell(notices []profiles.Notice) {
	for _, n := range notices {
		if n.Level == profiles.Warning {
			f.told++
		}
		if n.Level == profiles.Warning && !f.quiet || f.verbose {
			complain(f.errStream, string(n.Level)+": "+n.Text, "")
		}
	}
}

func warningsOf(notices []profiles.Notice) []string {
	var list []string
	for _, n := range notices {
		if n.Level == profiles.Warning {
			list = append(list, n.Text)
		}
	}
	return list
}

// warnWeak is loud about what the caller gave up in a way that is easily
// overlooked: accepted gaps and no sandbox at all. Grants that the caller named
// are in the report.
func (f *runFlags) warnWeak(p policy.Policy, e backend.Enforcement) {
	if f.quiet || f.verbose { // -v prints the report, which has all of it
		return
	}
	if p.Mode() == policy.FullAccess {
		complain(f.errStream, "warning: danger-full-access: no sandbox confines this command", "")
	}
	for _, limit := range []policy.Effect{policy.LimitsMemory, policy.LimitsPids, policy.LimitsCPU, policy.LimitsDisk} {
		if s := e.State(limit); s.Status == backend.Unenforced {
			complain(f.errStream, fmt.Sprintf("warning: %s is not enforced: %s", limit, strings.Join(s.Gaps, "; ")), "")
		}
	}
	for _, limit := range p.NeededPartly().List() {
		if s := e.State(limit); s.Status == backend.Partial {
			complain(f.errStream, fmt.Sprintf("warning: %s is held in part: %s", limit, strings.Join(s.Gaps, "; ")), "")
		}
	}
	if gaps := p.Spec().AllowGap.Minus(e.Held()); gaps != 0 {
		complain(f.errStream, fmt.Sprintf("warning: accepted as not enforced: %s", gaps), "")
	}
	if p.Mode().Confined() && p.Net() == policy.NetHost {
		complain(f.errStream, "warning: --net host: the network is not confined", "")
	}
}

func (f *runFlags) printPlan(o run.Options) error {
	d, err := run.Plan(o)
	if err != nil {
		return asRefusal(err)
	}
	return f.writePlan(o.Policy, d)
}

func (f *runFlags) writePlan(p policy.Policy, d *run.DryRun) error {
	if f.json {
		enc := json.NewEncoder(f.outStream)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(d)
	}
	f.printPlanText(p, d)
	return nil
}

func (f *runFlags) printPlanText(p policy.Policy, d *run.DryRun) {
	writePolicy(f.outStream, p)
	fmt.Fprintf(f.outStream, "\nbackend %s, enforcement %s\n", orNone(d.Backend), d.Level)
	report.WriteEffects(f.outStream, d.Effects)
}

// writePolicy shows a policy for a person.
func writePolicy(w io.Writer, p policy.Policy) {
	s := p.Spec()
	fmt.Fprintf(w, "mode       %s\nnetwork    %s\nworkspace  %s\ncwd        %s\n", s.Mode, s.Net, policy.Printable(s.Workspace), policy.Printable(s.Cwd))
	fmt.Fprintln(w, "\ngrants (r read, w write, x execute, i device ioctls)")
	for _, g := range s.Grants {
		fmt.Fprintf(w, "  %-4s %-44s %s (%s)\n", g.Access, g.Path, policy.Printable(g.Reason), policy.Printable(g.Source))
	}
	for _, deny := range s.Deny {
		fmt.Fprintf(w, "  deny %s\n", policy.Printable(deny))
	}
	if len(s.Denied)+len(s.DenyGaps) > 0 {
		fmt.Fprintln(w, "\ndenied places in granted trees, and what leads there")
	}
	writePlaces(w, s.Denied, s.DenyGaps)
	if len(s.Guarded)+len(s.Unguarded) > 0 {
		fmt.Fprintln(w, "\nprotected places, where a backend can hold them (see fs.protected below)")
	}
	writePlaces(w, s.Guarded, s.Unguarded)
	fmt.Fprintln(w, "\nenvironment")
	for _, name := range report.PolicyOf(p).EnvNames { // values may be secrets
		fmt.Fprintf(w, "  %s\n", name)
	}
	for _, v := range s.TempEnv {
		fmt.Fprintf(w, "  %s, in the private temp\n", policy.Printable(v.Name))
	}
	for _, weak := range s.Weakened {
		fmt.Fprintf(w, "weakened by %s: %s\n", policy.Printable(weak.Flag), policy.Printable(weak.Meaning))
	}
}

func writePlaces(w io.Writer, places []policy.Guarded, gaps []string) {
	for _, g := range places {
		fmt.Fprintf(w, "  %-13s %s\n", g.Guard, g.Path)
	}
	for _, gap := range gaps {
		fmt.Fprintf(w, "  not held: %s\n", policy.Printable(gap))
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
