//go:build !linux

package quota

import (
	"errors"
	"os"
	"runtime"

	"sandboxd/internal/scratch"
)

// Probe finds nothing here.
func Probe() Host { return Host{Why: "nothing holds it on " + runtime.GOOS} }

// FS is not built on this system.
type FS struct{}

// Mount fails.
func Mount(string, int64, int, int) (*FS, error) { return nil, errors.ErrUnsupported }

// Dir is not known.
func (*FS) Dir() string { return "" }

// Mkdir fails.
func (*FS) Mkdir(string, int, int) (string, *os.File, error) { return "", nil, errors.ErrUnsupported }

// Look sees nothing.
func (*FS) Look() Look { return Look{Cut: true} }

// Remove has nothing to remove.
func (*FS) Remove() error { return nil }

// ErrDetached is not returned here.
var ErrDetached = errors.New("detached")

// Tree is not built on this system.
type Tree struct{}

// Measure fails.
func Measure(int64, ...string) (*Tree, error) { return nil, errors.ErrUnsupported }

// Look sees nothing.
func (*Tree) Look() Look { return Look{Cut: true} }

// Close does nothing.
func (*Tree) Close() {}

// RemoveLeft fails.
func RemoveLeft(scratch.Mark) error { return errors.ErrUnsupported }
