package launch

import (
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// usage sums what reaped processes used, with what each of them had waited for.
type usage struct {
	user, system time.Duration
	peak         int64 // of the largest, in bytes
}

func (u *usage) add(ru *unix.Rusage) {
	u.user += time.Duration(ru.Utime.Nano())
	u.system += time.Duration(ru.Stime.Nano())
	u.peak = max(u.peak, int64(ru.Maxrss)<<10) // in KiB: getrusage(2)
}

func (u *usage) addAll(v usage) {
	u.user, u.system, u.peak = u.user+v.user, u.system+v.system, max(u.peak, v.peak)
}

func (u usage) total() *backend.Usage {
	user, system := u.user.Seconds(), u.system.Seconds()
	return &backend.Usage{Source: "rusage", User: &user, System: &system, PeakMemory: &u.peak, PeakMemorySource: "rusage"}
}

// Usage is what the worker's processes used: counted by the kernel for its
// cgroup if it had one, else of those that were waited for. It is known after
// Wait.
func (p *Process) Usage() *backend.Usage { return p.total }
