package policy

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound what one worker's whole tree may use. Zero is no limit, but for
// Core, where it is what a worker gets unless the caller asks for more.
type Limits struct {
	// Time is how long the worker may run; Idle is how long it may write
	// nothing to its standard output and error.
	Time, Idle time.Duration
	// Grace is how long a worker that is asked to end (SIGTERM) may take before
	// it is killed; 0 kills at once.
	Grace time.Duration
	// Memory is in bytes, swap included.
	Memory int64
	// Pids counts processes and threads.
	Pids int
	// CPUs is in cores: 0.5 is half of one.
	CPUs float64
	// Disk is what the private temporary directories may hold together, in
	// bytes: TMPDIR with all that is below it, and the stand-in for /dev/shm.
	Disk int64
	// FileSize bounds each file that is written, in bytes (RLIMIT_FSIZE), Files
	// the descriptors of each process (RLIMIT_NOFILE), Core the size of core
	// dumps in bytes (RLIMIT_CORE), where zero is none: getrlimit(2).
	FileSize int64
	Files    int
	Core     int64
}

// DefaultGrace is the grace of a caller that names none.
const DefaultGrace = 2 * time.Second

// effects are those that a backend is asked to govern by the limits.
func (l Limits) effects() EffectSet {
	var set EffectSet
	for _, e := range []struct {
		asked  bool
		effect Effect
	}{{l.Memory > 0, LimitsMemory}, {l.Pids > 0, LimitsPids}, {l.CPUs > 0, LimitsCPU}, {l.Disk > 0, LimitsDisk}, {l.Time > 0 || l.Idle > 0, LimitsTime}} {
		if e.asked {
			set |= SetOf(e.effect)
		}
	}
	return set
}

// MinMemory is the least limit under which a program can start at all, in bytes.
const MinMemory = 1 << 20

// MinDisk is the least limit for temporary directories, in bytes: the directories
// that TMPDIR is made with take some on a disk.
const MinDisk = 1 << 20

func (l Limits) validate() error {
	if l.Time < 0 || l.Idle < 0 || l.Grace < 0 || l.Memory < 0 || l.Pids < 0 || l.CPUs < 0 || l.Disk < 0 || l.FileSize < 0 || l.Files < 0 || l.Core < 0 {
		return errors.New("a limit is negative")
	}
	if l.Memory > 0 && l.Memory < MinMemory {
		return fmt.Errorf("a memory limit of %d bytes is less than any program needs (%d)", l.Memory, MinMemory)
	}
	if l.Disk > 0 && l.Disk < MinDisk {
		return fmt.Errorf("a limit of %d bytes for temporary directories is less than any program needs (%d)", l.Disk, MinDisk)
	}
	if l.CPUs != l.CPUs || l.CPUs > 0 && l.CPUs < 0.01 {
		return fmt.Errorf("a CPU limit of %v cores is less than 0.01", l.CPUs)
	}
	return nil
}
