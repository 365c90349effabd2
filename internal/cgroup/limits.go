package cgroup

import (
	"fmt"
	"math"
	"os"
	"strconv"
)

// Limits are what a group may use. Zero is no limit.
type Limits struct {
	// MemoryBytes counts swap, too, and is rounded down to a whole page.
	MemoryBytes int64
	// Pids counts tasks: processes and their threads.
	Pids int
	// CPUs is in cores: 0.5 is half of one.
	CPUs float64
	// EndTogether lets the kernel end the whole group when one of it is killed
	// for memory (memory.oom.group). cgroup1 has no such thing: a named gap.
	EndTogether bool
}

// leastCPUs is the kernel's least quota, 1 ms, of its longest period, 1 s:
// scheduler/sched-bwc.rst.
const leastCPUs = 0.001

func (l Limits) check() error {
	switch {
	case l.MemoryBytes < 0 || l.MemoryBytes > 0 && l.MemoryBytes < int64(os.Getpagesize()):
		return fmt.Errorf("memory limit of %d bytes is less than a page", l.MemoryBytes)
	case l.Pids < 0:
		return fmt.Errorf("limit of %d processes is negative", l.Pids)
	case math.IsNaN(l.CPUs), math.IsInf(l.CPUs, 0), l.CPUs < 0, l.CPUs > 1e6:
		return fmt.Errorf("%g is no number of CPUs", l.CPUs)
	case l.CPUs > 0 && l.CPUs < leastCPUs:
		return fmt.Errorf("%g CPUs are less than the kernel's least, %g", l.CPUs, leastCPUs)
	}
	return nil
}

// usualPeriod is the kernel's default, in microseconds.
const usualPeriod = 100_000

// quota returns the microseconds of CPU time in each period of microseconds.
func (l Limits) quota() (quota, period int) {
	period = usualPeriod
	if quota = int(math.Round(l.CPUs * float64(period))); quota < 1000 {
		period = 1_000_000
		quota = int(math.Round(l.CPUs * float64(period)))
	}
	return quota, period
}

// setting is one write that a limit needs.
type setting struct {
	limit   string
	version string
	file    string
	value   string
	later   string // once the launch thread has left
	gap     string // if the kernel does not have the file; "" is an error then
}

const swapGap = "memory: this kernel does not count swap, so swap is not limited"

// settings turns limits into writes, in their order.
func (l Limits) settings() []setting {
	var list []setting
	if l.MemoryBytes > 0 {
		bytes := strconv.FormatInt(l.MemoryBytes&^int64(os.Getpagesize()-1), 10)
		list = append(list,
			setting{limit: memory, version: two, file: "memory.max", value: bytes},
			setting{limit: memory, version: two, file: "memory.swap.max", value: "0", gap: swapGap},
			setting{limit: memory, version: one, file: "memory.limit_in_bytes", value: bytes},
			// Memory and swap together; it cannot be less than memory alone.
			setting{limit: memory, version: one, file: "memory.memsw.limit_in_bytes", value: bytes, gap: swapGap})
		if l.EndTogether { // cgroup1 has no such file
			for _, v := range []string{one, two} {
				list = append(list, setting{limit: memory, version: v, file: "memory.oom.group", value: "1",
					gap: "memory: the kernel ends one process, not the group, when memory runs out"})
			}
		}
	}
	if l.Pids > 0 {
		n := strconv.Itoa(l.Pids)
		list = append(list,
			setting{limit: pids, version: two, file: "pids.max", value: n},
			// The launch thread is inside at the fork and counts.
			setting{limit: pids, version: one, file: "pids.max", value: strconv.Itoa(l.Pids + 1), later: n})
	}
	if l.CPUs > 0 {
		quota, period := l.quota()
		list = append(list, setting{limit: cpu, version: two, file: "cpu.max", value: fmt.Sprintf("%d %d", quota, period)})
		if period != usualPeriod {
			list = append(list, setting{limit: cpu, version: one, file: "cpu.cfs_period_us", value: strconv.Itoa(period)})
		}
		list = append(list, setting{limit: cpu, version: one, file: "cpu.cfs_quota_us", value: strconv.Itoa(quota)})
	}
	return list
}
