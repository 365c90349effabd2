//go:build !linux

package confine

import (
	"errors"
	"os"
	"runtime"
)

// Self confines nothing on this system, and says so: the posture has the gap
// [GapSystem], which with Require is an error.
func Self(o Options) (Posture, error) {
	why := "the front cannot be confined on " + runtime.GOOS + " yet"
	p := Posture{PID: os.Getpid(), Gaps: []Gap{{What: GapSystem, Why: why}}}
	if o.Require {
		return p, errors.New(why)
	}
	return p, nil
}

// Threads needs /proc, which this system has not.
func Threads(int) ([]Thread, error) {
	return nil, errors.New("reading the threads of a process is not built for " + runtime.GOOS)
}
