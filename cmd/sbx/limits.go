package main

import (
	"time"

	"github.com/spf13/pflag"

	"sandboxd/internal/cli"
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

// The flags' values.
type (
	sizeValue     = cli.Size
	durationValue = cli.Duration
)
