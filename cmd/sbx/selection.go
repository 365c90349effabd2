package main

import (
	"fmt"
	"io"
	"strings"

	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/report"
)

// selection is what `sbx run --explain-selection --json` prints.
type selection struct {
	Schema int         `json:"schema"`
	Mode   policy.Mode `json:"mode"`
	Net    policy.Net  `json:"net"`
	backend.Selection
}

// printSelection says which backend the policy gets, and why. With none it is the
// refusal that a launch would end with.
func (f *runFlags) printSelection(p policy.Policy, candidates []backend.Backend) error {
	if p.Mode() == policy.FullAccess {
		return refuse("choose another mode", "danger-full-access calls no backend, so there is none to select")
	}
	s, err := backend.Explain(p, candidates)
	if err != nil {
		return err
	}
	if f.json {
		err = encode(f.outStream, selection{report.SchemaVersion, p.Mode(), p.Net(), s})
	} else {
		fmt.Fprintf(f.outStream, "mode %s, network %s\nrequested: %s\nneeded:    %s\n", p.Mode(), p.Net(), effectWords(s.Requested), effectWords(s.Needed))
		writeSelection(f.outStream, s)
	}
	if err == nil && s.Chosen == "" {
		return refuse(s.Hint, "%s", s.Reason)
	}
	return err
}

// writeSelection shows a selection for a person.
func writeSelection(w io.Writer, s backend.Selection) {
	for _, c := range s.Candidates {
		mark := "not taken"
		if c.Chosen {
			mark = "taken"
		}
		fmt.Fprintf(w, "\n%s: %s: %s\n", c.Backend, mark, policy.Printable(c.Reason))
		if c.Fix != "" {
			fmt.Fprintf(w, "  fix: %s\n", policy.Printable(c.Fix))
		}
		fmt.Fprintf(w, "  cost: %d (%s)\n", c.Rank, c.Cost)
		if c.Level == 0 { // it has no plan
			continue
		}
		fmt.Fprintf(w, "  enforces %d of %d requested effects: level %s\n", len(c.Enforced), len(s.Requested), c.Level)
		for _, l := range []struct {
			word string
			list []policy.Effect
		}{{"in part", c.Partial}, {"lacks", c.Lacks}, {"lacks what is needed", c.Missing}} {
			if len(l.list) > 0 {
				fmt.Fprintf(w, "  %s: %s\n", l.word, effectWords(l.list))
			}
		}
	}
	if s.Chosen == "" {
		fmt.Fprintf(w, "\nnone can be taken\n")
		return
	}
	fmt.Fprintf(w, "\ntaken: %s\n", s.Chosen)
}

func effectWords(list []policy.Effect) string {
	words := make([]string, len(list))
	for i, e := range list {
		words[i] = e.String()
	}
	return strings.Join(words, " ")
}
