package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"sandboxd/policy"
)

// limitFlags are the flags that bound what a worker uses.
type limitFlags struct {
	timeout, idle, grace durationValue
}

func (f *limitFlags) register(fs *pflag.FlagSet) {
	f.grace = durationValue(policy.DefaultGrace)
	fs.Var(&f.timeout, "timeout", "end the command after `DURATION`, as in 90, 90s or 5m (exit status 124)")
	fs.Var(&f.idle, "idle-timeout", "end the command after `DURATION` without output; it then writes to a pipe")
	fs.Var(&f.grace, "grace", "how long a command that is told to end (SIGTERM) may take before it is killed, as `DURATION`")
}

func (f *limitFlags) limits() policy.Limits {
	return policy.Limits{Time: time.Duration(f.timeout), Idle: time.Duration(f.idle), Grace: time.Duration(f.grace)}
}

// durationValue is a flag of whole seconds, or of what time.ParseDuration reads.
type durationValue time.Duration

func (d *durationValue) String() string {
	if *d == 0 {
		return "0" // nothing that pflag would show as a default
	}
	return time.Duration(*d).String()
}

func (d *durationValue) Type() string { return "duration" }

func (d *durationValue) Set(s string) error {
	v, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseFloat(s, 64); nerr == nil {
		if v, err = time.Duration(n*float64(time.Second)), nil; n > maxSeconds || n != n {
			return fmt.Errorf("%q is too long", s)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is no duration, as in 90, 90s or 5m", s)
	case v < 0:
		return fmt.Errorf("%q is negative", s)
	}
	*d = durationValue(v)
	return nil
}

// maxSeconds keeps a number of seconds within time.Duration.
const maxSeconds = 1 << 32
