package policy

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
)

// Weakening is one thing that the caller asked for and that makes the worker
// less confined than its mode's default. Each is printed, reported and audited.
type Weakening struct {
	// Flag is how the caller said it: "--net host".
	Flag string `json:"flag"`
	// Meaning is one sentence for a person.
	Meaning string `json:"meaning"`
}

// Spec is what a [Policy] is made of. Fields are filled by package profiles
// (from flags, files and presets) and checked by [New].
type Spec struct {
	Mode Mode
	Net  Net
	// NetAllow are the hosts that may be reached, with [NetProxy], as package
	// internal/proxy has them: HOST[:PORTS]. Empty is none.
	NetAllow []string
	// Workspace is the real path of the tree that the work is about. Empty
	// only in FullAccess.
	Workspace string
	// Cwd is the real path where the command starts.
	Cwd string
	// Grants are all paths that the worker may touch, the workspace's and the
	// private temp's excluded from nothing: what is not here is not granted.
	Grants []Grant
	// Links are symbolic links on the way to what is granted. They grant nothing: a
	// worker with a tree of its own gets them, so that paths lead where they do outside.
	Links []Link
	// Deny are clean absolute paths that must not be reachable although a
	// grant covers them. Of a denied path and the grants around it and in it the
	// most specific counts: a grant below it can be reached. A backend that cannot
	// carve them out refuses.
	Deny []string
	// Denied are the places of those paths that a grant covers, as they were found,
	// and what holds them, in the order of [Spec.Guarded]; DenyGaps is what is not
	// held of them, in words.
	Denied   []Guarded
	DenyGaps []string
	// Protected are paths (absolute, or relative to every repository root) that
	// stay unwritable inside a writable workspace.
	Protected []string
	// Guarded are the places of those names, as they were found, and what holds
	// them; Unguarded are those that could not be, in words.
	Guarded   []Guarded
	Unguarded []string
	// Env is the whole environment of the worker, "K=V". Nil and empty are the
	// same: nothing.
	Env []string
	// TempEnv are variables whose values lie in the worker's private temporary
	// directory, which exists only from its launch on.
	TempEnv []TempVar
	// Create are directories that a launch makes (0700) before it opens the
	// grants: the caches of sandboxed runs.
	Create []string
	// ExecOnly tells that execve is limited to the grants with Exec, which
	// then name single files (--allow-exec).
	ExecOnly bool
	// Require are effects without which nothing may run; RequireFull asks for
	// every requested effect.
	Require     EffectSet
	RequireFull bool
	// AllowGap are effects whose loss the caller accepts by name.
	AllowGap EffectSet
	// Weakened lists what the caller loosened.
	Weakened []Weakening
	// Limits bound what the worker uses.
	Limits Limits
}

// TempVar is a variable that names a directory in the private temp.
type TempVar struct {
	// Name is the variable's name: "TMPDIR".
	Name string `json:"name"`
	// Sub is the directory below the private temp, made at launch; "." is the
	// private temp itself.
	Sub string `json:"sub"`
}

// Link is a symbolic link: its own real path, and what it says.
type Link struct {
	Path   Raw `json:"path"`
	Target Raw `json:"target"`
}

// Policy is what one worker may touch, resolved to real paths. It is
// immutable: accessors return copies. The zero value is not a policy; backends
// refuse it.
type Policy struct{ s Spec }

// New checks a spec and makes it a policy. It does no I/O.
func New(s Spec) (Policy, error) {
	if !s.Mode.Valid() {
		return Policy{}, fmt.Errorf("mode is unset")
	}
	if !s.Net.Valid() {
		return Policy{}, fmt.Errorf("network is unset")
	}
	if len(s.NetAllow) > 0 && s.Net != NetProxy {
		return Policy{}, fmt.Errorf("hosts are allowed, but the network is %s", s.Net)
	}
	if s.Mode.Confined() && s.Workspace == "" {
		return Policy{}, fmt.Errorf("workspace is unset")
	}
	for _, p := range append([]string{s.Workspace, s.Cwd}, s.Deny...) {
		if p != "" && (!path.IsAbs(p) || path.Clean(p) != p) {
			return Policy{}, fmt.Errorf("%q is not a clean absolute path", p)
		}
	}
	if s.Mode == FullAccess && (s.RequireFull || s.Require != 0) {
		return Policy{}, fmt.Errorf("danger-full-access confines nothing, so nothing can be required of it")
	}
	if s.RequireFull && s.AllowGap != 0 {
		return Policy{}, fmt.Errorf("full enforcement is required, yet %s is allowed to be missing", s.AllowGap)
	}
	if both := s.Require & s.AllowGap; both != 0 {
		return Policy{}, fmt.Errorf("%s is both required and allowed to be missing", both)
	}
	if err := s.Limits.validate(); err != nil {
		return Policy{}, err
	}
	for _, l := range s.Links {
		if !path.IsAbs(string(l.Path)) || path.Clean(string(l.Path)) != string(l.Path) || l.Target == "" || strings.ContainsRune(string(l.Path+l.Target), 0) {
			return Policy{}, fmt.Errorf("link %q to %q is not valid", l.Path, l.Target)
		}
	}
	for _, v := range s.TempEnv {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || !validSub(v.Sub) {
			return Policy{}, fmt.Errorf("variable %q in temp at %q is not valid", v.Name, v.Sub)
		}
	}
	for _, g := range s.Grants {
		if err := g.validate(); err != nil {
			return Policy{}, err
		}
	}
	for _, g := range slices.Concat(s.Guarded, s.Denied) {
		if err := g.validate(); err != nil {
			return Policy{}, err
		}
	}
	for _, kv := range s.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
			return Policy{}, fmt.Errorf("environment entry %q is not NAME=VALUE without NUL", kv)
		}
	}
	return Policy{s.clone()}, nil
}

// validSub accepts "." and clean relative paths that stay inside.
func validSub(sub string) bool {
	return sub != "" && !path.IsAbs(sub) && path.Clean(sub) == sub && sub != ".." && !strings.HasPrefix(sub, "../") && !strings.ContainsRune(sub, 0)
}

func (s Spec) clone() Spec {
	s.Grants = slices.Clone(s.Grants)
	s.Links = slices.Clone(s.Links)
	s.NetAllow = slices.Clone(s.NetAllow)
	s.Deny = slices.Clone(s.Deny)
	s.Denied = slices.Clone(s.Denied)
	s.DenyGaps = slices.Clone(s.DenyGaps)
	s.Protected = slices.Clone(s.Protected)
	s.Guarded = slices.Clone(s.Guarded)
	s.Unguarded = slices.Clone(s.Unguarded)
	s.Env = slices.Clone(s.Env)
	s.TempEnv = slices.Clone(s.TempEnv)
	s.Create = slices.Clone(s.Create)
	s.Weakened = slices.Clone(s.Weakened)
	return s
}

// Spec returns a copy of everything the policy says.
func (p Policy) Spec() Spec { return p.s.clone() }

// Equal tells whether the two are the same in all that they say.
func (p Policy) Equal(o Policy) bool { return reflect.DeepEqual(p.s, o.s) }

// Valid tells whether p was made by [New].
func (p Policy) Valid() bool { return p.s.Mode.Valid() }

// Mode is the policy's ceiling.
func (p Policy) Mode() Mode { return p.s.Mode }

// Net is the policy's rung of the network ladder.
func (p Policy) Net() Net { return p.s.Net }

// Workspace is the real path of the workspace.
func (p Policy) Workspace() string { return p.s.Workspace }

// Cwd is the real path where the command starts.
func (p Policy) Cwd() string { return p.s.Cwd }

// Grants returns a copy of the grants.
func (p Policy) Grants() []Grant { return slices.Clone(p.s.Grants) }

// Limits bound what the worker uses.
func (p Policy) Limits() Limits { return p.s.Limits }

// Env returns a copy of the worker's environment.
func (p Policy) Env() []string { return slices.Clone(p.s.Env) }

// Weakened returns a copy of what the caller loosened.
func (p Policy) Weakened() []Weakening { return slices.Clone(p.s.Weakened) }

// Deny returns a copy of the paths that must not be reachable.
func (p Policy) Deny() []string { return slices.Clone(p.s.Deny) }

// Allows tells whether the grants give access a on path p (clean, absolute,
// real). It is the policy's own answer; what a kernel enforces is the report's.
func (p Policy) Allows(target string, a Access) bool {
	return p.s.Mode == FullAccess || p.AccessAt(target).Has(a)
}

// AccessAt is what the grants give on a path (clean, absolute, real): those within the
// nearest denied path that holds it, or all.
func (p Policy) AccessAt(target string) (got Access) {
	denied := nearest(p.s.Deny, target)
	for _, g := range p.s.Grants {
		if g.Covers(target) && inside(string(g.Path), denied) {
			got |= g.Access
		}
	}
	return got
}

// nearest is the longest of some paths that is or holds another; "" for none.
func nearest(paths []string, target string) (near string) {
	for _, p := range paths {
		if len(p) > len(near) && Within(target, p) {
			near = p
		}
	}
	return near
}

// inside tells whether a path lies below a denied one; all do where there is none.
func inside(p, denied string) bool { return denied == "" || p != denied && Within(p, denied) }

// DenyInsideGrant returns the first denied path that a grant covers: what an
// allow-only mechanism cannot carve out. To deny everything is of the kind.
func (p Policy) DenyInsideGrant() (deny string, by Grant, found bool) {
	for _, d := range p.s.Deny {
		for _, g := range p.s.Grants {
			if g.Covers(d) || d == "/" {
				return d, g, true
			}
		}
	}
	return "", Grant{}, false
}

// Requested is the set of effects that the policy asks a backend to govern.
func (p Policy) Requested() EffectSet {
	if p.s.Mode == FullAccess {
		return SetOf(TreeKill) | p.s.Limits.effects()
	}
	all := SetOf(Effects()...).Minus(SetOf(LimitsMemory, LimitsPids, LimitsCPU, LimitsDisk, LimitsTime)) | p.s.Limits.effects()
	if p.s.Net == NetHost {
		all = all.Minus(networkEffects())
	}
	return all
}

// Needed is the set of effects without which nothing may run: the promise of a
// confined mode as far as it is requested and the limits that the caller asks
// for, less the gaps that it accepts, and what it requires.
func (p Policy) Needed() EffectSet {
	limits := p.s.Limits.effects().Minus(p.s.AllowGap)
	if p.s.Mode == FullAccess {
		return limits
	}
	if p.s.RequireFull {
		return p.Requested()
	}
	return (Promise() & p.Requested()).Minus(p.s.AllowGap) | p.s.Require | limits
}

// NeededPartly are those of [Policy.Needed] that may be held in part: temporary
// directories that are measured and not held are limited all the same, and so are
// processes where the user's others count as well. What is required is held as a
// whole or refused.
func (p Policy) NeededPartly() EffectSet {
	if p.s.RequireFull {
		return 0
	}
	return (SetOf(LimitsDisk, LimitsPids) & p.Needed()).Minus(p.s.Require)
}

// String shows what is granted, in one line.
func (p Policy) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; net %s", p.s.Mode, p.s.Net)
	for _, g := range p.s.Grants {
		if g.Access.Has(Write) {
			fmt.Fprintf(&b, "; %s %s", g.Access, g.Path)
		}
	}
	return b.String()
}
