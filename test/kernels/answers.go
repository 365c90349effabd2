package main

import (
	"encoding/json"
	"fmt"
)

// What sbx prints, as far as it is compared. These are read by the words of
// docs/report.schema.json, not with the product's own types: a change of a word
// that readers rely on must show here.

type effectState struct {
	Status string   `json:"status"`
	Gaps   []string `json:"gaps"`
}

type landlockFacts struct {
	ABI    int  `json:"landlock_abi"`
	Errata int  `json:"landlock_errata"`
	Notify bool `json:"seccomp_notify"`
}

type capability struct {
	Backend string                 `json:"backend"`
	Usable  bool                   `json:"usable"`
	Reason  string                 `json:"reason"`
	Facts   landlockFacts          `json:"facts"`
	Effects map[string]effectState `json:"effects"`
}

// features is the answer of `sbx features --json`.
type features struct {
	Kernel   string       `json:"kernel"`
	UID      int          `json:"uid"`
	Backends []capability `json:"backends"`
}

// backend returns the named one.
func (f *features) backend(name string) (capability, bool) {
	for _, b := range f.Backends {
		if b.Backend == name {
			return b, true
		}
	}
	return capability{}, false
}

// chosen is what sbx would take: the first that can be used.
func (f *features) chosen() (capability, bool) {
	for _, b := range f.Backends {
		if b.Usable {
			return b, true
		}
	}
	return capability{}, false
}

// doctor is the answer of `sbx doctor --json`.
type doctor struct {
	OK       bool `json:"ok"`
	Backends []struct {
		Backend string `json:"backend"`
		Level   string `json:"level"`
		Checks  []struct {
			Name   string `json:"name"`
			Want   string `json:"want"`
			Got    string `json:"got"`
			OK     bool   `json:"ok"`
			Detail string `json:"detail"`
		} `json:"checks"`
	} `json:"backends"`
	Unusable []struct {
		Backend string `json:"backend"`
		Reason  string `json:"reason"`
	} `json:"unusable"`
	Exit int `json:"sbx_exit"` // the job's, not in sbx's output
}

// launch is the report of one `sbx run`.
type launch struct {
	Mode    string                 `json:"mode"`
	Backend string                 `json:"backend"`
	Facts   *landlockFacts         `json:"backend_facts"`
	Ran     bool                   `json:"ran"`
	Level   string                 `json:"level"`
	Effects map[string]effectState `json:"effects"`
	Outcome struct {
		Kind   string `json:"kind"`
		Reason string `json:"reason"`
	} `json:"outcome"`
	ExitStatus int `json:"exit_status"`
	Exit       int `json:"sbx_exit"` // the job's
}

// answers are what one user got from sbx on one kernel, real or faked. What
// could not be had is nil, and then Trouble says why.
type answers struct {
	Features *features
	Doctor   *doctor
	Runs     map[string]*launch
	Trouble  []string
}

// take reads the output of one job into the answers.
func (a *answers) take(j job, out jobOutput) {
	var err error
	switch j.Kind {
	case kindFeatures:
		a.Features, err = decode[features](out)
	case kindDoctor:
		if a.Doctor, err = decode[doctor](out); err == nil {
			a.Doctor.Exit = out.Result.Exit
		}
	case kindRun:
		var l *launch
		if l, err = decode[launch](out); err == nil {
			l.Exit = out.Result.Exit
			a.Runs[j.Mode] = l
		}
	}
	if err != nil {
		a.Trouble = append(a.Trouble, fmt.Sprintf("%s: exit %d, and its output is no JSON: %v%s", j.Name, out.Result.Exit, err, complaint(string(out.stderr))))
	}
}

func decode[T any](out jobOutput) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(out.stdout, v); err != nil {
		return nil, err
	}
	return v, nil
}
