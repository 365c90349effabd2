// Package report is what sbx and sandboxd tell about one launch: one value,
// written as JSON (docs/report.schema.json) and as text. It states facts of
// this launch, not the host's general ability.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sandboxd/backend"
	"sandboxd/dialect"
	"sandboxd/policy"
)

// SchemaVersion is raised when a field changes meaning or goes away. Readers
// must ignore fields that they do not know.
const SchemaVersion = 1

// Report is the truth about one launch.
type Report struct {
	Schema int `json:"schema"`
	// ID names the launch; it is random.
	ID      string `json:"id"`
	Version string `json:"sbx_version"`

	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Duration float64   `json:"duration_seconds"`

	Argv       []policy.Raw `json:"argv"`
	Executable policy.Raw   `json:"executable"`
	Cwd        policy.Raw   `json:"cwd"`
	Workspace  policy.Raw   `json:"workspace,omitempty"`
	Profiles   []string     `json:"profiles,omitempty"`

	Mode policy.Mode `json:"mode"`
	Net  policy.Net  `json:"net"`

	// Backend is empty when nothing was launched or in danger-full-access.
	Backend string `json:"backend,omitempty"`
	// BackendFacts are the host's facts that the plan used.
	BackendFacts any `json:"backend_facts,omitempty"`
	// Passed says why an earlier candidate was not taken.
	Passed []string `json:"backends_passed,omitempty"`

	// Ran tells whether the command was executed at all. When it was not,
	// Level and Effects say nothing and are absent.
	Ran     bool                            `json:"ran"`
	Level   backend.Level                   `json:"level,omitempty"`
	Effects map[policy.Effect]backend.State `json:"effects,omitempty"`
	// TTY tells that the command had a terminal of its own, and no descriptor of
	// the caller's.
	TTY bool `json:"tty,omitempty"`

	Grants    []policy.Grant     `json:"grants,omitempty"`
	Deny      []policy.Raw       `json:"deny,omitempty"`
	EnvNames  []policy.Raw       `json:"env_names,omitempty"`
	Weakened  []policy.Weakening `json:"weakened,omitempty"`
	AllowGaps []policy.Effect    `json:"allow_gaps,omitempty"`
	Limits    *Limits            `json:"limits,omitempty"`
	// Descriptors are those that the worker was given beside 0, 1 and 2.
	Descriptors []backend.Descriptor `json:"descriptors,omitempty"`
	Warnings    []string             `json:"warnings,omitempty"`

	Outcome backend.Outcome `json:"outcome"`
	// ExitStatus is what sbx exits with: [Report.Status].
	ExitStatus int `json:"exit_status"`
	// Usage is what the worker's tree used; absent when nothing ran.
	Usage *backend.Usage `json:"usage,omitempty"`
	// OutputLost says why output of the command did not arrive where sbx stood
	// between; empty if all did, or if its reader went away.
	OutputLost string `json:"output_lost,omitempty"`
	// Survivors are processes of the tree that could not be ended.
	Survivors []int `json:"survivors,omitempty"`

	Denials     []backend.Denial `json:"denials"`
	DenialsLost int              `json:"denials_lost,omitempty"`
	// DenialsCover says which denials this launch could observe at all. What
	// is not named here may have been denied without a record.
	DenialsCover []string `json:"denials_cover"`

	// Dialect is the used backend's, whole and alone.
	Dialect *dialect.Dialect `json:"dialect,omitempty"`
}

// Policy is a policy as JSON: what --dry-run and `sbx profile resolve` print.
// Of the environment it has names only, as values may be secrets.
type Policy struct {
	Mode        policy.Mode        `json:"mode"`
	Net         policy.Net         `json:"net"`
	Workspace   policy.Raw         `json:"workspace,omitempty"`
	Cwd         policy.Raw         `json:"cwd"`
	Grants      []policy.Grant     `json:"grants,omitempty"`
	Deny        []policy.Raw       `json:"deny,omitempty"`
	Denied      []policy.Guarded   `json:"denied,omitempty"`
	DenyGaps    []string           `json:"deny_gaps,omitempty"`
	Protected   []policy.Raw       `json:"protected,omitempty"`
	Guarded     []policy.Guarded   `json:"guarded,omitempty"`
	Unguarded   []string           `json:"unguarded,omitempty"`
	EnvNames    []policy.Raw       `json:"env_names,omitempty"`
	TempEnv     []policy.TempVar   `json:"temp_env,omitempty"`
	Create      []policy.Raw       `json:"create,omitempty"`
	ExecOnly    bool               `json:"exec_only,omitempty"`
	Require     []policy.Effect    `json:"require,omitempty"`
	RequireFull bool               `json:"require_full,omitempty"`
	AllowGaps   []policy.Effect    `json:"allow_gaps,omitempty"`
	Weakened    []policy.Weakening `json:"weakened,omitempty"`
	Limits      *Limits            `json:"limits,omitempty"`
}

// Limits are a policy's limits as JSON; what is not limited is absent.
type Limits struct {
	Time     float64 `json:"time_seconds,omitempty"`
	Idle     float64 `json:"idle_seconds,omitempty"`
	Memory   int64   `json:"memory_bytes,omitempty"`
	Pids     int     `json:"pids,omitempty"`
	CPUs     float64 `json:"cpus,omitempty"`
	Disk     int64   `json:"disk_bytes,omitempty"`
	FileSize int64   `json:"file_size_bytes,omitempty"`
	Files    int     `json:"files,omitempty"`
	Core     int64   `json:"core_bytes,omitempty"`
}

// limitsOf is nil if nothing is limited.
func limitsOf(l policy.Limits) *Limits {
	v := Limits{l.Time.Seconds(), l.Idle.Seconds(), l.Memory, l.Pids, l.CPUs, l.Disk, l.FileSize, l.Files, l.Core}
	if v == (Limits{}) {
		return nil
	}
	return &v
}

// PolicyOf shows a policy.
func PolicyOf(p policy.Policy) Policy {
	s := p.Spec()
	return Policy{
		Mode: s.Mode, Net: s.Net, Workspace: policy.Raw(s.Workspace), Cwd: policy.Raw(s.Cwd), Grants: s.Grants,
		Deny: raws(s.Deny), Denied: s.Denied, DenyGaps: s.DenyGaps, Protected: raws(s.Protected), Guarded: s.Guarded, Unguarded: s.Unguarded, EnvNames: envNames(s.Env), TempEnv: s.TempEnv, Create: raws(s.Create),
		ExecOnly: s.ExecOnly, Require: s.Require.List(), RequireFull: s.RequireFull, AllowGaps: s.AllowGap.List(), Weakened: s.Weakened, Limits: limitsOf(s.Limits),
	}
}

func raws(list []string) []policy.Raw {
	var out []policy.Raw
	for _, s := range list {
		out = append(out, policy.Raw(s))
	}
	return out
}

func envNames(env []string) []policy.Raw {
	var names []policy.Raw
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, policy.Raw(name))
	}
	return names
}

// EnvNames are the names of a policy's environment: values may be secrets.
func EnvNames(p policy.Policy) []policy.Raw { return envNames(p.Env()) }

// DescribePolicy fills in what the policy says.
func (r *Report) DescribePolicy(p policy.Policy) {
	s := p.Spec()
	r.Mode, r.Net = s.Mode, s.Net
	r.Workspace, r.Cwd = policy.Raw(s.Workspace), policy.Raw(s.Cwd)
	r.Grants, r.Weakened, r.AllowGaps, r.Limits = s.Grants, s.Weakened, s.AllowGap.List(), limitsOf(s.Limits)
	r.Deny, r.EnvNames = raws(s.Deny), envNames(s.Env) // names only: values may be secrets
	for _, v := range s.TempEnv {
		r.EnvNames = append(r.EnvNames, policy.Raw(v.Name))
	}
	slices.Sort(r.EnvNames)
	r.EnvNames = slices.Compact(r.EnvNames)
}

// Status is what a caller of sbx is told: the outcome's status, but 125 in the
// place of 0 if output was lost. A part of it must not be taken for all.
func (r *Report) Status() int {
	status := r.Outcome.ExitStatus()
	if status == 0 && r.OutputLost != "" {
		return backend.StatusRefused
	}
	return status
}

// WriteJSON writes the report as one indented JSON object and a newline.
func (r *Report) WriteJSON(w io.Writer) error { return r.write(w, "  ") }

// WriteLine writes the same in one line.
func (r *Report) WriteLine(w io.Writer) error { return r.write(w, "") }

func (r *Report) write(w io.Writer, indent string) error {
	if r.Denials == nil {
		r.Denials = []backend.Denial{}
	}
	if r.DenialsCover == nil {
		r.DenialsCover = []string{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// WriteText writes the report for a person: what was enforced and what was
// not, what was denied, how it ended.
func (r *Report) WriteText(w io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	backendName := r.Backend
	if backendName == "" {
		backendName = "no sandbox"
	}
	if r.Ran {
		p("%s, %s, enforcement %s", r.Mode, backendName, r.Level)
	} else {
		p("%s, %s, the command did not run", r.Mode, backendName)
	}
	if r.TTY {
		p("the command had a terminal of its own")
	}
	WriteEffects(w, r.Effects)
	for _, weak := range r.Weakened {
		p("weakened by %s: %s", policy.Printable(weak.Flag), policy.Printable(weak.Meaning))
	}
	for _, warning := range r.Warnings {
		p("warning: %s", policy.Printable(warning))
	}
	for _, d := range r.Denials {
		p("denied (%s): %s", d.Certainty, DenialText(d))
	}
	if r.DenialsLost > 0 {
		p("denials not kept: %d", r.DenialsLost)
	}
	if r.OutputLost != "" {
		p("output was lost: %s", policy.Printable(r.OutputLost))
	}
	p("outcome: %s", OutcomeText(r.Outcome))
}

// WriteEffects lists the effects that were asked for, the enforced ones in one
// line and each other with its gaps.
func WriteEffects(w io.Writer, effects map[policy.Effect]backend.State) {
	var held []string
	for _, e := range policy.Effects() {
		switch s := effects[e]; s.Status {
		case backend.Enforced:
			held = append(held, e.String())
			if len(s.Gaps) > 0 {
				fmt.Fprintf(w, "  %-17s enforced, but: %s\n", e, strings.Join(s.Gaps, "; "))
			}
		case backend.Partial, backend.Unenforced:
			fmt.Fprintf(w, "  %-17s %s: %s\n", e, s.Status, strings.Join(s.Gaps, "; "))
		}
	}
	if len(held) > 0 {
		fmt.Fprintf(w, "  enforced: %s\n", strings.Join(held, " "))
	}
}

// DenialText is one denial in one line, escaped for a terminal.
func DenialText(d backend.Denial) string {
	parts := []string{d.Effect.String(), d.Operation}
	if d.Path != "" {
		parts = append(parts, d.Path.String())
	}
	if d.Address != "" {
		parts = append(parts, policy.Printable(d.Address))
	}
	if d.Errno != "" {
		parts = append(parts, d.Errno)
	}
	if d.Count > 1 {
		parts = append(parts, fmt.Sprintf("(%d times)", d.Count))
	}
	if d.Suggestion != "" {
		parts = append(parts, "- allow it with "+d.Suggestion)
	}
	return strings.Join(parts, " ")
}

// OutcomeText is the outcome in one line.
func OutcomeText(o backend.Outcome) string {
	switch o.Kind {
	case backend.Exited:
		return fmt.Sprintf("exited with status %d", o.ExitStatus())
	case backend.Signaled:
		return fmt.Sprintf("ended by signal %d (%s)", o.Signal, o.SignalName)
	case backend.SetupFailed:
		return fmt.Sprintf("set-up failed at step %s: %s", o.Step, policy.Printable(o.Reason))
	case backend.ExecFailed:
		return fmt.Sprintf("could not be executed: %s", policy.Printable(o.Reason))
	case backend.Refused:
		return "refused: " + policy.Printable(o.Reason)
	case backend.LimitHit:
		return "ended by the limit on " + o.Which
	}
	return string(o.Kind)
}
