// Package backend says what a backend is, chooses one for a policy, and holds
// the words in which every backend answers: what it enforces, how the worker
// ended, what was denied. It has no implementation of its own.
package backend

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandboxd/policy"
)

// Status says how far one effect is governed. The zero value is invalid.
type Status uint8

// The statuses.
const (
	Enforced Status = iota + 1
	Partial
	Unenforced
	NotRequested
)

var statusNames = map[Status]string{Enforced: "enforced", Partial: "partial", Unenforced: "unenforced", NotRequested: "not-requested"}

func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return "unset"
}

// MarshalText writes the status' name; an invalid one is an error.
func (s Status) MarshalText() ([]byte, error) {
	if statusNames[s] == "" {
		return nil, fmt.Errorf("status is unset")
	}
	return []byte(statusNames[s]), nil
}

// UnmarshalText reads a status' name.
func (s *Status) UnmarshalText(b []byte) error {
	for v, n := range statusNames {
		if n == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("unknown status %q", b)
}

// Level sums the statuses up. The zero value is invalid.
type Level uint8

// The levels.
const (
	// LevelNone: no sandbox was called (danger-full-access).
	LevelNone Level = iota + 1
	// LevelPartial: some requested effects are not enforced, each named.
	LevelPartial
	// LevelFull: every effect that the policy requests is enforced.
	LevelFull
)

var levelNames = map[Level]string{LevelNone: "none", LevelPartial: "partial", LevelFull: "full"}

func (l Level) String() string {
	if n, ok := levelNames[l]; ok {
		return n
	}
	return "unset"
}

// MarshalText writes the level's name; an invalid one is an error.
func (l Level) MarshalText() ([]byte, error) {
	if levelNames[l] == "" {
		return nil, fmt.Errorf("level is unset")
	}
	return []byte(levelNames[l]), nil
}

// UnmarshalText reads a level's name.
func (l *Level) UnmarshalText(b []byte) error {
	for v, n := range levelNames {
		if n == string(b) {
			*l = v
			return nil
		}
	}
	return fmt.Errorf("unknown level %q", b)
}

// State is what is known of one effect in one launch.
type State struct {
	Status Status `json:"status"`
	// By names the mechanisms: "landlock", "seccomp", "seccomp-notify".
	By []string `json:"by,omitempty"`
	// Gaps names what is left open, a sentence each.
	Gaps []string `json:"gaps,omitempty"`
}

// Enforcement is what a kernel was told, effect by effect.
type Enforcement struct {
	states map[policy.Effect]State
}

// NewEnforcement checks that every effect has a valid state and that what is
// not fully enforced says why.
func NewEnforcement(states map[policy.Effect]State) (Enforcement, error) {
	for _, e := range policy.Effects() {
		s, ok := states[e]
		switch {
		case !ok || statusNames[s.Status] == "":
			return Enforcement{}, fmt.Errorf("effect %s has no status", e)
		case (s.Status == Enforced || s.Status == Partial) && len(s.By) == 0:
			return Enforcement{}, fmt.Errorf("effect %s is %s by nothing", e, s.Status)
		case (s.Status == Partial || s.Status == Unenforced) && len(s.Gaps) == 0:
			return Enforcement{}, fmt.Errorf("effect %s is %s without a named gap", e, s.Status)
		}
	}
	return Enforcement{maps.Clone(states)}, nil
}

// State returns the state of one effect; the zero State for an unknown one.
func (e Enforcement) State(effect policy.Effect) State { return e.states[effect] }

// With returns a copy in which one effect has another state.
func (e Enforcement) With(effect policy.Effect, s State) Enforcement {
	c := maps.Clone(e.states)
	c[effect] = s
	return Enforcement{c}
}

// Map returns a copy of all states.
func (e Enforcement) Map() map[policy.Effect]State { return maps.Clone(e.states) }

// Held is the set of effects that are fully enforced.
func (e Enforcement) Held() policy.EffectSet { return e.having(Enforced) }

func (e Enforcement) having(want Status) (set policy.EffectSet) {
	for effect, s := range e.states {
		if s.Status == want {
			set |= policy.SetOf(effect)
		}
	}
	return set
}

// Level sums up how far the policy's requests are enforced.
func (e Enforcement) Level(p policy.Policy) Level {
	switch {
	case !p.Mode().Confined():
		return LevelNone
	case p.Requested().Minus(e.Held()) != 0:
		return LevelPartial
	}
	return LevelFull
}

// Missing is the set of effects that the policy needs and that e does not hold.
func (e Enforcement) Missing(p policy.Policy) policy.EffectSet {
	return p.Needed().Minus(e.Held()).Minus(p.NeededPartly() & e.having(Partial))
}

// Gaps returns the named gaps of a set of effects, one line each.
func (e Enforcement) Gaps(set policy.EffectSet) []string {
	var lines []string
	for _, effect := range set.List() {
		s := e.states[effect]
		lines = append(lines, fmt.Sprintf("%s is %s: %s", effect, s.Status, strings.Join(s.Gaps, "; ")))
	}
	return lines
}

// Unconfined is the enforcement of danger-full-access: nothing was asked of a
// sandbox. Tree ownership is the launcher's own work.
func Unconfined(treeKill State) Enforcement {
	states := map[policy.Effect]State{}
	for _, e := range policy.Effects() {
		states[e] = State{Status: NotRequested}
	}
	states[policy.TreeKill] = treeKill
	return Enforcement{states}
}

// Equal tells whether two enforcements say the same.
func (e Enforcement) Equal(o Enforcement) bool {
	return maps.EqualFunc(e.states, o.states, func(a, b State) bool {
		return a.Status == b.Status && slices.Equal(a.By, b.By) && slices.Equal(a.Gaps, b.Gaps)
	})
}
