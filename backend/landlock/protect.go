package landlock

import (
	"fmt"
	"slices"

	"sandboxd/backend"
	"sandboxd/policy"
)

// gapOwnRepos stands beside what is enforced.
const gapOwnRepos = "in repositories that the worker makes itself, hooks and configuration are its own"

// stateGuarded is what a mount namespace makes of the protected paths. A policy that
// was not resolved by package profiles has names and no places: nothing is held.
func (p *Plan) stateGuarded() backend.State {
	s := p.policy.Spec()
	switch {
	case s.Mode == policy.ReadOnly:
		return enforced("mount namespace", "landlock")
	case len(s.Guarded) == 0:
		return unenforced("the policy names no places to protect")
	}
	st := enforced("mount namespace")
	if len(s.Unguarded) > 0 {
		st.Status = backend.Partial
	}
	st.Gaps = append(slices.Clone(s.Unguarded), gapOwnRepos)
	return st
}

// denyEffects are those that a denied path is about.
var denyEffects = []policy.Effect{policy.FSRead, policy.FSWrite}

// heldLess is what a launch turned out not to hold, or not to the end.
func heldLess(s backend.State, gaps, changed []string) backend.State {
	if len(gaps)+len(changed) == 0 {
		return s
	}
	s.Gaps = append(slices.Clone(gaps), s.Gaps...)
	for _, path := range changed {
		s.Gaps = append([]string{fmt.Sprintf("%q was replaced or removed from outside while the worker ran, and was not held from then on", path)}, s.Gaps...)
	}
	if s.Status == backend.Enforced {
		s.Status = backend.Partial
	}
	return s
}

// outcomeOfPlaces corrects a launch's enforcement by what came of the places that were
// held: some are protected, some denied, and some lead to both.
func (p *Plan) outcomeOfPlaces(e backend.Enforcement, gaps, denyGaps, changed []string) backend.Enforcement {
	s := p.policy.Spec()
	among := func(places []policy.Guarded) (some []string) {
		for _, c := range changed {
			if slices.ContainsFunc(places, func(g policy.Guarded) bool { return string(g.Path) == c }) {
				some = append(some, c)
			}
		}
		return some
	}
	protected, denied := among(s.Guarded), among(s.Denied)
	if len(gaps)+len(protected) > 0 {
		e = e.With(policy.FSProtected, heldLess(e.State(policy.FSProtected), gaps, protected))
	}
	if len(denyGaps)+len(denied) > 0 {
		for _, effect := range denyEffects {
			e = e.With(effect, heldLess(e.State(effect), denyGaps, denied))
		}
	}
	return e
}
