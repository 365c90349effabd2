package launch

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/quota"
	"sandboxd/internal/scratch"
	"sandboxd/policy"
)

// KindGroup is the kind of a cgroup's mark in a lease.
const KindGroup = "cgroup"

// Bounds are what holds one worker's tree together: its limits, and its cgroup
// where it can have one.
type Bounds struct {
	limits policy.Limits
	group  *cgroup.Group
	mark   string // its place in the lease
	// foreign tells that the launch thread is of another user than the group.
	foreign bool
	// userLimit tells that RLIMIT_NPROC stands for the limit on processes.
	userLimit bool
}

// Host is what a host can hold limits with; nil is what was not asked for.
type Host struct {
	Groups *cgroup.Host
	Disk   *quota.Host
	// UserLimit tells that the kernel limits the processes of the worker's user
	// (RLIMIT_NPROC): not root's (getrlimit(2)).
	UserLimit bool
}

// TreeState says how a tree is ended as a whole: by its cgroup, where the host
// lets it have one, else as the caller can.
func TreeState(host *cgroup.Host, otherwise backend.State) backend.State {
	if host == nil || !host.Kill.Can() {
		return otherwise
	}
	return backend.State{Status: backend.Enforced, By: []string{host.Kill.By}}
}

// LimitStates says what a host holds of the limits that are asked for: nil is a
// host that was not asked.
func LimitStates(l policy.Limits, host Host) map[policy.Effect]backend.State {
	states := map[policy.Effect]backend.State{}
	var h cgroup.Host
	if host.Groups != nil {
		h = *host.Groups
	}
	if l.Time > 0 || l.Idle > 0 {
		states[policy.LimitsTime] = backend.State{Status: backend.Enforced, By: []string{"timer"}}
	}
	if l.Disk > 0 {
		states[policy.LimitsDisk] = diskState(l, host.Disk)
	}
	for _, e := range []struct {
		asked  bool
		effect policy.Effect
		can    cgroup.Ability
	}{{l.Memory > 0, policy.LimitsMemory, h.Memory}, {l.Pids > 0, policy.LimitsPids, h.Pids}, {l.CPUs > 0, policy.LimitsCPU, h.CPU}} {
		switch {
		case !e.asked:
		case e.can.Can() && h.Kill.Can():
			states[e.effect] = backend.State{Status: backend.Enforced, By: []string{e.can.By}}
		default:
			a := e.can
			if a.Can() {
				a = h.Kill
			}
			gap := "no cgroup can be had for it: " + a.Why
			if a.Fix != "" {
				gap += " (" + a.Fix + ")"
			}
			states[e.effect] = backend.State{Status: backend.Unenforced, Gaps: []string{gap}}
			if e.effect == policy.LimitsPids && host.UserLimit {
				states[e.effect] = backend.State{Status: backend.Partial, By: []string{"rlimit"}, Gaps: []string{
					"all processes of the user count, those outside too: the worker's may be that many more than there were at its start; " + gap}}
			}
		}
	}
	return states
}

// Bound makes what one launch needs. The host's handles are the caller's, and stay
// open as long as the bounds are used; nil stands for a host without cgroups.
// foreign tells that the launch thread has become another user.
func Bound(l policy.Limits, host Host, foreign bool) (*Bounds, error) {
	b := &Bounds{limits: l, foreign: foreign}
	var want cgroup.Limits
	for effect, s := range LimitStates(l, Host{Groups: host.Groups, UserLimit: host.UserLimit}) {
		if s.Status != backend.Enforced {
			b.userLimit = b.userLimit || effect == policy.LimitsPids && s.Status == backend.Partial
			continue
		}
		switch effect {
		case policy.LimitsMemory:
			want.MemoryBytes = l.Memory
		case policy.LimitsPids:
			want.Pids = l.Pids
		case policy.LimitsCPU:
			want.CPUs = l.CPUs
		}
	}
	h := host.Groups
	if h == nil || !h.Kill.Can() {
		return b, nil // what cannot be held was refused or accepted before
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand.Read's contract
	id := hex.EncodeToString(raw[:])
	if detail, err := json.Marshal(h.Mark(id)); err == nil {
		b.mark = "/cgroup/" + id
		scratch.Mine().Add(scratch.Mark{Kind: KindGroup, Path: b.mark, Detail: detail})
	}
	var err error
	if b.group, err = cgroup.New(*h, id, want); err != nil {
		scratch.Mine().Drop(b.mark)
		setup := &backend.SetupError{Step: "limits", Err: err}
		var known *cgroup.Error
		if errors.As(err, &known) {
			setup.Hint = known.Fix
		}
		return nil, setup
	}
	return b, nil
}

// RemoveLeftGroup ends and removes the cgroup of a launcher that is no more.
func RemoveLeftGroup(m scratch.Mark) error {
	var mark cgroup.Mark
	if err := json.Unmarshal(m.Detail, &mark); err != nil {
		return err
	}
	h := cgroup.Probe()
	return errors.Join(cgroup.RemoveMarked(h, mark), h.Close())
}

// Grouped tells whether there is a cgroup, which is in the lease of this process.
func (b *Bounds) Grouped() bool { return b != nil && b.group != nil }

// kill ends what is left in the group, which no fork escapes; end tells if that
// failed.
func (b *Bounds) kill() bool {
	return b != nil && b.group != nil && b.group.Kill() == nil
}

// Discard removes the group, after its worker or without one. What cannot be
// removed stays in the lease.
func (b *Bounds) Discard() error {
	if b == nil || b.group == nil {
		return nil
	}
	group := b.group
	b.group = nil
	_ = group.Kill() // empty already, if a worker was waited for
	if err := group.Remove(); err != nil {
		return err
	}
	scratch.Mine().Drop(b.mark)
	return nil
}

// end ends what is left in the group, and tells what it used.
// killed tells that the worker's SIGKILL was the launcher's.
func (b *Bounds) end(u *backend.Usage, o *backend.Outcome, killed bool) (survivors []int, warnings []string) {
	if b == nil || b.group == nil {
		return nil, nil
	}
	if err := b.group.Kill(); err != nil {
		survivors = b.group.Procs()
		warnings = append(warnings, fmt.Sprintf("ending the worker's cgroup: %v", err))
	}
	used := b.group.Usage()
	b.fill(u, used)
	if !killed {
		*o = b.outcome(*o, used)
	}
	return survivors, append(warnings, b.warnings(*o, used)...)
}

// fill replaces what processes told one by one with what the kernel counted for
// all of them.
func (b *Bounds) fill(u *backend.Usage, used cgroup.Usage) {
	if used.Knows(cgroup.UserTime | cgroup.SystemTime) {
		user, system := used.User.Seconds(), used.System.Seconds()
		u.User, u.System, u.Source = &user, &system, used.Source
	}
	if used.Knows(cgroup.PeakMemory) {
		u.PeakMemory, u.PeakMemorySource = &used.PeakMemory, used.Source
	}
	if used.Knows(cgroup.PeakPids) {
		u.PeakPids = &used.PeakPids
	}
	if used.Knows(cgroup.OOMKills) {
		u.OOMKills = &used.OOMKills
	}
	if used.Knows(cgroup.PidsMaxHits) {
		u.PidsHits = &used.PidsMaxHits
	}
}

// outcome tells a worker that ran out of memory from any other that was killed:
// by the kernel's count, never by the signal alone.
func (b *Bounds) outcome(o backend.Outcome, used cgroup.Usage) backend.Outcome {
	const sigkill = 9
	if o.Kind == backend.Signaled && o.Signal == sigkill && b.outOfMemory(used) {
		return backend.Outcome{Kind: backend.LimitHit, Which: "memory", Reason: fmt.Sprintf("the memory limit of %d bytes was reached", b.limits.Memory)}
	}
	return o
}

// outOfMemory tells whether processes were killed for this limit, and not for
// one above it or for want of the host's memory, which the kernel counts as well.
func (b *Bounds) outOfMemory(used cgroup.Usage) bool {
	if b.limits.Memory == 0 || !used.Knows(cgroup.OOMKills) || used.OOMKills == 0 {
		return false
	}
	if used.Knows(cgroup.OOMs) { // cgroup2 tells whose it was
		return used.OOMs > 0
	}
	const page = 64 << 10 // the largest; the limit is rounded down to one
	return used.Knows(cgroup.PeakMemory) && used.PeakMemory > b.limits.Memory-page
}

func (b *Bounds) warnings(o backend.Outcome, used cgroup.Usage) (list []string) {
	if o.Kind == backend.LimitHit {
		list = append(list, o.Reason)
	} else if b.outOfMemory(used) {
		list = append(list, fmt.Sprintf("the memory limit of %d bytes was reached, and %d processes of the command were killed for it", b.limits.Memory, used.OOMKills))
	}
	if b.limits.Pids > 0 && used.Knows(cgroup.PidsMaxHits) && used.PidsMaxHits > 0 {
		list = append(list, fmt.Sprintf("the limit of %d processes was reached, and %d were refused", b.limits.Pids, used.PidsMaxHits))
	}
	return append(list, b.group.Gaps()...)
}
