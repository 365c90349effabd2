//go:build unix && !linux

package scratch

import (
	"os"
	"testing"
)

const nobody = -2

// asUser makes the rest of a test one of a user whom permissions bind.
func asUser(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("root may enter everything")
	}
}
