package landlock

import (
	"maps"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"sandboxd/backend"
	"sandboxd/internal/launch"
	"sandboxd/internal/seccomp"
	"sandboxd/policy"
)

// The gaps that this backend names. docs/enforcement.md says what each means
// and which test pins it.
const (
	gapMetadata   = "stat, chmod, chown, utime, setxattr, chdir and inotify outside the grants are not governed by Landlock"
	gapIoctl      = "before Landlock ABI 5, ioctls on devices that may be opened are closed only for TIOCSTI and TIOCLINUX"
	gapProtected  = "Landlock cannot deny inside the writable workspace: .git/hooks and the like can be written"
	gapHardlink   = "a hard link that exists at start inside a grant leads to its file, wherever else that file lies"
	gapExecOnly   = "an allowed loader or interpreter can run any file that it may read, and a file in memory (memfd_create) can be executed"
	gapSee        = "pids, command lines and descriptor numbers of other processes can be read in /proc"
	gapSchedule   = "without a seccomp notification listener, the priority and CPU affinity of the same user's other processes can be changed, but for the launcher's"
	gapFiltered   = "before Landlock ABI 6, the priority and CPU affinity of the same user's processes that are in a sandbox of their own can be changed"
	gapSignal     = "before Landlock ABI 6, processes of the same user outside can be signalled"
	gapTerminals  = "other terminals of the same user can be opened through /dev/pts"
	gapErratum    = "this kernel does not say that Landlock erratum 3 is fixed: a directory moved out of a bind mount may gain rights by a rename"
	gapTruncate   = "before Landlock ABI 3, files outside the grants can be truncated"
	gapUnix       = "before Landlock ABI 9 and without a seccomp notification listener, sockets of the host can be connected to"
	gapAbstract   = "before Landlock ABI 6 and without a seccomp notification listener, abstract sockets of the host can be connected to"
	gapTree       = "a tree that forks faster than it can be swept may survive; survivors are reported"
	gapTreeShared = "processes that leave the worker's session are not found by this launcher"
)

func enforced(by ...string) backend.State {
	return backend.State{Status: backend.Enforced, By: by}
}

func partial(gap string, by ...string) backend.State {
	return backend.State{Status: backend.Partial, By: by, Gaps: []string{gap}}
}

func unenforced(gap string) backend.State {
	return backend.State{Status: backend.Unenforced, Gaps: []string{gap}}
}

// states computes what the plan enforces, effect by effect.
func (p *Plan) states() map[policy.Effect]backend.State {
	states := map[policy.Effect]backend.State{
		policy.FSRead:          p.stateFiles(),
		policy.FSWrite:         p.stateFiles(),
		policy.FSExec:          p.stateExec(),
		policy.FSTruncate:      p.stateTruncate(),
		policy.FSMetadata:      unenforced(gapMetadata),
		policy.FSIoctl:         p.since(5, enforced("landlock"), partial(gapIoctl, "seccomp")),
		policy.FSProtected:     p.stateProtected(),
		policy.FSHardlink:      partial(gapHardlink, "landlock"),
		policy.NetTCPConnect:   enforced(p.netBy(4)...),
		policy.NetTCPBind:      enforced(p.netBy(4)...),
		policy.NetUDP:          enforced(p.netBy(10)...),
		policy.NetRaw:          enforced("seccomp"),
		policy.NetOther:        enforced("seccomp"),
		policy.NetUnixPath:     p.stateUnix(9, gapUnix),
		policy.NetUnixAbstract: p.stateUnix(6, gapAbstract),
		policy.ProcSignal:      p.since(6, enforced("landlock"), unenforced(gapSignal)),
		policy.ProcTrace:       enforced("landlock"),
		policy.ProcSee:         p.stateSee(),
		policy.KernelKeyring:   enforced("seccomp"),
		policy.KernelIOUring:   enforced("seccomp"),
		policy.KernelMount:     enforced("landlock", "seccomp"),
		policy.KernelUserns:    enforced("seccomp"),
		policy.TTYInject:       p.stateTerminals(),
		policy.TreeKill:        p.stateTree(),
	}
	maps.Copy(states, launch.LimitStates(p.policy.Limits(), p.Facts.host()))
	if p.Facts.Namespaces {
		p.native(states)
	}
	requested := p.policy.Requested()
	for _, e := range policy.Effects() {
		if _, ok := states[e]; !ok || !requested.Has(e) {
			states[e] = backend.State{Status: backend.NotRequested}
		}
	}
	return states
}

// stateTree: a cgroup ends the tree whatever it does; where none can be had, the
// thread that made the worker signals all that its domain lets it.
func (p *Plan) stateTree() backend.State {
	if p.Facts.Namespaces { // with its first process all others end
		return enforced("PID namespace")
	}
	if p.endsByScope() {
		return enforced("landlock")
	}
	return launch.TreeState(p.Facts.Groups, partial(gapTree, "subreaper"))
}

func (p *Plan) scopesSignals() bool { return p.Scoped&ll.ScopeSignal != 0 }

// stateSee: the host's /proc is seen. Beside it stands what the filter and the
// supervisor cannot keep the worker from changing.
func (p *Plan) stateSee() backend.State {
	s := unenforced(gapSee)
	switch {
	case !p.Supervise:
		s.Gaps = append(s.Gaps, gapSchedule)
	case !p.scopesSignals():
		s.Gaps = append(s.Gaps, gapFiltered)
	}
	return s
}

func (p *Plan) endsByScope() bool {
	// With namespaces the launch thread is in no domain: it reaches everybody.
	return !p.Facts.Namespaces && p.scopesSignals() && (p.Facts.Groups == nil || !p.Facts.Groups.Kill.Can())
}

func (p *Plan) since(abi int, then, before backend.State) backend.State {
	if p.Facts.ABI >= abi {
		return then
	}
	return before
}

// netBy: the filter refuses the sockets on every kernel; Landlock also refuses
// what a socket from elsewhere (an inherited one) would do.
func (p *Plan) netBy(abi int) []string {
	if p.Facts.ABI >= abi {
		return []string{"seccomp", "landlock"}
	}
	return []string{"seccomp"}
}

// stateFiles: the erratum needs a bind mount inside a writable grant, which a
// worker cannot make. It is named, and takes nothing from the status.
func (p *Plan) stateFiles() backend.State {
	s := enforced("landlock")
	if p.Facts.Errata&erratumDisconnected == 0 {
		s.Gaps = []string{gapErratum}
	}
	return s
}

func (p *Plan) stateExec() backend.State {
	if p.policy.Spec().ExecOnly {
		return partial(gapExecOnly, "landlock")
	}
	return enforced("landlock")
}

func (p *Plan) stateTruncate() backend.State {
	switch {
	case p.Facts.ABI >= 3:
		return enforced("landlock")
	case !p.Filter.Truncate:
		return unenforced(gapTruncate)
	case p.Supervise:
		return enforced("seccomp", "seccomp-notify")
	}
	return enforced("seccomp")
}

// stateTerminals: the filter closes the calls that type into a terminal, also into
// the one that was handed in. What is open is a grant that leads to others.
func (p *Plan) stateTerminals() backend.State {
	const terminals = "/dev/pts"
	for _, g := range p.policy.Grants() {
		if g.Covers(terminals) || policy.Within(string(g.Path), terminals) {
			return partial(gapTerminals, "seccomp")
		}
	}
	return enforced("seccomp", "landlock")
}

func (p *Plan) stateProtected() backend.State {
	if p.policy.Mode() == policy.ReadOnly {
		return enforced("landlock")
	}
	return unenforced(gapProtected)
}

func (p *Plan) stateUnix(abi int, gap string) backend.State {
	switch {
	case p.Filter.Unix == seccomp.UnixSupervised:
		// The supervisor performs the call outside the domain, so that its
		// judgement and not Landlock's scope is what holds.
		return enforced("seccomp-notify")
	case p.Facts.ABI >= abi:
		return enforced("landlock")
	case p.Filter.Unix == seccomp.UnixClosed:
		return enforced("seccomp")
	}
	return unenforced(gap)
}
