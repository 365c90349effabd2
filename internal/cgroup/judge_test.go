package cgroup

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// unified is a cgroup2 in which everything can be had.
func unified(change ...func(*hierarchy)) *hierarchy {
	h := &hierarchy{member: member{path: "/own"}, kind: "domain", offered: []string{"cpu", "io", "memory", "pids"}}
	for _, f := range change {
		f(h)
	}
	return h
}

// legacy is a cgroup1 hierarchy in which everything can be had.
func legacy(controllers string, change ...func(*hierarchy)) *hierarchy {
	h := &hierarchy{member: member{id: 7, controllers: strings.Split(controllers, ","), path: "/own"}}
	for _, f := range change {
		f(h)
	}
	return h
}

// TestJudge: what is said of hosts, in the order memory, pids, cpu, kill.
func TestJudge(t *testing.T) {
	top := func(h *hierarchy) { h.top, h.kind, h.path = true, "", "/" }
	none := func(h *hierarchy) { h.offered = nil }
	enabled := func(h *hierarchy) { h.enabled = []string{"memory", "pids"} }
	shared := func(h *hierarchy) { h.others = []int{1, 2, 3, 4} }
	readOnly := func(h *hierarchy) { h.make, h.enter, h.divide = syscall.EROFS, syscall.EROFS, syscall.EROFS }
	foreign := func(h *hierarchy) { h.make, h.enter, h.divide = syscall.EACCES, syscall.EACCES, syscall.EACCES }
	unmounted := func(h *hierarchy) { h.cause = NotMounted }
	user, systemdUser, root := caller{}, caller{systemd: true}, caller{root: true}
	for _, test := range []struct {
		name   string
		all    []*hierarchy
		c      caller
		layout Layout
		want   string
		moves  bool
		fix    string // part of the first fix
	}{
		{"nothing", nil, user, None, "not-mounted not-mounted not-mounted not-mounted", false, "mount a cgroup2"},
		{"root of cgroup2", []*hierarchy{unified(top)}, root, Unified, "cgroup2 cgroup2 cgroup2 cgroup2", false, ""},
		{"root of cgroup2, among others", []*hierarchy{unified(top, shared)}, root, Unified, "cgroup2 cgroup2 cgroup2 cgroup2", false, ""},
		{"delegated, alone", []*hierarchy{unified()}, user, Unified, "cgroup2 cgroup2 cgroup2 cgroup2", true, ""},
		{"delegated, among others", []*hierarchy{unified(shared)}, systemdUser, Unified, "internal-processes internal-processes internal-processes cgroup2", false, "systemd-run --user --scope"},
		{"delegated, moved before", []*hierarchy{unified(enabled)}, user, Unified, "cgroup2 cgroup2 cgroup2 cgroup2", true, ""},
		{"delegated without controllers", []*hierarchy{unified(none)}, systemdUser, Unified, "not-enabled not-enabled not-enabled cgroup2", false, "Delegate=cpu memory pids"},
		{"a directory, but not subtree_control", []*hierarchy{unified(func(h *hierarchy) { h.divide = syscall.EACCES })}, user, Unified, "not-delegated not-delegated not-delegated cgroup2", false, "as root"},
		{"a session of systemd", []*hierarchy{unified(foreign, shared)}, systemdUser, Unified, "not-delegated not-delegated not-delegated not-delegated", false, "systemd-run --user"},
		{"a session of root", []*hierarchy{unified(shared)}, caller{root: true, systemd: true}, Unified, "internal-processes internal-processes internal-processes cgroup2", false, "systemd-run --scope"},
		{"a container", []*hierarchy{unified(readOnly)}, root, Unified, "read-only read-only read-only read-only", false, "container"},
		{"another namespace's mount", []*hierarchy{unified(func(h *hierarchy) { h.cause = OtherNamespace })}, root, None, "other-namespace other-namespace other-namespace other-namespace", false, "namespace"},
		{"a threaded cgroup", []*hierarchy{unified(func(h *hierarchy) { h.kind = "domain threaded" })}, root, Unified, "threaded threaded threaded threaded", false, "threaded"},
		{"no clone3", []*hierarchy{unified()}, caller{clone: syscall.ENOSYS}, Unified, "no-clone3 no-clone3 no-clone3 no-clone3", false, "clone3"},
		{"a kernel without controllers", []*hierarchy{unified(top, none)}, root, Unified, "no-controller no-controller no-controller cgroup2", false, "cgroup_disable"},
		// B120: cgroup2 is there and has nothing.
		{"hybrid", []*hierarchy{legacy("memory"), legacy("pids"), legacy("cpu,cpuacct"), legacy("freezer"), unified(top, none)}, root, Hybrid, "cgroup1 cgroup1 cgroup1 cgroup2", false, ""},
		{"hybrid, one controller in cgroup2", []*hierarchy{legacy("pids"), legacy("cpu,cpuacct"), unified()}, root, Hybrid, "cgroup2 cgroup1 cgroup1 cgroup2", true, ""},
		{"hybrid, its memory not mounted", []*hierarchy{legacy("memory", unmounted), legacy("pids"), unified(top)}, root, Hybrid, "not-mounted cgroup1 cgroup2 cgroup2", false, "mount"},
		{"cgroup1 alone", []*hierarchy{legacy("memory"), legacy("pids"), legacy("cpu"), legacy("freezer"), unified(unmounted)}, root, V1, "cgroup1 cgroup1 cgroup1 cgroup1", false, ""},
		{"cgroup1, a user", []*hierarchy{legacy("memory", foreign), legacy("pids", foreign), legacy("cpu", foreign), unified(unmounted)}, user, V1, "not-delegated not-delegated not-delegated not-delegated", false, "each hierarchy"},
		{"cgroup1, use_hierarchy 0", []*hierarchy{legacy("memory", func(h *hierarchy) { h.flat = true }), legacy("pids"), unified(unmounted)}, root, V1, "not-hierarchical cgroup1 not-mounted cgroup1", false, "use_hierarchy"},
		{"cgroup1, directory gone", []*hierarchy{legacy("memory", func(h *hierarchy) { h.open = syscall.EIO }), unified(unmounted)}, root, V1, "unusable not-mounted not-mounted unusable", false, ""},
	} {
		h := judge(test.all, test.c)
		var got []string
		first, refused := "", false
		for _, name := range []string{memory, pids, cpu, kill} {
			a := h.ability(name)
			got = append(got, a.By+string(a.Cause))
			if !a.Can() && a.Why == "" || a.Can() && (a.Why != "" || a.Fix != "" || a.Cause != "") {
				t.Errorf("%s: %s is %+v", test.name, name, a)
			}
			if !a.Can() && !refused {
				first, refused = a.Fix, true
			}
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%s: got %s, want %s", test.name, s, test.want)
		}
		if h.Layout != test.layout || h.Moves != test.moves {
			t.Errorf("%s: layout %s, moves %t", test.name, h.Layout, h.Moves)
		}
		if !strings.Contains(first, test.fix) || test.fix == "" && first != "" {
			t.Errorf("%s: the fix is %q, want %q in it", test.name, first, test.fix)
		}
		if (h.tree == nil) != !h.Kill.Can() {
			t.Errorf("%s: tree %v, kill %+v", test.name, h.tree, h.Kill)
		}
	}
}

func TestSettings(t *testing.T) {
	text := func(l Limits) string {
		var b strings.Builder
		for _, s := range l.settings() {
			fmt.Fprintf(&b, "%s %s=%s %s\n", s.version, s.file, s.value, s.later)
		}
		return b.String()
	}
	if got := text(Limits{}); got != "" {
		t.Errorf("no limits: %s", got)
	}
	const want = `cgroup2 memory.max=67108864 
cgroup2 memory.swap.max=0 
cgroup1 memory.limit_in_bytes=67108864 
cgroup1 memory.memsw.limit_in_bytes=67108864 
cgroup1 memory.oom.group=1 
cgroup2 memory.oom.group=1 
cgroup2 pids.max=10 
cgroup1 pids.max=11 10
cgroup2 cpu.max=50000 100000 
cgroup1 cpu.cfs_quota_us=50000 
`
	if got := text(Limits{MemoryBytes: 64<<20 + 5, Pids: 10, CPUs: 0.5, EndTogether: true}); got != want {
		t.Errorf("got:\n%s", got)
	}
	for cpus, want := range map[float64]string{0.001: "1000 1000000", 0.009: "9000 1000000", 0.01: "1000 100000", 1.5: "150000 100000", 128: "12800000 100000"} {
		if got := text(Limits{CPUs: cpus}); !strings.Contains(got, "cpu.max="+want+" ") {
			t.Errorf("%g CPUs: %s", cpus, got)
		}
	}
}
