//go:build !linux

package backendtest

import (
	"testing"

	"sandboxd/backend"
)

// Target is what the suite needs of a backend.
type Target struct {
	Backend backend.Backend
	Skip    map[string]string
	Errno   map[string]string
}

// Run skips: the attempts are written for Linux.
func Run(t *testing.T, _ Target) { t.Skip("the conformance suite is written for Linux") }
