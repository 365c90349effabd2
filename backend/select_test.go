package backend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sandboxd/policy"
)

// fake is a backend that holds all effects but the lost ones.
type fake struct {
	name   string
	usable bool
	lost   policy.EffectSet
	partly policy.EffectSet
	plan   error
	cost   Cost
	// best is what it says of itself; nil is all.
	best *policy.EffectSet
	// log, if it is set, counts what it was asked.
	log *asked
}

type asked struct{ probes, plans, discarded int }

func (f fake) Cost() Cost { return f.cost }

func (f fake) Best(p policy.Policy) policy.EffectSet {
	if f.best != nil {
		return *f.best
	}
	return p.Requested()
}

func (f fake) Name() string { return f.name }
func (f fake) Probe() Capability {
	if f.log != nil {
		f.log.probes++
	}
	return Capability{Backend: f.name, Usable: f.usable, Reason: "not here", Fix: "install " + f.name}
}

func (f fake) Plan(p policy.Policy) (Plan, error) {
	if f.plan != nil {
		return nil, f.plan
	}
	if f.log != nil {
		f.log.plans++
	}
	states := map[policy.Effect]State{}
	for _, e := range policy.Effects() {
		states[e] = State{Status: Enforced, By: []string{f.name}}
		if f.lost.Has(e) {
			states[e] = State{Status: Unenforced, Gaps: []string{"a gap"}}
		}
		if f.partly.Has(e) {
			states[e] = State{Status: Partial, By: []string{f.name}, Gaps: []string{"a gap"}}
		}
	}
	e, err := NewEnforcement(states)
	return fakePlan{e, f.log}, err
}

type fakePlan struct {
	e   Enforcement
	log *asked
}

func (p fakePlan) Discard() error {
	if p.log != nil {
		p.log.discarded++
	}
	return nil
}

func (p fakePlan) Enforcement() Enforcement   { return p.e }
func (p fakePlan) Describe() any              { return nil }
func (p fakePlan) Prepare() (Prepared, error) { return nil, errors.New("not in this test") }

func TestSelect(t *testing.T) {
	full := fake{name: "full", usable: true}
	gone := fake{name: "gone"}
	noUDP := fake{name: "noudp", usable: true, lost: policy.SetOf(policy.NetUDP)}
	noMeta := fake{name: "nometa", usable: true, lost: policy.SetOf(policy.FSMetadata)}
	cheap := fake{name: "cheap", usable: true, cost: CostThread}
	dear := fake{name: "dear", usable: true, cost: CostHelper}
	cheapNoMeta := fake{name: "cheapnometa", usable: true, cost: CostThread, lost: policy.SetOf(policy.FSMetadata)}
	lostOne := fake{name: "one", usable: true, lost: policy.SetOf(policy.ProcSee), cost: CostHelper}
	lostTwo := fake{name: "two", usable: true, lost: policy.SetOf(policy.ProcSee, policy.FSMetadata), cost: CostThread}
	partOne := fake{name: "part", usable: true, partly: policy.SetOf(policy.ProcSee), cost: CostHelper}
	cannot := fake{name: "cannot", usable: true, plan: Refuse("grant less", "it cannot be said")}
	for _, tt := range []struct {
		name       string
		change     func(*policy.Spec)
		candidates []Backend
		want       string
		// words that the refusal, reason and hint, must hold
		words string
	}{
		{"the one that holds", nil, []Backend{gone, noUDP, full}, "full", ""},
		{"what is no promise may be missing", nil, []Backend{noUDP, noMeta}, "nometa", ""},
		{"and is not, where another enforces it", nil, []Backend{noMeta, full}, "full", ""},
		{"of equals the first", nil, []Backend{full, fake{name: "other", usable: true}}, "full", ""},
		{"of equals the cheapest", nil, []Backend{dear, cheap, full}, "cheap", ""},
		{"the cheapest that enforces all", nil, []Backend{cheapNoMeta, dear, cheap}, "cheap", ""},
		{"strength counts for more than cost", nil, []Backend{cheapNoMeta, dear}, "dear", ""},
		{"the strongest that is not full", nil, []Backend{lostTwo, lostOne}, "one", ""},
		{"of those, the one that holds more in part", nil, []Backend{lostOne, partOne}, "part", ""},
		{"what is strong and loses a promise is not taken", nil, []Backend{noUDP, lostTwo}, "two", ""},
		{"an accepted gap does not choose the weaker", func(s *policy.Spec) { s.AllowGap = policy.SetOf(policy.NetUDP) }, []Backend{noUDP, full}, "full", ""},
		{"required", func(s *policy.Spec) { s.Require = policy.SetOf(policy.FSMetadata) }, []Backend{noMeta, full}, "full", ""},
		{"full required", func(s *policy.Spec) { s.RequireFull = true }, []Backend{noMeta}, "", "fs.metadata --require"},
		{"a promise is lost", nil, []Backend{noUDP}, "", "net.udp --allow-gap"},
		{"a named loss", func(s *policy.Spec) { s.AllowGap = policy.SetOf(policy.NetUDP) }, []Backend{noUDP}, "noudp", ""},
		{"another loss is not the named one", func(s *policy.Spec) { s.AllowGap = policy.SetOf(policy.NetTCPBind) }, []Backend{noUDP}, "", "net.udp"},
		{"none usable", nil, []Backend{gone}, "", "not install gone"},
		{"none at all", nil, nil, "", "none"},
		{"cannot be expressed", nil, []Backend{cannot}, "", "cannot grant less"},
		{"an unset status", nil, []Backend{fake{name: "x", usable: true, plan: errors.New("no status")}}, "", "no status"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Select(testPolicy(t, tt.change), tt.candidates)
			if tt.want != "" {
				if err != nil || c.Backend.Name() != tt.want {
					t.Fatalf("got %v, %v", c.Backend, err)
				}
				return
			}
			var refusal *RefusalError
			if !errors.As(err, &refusal) {
				t.Fatalf("not refused: %v, %v", c, err)
			}
			for _, w := range strings.Fields(tt.words) {
				if !strings.Contains(refusal.Reason+" "+refusal.Hint, w) {
					t.Errorf("%q does not name %q", refusal.Reason+" / "+refusal.Hint, w)
				}
			}
		})
	}
	p := testPolicy(t, func(s *policy.Spec) { s.Mode = policy.FullAccess })
	if _, err := Select(p, []Backend{full}); err == nil {
		t.Error("a backend was chosen for no sandbox")
	}
	if _, err := Select(policy.Policy{}, []Backend{full}); err == nil {
		t.Error("a backend was chosen for the zero policy")
	}
}

// TestSelectAsksOnlyWhoMatters: who could be no better is not even probed, and who was
// planned and not taken lets go of its plan.
func TestSelectAsksOnlyWhoMatters(t *testing.T) {
	p := testPolicy(t, nil)
	less := p.Requested().Minus(policy.SetOf(policy.FSHardlink))
	least := less.Minus(policy.SetOf(policy.ProcSee))
	make := func(name string, cost Cost, best policy.EffectSet, usable bool, lost policy.EffectSet) (fake, *asked) {
		log := &asked{}
		return fake{name: name, usable: usable, cost: cost, best: &best, partly: p.Requested().Minus(best), lost: lost, log: log}, log
	}
	for _, tt := range []struct {
		name string
		// of the middle one
		usable bool
		lost   policy.EffectSet
		want   string
		probes string // of the thread, the stage and the helper
	}{
		{"the strongest is there", true, 0, "stage", "0 1 0"},
		{"it is not", false, 0, "helper", "0 1 1"},
		{"it is weaker here than it could be", true, policy.SetOf(policy.TTYInject), "helper", "0 1 1"},
		{"it loses a promise", true, policy.SetOf(policy.NetUDP), "helper", "0 1 1"},
	} {
		thread, a := make("thread", CostThread, least, true, 0)
		stage, b := make("stage", CostStage, less, tt.usable, tt.lost)
		helper, c := make("helper", CostHelper, less, true, 0)
		got, err := Select(p, []Backend{thread, stage, helper})
		probes := fmt.Sprint(a.probes, b.probes, c.probes)
		if err != nil || got.Backend.Name() != tt.want || probes != tt.probes {
			t.Errorf("%s: %v, %v, probes %s", tt.name, got, err, probes)
		}
		kept := 0
		for _, log := range []*asked{a, b, c} {
			kept += log.plans - log.discarded
		}
		if kept != 1 {
			t.Errorf("%s: %d plans are kept", tt.name, kept)
		}
	}
}

// TestSelectIsExplained: whatever the candidates are, what [Explain] says of all is what
// [Select] does with some, nothing needed is missing, and nobody who holds it enforces
// more of what is requested.
func TestSelectIsExplained(t *testing.T) {
	effects := policy.Effects()
	random := rand.New(rand.NewPCG(1, 2))
	some := func(most int) (set policy.EffectSet) {
		for range random.IntN(most + 1) {
			set |= policy.SetOf(effects[random.IntN(len(effects))])
		}
		return set
	}
	taken, refused := 0, 0
	for range 3000 {
		p := testPolicy(t, func(s *policy.Spec) {
			s.Require, s.AllowGap = some(1), 0
			if s.Require == 0 {
				s.AllowGap = some(2)
			}
			if random.IntN(4) == 0 {
				s.Net = policy.NetHost
			}
		})
		var list []Backend
		for i := range random.IntN(6) {
			f := fake{name: fmt.Sprint("b", i), usable: random.IntN(5) > 0, lost: some(3), partly: some(3), cost: Cost(random.IntN(5))}
			best := policy.SetOf(effects...).Minus((f.lost | f.partly) & some(6))
			f.best = &best
			list = append(list, f)
		}
		c, err := Select(p, list)
		s, eerr := Explain(p, list)
		if eerr != nil || len(s.Candidates) != len(list) {
			t.Fatal(eerr, s)
		}
		if err != nil {
			refused++
			var r *RefusalError
			if !errors.As(err, &r) || s.Chosen != "" || s.Reason != r.Reason || s.Hint != r.Hint {
				t.Fatalf("refused with %v, explained as %+v", err, s)
			}
			for _, o := range s.Candidates {
				if o.Usable && len(o.Missing) == 0 {
					t.Fatalf("%s would do: %+v", o.Backend, s)
				}
			}
			continue
		}
		taken++
		if c.Backend.Name() != s.Chosen || c.Plan.Enforcement().Missing(p) != 0 {
			t.Fatalf("%s was taken, explained is %+v", c.Backend.Name(), s)
		}
		i := slices.IndexFunc(s.Candidates, func(o Candidate) bool { return o.Chosen })
		for _, o := range s.Candidates {
			if o.Usable && len(o.Missing) == 0 && (len(o.Enforced) > len(s.Candidates[i].Enforced) || o.Level == LevelFull && o.Rank < s.Candidates[i].Rank) {
				t.Fatalf("%s is better than %s: %+v", o.Backend, s.Chosen, s)
			}
			if o.Reason == "" || o.Usable && len(o.Enforced)+len(o.Partial)+len(o.Lacks) != len(s.Requested) {
				t.Fatalf("not explained: %+v", o)
			}
		}
	}
	if taken < 100 || refused < 100 {
		t.Errorf("%d taken, %d refused: not much was tried", taken, refused)
	}
}

func TestUsual(t *testing.T) {
	if p := Usual(); p.Mode() != policy.WorkspaceWrite || p.Net() != policy.NetNone {
		t.Error(p)
	}
}
