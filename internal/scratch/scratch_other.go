//go:build !unix

package scratch

import (
	"errors"
	"os"
)

// StateDir is not known on this system.
func StateDir() (string, error) { return "", errors.ErrUnsupported }

func isMyDir(string) (bool, error)                  { return false, errors.ErrUnsupported }
func isMountPoint(string) (bool, error)             { return false, errors.ErrUnsupported }
func isLeft(string) (bool, error)                   { return false, errors.ErrUnsupported }
func createLocked(string, string) (*os.File, error) { return nil, errors.ErrUnsupported }
func openDead(string) (*os.File, bool)              { return nil, false }

// errTooLong is of no removal here.
var errTooLong = errors.New("it takes too long")

// RemoveTree removes a directory and all that is in it.
func RemoveTree(dir string) error { return os.RemoveAll(dir) }
