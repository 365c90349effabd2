package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed expect.toml
var expectTOML []byte

// expectations are what each kernel must answer, written by hand and
// independent of the product's code. There is no way to write them from a run:
// whoever changes one has read why.
type expectations struct {
	// Controllers are those that every kernel has in cgroup2.
	Controllers []string `toml:"controllers"`
	// NotRequested lists, by mode, the effects that it asks nobody to enforce.
	NotRequested map[string][]string `toml:"not-requested"`
	// Every is what all kernels have in common.
	Every answer `toml:"every"`
	// ABI is by Landlock ABI, Faked by abicap's argument.
	ABI   map[string]answer `toml:"abi"`
	Faked map[string]answer `toml:"faked"`
	// Machines are by name.
	Machines map[string]machineFacts `toml:"machine"`
	// RunsHere are tests to which test/skips*.txt does not apply.
	RunsHere []string `toml:"runs-here"`
	// Skips are tests that may skip, Cases shell cases that fail.
	Skips []allowedSkip  `toml:"skip"`
	Cases []declaredCase `toml:"case"`
}

// answer is what sbx must say on a kernel.
type answer struct {
	// As takes the whole answer from another one.
	As      string `toml:"as"`
	Backend string `toml:"backend"` // of confined modes; "" if there is none
	// Listener tells that the plan has a seccomp notification listener.
	Listener bool        `toml:"listener"`
	ReadOnly *modeAnswer `toml:"read-only"`
	Work     *modeAnswer `toml:"workspace-write"`
	Full     *modeAnswer `toml:"danger-full-access"`
}

// modeAnswer is what a launch must report. Each effect that is in none of the
// lists, nor in NotRequested, must be enforced.
type modeAnswer struct {
	// Refused: sbx must exit with 125, having run nothing.
	Refused    bool     `toml:"refused"`
	Level      string   `toml:"level"`
	Partial    []string `toml:"partial"`
	Unenforced []string `toml:"unenforced"`
	// User is the whole answer for the ordinary user, where it is another.
	User *modeAnswer `toml:"user"`
}

type statusList struct {
	status  string
	effects []string
}

func (m modeAnswer) lists(notRequested []string) []statusList {
	return []statusList{{"partial", m.Partial}, {"unenforced", m.Unenforced}, {"not-requested", notRequested}}
}

// check finds answers that contradict themselves.
func (m modeAnswer) check(notRequested []string) error {
	if m.Refused {
		if m.Level != "" || m.Partial != nil || m.Unenforced != nil {
			return errors.New("it is refused and reports something")
		}
		return nil
	}
	if m.Level == "" {
		return errors.New("it has no level")
	}
	seen := map[string]string{}
	for _, l := range m.lists(notRequested) {
		for _, e := range l.effects {
			if seen[e] != "" {
				return fmt.Errorf("%s is %s and %s", e, seen[e], l.status)
			}
			seen[e] = l.status
		}
	}
	return nil
}

// machineFacts are what a machine's kernel must be like, which makes sure that
// a variant is one, and which ABI's answers it must give.
type machineFacts struct {
	ABI int `toml:"abi"`
	// Errno is why there is no Landlock.
	Errno string `toml:"errno"`
	// Errata is the mask of fixed errata; nil is not compared.
	Errata     *int   `toml:"errata"`
	Userns     string `toml:"userns"`
	Notify     string `toml:"notify"`
	CgroupKill bool   `toml:"cgroup-kill"`
	Audit      bool   `toml:"audit"`
	// These replace an ABI's answers.
	ReadOnly *modeAnswer `toml:"read-only"`
	Work     *modeAnswer `toml:"workspace-write"`
	Full     *modeAnswer `toml:"danger-full-access"`
}

// allowedSkip lets tests skip. In Test "*" stands for anything; what a test
// says must have Says in it.
type allowedSkip struct {
	Test     string   `toml:"test"`
	Says     string   `toml:"says"`
	Reason   string   `toml:"reason"`
	Machines []string `toml:"machines"` // none is all
	User     string   `toml:"user"`     // "" is both
}

// declaredCase is a shell case that fails, and must, or does so by chance.
type declaredCase struct {
	ID       string   `toml:"id"`
	Reason   string   `toml:"reason"`
	ByChance bool     `toml:"by-chance"` // it may pass
	Machines []string `toml:"machines"`  // none is all
	User     string   `toml:"user"`      // "" is both
}

func (d declaredCase) covers(machine, id, user string) bool {
	return d.ID == id && (len(d.Machines) == 0 || slices.Contains(d.Machines, machine)) && (d.User == "" || d.User == user)
}

func (s allowedSkip) covers(machine, test, says, user string) bool {
	if !strings.Contains(says, s.Says) || len(s.Machines) > 0 && !slices.Contains(s.Machines, machine) || s.User != "" && s.User != user {
		return false
	}
	ok, _ := regexp.MatchString("^"+strings.ReplaceAll(regexp.QuoteMeta(s.Test), `\*`, `.*`)+"$", test)
	return ok
}

// parseExpectations reads the data and checks that it belongs to the machines.
func parseExpectations(text []byte, all []machine) (*expectations, error) {
	e := new(expectations)
	if err := strictTOML(text, e); err != nil {
		return nil, fmt.Errorf("expect.toml: %w", err)
	}
	if err := e.check(all); err != nil {
		return nil, fmt.Errorf("expect.toml: %w", err)
	}
	return e, nil
}

func (e *expectations) check(all []machine) error {
	names := map[string]bool{}
	for _, m := range all {
		names[m.Name] = true
		if _, ok := e.Machines[m.Name]; !ok {
			return fmt.Errorf("machine %q is not in it", m.Name)
		}
		for _, fake := range append([]string{""}, m.Fakes...) {
			if err := e.checkModes(m.Name, fake); err != nil {
				return err
			}
		}
	}
	for name := range e.Machines {
		if !names[name] {
			return fmt.Errorf("machine %q is not one of machines.toml", name)
		}
	}
	for _, s := range e.Skips {
		if s.Test == "" || s.Reason == "" {
			return errors.New("a skip needs a test and a reason")
		}
		if err := onlyKnown(s.Machines, names); err != nil {
			return err
		}
	}
	for _, c := range e.Cases {
		if c.ID == "" || c.Reason == "" {
			return errors.New("a case needs an id and a reason")
		}
		if err := onlyKnown(c.Machines, names); err != nil {
			return err
		}
	}
	return nil
}

func (e *expectations) checkModes(machine, fake string) error {
	for _, mode := range modes {
		for _, u := range users {
			w, err := e.want(machine, fake, mode, u.name)
			if err == nil {
				err = w.check(e.NotRequested[mode])
			}
			if err != nil {
				return fmt.Errorf("%s, %s as %s: %w", subjectName(machine, fake), mode, u.name, err)
			}
		}
	}
	return nil
}

func onlyKnown(machines []string, names map[string]bool) error {
	for _, m := range machines {
		if !names[m] {
			return fmt.Errorf("machine %q is not one of machines.toml", m)
		}
	}
	return nil
}

// answer returns the block that a kernel's answers are compared with.
func (e *expectations) answer(machine, fake string) (answer, error) {
	if fake != "" {
		return follow(e.Faked, "faked", fake)
	}
	m := e.Machines[machine]
	a, err := follow(e.ABI, "abi", fmt.Sprint(m.ABI))
	for _, o := range []struct{ to, from **modeAnswer }{{&a.ReadOnly, &m.ReadOnly}, {&a.Work, &m.Work}, {&a.Full, &m.Full}} {
		if *o.from != nil {
			*o.to = *o.from
		}
	}
	return a, err
}

// follow looks a block up, and the one that it takes its answers from.
func follow(blocks map[string]answer, table, name string) (answer, error) {
	a, ok := blocks[name]
	switch {
	case !ok:
		return a, fmt.Errorf("there is no [%s.%s]", table, name)
	case a.As == "":
		return a, nil
	case a != answer{As: a.As}:
		return a, fmt.Errorf("[%s.%s] has an answer of its own beside another's", table, name)
	}
	of, ok := blocks[a.As]
	if !ok || of.As != "" {
		return of, fmt.Errorf("[%s.%s] wants to be as %q, which has no answers", table, name, a.As)
	}
	return of, nil
}

// want is what a launch in a mode must report.
func (e *expectations) want(machine, fake, mode, user string) (modeAnswer, error) {
	a, err := e.answer(machine, fake)
	if err != nil {
		return modeAnswer{}, err
	}
	w := a.mode(mode)
	if w == nil {
		w = e.Every.mode(mode)
	}
	if w == nil {
		return modeAnswer{}, fmt.Errorf("nothing says what %s must report", mode)
	}
	if user == "user" && w.User != nil {
		w = w.User
	}
	return *w, nil
}

func (a answer) mode(name string) *modeAnswer {
	switch name {
	case "read-only":
		return a.ReadOnly
	case "workspace-write":
		return a.Work
	case "danger-full-access":
		return a.Full
	}
	return nil
}
