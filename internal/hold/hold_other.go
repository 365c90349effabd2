//go:build !linux

package hold

import "sandboxd/internal/scratch"

// RemoveLeft removes nothing: no placeholders are made here.
func RemoveLeft(scratch.Mark) error { return nil }
