package run

import (
	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/report"
)

// DryRun is what a launch would be: what `sbx run --dry-run --json` prints.
type DryRun struct {
	Schema   int                             `json:"schema"`
	DryRun   bool                            `json:"dry_run"`
	Policy   any                             `json:"policy"`
	Backend  string                          `json:"backend,omitempty"`
	Plan     any                             `json:"plan,omitempty"`
	Level    backend.Level                   `json:"level"`
	Effects  map[policy.Effect]backend.State `json:"effects"`
	Passed   []string                        `json:"backends_passed,omitempty"`
	Warnings []string                        `json:"warnings,omitempty"`
	// Hash is [PlanHash], for who keeps a record.
	Hash string `json:"-"`
}

// Plan says what a launch would be. Nothing is made and nothing runs. An error is why
// it would be refused.
func Plan(o Options) (*DryRun, error) {
	d := &DryRun{Schema: report.SchemaVersion, DryRun: true, Policy: report.PolicyOf(o.Policy), Warnings: o.Warnings}
	var enforcement backend.Enforcement
	if o.Policy.Mode() == policy.FullAccess {
		enforcement, d.Hash = Unconfined(o.Policy), PlanHash(o.Policy, backend.Choice{})
	} else {
		choice, err := backend.Select(o.Policy, o.Backends)
		if err != nil {
			return nil, err
		}
		d.Backend, d.Plan, d.Passed = choice.Backend.Name(), choice.Plan.Describe(), choice.Passed
		enforcement, d.Hash = choice.Plan.Enforcement(), PlanHash(o.Policy, choice)
	}
	d.Level, d.Effects = enforcement.Level(o.Policy), enforcement.Map()
	return d, nil
}
