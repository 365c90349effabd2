package daemon

import (
	"errors"
	"math"
	"time"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/policy"
	"sandboxd/profiles"
	"sandboxd/protocol"
)

// identity is who a worker runs as.
type identity struct {
	uid, gid int
	groups   []int
	name     string
	home     string
	shell    string
}

// environment is what an account's own environment is at least.
func (id identity) environment() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + id.home, "USER=" + id.name, "LOGNAME=" + id.name}
	if id.shell != "" {
		env = append(env, "SHELL="+id.shell)
	}
	return env
}

// profileRequest is what a client's launch asks of package profiles.
func profileRequest(m *protocol.Launch, id identity, guards bool) (profiles.Request, error) {
	req := profiles.Request{
		Dir: string(m.Dir), Workspace: string(m.Workspace), Cwd: string(m.Cwd),
		Readable: words(m.Readable), Writable: words(m.Writable), Deny: words(m.Deny), AllowExec: words(m.AllowExec),
		Profiles: words(m.Profiles), Cache: m.Cache, NoProjectProfile: m.NoProjectProfile, OwnTerminal: m.TTY != nil,
		Env: variables(m.Env), HostEnv: variables(m.HostEnv), Home: id.home, UID: id.uid, GID: id.gid,
		NetAllow: m.NetAllow,
	}
	// They need not be looked for where nothing holds them.
	req.Unguarded = !guards || m.Backend == landlock.Name
	if m.HostEnv == nil {
		req.HostEnv = id.environment()
	}
	var err error
	if m.Mode != "" {
		if req.Mode, err = policy.ParseMode(m.Mode); err != nil {
			return req, wrong("mode", err)
		}
	}
	if m.Net != "" {
		if req.Net, err = policy.ParseNet(m.Net); err != nil {
			return req, wrong("net", err)
		}
	}
	for _, word := range m.Require {
		if word == "full" {
			req.RequireFull = true
			continue
		}
		e, err := policy.ParseEffect(word)
		if err != nil {
			return req, wrong("require", err)
		}
		req.Require |= policy.SetOf(e)
	}
	for _, word := range m.AllowGap {
		e, err := policy.ParseEffect(word)
		if err != nil {
			return req, wrong("allow_gap", err)
		}
		req.AllowGap |= policy.SetOf(e)
	}
	return req, nil
}

// wrong is a word that means nothing.
func wrong(field string, err error) *protocol.Error {
	e := protocol.Errorf(protocol.BadValue, "%v", err)
	e.Field = field
	return e
}

func words(list []protocol.Bytes) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = string(w)
	}
	return out
}

func variables(list []protocol.Variable) []string {
	out := make([]string, 0, len(list))
	for _, v := range list {
		out = append(out, string(v.Name)+"="+string(v.Value))
	}
	return out
}

// limitsOf are the launch's limits.
func limitsOf(m *protocol.Launch) policy.Limits {
	l := m.Limits
	if l == nil {
		l = &protocol.LaunchLimits{}
	}
	grace := policy.DefaultGrace
	if l.Grace != nil {
		grace = milliseconds(*l.Grace)
	}
	return policy.Limits{
		Time: milliseconds(l.Timeout), Idle: milliseconds(l.IdleTimeout), Grace: grace,
		Memory: l.Memory, Pids: clip(l.Pids), CPUs: float64(l.CPU) / 1000, Disk: l.Disk,
		FileSize: l.FileSize, Files: clip(l.Files), Core: l.Core,
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func clip(n int64) int { return int(min(n, math.MaxInt32)) }

// resolve makes the policy with the rights of the user: their profiles are read,
// their paths are looked up as they could.
func (id identity) resolve(m *protocol.Launch, guards bool) (p policy.Policy, warnings []string, err error) {
	if aerr := id.as(func() { p, warnings, err = resolve(m, id, guards) }); aerr != nil {
		err = aerr
	}
	return p, warnings, err
}

// resolve makes the policy of a launch, with the protected places if a backend may guard
// them, and sentences that the client should read.
// It reads files with the rights of the calling thread.
func resolve(m *protocol.Launch, id identity, guards bool) (policy.Policy, []string, error) {
	req, err := profileRequest(m, id, guards)
	if err != nil {
		return policy.Policy{}, nil, err
	}
	limits := limitsOf(m)
	req.PrivateTemp = limits.Disk > 0
	spec, notices, err := profiles.Resolve(req)
	if err != nil {
		return policy.Policy{}, nil, refusal(err)
	}
	spec.Limits = limits
	if m.DescriptorsUnsafe {
		spec.Weakened = append(spec.Weakened, policy.Weakening{Flag: "--pass-fd-unsafe", Meaning: "descriptors that lead on, as sockets and directories, may be passed"})
	}
	p, err := policy.New(spec)
	if err != nil {
		return policy.Policy{}, nil, refusal(err)
	}
	var warnings []string
	for _, n := range notices {
		if n.Level == profiles.Warning {
			warnings = append(warnings, n.Text)
		}
	}
	return p, warnings, nil
}

// refusal is the answer to a policy that cannot be made, or not be held here.
func refusal(err error) *protocol.Error {
	var r *profiles.RefusalError
	var b *backend.RefusalError
	switch {
	case errors.As(err, &r):
	case errors.As(err, &b):
		r = &profiles.RefusalError{Msg: b.Reason, Hint: b.Hint}
	default:
		return protocol.Errorf(protocol.Refused, "%v", err)
	}
	e := protocol.Errorf(protocol.Refused, "%s", r.Msg)
	if r.Hint != "" {
		e.Hint = r.Hint
	}
	return e
}
