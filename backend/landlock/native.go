package landlock

import (
	"os"
	"path/filepath"

	"sandboxd/backend"
	"sandboxd/internal/seccomp"
	"sandboxd/policy"
)

// NativeName is the word of the backend whose workers have namespaces of their own.
const NativeName = "native"

// native are the states of a plan whose workers have namespaces of their own.
func (p *Plan) native(states map[policy.Effect]backend.State) {
	by := func(e policy.Effect, mechanism string) {
		s := states[e]
		s.Status, s.By, s.Gaps = backend.Enforced, append([]string{mechanism}, s.By...), nil
		states[e] = s
	}
	also := func(e policy.Effect, mechanism string) {
		s := states[e]
		s.By = append([]string{mechanism}, s.By...)
		states[e] = s
	}
	for _, e := range []policy.Effect{policy.FSRead, policy.FSWrite, policy.FSExec, policy.FSTruncate} {
		also(e, "mount namespace")
	}
	for _, e := range denyEffects {
		s := states[e]
		s.Gaps = append(p.policy.Spec().DenyGaps, s.Gaps...)
		states[e] = s
	}
	states[policy.FSProtected] = p.stateGuarded()
	states[policy.FSMetadata] = enforced("mount namespace")
	by(policy.TTYInject, "mount namespace")
	states[policy.ProcSee] = enforced("PID namespace")
	by(policy.ProcSignal, "PID namespace")
	by(policy.ProcTrace, "PID namespace")
	if p.policy.Net() != policy.NetHost {
		for _, e := range []policy.Effect{policy.NetTCPConnect, policy.NetTCPBind, policy.NetUDP, policy.NetRaw} {
			if p.Filter.Net != seccomp.NetNone { // it refuses other families only
				states[e] = enforced()
			}
			also(e, "network namespace")
			if p.policy.Net() == policy.NetProxy && e != policy.NetRaw {
				also(e, "proxy")
			}
		}
		also(policy.NetOther, "network namespace")
		by(policy.NetUnixAbstract, "network namespace")
	}
}

// rootLinks lists the links in the root directory.
func rootLinks() (links []policy.Link) {
	entries, err := os.ReadDir("/")
	if err != nil {
		return nil // it may be entered and not listed; what a policy names is enough
	}
	for _, e := range entries {
		if e.Type() != os.ModeSymlink {
			continue
		}
		p := filepath.Join("/", e.Name())
		if target, err := os.Readlink(p); err == nil {
			links = append(links, policy.Link{Path: policy.Raw(p), Target: policy.Raw(target)})
		}
	}
	return links
}
