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
