package daemon

import (
	"errors"
	"fmt"
	"strings"

	"sandboxd/backend"
	"sandboxd/internal/audit"
	"sandboxd/internal/run"
	"sandboxd/policy"
	"sandboxd/protocol"
	"sandboxd/report"
)

// auditing says whether the options are clear about the log.
func (o Options) auditing() error {
	switch {
	case o.Audit == nil && !o.NoAudit:
		return errors.New("a daemon needs an audit log, or to be told that it has none (NoAudit)")
	case o.Audit != nil && o.NoAudit:
		return errors.New("a daemon has an audit log, and NoAudit")
	}
	return nil
}

// unaudited is the answer to a launch that could not be appended.
func unaudited(err error) *protocol.Error {
	return protocol.Errorf(protocol.Unaudited, "%v", err)
}

// audited is what the audit log has of one launch.
type audited struct {
	m       *Monitor
	request audit.Request
	// decided tells that a decision was written, of this enforcement.
	decided  bool
	enforced backend.Enforcement
	written  chan error // of what was written, whether it is on the disk; nil: nobody waits
}

// audit begins a launch's part of the log, with what the request says. What is made
// of it replaces that: see policy. Nothing is appended yet.
func (l *launch) audit(m *protocol.Launch) *audited {
	r := l.asker
	r.Worker, r.Mode, r.Net, r.Label = l.worker, m.Mode, m.Net, policy.Raw(m.Label)
	r.DryRun = m.DryRun
	r.Cwd, r.Workspace, r.Profiles = policy.Raw(m.Cwd), policy.Raw(m.Workspace), words(m.Profiles)
	for _, a := range m.Argv {
		r.Argv = append(r.Argv, policy.Raw(a))
	}
	for _, v := range m.Env {
		r.EnvNames = append(r.EnvNames, policy.Raw(v.Name))
	}
	return &audited{m: l.m, request: r}
}

// policy notes what the request came to.
func (a *audited) policy(p policy.Policy) {
	a.request.Mode, a.request.Net, a.request.Weakened = p.Mode().String(), p.Net().String(), p.Weakened()
	a.request.Cwd, a.request.Workspace = policy.Raw(p.Cwd()), policy.Raw(p.Workspace())
	a.request.EnvNames = report.EnvNames(p)
}

// allow writes that the launch is allowed, with a plan; again if it gets another
// plan. An error refuses the launch, which may begin when [audited.wait] has none.
func (a *audited) allow(p policy.Policy, backend, plan string, e backend.Enforcement) error {
	err := a.decide(audit.Decision{Decision: audit.Allow, Source: "ceiling", PlanHash: plan, Backend: backend, Level: e.Level(p).String(), Effects: statuses(e)})
	if err == nil {
		a.enforced = e
	}
	return err
}

// planned writes what a launch would be allowed as, of which there is to be none.
func (a *audited) planned(p *run.DryRun) error {
	effects := map[string]string{}
	for e, s := range p.Effects {
		if s.Status != backend.NotRequested {
			effects[e.String()] = s.Status.String()
		}
	}
	err := a.decide(audit.Decision{Decision: audit.Allow, Source: "ceiling", PlanHash: p.Hash, Backend: p.Backend, Level: p.Level.String(), Effects: effects})
	if err != nil {
		return err
	}
	return a.wait()
}

func (a *audited) decide(d audit.Decision) error {
	if a.m.o.Audit == nil {
		return nil
	}
	a.m.mu.Lock()
	err := a.m.unaudited
	a.m.mu.Unlock()
	if err != nil {
		return unaudited(err)
	}
	d.Worker, d.UID = a.request.Worker, a.request.UID
	if a.decided {
		if _, err := a.m.o.Audit.Decision(d); err != nil {
			return unaudited(err)
		}
		return nil
	}
	wait, err := a.m.o.Audit.Deciding(a.request, d)
	if err != nil {
		return unaudited(err)
	}
	a.decided = true
	a.request = audit.Request{Worker: d.Worker, UID: d.UID} // the rest is in the log, and a worker may live long
	// What is left to make for the worker is made while the disk is waited for.
	written := make(chan error, 1)
	a.written = written
	go func() {
		_, err := wait()
		written <- err
	}()
	return nil
}

// wait returns when all that was written is on the disk. An error refuses the launch.
func (a *audited) wait() error {
	if a.written == nil {
		return nil
	}
	err := <-a.written
	a.written <- err // a launch that gets another plan asks again
	if err != nil {
		return unaudited(err)
	}
	return nil
}

// end appends what came of the launch: its refusal, or its end, of which r is the
// report. What cannot be appended is said in the log and in the report.
func (a *audited) end(r *report.Report, plan string, refusal error) {
	if a.m.o.Audit == nil {
		return
	}
	var p *protocol.Error
	if errors.As(refusal, &p) && p.Code == protocol.Unaudited {
		a.m.stopTaking(refusal)
		return // that is what could not be appended
	}
	var err error
	if !a.decided {
		source, reason := whyRefused(r, refusal)
		if err = a.decide(audit.Decision{Decision: audit.Refuse, Source: policy.Raw(source), Reason: policy.Raw(reason)}); err == nil {
			err = a.wait() // it is on the disk before its client hears of it
		}
	} else if r != nil {
		_, err = a.m.o.Audit.End(a.endOf(r, plan))
	}
	if err == nil {
		return
	}
	a.m.stopTaking(err)
	if r != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("what came of this launch is not in the audit log: %v", err))
	}
}

// stopTaking has all launches refused from now on: what is done would not be known.
func (m *Monitor) stopTaking(err error) {
	m.mu.Lock()
	first := m.unaudited == nil
	m.unaudited = err
	m.tellChecks()
	m.mu.Unlock()
	if first {
		m.log.Error("the audit log cannot be appended to; no launches are taken any more", "error", err)
	}
}

// whyRefused says what refused a launch, and why. It quotes no argument, which may
// be a secret: codes and members, and sentences that are made of a policy alone.
func whyRefused(r *report.Report, refusal error) (source, reason string) {
	var p *protocol.Error
	switch {
	case errors.As(refusal, &p) && p.Code == protocol.Ceiling:
		return "ceiling", p.Error()
	case errors.As(refusal, &p):
		return "request", strings.TrimSuffix(string(p.Code)+" "+p.Field, " ")
	case r == nil:
		return "daemon", "internal"
	case r.Outcome.Kind == backend.Refused:
		return "host", r.Outcome.Reason
	}
	return "host", strings.Join(strings.Fields(string(r.Outcome.Kind)+" "+r.Outcome.Step+" "+r.Outcome.Errno), " ")
}

func (a *audited) endOf(r *report.Report, plan string) audit.End {
	o := r.Outcome
	e := audit.End{
		Worker: a.request.Worker, UID: a.request.UID, ExitStatus: r.ExitStatus, PlanHash: plan, Level: levelOf(r), Denials: len(r.Denials), DenialsLost: r.DenialsLost,
		Outcome: audit.Outcome{Kind: string(o.Kind), Code: o.Code, Signal: o.Signal, Which: o.Which, Step: o.Step, Errno: o.Errno},
		Effects: map[string]string{},
	}
	if r.Ran { // the reason of one that did not run may quote its command
		e.Outcome.Reason = policy.Raw(o.Reason)
	}
	for effect, s := range r.Effects {
		if was := a.enforced.State(effect).Status; was != s.Status && s.Status != backend.NotRequested {
			e.Effects[effect.String()] = s.Status.String()
		}
	}
	if u := r.Usage; u != nil {
		e.Usage = &audit.Usage{User: u.User, System: u.System, PeakMemory: u.PeakMemory, PeakPids: u.PeakPids}
	}
	return e
}

// levelOf is the level's name; empty if nothing ran.
func levelOf(r *report.Report) string {
	if !r.Ran {
		return ""
	}
	return r.Level.String()
}

// statuses are those of the effects that were asked for.
func statuses(e backend.Enforcement) map[string]string {
	all := map[string]string{}
	for effect, s := range e.Map() {
		if s.Status != backend.NotRequested {
			all[effect.String()] = s.Status.String()
		}
	}
	return all
}
