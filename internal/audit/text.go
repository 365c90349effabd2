package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandboxd/policy"
)

// Subject is what readers filter by; a record need not have either.
func (e Entry) Subject() (worker string, uid *int) {
	var body struct {
		Worker string `json:"worker"`
		UID    *int   `json:"uid"`
	}
	_ = json.Unmarshal(e.Body, &body) // what is not of these types is no subject
	return body.Worker, body.UID
}

// Text is the record in one line, without its number and time, escaped for a
// terminal.
func (e Entry) Text() string {
	var s string
	var err error
	switch e.Kind {
	case KindRequest:
		s, err = textOf(e, Request.text)
	case KindDecision:
		s, err = textOf(e, Decision.text)
	case KindEnd:
		s, err = textOf(e, End.text)
	case KindOpen:
		s, err = textOf(e, opened.text)
	default:
		s = string(e.Body)
	}
	if err != nil {
		s = string(e.Body)
	}
	// What the fields' own escapes left, such as a worker's name.
	for _, c := range s {
		if policy.Printable(string(c)) != string(c) {
			return policy.Printable(s)
		}
	}
	return s
}

func textOf[T any](e Entry, text func(T) string) (string, error) {
	var body T
	if err := json.Unmarshal(e.Body, &body); err != nil {
		return "", err
	}
	return text(body), nil
}

// words joins what is not empty.
func words(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), " ")
}

// named is "name value", or nothing.
func named(name, value string) string {
	if value == "" {
		return ""
	}
	return name + " " + policy.Printable(value)
}

func (r Request) text() string {
	var argv []string
	for _, a := range r.Argv {
		argv = append(argv, a.String())
	}
	if len(r.Argv) < r.ArgvItems || r.Cut["argv"].Bytes > 0 {
		argv = append(argv, fmt.Sprintf("(%d words in all)", r.ArgvItems))
	}
	var weak []string
	for _, w := range r.Weakened {
		weak = append(weak, policy.Printable(w.Flag))
	}
	asks := "asks for"
	if r.DryRun {
		asks = "asks what it would be for"
	}
	return words(named("worker", r.Worker), fmt.Sprintf("uid %d gid %d pid %d", r.UID, r.GID, r.PID), named("exe", string(r.Exe)), named("label", string(r.Label)),
		asks, policy.Printable(r.Mode), named("net", r.Net), named("in", string(r.Cwd)), named("weakened by", strings.Join(weak, ", ")), "-- "+strings.Join(argv, " "))
}

func (d Decision) text() string {
	return words(named("worker", d.Worker), fmt.Sprintf("uid %d", d.UID), policy.Printable(d.Decision), named("by", string(d.Source)), named("because", string(d.Reason)),
		named("backend", d.Backend), named("level", d.Level), effectsText(d.Effects), named("plan", head(d.PlanHash, 16)))
}

func (e End) text() string {
	o := e.Outcome
	how := words(policy.Printable(o.Kind), named("limit", o.Which), named("step", o.Step), named("errno", o.Errno), named("because", string(o.Reason)))
	if o.Code != nil {
		how += fmt.Sprintf(" with %d", *o.Code)
	}
	if o.Signal != 0 {
		how += fmt.Sprintf(" by signal %d", o.Signal)
	}
	if o.Code != nil && e.ExitStatus != *o.Code { // its output was lost
		how += fmt.Sprintf(", told as %d", e.ExitStatus)
	}
	return words(named("worker", e.Worker), fmt.Sprintf("uid %d", e.UID), how, named("level", e.Level), effectsText(e.Effects), fmt.Sprintf("denials %d", e.Denials), named("plan", head(e.PlanHash, 16)))
}

// effectsText names the effects that are not held.
func effectsText(effects map[string]string) string {
	var not []string
	for _, name := range slices.Sorted(maps.Keys(effects)) {
		if effects[name] != "enforced" {
			not = append(not, policy.Printable(name)+"="+policy.Printable(effects[name]))
		}
	}
	return strings.Join(not, " ")
}

func (o opened) text() string {
	return words("opened by", policy.Printable(o.Program), fmt.Sprintf("uid %d pid %d", o.UID, o.PID), named("on", o.Host))
}
