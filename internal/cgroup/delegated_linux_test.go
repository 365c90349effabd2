package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// delegatedVariable tells the test binary that TestDelegated started it, with
// what its cgroup may hold: "cgroup1" or "cgroup2" for memory, and so on.
const delegatedVariable = "SBX_TEST_DELEGATED"

// limitsAbove are those of the cgroup that is delegated. Zombies count as tasks
// until somebody reaps them, and orphans are init's to reap.
var limitsAbove = Limits{MemoryBytes: 400 << 20, Pids: 20_000, CPUs: 8}

// delegate makes a cgroup and gives it to a user as root would: the directory
// and what its owner must write, not its limits (cgroup-v2.rst, "Model of
// Delegation"). files are those of cgroup2 that are given.
func delegate(t *testing.T, h Host, uid int, l Limits, files ...string) *Group {
	t.Helper()
	g := group(t, h, l)
	for _, c := range []string{memory, pids, cpu, "freezer"} { // cgroup1: whatever the limits
		if o := holder(h.state.all, c); o != nil && o.id != 0 && o.dir >= 0 {
			if _, err := g.in(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range g.dirs {
		_ = writeAt(d.fd, "memory.use_hierarchy", "1") // before Linux 5.11, cgroup1
		give := append([]string{".", "cgroup.procs", "tasks"}, files...)
		for _, f := range give {
			if err := unix.Fchownat(d.fd, f, uid, uid, 0); err != nil && err != unix.ENOENT {
				t.Fatal(f, err)
			}
		}
	}
	return g
}

// runIn runs this test binary's tests as a user in the group.
func runIn(t *testing.T, g *Group, uid int, run string, env ...string) string {
	t.Helper()
	w := &worker{Cmd: exec.Command(publicCopy(t), "-test.v", "-test.run="+run, "-test.timeout=240s")}
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w.Env = append(os.Environ(), append(env, "TMPDIR=/tmp", "GOCOVERDIR=")...)
	w.Stdout, w.Stderr, w.Dir = out, out, "/"
	w.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if err := w.startIn(g); err != nil {
		t.Fatal(err)
	}
	err = w.Wait()
	text, _ := os.ReadFile(out.Name())
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	return string(text)
}

// TestDelegated runs the tests as an ordinary user to whom root has given a
// cgroup of its own, with limits. There nothing that root can hold may skip.
func TestDelegated(t *testing.T) {
	needRoot(t)
	h := probe(t)
	need(t, "kill", h.Kill)
	var l Limits
	for name, a := range map[string]Ability{memory: h.Memory, pids: h.Pids, cpu: h.CPU} {
		switch {
		case !a.Can():
		case name == memory:
			l.MemoryBytes = limitsAbove.MemoryBytes
		case name == pids:
			l.Pids = limitsAbove.Pids
		case name == cpu:
			l.CPUs = limitsAbove.CPUs
		}
	}
	g := delegate(t, h, 1000, l, "cgroup.subtree_control", "cgroup.threads")
	can := fmt.Sprint(h.Memory.By, " ", h.Pids.By, " ", h.CPU.By, " ", h.Kill.By)
	text := runIn(t, g, 1000, "^(TestHostIsDelegated|TestLimitAbove|TestMemory|TestPids|TestSmall|TestUsage|TestHalfMade"+
		"|TestOnlyTheChild|TestKill$|TestSignal|TestRemove|TestRecycled|TestForged|TestProbeChangesNothing)", delegatedVariable+"="+can)
	ran := 0
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "--- PASS"):
			ran++
		case strings.HasPrefix(line, "--- SKIP") && h.Memory.Can() && h.Pids.Can() && h.CPU.Can():
			t.Error(strings.TrimSpace(line))
		}
	}
	if ran < 11 {
		t.Errorf("%d tests passed:\n%s", ran, text)
	}
	t.Logf("%d tests passed as uid 1000", ran)
	if testing.Verbose() {
		t.Log(text)
	}
}

// TestHostIsDelegated: as TestDelegated's user, all that root could hold, by
// the same version.
func TestHostIsDelegated(t *testing.T) {
	want := os.Getenv(delegatedVariable)
	if want == "" {
		return // TestDelegated runs it
	}
	h := Probe()
	t.Cleanup(func() { h.Close() })
	if got := fmt.Sprint(h.Memory.By, " ", h.Pids.By, " ", h.CPU.By, " ", h.Kill.By); got != want {
		t.Errorf("the host is %+v, and root's is %q", h, want)
	}
	moves := h.Memory.By == two || h.Pids.By == two || h.CPU.By == two
	if h.Moves != moves {
		t.Errorf("moves: %t", h.Moves)
	}
}

// TestLimitAbove: a group may ask for more than its launcher has, and gets no
// more.
func TestLimitAbove(t *testing.T) {
	if os.Getenv(delegatedVariable) == "" {
		return // TestDelegated runs it
	}
	h := probe(t)
	need(t, "memory", h.Memory)
	g := group(t, h, Limits{MemoryBytes: limitsAbove.MemoryBytes * 4})
	w := start(t, g, "memory", "600")
	if s := w.line(t); s != "" {
		t.Errorf("200 MiB over the caller's limit: %q", s)
	}
	if sig := w.signal(); sig != syscall.SIGKILL {
		t.Errorf("200 MiB over the caller's limit: ended by %v", sig)
	}
	if u := g.Usage(); u.OOMKills != 1 || u.Knows(OOMs) && u.OOMs != 0 {
		t.Errorf("a kill for memory that was not the group's limit: %+v", u)
	}
}

// TestNotAlone: in cgroup2, limits below a cgroup with other processes cannot
// be had; the tree can still be ended.
func TestNotAlone(t *testing.T) {
	needRoot(t)
	h := probe(t)
	if h.Memory.By != two || h.Pids.By != two || h.CPU.By != two {
		t.Skip("cgroup2 does not have all of memory, pids and cpu here")
	}
	g := delegate(t, h, 1000, Limits{MemoryBytes: 256 << 20, Pids: 1000}, "cgroup.subtree_control")
	other := start(t, g, "sleep")
	other.ready(t)
	runIn(t, g, 1000, "^TestHostIsShared$", delegatedVariable+"=shared")
	// cgroup.subtree_control was not given.
	g = delegate(t, h, 1000, Limits{MemoryBytes: 256 << 20, Pids: 1000})
	runIn(t, g, 1000, "^TestHostIsShared$", delegatedVariable+"=files")
	// No controller was handed on.
	g = delegate(t, h, 1000, Limits{}, "cgroup.subtree_control")
	inner, err := h.inside(g)
	if err != nil {
		t.Fatal(err)
	}
	deep := delegate(t, inner, 1000, Limits{}, "cgroup.subtree_control")
	runIn(t, deep, 1000, "^TestHostIsShared$", delegatedVariable+"=bare")
	end(t, deep)
}

// inside is the host of a process in the group, for cgroup2.
func (h Host) inside(g *Group) (Host, error) {
	in := *g.tree.h
	in.path, in.dir, in.top, in.enabled = in.path+"/"+g.name, g.tree.fd, false, nil
	less := judge([]*hierarchy{&in}, caller{root: true})
	less.state = &state{all: []*hierarchy{&in}, mounts: h.state.mounts}
	if !less.Kill.Can() {
		return less, cannot(kill, less.Kill)
	}
	return less, nil
}

// TestHostIsShared is TestNotAlone's half as a user.
func TestHostIsShared(t *testing.T) {
	kind := os.Getenv(delegatedVariable)
	want := map[string]Cause{"shared": InternalProcesses, "files": NotDelegated, "bare": NotEnabled}[kind]
	if want == "" {
		return // TestNotAlone runs it
	}
	h := Probe()
	t.Cleanup(func() { h.Close() })
	for name, a := range map[string]Ability{memory: h.Memory, pids: h.Pids, cpu: h.CPU} {
		if kind == "shared" && name == cpu {
			continue // not handed on
		}
		if a.Cause != want || a.Why == "" || a.Fix == "" {
			if name != cpu || a.Cause != NotEnabled {
				t.Errorf("%s: %s is %+v", kind, name, a)
			}
		}
		t.Logf("%s: %s; fix: %s", name, a.Why, a.Fix)
	}
	if !h.Kill.Can() || h.Moves {
		t.Errorf("kill is %+v, moves %t", h.Kill, h.Moves)
	}
	if _, err := New(h, newID(), Limits{MemoryBytes: 1 << 20}); err == nil {
		t.Error("a group with a limit was made")
	}
	g := group(t, h, Limits{})
	w := start(t, g, "tree", "10")
	w.ready(t)
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
}

// TestProcessArrives: a process that comes after Probe keeps New from moving,
// and nothing is half done.
func TestProcessArrives(t *testing.T) {
	needRoot(t)
	h := probe(t)
	if h.Memory.By != two || h.Pids.By != two || h.CPU.By != two {
		t.Skip("cgroup2 does not have all of memory, pids and cpu here")
	}
	g := delegate(t, h, 1000, Limits{MemoryBytes: 256 << 20, Pids: 1000}, "cgroup.subtree_control")
	runIn(t, g, 1000, "^TestArrival$", delegatedVariable+"=arrival")
}

// TestArrival is TestProcessArrives' half as a user.
func TestArrival(t *testing.T) {
	if os.Getenv(delegatedVariable) != "arrival" {
		return // TestProcessArrives runs it
	}
	h := Probe()
	self := func() string {
		text, _ := os.ReadFile("/proc/self/cgroup")
		return string(text)
	}
	before := self()
	if !h.Moves || !h.Pids.Can() {
		t.Fatalf("the host is %+v", h)
	}
	w := start(t, nil, "sleep")
	w.ready(t)
	_, err := New(h, newID(), Limits{Pids: 10})
	if e, ok := err.(*Error); !ok || e.Cause != InternalProcesses {
		t.Errorf("got %v", err)
	}
	if after := self(); after != before {
		t.Errorf("moved from %q to %q", before, after)
	}
	w.in.Close()
	w.signal()
	// It is a member until the kernel is done with it, which may be after the wait.
	own := holder(h.state.all, pids).dir
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, others := here(own); len(others) == 0 {
			break
		}
	}
	// Alone again: pids by itself, which the kernel would enable with this
	// process inside, and make a threaded domain.
	g, err := New(h, newID(), Limits{Pids: 10})
	if err != nil {
		t.Fatal(err)
	}
	if after := self(); !strings.Contains(after, leafPrefix) {
		t.Errorf("this process is in %q", after)
	}
	v := command(t, "true")
	v.Stderr = nil
	if err := v.startIn(g); err != nil {
		t.Errorf("starting: %v", err)
	}
	v.in.Close()
	_ = v.Wait()
	if err := h.Close(); err == nil {
		t.Error("the host closes over a group")
	}
	end(t, g)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if after := self(); after != before {
		t.Errorf("moved back to %q from %q", after, before)
	}
	// And again, by another host.
	h = Probe()
	defer h.Close()
	if got := slices.Contains([]bool{h.Pids.Can(), h.Moves}, false); got {
		t.Errorf("the host is %+v", h)
	}
}
