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

// unguarded is what a launch turned out not to hold, or not to the end.
func unguarded(s backend.State, gaps, changed []string) backend.State {
	s.Gaps = append(slices.Clone(gaps), s.Gaps...)
	for _, path := range changed {
		s.Gaps = append([]string{fmt.Sprintf("%q was replaced or removed from outside while the worker ran, and was not protected from then on", path)}, s.Gaps...)
	}
	if s.Status == backend.Enforced && len(gaps)+len(changed) > 0 {
		s.Status = backend.Partial
	}
	return s
}
