package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// way is one way of ending a tree: by what a host would have, and what is kept
// from a group.
type way struct {
	name string
	host Host
	less func(g *Group)
}

// ways are those that this host has, prepared for limits.
func ways(t *testing.T) []way {
	t.Helper()
	h := probe(t)
	need(t, "kill", h.Kill)
	nothing := func(*Group) {}
	var list []way
	if h.Kill.By == two {
		if group(t, h, Limits{}).kill >= 0 { // Linux 5.14
			list = append(list, way{"cgroup.kill", h, nothing})
		}
		list = append(list, way{"cgroup.freeze", h, func(g *Group) { closeAll(&g.kill) }})
	}
	add := func(name, has, not string) {
		less := only(t, h, func(o *hierarchy) bool { return o.id != 0 && !o.has(not) })
		if less.Kill.Can() && less.tree.has(has) {
			list = append(list, way{name, less, nothing})
		}
	}
	add("freezer", "freezer", "nothing")
	add("one by one, without forks", pids, "freezer")
	if h := only(t, h, func(o *hierarchy) bool { return o.has(memory) || o.has(cpu) }); h.Kill.Can() {
		list = append(list, way{"one by one", h, nothing})
	}
	for _, w := range list {
		t.Log("this host has: ", w.name)
	}
	return list
}

// TestKill ends hostile trees in every way, and no one else.
func TestKill(t *testing.T) {
	ways := ways(t)
	bystander := start(t, nil, "sleep")
	bystander.ready(t)
	for _, way := range ways {
		for _, tree := range []struct {
			name  string
			args  []string
			limit int // of tasks: for what the machine would not survive without
		}{
			{"in sessions of their own", []string{"tree", "60"}, 0},
			{"stopped", []string{"stopped", "60"}, 0},
			{"a fork bomb", []string{"bomb"}, 64},
			{"chains that outrun a sweep", []string{"chains", "40"}, 0},
		} {
			if tree.limit > 0 && !way.host.Pids.Can() {
				continue // nothing to bound it by
			}
			t.Run(way.name+"/"+tree.name, func(t *testing.T) {
				g := group(t, way.host, Limits{Pids: tree.limit})
				way.less(g)
				token := newID()
				w := start(t, g, append(tree.args, token)...)
				w.ready(t)
				time.Sleep(30 * time.Millisecond)
				if len(g.Procs()) == 0 {
					t.Fatal("nothing runs")
				}
				begin := time.Now()
				if err := g.Kill(); err != nil {
					t.Errorf("after %v: %v", time.Since(begin), err)
				}
				t.Logf("%v", time.Since(begin))
				_ = w.Wait()
				if left := alive(t, token); len(left) > 0 {
					t.Errorf("alive: %v", left)
				}
				if empty, err := g.Empty(); !empty || err != nil {
					t.Errorf("empty: %t, %v", empty, err)
				}
				if u := g.Usage(); tree.limit == 0 && u.PidsMaxHits != 0 {
					t.Errorf("the kill counts as a limit: %+v", u)
				}
				if err := g.Remove(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := bystander.Process.Signal(unix.Signal(0)); err != nil {
		t.Error("a process outside was hit:", err)
	}
}

// TestKillThousand: the time of a tree of 1,000 processes, each in a session of
// its own.
func TestKillThousand(t *testing.T) {
	for _, way := range ways(t) {
		t.Run(way.name, func(t *testing.T) {
			g := group(t, way.host, Limits{})
			way.less(g)
			token := newID()
			w := start(t, g, "tree", "1000", token)
			w.ready(t)
			if n := len(g.Procs()); n != 1001 {
				t.Errorf("%d processes are told, want 1001", n)
			}
			begin := time.Now()
			if err := g.Kill(); err != nil {
				for _, pid := range g.Procs() {
					status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
					wait, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
					stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stack", pid))
					t.Logf("%d waits in %q: %s %s", pid, wait, stack, status)
				}
				t.Fatal(err)
			}
			took := time.Since(begin)
			t.Logf("1,000 processes: %v", took)
			_ = w.Wait()
			if left := alive(t, token); len(left) > 0 {
				t.Errorf("alive: %d", len(left))
			}
			begin = time.Now()
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
			t.Logf("removed in %v", time.Since(begin))
		})
	}
}

// TestKillDuringLaunch: while the launch thread is inside, this process is
// listed in cgroup1. It must neither be killed nor frozen.
func TestKillDuringLaunch(t *testing.T) {
	for _, way := range ways(t) {
		if way.host.tree.id == 0 {
			continue // the thread is never in cgroup2
		}
		t.Run(way.name, func(t *testing.T) {
			g := group(t, way.host, Limits{})
			way.less(g)
			w := start(t, g, "tree", "10")
			w.ready(t)
			inside, leave, left := make(chan error), make(chan bool), make(chan error)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				inside <- g.Enter()
				<-leave
				left <- g.Leave()
			}()
			if err := <-inside; err != nil {
				t.Fatal(err)
			}
			runtime.GC() // would hang on a frozen thread
			time.AfterFunc(50*time.Millisecond, func() { close(leave) })
			begin := time.Now()
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
			if took := time.Since(begin); took < 50*time.Millisecond {
				t.Errorf("the kill did not wait for the launch: %v", took)
			}
			if err := <-left; err != nil {
				t.Error(err)
			}
			if got := g.Procs(); len(got) > 0 {
				t.Errorf("left: %v", got)
			}
		})
		t.Run(way.name+", thread stuck", func(t *testing.T) {
			g := group(t, way.host, Limits{})
			way.less(g)
			w := start(t, g, "chains", "40")
			w.ready(t)
			var leave atomic.Bool
			inside, left := make(chan error), make(chan error)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				inside <- g.Enter()
				for !leave.Load() { // running, so that a freeze would be felt
				}
				left <- g.Leave()
			}()
			if err := <-inside; err != nil {
				t.Fatal(err)
			}
			go func() { // which needs every thread that runs
				for !leave.Load() {
					runtime.GC()
				}
			}()
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
			if got := g.Procs(); len(got) > 0 {
				t.Errorf("left: %v", got)
			}
			leave.Store(true)
			if err := <-left; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSignalRechecks: a number that was listed, and is another process' by now,
// is not signalled.
func TestSignalRechecks(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g, other := group(t, h, Limits{}), group(t, h, Limits{})
	w, stranger := start(t, g, "sleep"), start(t, other, "sleep")
	w.ready(t)
	stranger.ready(t)
	if err := g.signal([]int{stranger.Process.Pid, 1, os.Getpid(), 0, w.Process.Pid, 1 << 22}, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if sig := w.signal(); sig != unix.SIGKILL {
		t.Errorf("the worker ended by %v", sig)
	}
	if got := other.Procs(); len(got) != 1 {
		t.Error("a process outside was hit")
	}
}

func TestWaitEmpty(t *testing.T) {
	for _, way := range ways(t) {
		t.Run(way.name, func(t *testing.T) {
			g := group(t, way.host, Limits{})
			way.less(g)
			if err := g.WaitEmpty(context.Background()); err != nil {
				t.Error("with nothing inside:", err)
			}
			w := start(t, g, "sleep")
			w.ready(t)
			if err := g.WaitEmpty(within(t, 30*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with a process inside: %v", err)
			}
			if empty, err := g.Empty(); empty || err != nil {
				t.Errorf("empty: %t, %v", empty, err)
			}
			time.AfterFunc(100*time.Millisecond, func() { w.in.Close() }) // which ends it
			if err := g.WaitEmpty(within(t, 20*time.Second)); err != nil {
				t.Error(err)
			}
			// A zombie is not in the group, so only now it need be waited for.
			_ = w.Wait()
		})
	}
}

// TestRemove: sub-groups go, and what is busy is named and stays.
func TestRemove(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, everything(h))
	for _, d := range g.dirs {
		at, err := unix.Dup(d.fd)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			for _, name := range []string{"a", "b", "odd name\t\\"} {
				if err := unix.Mkdirat(at, name, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			next, err := openAt(at, "odd name\t\\", unix.O_PATH|unix.O_DIRECTORY)
			unix.Close(at)
			if err != nil {
				t.Fatal(err)
			}
			at = next
		}
		unix.Close(at)
	}
	w := start(t, g, "sleep")
	w.ready(t)
	begin := time.Now()
	err := g.Remove()
	if !errors.Is(err, unix.EBUSY) {
		t.Errorf("with a process inside: %v", err)
	}
	if took := time.Since(begin); took > removeTime+2*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if err := g.Remove(); err != nil {
		t.Error("again:", err)
	}
}

// TestNoDescriptors: a launcher that has no descriptor left does not take what
// it cannot read for empty, and ends the tree all the same where the kernel
// does it.
func TestNoDescriptors(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	for _, way := range ways(t) {
		t.Run(way.name, func(t *testing.T) {
			g := group(t, way.host, Limits{})
			way.less(g)
			w := start(t, g, "sleep")
			w.ready(t)
			none := unix.Rlimit{Cur: 3, Max: before.Max}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
				t.Fatal(err)
			}
			empty, emptyErr := g.Empty()
			var killErr error
			if g.kill >= 0 {
				killErr = g.Kill()
			}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
				t.Fatal(err)
			}
			if empty || !errors.Is(emptyErr, unix.EMFILE) {
				t.Errorf("empty: %t, %v", empty, emptyErr)
			}
			if g.kill < 0 {
				return
			}
			if !errors.Is(killErr, unix.EMFILE) { // it cannot see that nothing is left
				t.Errorf("kill: %v", killErr)
			}
			if sig := w.signal(); sig != unix.SIGKILL {
				t.Errorf("ended by %v", sig)
			}
		})
	}
}

// TestNoDescriptorsLeft: a group's life costs no descriptor.
func TestNoDescriptorsLeft(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	l := everything(h)
	if err := h.Prepare(newID(), l); err != nil {
		t.Fatal(err)
	}
	var before int
	for i := range 20 {
		g, err := New(h, newID(), l)
		if err != nil {
			t.Fatal(err)
		}
		g.Usage()
		_ = g.WaitEmpty(context.Background())
		_, _ = New(h, g.name[len(groupPrefix):], l)
		_ = RemoveMarked(h, Mark{Boot: bootID(), Dirs: []MarkDir{{g.tree.h.name(), "/sbx-0123456789abcdef", 1}}})
		end(t, g)
		if i == 0 {
			before = count()
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}
