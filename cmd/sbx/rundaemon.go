package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/client"
	"sandboxd/internal/run"
	"sandboxd/internal/terminal"
	"sandboxd/policy"
	"sandboxd/protocol"
	"sandboxd/report"
)

// runByDaemon is `sbx run` where a daemon launches. What the flags mean is found out
// here as well, so that a mistake is the same error either way; the daemon, who goes by
// its own, decides.
func (f *runFlags) runByDaemon(args []string) error {
	if _, err := chooseBackends(f.backend, false); err != nil {
		return err
	}
	if len(args) > 0 && args[0] == "" { // which no message can say
		return &exitError{backend.StatusNotFound, `command not found: ""`, "give a command after --"}
	}
	if f.dieWithParent {
		return refuse("leave it out: the command ends with this sbx, and that with a signal", "--die-with-parent is not for --daemon")
	}
	if f.explainSelection {
		return refuse("leave --daemon out, or use --dry-run, which says what the daemon would choose", "--explain-selection is not for --daemon")
	}
	files, err := f.passedFiles()
	if err != nil {
		return err
	}
	p, notices, err := f.resolve(f.limits.limits(), f.weakening()...)
	if err != nil {
		return err
	}
	f.tell(notices)
	sink, err := openReport(f.report, p, files)
	if err != nil {
		return err
	}
	defer sink.close()
	// What the daemon refuses is in a report as well, as there was to be one.
	refused := func(err error) error {
		e, ok := err.(*exitError)
		if !ok || f.dryRun {
			return err
		}
		r, _ := run.Refused(run.Options{Policy: p, Argv: args, Version: versionString(), Profiles: f.profiles, Warnings: warningsOf(notices)},
			backend.Refuse(e.hint, "%s", e.line))
		if err := sink.write(r); err != nil {
			complain(f.errStream, "writing the report: "+err.Error(), "")
		}
		if f.json {
			_ = r.WriteJSON(f.outStream) // output remembers an error
		}
		return err
	}
	signals := <-catchSignals()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := client.Dial(ctx, f.daemon, "sbx", versionString())
	if err != nil {
		return refused(daemonRefusal(err))
	}
	defer c.Close()
	for flag, needs := range map[string]struct {
		used       bool
		capability string
	}{
		"--keep": {f.keep, protocol.CapKeep}, "--tty": {f.ownTerminal, protocol.CapTTY}, "--dry-run": {f.dryRun, protocol.CapDryRun},
		"--pass-fd": {len(files) > 0, protocol.CapDescriptors}, "--net-allow": {len(f.netAllow) > 0, protocol.CapNetAllow},
	} {
		if needs.used && !c.Has(needs.capability) {
			return refused(refuse("leave it out, or run without --daemon", "the daemon at %s cannot do what %s asks for", c.Socket(), flag))
		}
	}
	l := client.Launch{Request: f.message(args), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	for _, file := range files {
		l.Files = append(l.Files, client.File{To: file.To, File: file.File})
	}
	if f.dryRun {
		return f.planOfDaemon(ctx, c, l, p)
	}
	// The daemon needs these files with the request, and what is refused must not touch
	// them: so it is asked before.
	if (f.stdout != "" || f.stderr != "") && c.Has(protocol.CapDryRun) {
		if _, err := planOf(ctx, c, l); err != nil {
			return refused(err)
		}
	}
	redirected := &backend.Command{}
	outputs, err := f.openOutputs(redirected, p.Workspace())
	defer func() {
		for _, o := range outputs {
			_ = o.Close()
		}
	}()
	if err != nil {
		return refused(asRefusal(err))
	}
	if redirected.Stdout != nil {
		l.Stdout = redirected.Stdout
	}
	if redirected.Stderr != nil {
		l.Stderr = redirected.Stderr
	}
	var own *terminal.Caller
	defer func() { own.Close() }() // also if something panics
	if f.ownTerminal {
		own = terminal.NewCaller(os.Stdin, os.Stdout, os.Stderr)
		rows, cols := own.Size()
		l.Request.TTY = &protocol.Size{Rows: int64(rows), Cols: int64(cols)}
		l.Stdin, l.Stdout, l.Stderr = own, os.Stdout, nil
	}
	signals.beforeWorker()
	w, err := c.Launch(ctx, l)
	if err != nil {
		own.Close() // before anything is told
		return refused(daemonRefusal(err))
	}
	if own != nil {
		go followSize(ctx, w, own)
	}
	stop := signals.forwardTo(remote{w}, p.Limits().Grace, false)
	exit, err := w.Wait()
	stop()
	own.Close()
	if err != nil {
		return &exitError{backend.StatusRefused, "how the command ended is not known: " + err.Error(),
			"its processes were ended, unless --keep was given: see sbx ps"}
	}
	r := &report.Report{}
	if err := json.Unmarshal(exit.Report, r); err != nil {
		return refuse("is the daemon of another version?", "reading the daemon's report: %v", err)
	}
	if exit.Message != "" {
		complain(f.errStream, exit.Message, exit.Hint)
	}
	if r.Ran {
		if e, err := backend.NewEnforcement(r.Effects); err == nil {
			f.warnWeak(p, e)
		}
	}
	return f.finish(r, sink)
}

// followSize passes the size of the caller's terminal on.
func followSize(ctx context.Context, w *client.Worker, own *terminal.Caller) {
	for {
		select {
		case <-own.Resized():
			rows, cols := own.Size()
			_ = w.Resize(ctx, rows, cols) // the worker may have ended
		case <-w.Done():
			return
		}
	}
}

// remote is a worker of a daemon's, as signals see one.
type remote struct{ *client.Worker }

// answerTime bounds how long the daemon may take to pass a signal on.
const answerTime = 10 * time.Second

func (r remote) Signal(sig os.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	s, _ := sig.(unix.Signal)
	return r.Worker.Signal(ctx, unix.SignalName(s))
}

func (r remote) Stop(grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return r.Cancel(ctx, grace) == nil
}

// message is what the flags say, for the daemon.
func (f *runFlags) message(args []string) protocol.Launch {
	m := protocol.Launch{
		Argv: bytesOf(args), Workspace: protocol.Bytes(f.workspace), Cwd: protocol.Bytes(f.cwd), Mode: f.mode, Net: f.net, NetAllow: f.netAllow,
		Readable: bytesOf(f.readable), Writable: bytesOf(f.writable), Deny: bytesOf(f.deny), AllowExec: bytesOf(f.execs),
		Profiles: bytesOf(f.profiles), NoProjectProfile: f.noProject, Cache: f.cache, Require: f.require, AllowGap: f.allowGap,
		DescriptorsUnsafe: f.passFDUnsafe, DryRun: f.dryRun, Label: f.label, Keep: f.keep, Limits: f.limits.message(),
	}
	if f.backend != "auto" {
		m.Backend = f.backend
	}
	dir, _ := os.Getwd() // resolve has refused a directory that is gone, where it is needed
	m.Dir = protocol.Bytes(dir)
	for _, v := range os.Environ() {
		if name, value, ok := cutVariable(v); ok {
			m.HostEnv = append(m.HostEnv, protocol.Variable{Name: protocol.Bytes(name), Value: protocol.Bytes(value)})
		}
	}
	for _, v := range f.envs {
		name, value, given := cutVariable(v)
		if !given {
			if value, given = os.LookupEnv(v); !given {
				continue // resolve has told of it
			}
			name = v
		}
		m.Env = append(m.Env, protocol.Variable{Name: protocol.Bytes(name), Value: protocol.Bytes(value)})
	}
	return m
}

// cutVariable is strings.Cut of K=V for a variable that has a name.
func cutVariable(v string) (name, value string, ok bool) {
	for i := 1; i < len(v); i++ {
		if v[i] == '=' {
			return v[:i], v[i+1:], true
		}
	}
	return "", "", false
}

func bytesOf(list []string) []protocol.Bytes {
	var all []protocol.Bytes
	for _, s := range list {
		all = append(all, protocol.Bytes(s))
	}
	return all
}

// message is what the flags bound, for the daemon.
func (f *limitFlags) message() *protocol.LaunchLimits {
	l := f.limits()
	grace := l.Grace.Milliseconds()
	return &protocol.LaunchLimits{
		Memory: l.Memory, Pids: int64(l.Pids), CPU: int64(math.Round(l.CPUs * 1000)), Disk: l.Disk, FileSize: l.FileSize, Files: int64(l.Files), Core: l.Core,
		Timeout: upToMillisecond(l.Time), IdleTimeout: upToMillisecond(l.Idle), Grace: &grace,
	}
}

// upToMillisecond is a limit in whole milliseconds: of one that is shorter, one, as 0
// would be none.
func upToMillisecond(d time.Duration) int64 {
	if d > 0 && d < time.Millisecond {
		return 1
	}
	return d.Milliseconds()
}

// planOfDaemon is --dry-run.
func (f *runFlags) planOfDaemon(ctx context.Context, c *client.Client, l client.Launch, p policy.Policy) error {
	plan, err := planOf(ctx, c, l)
	if err != nil {
		return err
	}
	d := &run.DryRun{}
	if err := json.Unmarshal(plan, d); err != nil {
		return refuse("is the daemon of another version?", "reading the daemon's plan: %v", err)
	}
	return f.writePlan(p, d)
}

// planOf asks what a launch would do.
func planOf(ctx context.Context, c *client.Client, l client.Launch) ([]byte, error) {
	l.Stdin, l.Stdout, l.Stderr, l.Files, l.Request.DryRun = nil, nil, nil, nil, true
	w, err := c.Launch(ctx, l)
	if err != nil {
		return nil, daemonRefusal(err)
	}
	exit, err := w.Wait()
	if err != nil {
		return nil, daemonRefusal(err)
	}
	return exit.Plan, nil
}

// daemonRefusal gives what a daemon, or the way to it, refuses sbx's form.
func daemonRefusal(err error) error {
	var refused *protocol.Error
	var conn *client.ConnError
	switch {
	case errors.As(err, &refused):
		line := refused.Message
		if refused.Field != "" {
			line = refused.Field + ": " + line
		}
		hint := refused.Hint
		if refused.Code == protocol.NotFound {
			hint = "sbx ps --all lists those that there are"
		}
		return refuse(hint, "the daemon: %s (%s)", line, refused.Code)
	case errors.As(err, &conn):
		return refuse(conn.Hint, "%v", conn)
	}
	return refuse("", "%v", err)
}
