package backend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sandboxd/policy"
)

// Cost is a backend's place among the others by what a launch takes: the launches of
// docs/namespaces.md, measured, in this order. The zero value is a backend that does
// not say; it comes last.
type Cost int

// The costs, cheapest first.
const (
	// CostThread: a thread of the launcher's is confined, and forks.
	CostThread Cost = iota + 1
	// CostStage: the launcher clones a process into new namespaces, without a program.
	CostStage
	// CostConfinedHelper: a program makes the namespaces, around what a thread's costs.
	CostConfinedHelper
	// CostHelper: a program makes the namespaces.
	CostHelper
)

var costNames = map[Cost]string{
	CostThread: "a thread that is confined", CostStage: "a process in namespaces of its own",
	CostConfinedHelper: "a helper program, and confinement in it", CostHelper: "a helper program",
}

func (c Cost) String() string {
	if n, ok := costNames[c]; ok {
		return n
	}
	return "not known"
}

// Ranked is a backend that tells of itself what [Select] asks before a probe.
type Ranked interface {
	Cost() Cost
	// Best are the effects that the policy requests and this backend could enforce,
	// on whatever host. It may hold one too many, which costs a probe; of one that is
	// missing here a better plan might not be made.
	Best(policy.Policy) policy.EffectSet
}

// Choice is the backend that [Select] took, with its plan.
type Choice struct {
	Backend Backend
	Plan    Plan
	// Passed says of each candidate that was looked at why it was not taken.
	Passed []string
}

// Select takes, of the candidates that are usable and hold what the policy needs
// (the promise of its mode, and what is required), the cheapest that enforces all
// that the policy requests; if none does, the one that enforces most of it, then the
// one that holds most of the rest in part, then the cheapest, then the first. A
// candidate that could be no better than what was found is not even probed. It never
// falls back to less than is needed: when none holds that, the error is a
// *RefusalError that names each loss.
func Select(p policy.Policy, candidates []Backend) (Choice, error) {
	found, err := survey(p, candidates, false)
	if err != nil {
		return Choice{}, err
	}
	best := found.chosen
	if best == nil {
		return Choice{}, found.refusal(p)
	}
	passed, _ := found.passed(p)
	return Choice{best.backend, best.plan, passed}, nil
}

// Order sorts the candidates as [Select] looks at them: what could enforce most comes
// first, of equals the cheapest.
func Order(p policy.Policy, candidates []Backend) []Backend {
	list := make([]Backend, 0, len(candidates))
	for _, f := range order(p, candidates) {
		list = append(list, f.backend)
	}
	return list
}

// Usual is the policy that [Describe] describes: workspace-write without a network.
func Usual() policy.Policy {
	p, err := policy.New(policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/workspace", Cwd: "/workspace",
		Grants: []policy.Grant{{Path: "/dev/pts", Kind: policy.Tree, Access: policy.Read | policy.Write, Reason: "the presets grant it"}},
	})
	if err != nil {
		panic(err) // TestUsual
	}
	return p
}

// finding is what is known of one candidate.
type finding struct {
	backend Backend
	index   int // in the caller's order
	cost    Cost
	best    policy.EffectSet
	looked  bool // at the host: what follows is known
	cap     Capability
	plan    Plan
	err     error // of the plan
	missing policy.EffectSet
	// held and partly are the requested effects that the plan holds.
	held, partly policy.EffectSet
}

func order(p policy.Policy, candidates []Backend) []*finding {
	list := make([]*finding, 0, len(candidates))
	for i, b := range candidates {
		f := &finding{backend: b, index: i, best: p.Requested()}
		if r, ok := b.(Ranked); ok {
			f.cost, f.best = r.Cost(), r.Best(p)&p.Requested()
		}
		list = append(list, f)
	}
	slices.SortStableFunc(list, func(a, b *finding) int {
		return cmp.Or(-cmp.Compare(a.best.Len(), b.best.Len()), compareCost(a, b))
	})
	return list
}

func compareCost(a, b *finding) int {
	last := func(c Cost) int {
		if c == 0 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(a.cost), last(b.cost)), cmp.Compare(a.cost, b.cost))
}

// look probes and plans.
func (f *finding) look(p policy.Policy) {
	f.looked = true
	if f.cap = f.backend.Probe(); !f.cap.Usable {
		return
	}
	if f.plan, f.err = f.backend.Plan(p); f.err != nil {
		f.plan = nil
		return
	}
	e := f.plan.Enforcement()
	f.missing = e.Missing(p)
	f.held, f.partly = e.Held()&p.Requested(), e.having(Partial)&p.Requested()
}

// holds tells whether it can be taken.
func (f *finding) holds() bool { return f.plan != nil && f.missing == 0 }

// better tells whether f is to be taken and not o.
func (f *finding) better(o *finding) bool {
	return o == nil || cmp.Or(cmp.Compare(f.held.Len(), o.held.Len()), cmp.Compare(f.partly.Len(), o.partly.Len()), compareCost(o, f), cmp.Compare(o.index, f.index)) > 0
}

// limits are the launcher's own work, and the same with each backend.
var limits = policy.SetOf(policy.LimitsMemory, policy.LimitsPids, policy.LimitsCPU, policy.LimitsDisk, policy.LimitsTime)

// mayBeat tells whether f, at which nobody has looked, could be better than o, which
// holds: if it enforced all that it can at best, and the rest in part.
func (f *finding) mayBeat(o *finding, p policy.Policy) bool {
	all := p.Requested()
	hoped := *f
	hoped.held = f.best.Minus(limits) | o.held&limits
	hoped.partly = all.Minus(limits).Minus(hoped.held) | o.partly&limits
	return hoped.better(o)
}

// surveyed is what [survey] found.
type surveyed struct {
	list   []*finding // in the caller's order
	chosen *finding
}

// survey looks at the candidates, one after another; at all of them, or at those that
// matter. What is not chosen keeps no plan.
func survey(p policy.Policy, candidates []Backend, all bool) (*surveyed, error) {
	if !p.Valid() || !p.Mode().Confined() {
		return nil, errors.New("selecting a backend for a policy that is not confined")
	}
	s := &surveyed{list: order(p, candidates)}
	for _, f := range s.list {
		if !all && s.chosen != nil && !f.mayBeat(s.chosen, p) {
			continue
		}
		f.look(p)
		if f.holds() && f.better(s.chosen) {
			s.chosen, f = f, s.chosen
		}
		if f != nil && f.plan != nil {
			if d, ok := f.plan.(interface{ Discard() error }); ok {
				_ = d.Discard() // handles that only a launch needs
			}
		}
	}
	slices.SortFunc(s.list, func(a, b *finding) int { return cmp.Compare(a.index, b.index) })
	return s, nil
}

// why says why a candidate that was looked at is not the chosen one, and what helps.
func (s *surveyed) why(f *finding, p policy.Policy) (reason, hint string) {
	name := f.backend.Name()
	switch {
	case !f.cap.Usable:
		return fmt.Sprintf("%s: %s", name, f.cap.Reason), f.cap.Fix
	case f.err != nil:
		var refusal *RefusalError
		if errors.As(f.err, &refusal) {
			hint = refusal.Hint
		}
		return fmt.Sprintf("%s: %v", name, f.err), hint
	case f.missing != 0:
		return fmt.Sprintf("%s does not enforce %s (%s)", name, f.missing, strings.Join(f.plan.Enforcement().Gaps(f.missing), "; ")), missingHint(p, f.missing)
	case s.chosen == nil || s.chosen == f:
		return "", ""
	}
	c := s.chosen
	switch {
	case f.held.Len() < c.held.Len():
		return fmt.Sprintf("%s: %s enforces more of what is requested: %s", name, c.backend.Name(), c.held.Minus(f.held)), ""
	case f.partly.Len() < c.partly.Len():
		return fmt.Sprintf("%s: %s holds more of what is requested, in part: %s", name, c.backend.Name(), c.partly.Minus(f.partly)), ""
	}
	return fmt.Sprintf("%s: %s enforces as much, and costs no more", name, c.backend.Name()), ""
}

func (s *surveyed) passed(p policy.Policy) (passed, hints []string) {
	for _, f := range s.list {
		if !f.looked || f == s.chosen {
			continue
		}
		reason, hint := s.why(f, p)
		passed = append(passed, reason)
		hints = appendNew(hints, hint)
	}
	return passed, hints
}

func (s *surveyed) refusal(p policy.Policy) *RefusalError {
	passed, hints := s.passed(p)
	if len(s.list) == 0 {
		passed = append(passed, "this system has none")
	}
	return &RefusalError{
		Reason: "no backend can run this: " + strings.Join(passed, "; "),
		Hint:   strings.Join(hints, "; or "),
	}
}

// missingHint names the flag for the loss, where a flag may accept it.
func missingHint(p policy.Policy, missing policy.EffectSet) string {
	if asked := missing & p.Spec().Require; asked != 0 || p.Spec().RequireFull {
		return fmt.Sprintf("drop --require for %s, or run on a host that enforces it (see `sbx features`)", missing)
	}
	return fmt.Sprintf("accept the loss by name with --allow-gap %s, or run on a host that enforces it (see `sbx features`)", missing)
}

func appendNew(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// Selection says why each candidate was or was not taken.
type Selection struct {
	// Requested are the effects that the policy asks for, and Needed those without
	// which nothing may run.
	Requested []policy.Effect `json:"requested"`
	Needed    []policy.Effect `json:"needed"`
	// Chosen is the backend's name; empty if there is none, and then Reason and Hint
	// are those of the refusal.
	Chosen     string      `json:"chosen,omitempty"`
	Reason     string      `json:"reason,omitempty"`
	Hint       string      `json:"hint,omitempty"`
	Candidates []Candidate `json:"candidates"`
}

// Candidate is what selection knows of one backend. The effects are requested ones.
type Candidate struct {
	Backend string `json:"backend"`
	Chosen  bool   `json:"chosen"`
	// Rank is the place by cost, from 1; equal costs have the same. Cost says what that is.
	Rank   int    `json:"cost_rank"`
	Cost   string `json:"cost"`
	Usable bool   `json:"usable"`
	// Reason is why it was or was not taken, and Fix what helps where it is unusable
	// or loses what is needed.
	Reason string `json:"reason"`
	Fix    string `json:"fix,omitempty"`
	// Level and the effects are those of the plan, where there is one.
	Level    Level           `json:"level,omitempty"`
	Enforced []policy.Effect `json:"enforced,omitempty"`
	Partial  []policy.Effect `json:"partial,omitempty"`
	Lacks    []policy.Effect `json:"lacks,omitempty"`
	// Missing are needed, and not held.
	Missing []policy.Effect `json:"missing,omitempty"`
}

// Explain looks at all candidates and says what [Select] takes, and why.
func Explain(p policy.Policy, candidates []Backend) (Selection, error) {
	found, err := survey(p, candidates, true)
	if err != nil {
		return Selection{}, err
	}
	s := Selection{Requested: p.Requested().List(), Needed: p.Needed().List(), Candidates: []Candidate{}}
	for _, f := range found.list {
		c := Candidate{Backend: f.backend.Name(), Chosen: f == found.chosen, Rank: 1, Cost: f.cost.String(), Usable: f.cap.Usable}
		var cheaper []Cost
		for _, o := range found.list {
			if compareCost(o, f) < 0 && !slices.Contains(cheaper, o.cost) {
				cheaper = append(cheaper, o.cost)
			}
		}
		c.Rank += len(cheaper)
		if f.plan != nil {
			c.Level = f.plan.Enforcement().Level(p)
			c.Enforced, c.Partial, c.Lacks = f.held.List(), f.partly.List(), p.Requested().Minus(f.held|f.partly).List()
			c.Missing = f.missing.List()
		}
		if c.Chosen {
			s.Chosen, c.Reason = c.Backend, found.taken(f, p)
		} else {
			reason, fix := found.why(f, p)
			c.Reason = strings.TrimPrefix(strings.TrimPrefix(reason, c.Backend+": "), c.Backend+" ")
			c.Fix = fix
		}
		s.Candidates = append(s.Candidates, c)
	}
	if found.chosen == nil {
		r := found.refusal(p)
		s.Reason, s.Hint = r.Reason, r.Hint
	}
	return s, nil
}

// taken says why the chosen one was taken.
func (s *surveyed) taken(f *finding, p policy.Policy) string {
	others := 0
	for _, o := range s.list {
		if o != f && o.holds() {
			others++
		}
	}
	switch {
	case others == 0 && len(s.list) > 1:
		return "the only one that holds what is needed"
	case others == 0:
		return "the only candidate, and it holds what is needed"
	case p.Requested().Minus(f.held) == 0:
		return "the cheapest that enforces all that is requested"
	}
	return "none enforces all that is requested; of those that hold what is needed it enforces most, at the least cost"
}
