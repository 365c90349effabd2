package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMemoryLimit(t *testing.T) {
	h := probe(t)
	need(t, "memory", h.Memory)
	control := start(t, nil, "memory", "128")
	if s := control.line(t); s != "allocated 128" {
		t.Fatalf("without a group: %q", s)
	}
	control.in.Close()
	if sig := control.signal(); sig != 0 {
		t.Fatalf("without a group: %v", sig)
	}
	g := group(t, h, Limits{MemoryBytes: 64 << 20})
	fits := start(t, g, "memory", "16")
	if s := fits.line(t); s != "allocated 16" {
		t.Fatalf("below the limit: %q", s)
	}
	fits.in.Close()
	fits.signal()
	if u := g.Usage(); !u.Knows(OOMKills) || u.OOMKills != 0 {
		t.Fatalf("below the limit: %+v", u)
	}
	over := start(t, g, "memory", "128")
	if s := over.line(t); s != "" {
		t.Errorf("64 MiB over the limit: %q", s)
	}
	if sig := over.signal(); sig != syscall.SIGKILL {
		t.Errorf("64 MiB over the limit: ended by %v", sig)
	}
	u := g.Usage()
	if u.OOMKills != 1 {
		t.Errorf("%d kills for memory are counted", u.OOMKills)
	}
	if g.tree.h.id == 0 && h.Memory.By == two && (!u.Knows(OOMs) || u.OOMs == 0) {
		t.Errorf("that the group's own limit was reached is not counted: %+v", u)
	}
	if u.Knows(PeakMemory) && (u.PeakMemory < 60<<20 || u.PeakMemory > 65<<20) { // it may be some pages over
		t.Errorf("the peak is %d", u.PeakMemory)
	}
	t.Logf("%+v, gaps %q", u, g.Gaps())
}

// TestMemoryOfChild: the worker goes on, its child is killed, and it is counted.
func TestMemoryOfChild(t *testing.T) {
	h := probe(t)
	need(t, "memory", h.Memory)
	g := group(t, h, Limits{MemoryBytes: 64 << 20})
	w := start(t, g, "child-memory", "128")
	if s := w.line(t); s != "child: signal: killed" {
		t.Errorf("the worker says %q", s)
	}
	w.in.Close()
	if sig := w.signal(); sig != 0 {
		t.Errorf("the worker ended by %v", sig)
	}
	if u := g.Usage(); u.OOMKills != 1 {
		t.Errorf("usage: %+v", u)
	}
	// A kill that is not for memory is told apart.
	other := group(t, h, Limits{MemoryBytes: 64 << 20})
	v := start(t, other, "sleep")
	v.ready(t)
	_ = v.Process.Kill()
	v.signal()
	if u := other.Usage(); !u.Knows(OOMKills) || u.OOMKills != 0 {
		t.Errorf("after a plain kill: %+v", u)
	}
}

func TestEndTogether(t *testing.T) {
	h := probe(t)
	need(t, "memory", h.Memory)
	g := group(t, h, Limits{MemoryBytes: 64 << 20, EndTogether: true})
	w := start(t, g, "child-memory", "128")
	said := w.line(t)
	w.in.Close()
	sig := w.signal()
	if h.Memory.By == one {
		if len(g.Gaps()) == 0 || !strings.Contains(strings.Join(g.Gaps(), " "), "not the group") {
			t.Errorf("the gap is not named: %q", g.Gaps())
		}
		return
	}
	if said != "" || sig != syscall.SIGKILL {
		t.Errorf("the worker says %q and ends by %v", said, sig)
	}
	if u := g.Usage(); u.OOMKills < 2 {
		t.Errorf("usage: %+v", u)
	}
}

func TestPidsLimit(t *testing.T) {
	h := probe(t)
	need(t, "pids", h.Pids)
	control := start(t, nil, "forks", "60")
	if s := control.line(t); s != "forks 60 0" {
		t.Fatalf("without a group: %q", s)
	}
	control.in.Close()
	control.signal()
	g := group(t, h, Limits{Pids: 40})
	w := start(t, g, "forks", "60")
	var made, failed int
	if _, err := fmt.Sscanf(w.line(t), "forks %d %d", &made, &failed); err != nil {
		t.Fatal(err)
	}
	// A Go program has some threads beside.
	if made >= 40 || made < 20 || made+failed != 60 {
		t.Errorf("%d forks, %d refused", made, failed)
	}
	u := g.Usage()
	if !u.Knows(PidsMaxHits) || u.PidsMaxHits == 0 {
		t.Errorf("usage: %+v", u)
	}
	if u.Knows(PeakPids) && u.PeakPids != 40 {
		t.Errorf("the peak is %d", u.PeakPids)
	}
	if got := read(t, g, "pids.max"); got != "40" {
		t.Errorf("pids.max is %s after the launch", got)
	}
	if got := read(t, g, "pids.current"); got != "40" {
		t.Errorf("%s tasks are in the group", got)
	}
}

// TestPidsLimitOfOne: a worker that never forks can be held to one task, also
// where the launch thread counts.
func TestPidsLimitOfOne(t *testing.T) {
	h := probe(t)
	need(t, "pids", h.Pids)
	g := group(t, h, Limits{Pids: 1})
	w := command(t, "true") // a Go program, which cannot start a thread: it fails, but it starts
	w.Stderr = nil
	if err := w.startIn(g); err != nil {
		t.Fatal(err)
	}
	w.in.Close()
	_ = w.Wait()
	if u := g.Usage(); u.PidsMaxHits == 0 {
		t.Errorf("a second task was not refused: %+v", u)
	}
	if u := g.Usage(); u.Knows(PeakPids) && u.PeakPids != 1 {
		t.Errorf("usage: %+v", u)
	}
}

func TestCPULimit(t *testing.T) {
	h := probe(t)
	need(t, "cpu", h.CPU)
	spin := func(g *Group) (perMille int) {
		w := start(t, g, "spin", "900")
		if _, err := fmt.Sscanf(w.line(t), "cpu %d", &perMille); err != nil {
			t.Fatal(err)
		}
		w.in.Close()
		w.signal()
		return perMille
	}
	g := group(t, h, Limits{CPUs: 0.05})
	limited, free := spin(g), spin(nil)
	// A busy host may give no process more than the limit for a while.
	for end := time.Now().Add(time.Minute); free < 2*limited && time.Now().Before(end); {
		limited, free = max(limited, spin(g)), spin(nil)
	}
	t.Logf("0.05 CPUs: %d per mille; without a group: %d", limited, free)
	if limited > 90 || free < 2*limited {
		t.Errorf("0.05 CPUs: %d per mille; without a group: %d", limited, free)
	}
	if u := g.Usage(); !u.Knows(Throttled) || u.Throttled == 0 {
		t.Errorf("usage: %+v", u)
	}
}

// TestSmallCPULimit: less than the kernel's least quota of its usual period.
func TestSmallCPULimit(t *testing.T) {
	h := probe(t)
	need(t, "cpu", h.CPU)
	g := group(t, h, Limits{CPUs: 0.004})
	if h.CPU.By == two {
		if got := read(t, g, "cpu.max"); got != "4000 1000000" {
			t.Errorf("cpu.max is %q", got)
		}
	} else if got := read(t, g, "cpu.cfs_quota_us"); got != "4000" {
		t.Errorf("cpu.cfs_quota_us is %q", got)
	}
}

func TestUsage(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, Limits{})
	w := start(t, g, "use", "50")
	w.line(t)
	w.in.Close()
	w.signal()
	u := g.Usage()
	for f, controller := range map[Field]string{PeakMemory: memory, CurrentMemory: memory, OOMKills: memory, PidsMaxHits: pids, Throttled: cpu} {
		has := false
		for _, d := range g.dirs {
			// In cgroup2 a figure may come with another group's limit.
			has = has || d.h.id != 0 && d.h.has(controller) || d.h.id == 0 && holder(h.state.all, controller) == d.h
		}
		if u.Knows(f) && !has {
			t.Errorf("a figure of %s is known without the controller: %+v", controller, u)
		}
	}
	if h.Kill.By == two && (!u.Knows(UserTime|SystemTime) || u.User+u.System < 30*time.Millisecond) {
		t.Errorf("usage: %+v", u)
	}
	t.Logf("%+v", u)
}

func TestWrongArguments(t *testing.T) {
	h := probe(t)
	for _, l := range []Limits{{MemoryBytes: -1}, {MemoryBytes: 100}, {Pids: -1}, {CPUs: -1}, {CPUs: 0.0001}, {CPUs: 1e9}} {
		if g, err := New(h, newID(), l); err == nil {
			t.Errorf("%+v is taken", l)
			end(t, g)
		}
	}
	for _, id := range []string{"", "short", "../../../../../etc", "0123456789abcdef/x", strings.Repeat("x", 65), "0123456789abcde\n"} {
		if g, err := New(h, id, Limits{}); err == nil {
			t.Errorf("id %q is taken", id)
			end(t, g)
		}
	}
}

// TestHalfMade: what was made before a step fails is gone.
func TestHalfMade(t *testing.T) {
	h := probe(t)
	need(t, "pids", h.Pids)
	before := leftovers(h)
	_, err := New(h, newID(), Limits{MemoryBytes: ifCan(h.Memory, 64<<20), Pids: 5_000_000}) // more than PID_MAX_LIMIT
	var e *Error
	if !errors.As(err, &e) || e.Limit != "pids" || e.File != "pids.max" || !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %#v (%v)", err, err)
	}
	if after := leftovers(h); !slices.Equal(after, before) {
		t.Errorf("left: %q, before: %q", after, before)
	}
	// A group of the same name is not touched.
	id := newID()
	g, err := New(h, id, Limits{Pids: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, g) })
	if _, err := New(h, id, Limits{Pids: 20}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second group of the name: %v", err)
	}
	if got := read(t, g, "pids.max"); !strings.HasPrefix(got, "1") {
		t.Errorf("the first one's limit is %s", got)
	}
	// One directory of it is there already, in the hierarchy that comes last.
	last := holder(h.state.all, pids)
	if last.id == 0 {
		return
	}
	id = newID()
	if err := unix.Mkdirat(last.dir, groupPrefix+id, 0o755); err != nil {
		t.Fatal(err)
	}
	defer unix.Unlinkat(last.dir, groupPrefix+id, unix.AT_REMOVEDIR)
	if _, err := New(h, id, Limits{Pids: 20}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a group of the name: %v", err)
	}
	if now := leftovers(h); len(now) != len(before)+len(g.dirs)+1 { // the first group's, and this one
		t.Errorf("there are %q", now)
	}
}

func ifCan(a Ability, n int64) int64 {
	if a.Can() {
		return n
	}
	return 0
}

// TestLowerLimitAbove: cgroup1 refuses a group more CPU time than the caller
// has; the caller's limit holds then, and that is told.
func TestLowerLimitAbove(t *testing.T) {
	needRoot(t)
	h := probe(t)
	need(t, "cpu", h.CPU)
	if h.CPU.By != one {
		t.Skip("cpu: cgroup2 takes any limit, and the lowest holds (cgroup-v2.rst)")
	}
	outer := group(t, h, Limits{CPUs: 0.5})
	inner := *holder(h.state.all, cpu)
	inner.dir = -1
	for _, d := range outer.dirs {
		if d.h.has(cpu) {
			inner.dir = d.fd
		}
	}
	below := h
	below.state = &state{all: []*hierarchy{&inner}}
	below.tree = &inner
	g, err := New(below, newID(), Limits{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, g)
	if len(g.Gaps()) != 1 || !strings.Contains(g.Gaps()[0], "caller's own limit") {
		t.Errorf("gaps: %q", g.Gaps())
	}
}
