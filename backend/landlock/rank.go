package landlock

import (
	"sandboxd/backend"
	"sandboxd/policy"
)

// Cost is the backend's place among the others.
func (b *Backend) Cost() backend.Cost {
	if b.facts.Namespaces {
		return backend.CostStage
	}
	return backend.CostThread
}

// Best are the effects that could be enforced on the best of hosts: see
// backend.Ranked. What is not here is what the gaps in this package name.
func (b *Backend) Best(p policy.Policy) policy.EffectSet {
	best := p.Requested().Minus(policy.SetOf(policy.FSHardlink))
	s := p.Spec()
	if s.ExecOnly {
		best = best.Minus(policy.SetOf(policy.FSExec))
	}
	if b.facts.Namespaces {
		if s.Mode != policy.ReadOnly && (len(s.Guarded) == 0 || len(s.Unguarded) > 0) {
			best = best.Minus(policy.SetOf(policy.FSProtected))
		}
		return best
	}
	if p.Net() != policy.NetNone && p.Net() != policy.NetHost {
		return 0
	}
	if s.Mode != policy.ReadOnly {
		best = best.Minus(policy.SetOf(policy.FSProtected))
	}
	return best.Minus(policy.SetOf(policy.FSMetadata, policy.ProcSee))
}
