package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"sandboxd/policy"
)

// limitFlags are the flags that bound what a worker uses.
type limitFlags struct {
	timeout, idle, grace durationValue
	memory, disk         sizeValue
	fsize, core          sizeValue
	pids, nofile         int
	cpus                 float64
}

func (f *limitFlags) register(fs *pflag.FlagSet) {
	f.grace = durationValue(policy.DefaultGrace)
	fs.Var(&f.timeout, "timeout", "end the command after `DURATION`, as in 90, 90s or 5m (exit status 124)")
	fs.Var(&f.idle, "idle-timeout", "end the command after `DURATION` without output; it then writes to a pipe")
	fs.Var(&f.memory, "memory", "memory of the whole tree, swap included, as `SIZE`: 512M, 2G")
	fs.IntVar(&f.pids, "pids", 0, "processes and threads of the whole tree")
	fs.Float64Var(&f.cpus, "cpus", 0, "processor time of the whole tree, in cores: 0.5 is half of one")
	fs.Var(&f.disk, "disk", "what the private temporary directories may hold, as `SIZE`")
	fs.Var(&f.fsize, "fsize", "largest file that may be written, as `SIZE`")
	fs.IntVar(&f.nofile, "nofile", 0, "open descriptors of each process")
	fs.Var(&f.core, "core", "largest core dump, as `SIZE`; none without this flag")
	fs.Var(&f.grace, "grace", "how long a command that is told to end (SIGTERM) may take before it is killed, as `DURATION`")
}

func (f *limitFlags) limits() policy.Limits {
	return policy.Limits{
		Time: time.Duration(f.timeout), Idle: time.Duration(f.idle), Grace: time.Duration(f.grace),
		Memory: int64(f.memory), Pids: f.pids, CPUs: f.cpus, Disk: int64(f.disk),
		FileSize: int64(f.fsize), Files: f.nofile, Core: int64(f.core),
	}
}

// sizeValue is a flag of bytes, or of what a unit of 1024s makes of them.
type sizeValue int64

func (v *sizeValue) String() string {
	if *v == 0 {
		return "0" // nothing that pflag would show as a default
	}
	return strconv.FormatInt(int64(*v), 10)
}

func (v *sizeValue) Type() string { return "size" }

func (v *sizeValue) Set(s string) error {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I")
	shift := 0
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMGT", number[n-1]); i >= 0 {
			number, shift = number[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)>>shift {
		return fmt.Errorf("%q is no size, as in 65536, 512M or 2G", s)
	}
	*v = sizeValue(n << shift)
	return nil
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
