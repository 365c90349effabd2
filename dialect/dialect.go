// Package dialect says how each backend words its denials: errnos, texts and
// exit statuses, one table per backend. Tables are data for callers that must
// read a program's output; nothing here merges two of them, and nothing in the
// launcher decides by them alone: text can be forged, localised and reused by
// ordinary failures. Each table says what it does not prove.
package dialect

import (
	"slices"
	"strings"
)

// Dialect is one backend's way of saying no.
type Dialect struct {
	// Backend is the backend's name.
	Backend string `json:"backend"`
	// Errnos lists, per effect, the errnos that a denial of this backend can
	// have.
	Errnos []EffectErrno `json:"errnos"`
	// Texts are what a C-locale program prints for them, lower case. Compare
	// without regard to case, and take a match as a hint only.
	Texts []string `json:"texts"`
	// ExitNotes explain the exit statuses that this backend can cause.
	ExitNotes []string `json:"exit_notes,omitempty"`
	// NotProof lists ordinary failures that look the same.
	NotProof []string `json:"not_proof"`
}

// EffectErrno is one effect's errnos.
type EffectErrno struct {
	Effect string   `json:"effect"`
	Errnos []string `json:"errnos"`
	// By is the mechanism that answers so.
	By string `json:"by"`
}

// Fits tells whether a denial of the effect may have the errno.
func (d Dialect) Fits(effect, errno string) bool {
	return slices.ContainsFunc(d.Errnos, func(e EffectErrno) bool {
		return e.Effect == effect && slices.Contains(e.Errnos, errno)
	})
}

// Match returns the first of the dialect's texts that the line holds, or "".
func (d Dialect) Match(line string) string {
	line = strings.ToLower(line)
	for _, t := range d.Texts {
		if strings.Contains(line, t) {
			return t
		}
	}
	return ""
}
