package cgroup

// figures says where each figure of [Usage] is, for each version: cgroup-v2.rst;
// cgroup-v1/memory.rst, pids.rst and cpuacct.rst; scheduler/sched-bwc.rst.
var figures = []struct {
	field      Field
	version    string
	controller string // of the cgroup1 hierarchy that has it
	file, key  string
	unit       int64
}{
	{UserTime, two, "", "cpu.stat", "user_usec", 1000}, // with or without the controller
	{SystemTime, two, "", "cpu.stat", "system_usec", 1000},
	{PeakMemory, two, "", "memory.peak", "", 1}, // Linux 5.19
	{CurrentMemory, two, "", "memory.current", "", 1},
	{OOMKills, two, "", "memory.events", "oom_kill", 1},
	{OOMs, two, "", "memory.events", "oom", 1},
	{PeakPids, two, "", "pids.peak", "", 1}, // Linux 6.12 or before
	{PidsMaxHits, two, "", "pids.events", "max", 1},
	{Throttled, two, "", "cpu.stat", "nr_throttled", 1},

	{UserTime, one, "cpuacct", "cpuacct.usage_user", "", 1},
	{SystemTime, one, "cpuacct", "cpuacct.usage_sys", "", 1},
	{PeakMemory, one, memory, "memory.max_usage_in_bytes", "", 1},
	{CurrentMemory, one, memory, "memory.usage_in_bytes", "", 1},
	{OOMKills, one, memory, "memory.oom_control", "oom_kill", 1}, // not failcnt, which may stay 0
	{PeakPids, one, pids, "pids.peak", "", 1},
	{PidsMaxHits, one, pids, "pids.events", "max", 1},
	{Throttled, one, cpu, "cpu.stat", "nr_throttled", 1},
}

// Usage reads what the group has used. It must be read before [Group.Remove];
// that the processes have ended loses nothing.
func (g *Group) Usage() Usage {
	var u Usage
	for _, d := range g.dirs {
		texts := map[string][]byte{} // a file's figures are of one moment
		for _, f := range figures {
			if f.version != d.h.version() || f.controller != "" && !d.h.has(f.controller) || u.Knows(f.field) {
				continue
			}
			text, ok := texts[f.file]
			if !ok {
				text, _ = readBounded(d.fd, f.file, 4096)
				texts[f.file] = text
			}
			n, ok := value(text, f.key)
			if !ok || f.field == PeakPids && f.version == one && n <= 2 { // see PeakPids
				continue
			}
			u.set(f.field, n*f.unit)
			switch u.Source {
			case "":
				u.Source = f.version
			case one, two:
				if u.Source != f.version {
					u.Source = one + "+" + two
				}
			}
		}
	}
	if g.last != nil {
		u.PidsMaxHits = g.last.PidsMaxHits
	}
	return u
}
