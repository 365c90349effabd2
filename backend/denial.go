package backend

import "sandboxd/policy"

// Certainty says how sure a denial is. The zero value is invalid.
type Certainty string

// The certainties, the surest first.
const (
	// Observed: the kernel said so, on a channel that the worker cannot forge.
	Observed Certainty = "observed"
	// Inferred: the policy denies it, the errno fits this backend's dialect,
	// and the layer was engaged in this launch.
	Inferred Certainty = "inferred"
	// Hint: text only. The worker could have written it; it is never a ground
	// for suggesting a grant.
	Hint Certainty = "hint"
)

// Denial is one refused touch.
type Denial struct {
	Effect policy.Effect `json:"effect"`
	// Operation is the system call or the access: "connect", "execve".
	Operation string     `json:"operation"`
	Path      policy.Raw `json:"path,omitempty"`
	Address   string     `json:"address,omitempty"`
	Errno     string     `json:"errno,omitempty"`
	Process   *Process   `json:"process,omitempty"`
	// Rule is the rule that denied, or the grant that is missing.
	Rule      string    `json:"rule,omitempty"`
	Certainty Certainty `json:"certainty"`
	// Source is who noticed: "seccomp-notify", "execve", "stderr".
	Source string `json:"source"`
	// Suggestion is the smallest flag that would allow it. Never set for a
	// Hint, and never for what no flag should open.
	Suggestion string `json:"suggestion,omitempty"`
	// Count is how often the same denial came.
	Count int `json:"count"`
}

// Process is who was refused.
type Process struct {
	PID int        `json:"pid"`
	Exe policy.Raw `json:"exe,omitempty"`
}
