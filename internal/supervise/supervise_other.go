//go:build !linux

package supervise

import (
	"errors"
	"fmt"
	"runtime"
)

// Supervisor exists on Linux only.
type Supervisor struct{}

// Start returns an error that names the OS.
func Start(int, Config) (*Supervisor, error) {
	return nil, fmt.Errorf("seccomp supervisor on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Close does nothing.
func (*Supervisor) Close() error { return nil }

// Stats returns zeroes.
func (*Supervisor) Stats() Stats { return Stats{} }

// Prepare does nothing.
func Prepare() {}
