package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// everything are limits for all that the host can hold.
func everything(h Host) Limits {
	l := Limits{MemoryBytes: ifCan(h.Memory, 256<<20), Pids: int(ifCan(h.Pids, 100))}
	if h.CPU.Can() {
		l.CPUs = 1
	}
	return l
}

// TestOnlyTheChildIsInside: of the launcher no thread but the one that forks is
// ever inside, and that only for the fork.
func TestOnlyTheChildIsInside(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, everything(h))
	inside := func() (list []string) {
		tasks, _ := filepath.Glob("/proc/self/task/*/cgroup")
		for _, f := range tasks {
			if text, _ := os.ReadFile(f); strings.Contains(string(text), g.Name()) {
				list = append(list, filepath.Base(filepath.Dir(f)))
			}
		}
		return list
	}
	for range 20 { // threads, for something to go wrong with
		go func() {
			runtime.LockOSThread()
			time.Sleep(time.Second)
		}()
	}
	var during []string
	var tid string
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid = fmt.Sprint(unix.Gettid())
		err := g.Enter()
		during = inside()
		if left := g.Leave(); err == nil {
			err = left
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want := []string{tid}
	if !g.NeedsEnter() {
		want = nil
	}
	if !slices.Equal(during, want) {
		t.Errorf("threads inside are %v, want %v", during, want)
	}
	w := start(t, g, "sleep")
	w.ready(t)
	if after := inside(); after != nil {
		t.Errorf("threads inside are %v after the launch", after)
	}
	if got := g.Procs(); !slices.Equal(got, []int{w.Process.Pid}) {
		t.Errorf("processes inside are %v, want %d", got, w.Process.Pid)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range parseSelf(text) {
		in := slices.ContainsFunc(g.dirs, func(d *dir) bool { return d.h.id == m.id })
		if in != strings.HasSuffix(m.path, "/"+g.Name()) {
			t.Errorf("the worker is in %s %s", m.name(), m.path)
		}
	}
}

// TestDroppedCredentials: a launch thread that has become another user, without
// capabilities, still puts itself into cgroup1; into cgroup2 it cannot fork.
func TestDroppedCredentials(t *testing.T) {
	needRoot(t)
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, everything(h))
	exe := publicCopy(t)
	type result struct {
		pid   int
		err   error
		clone error
	}
	done := make(chan result)
	hold := make(chan bool)
	sys.OnOwnThread(func() {
		var r result
		r.err = sys.SetIDs(1000, 1000, nil)
		if r.err == nil {
			r.err = sys.DropCapabilities()
		}
		attr := &syscall.ProcAttr{Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{}}
		argv := []string{exe, workerArg, "linger", "30000"} // until it is killed below
		if r.err == nil {
			r.err = g.Enter()
		}
		if r.err == nil {
			r.pid, r.err = syscall.ForkExec(exe, argv, attr)
			if left := g.Leave(); r.err == nil {
				r.err = left
			}
		}
		if fd := g.FD(); fd >= 0 {
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
			_, r.clone = syscall.ForkExec(exe, argv, attr)
		}
		done <- r
		<-hold
	})
	r := <-done
	defer close(hold)
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer func() {
		_ = unix.Kill(r.pid, unix.SIGKILL)
		var ws unix.WaitStatus
		_, _ = unix.Wait4(r.pid, &ws, 0, nil)
	}()
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if !strings.Contains(string(status), "\nUid:\t1000\t1000\t1000\t1000\n") {
		t.Errorf("the worker is not the other user: %s", status)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.pid))
	for _, m := range parseSelf(text) {
		in := slices.ContainsFunc(g.dirs, func(d *dir) bool { return d.h.id == m.id && d.tasks >= 0 })
		if in != strings.HasSuffix(m.path, "/"+g.Name()) {
			t.Errorf("the worker is in %s %s", m.name(), m.path)
		}
	}
	if g.FD() >= 0 && r.clone != syscall.EACCES {
		t.Errorf("CLONE_INTO_CGROUP as another user: %v; then the note at Group.FD is wrong", r.clone)
	}
}

// publicCopy is this test binary where every user can run it.
func publicCopy(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cgroup-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe := filepath.Join(dir, "cgroup.test")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return exe
}

// TestManyAtOnce: launchers side by side, many launches each.
func TestManyAtOnce(t *testing.T) {
	hosts := []Host{probe(t), probe(t)}
	need(t, "kill", hosts[0].Kill)
	l := everything(hosts[0])
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			g, err := New(hosts[i%len(hosts)], newID(), l)
			if err != nil {
				t.Error(err)
				return
			}
			w := command(t, "sleep")
			if err := w.startIn(g); err != nil {
				t.Error(err)
			} else if s, _ := w.out.ReadString('\n'); s != "ready\n" {
				t.Errorf("the worker says %q", s)
			} else if got := g.Procs(); !slices.Equal(got, []int{w.Process.Pid}) {
				t.Errorf("processes inside are %v, want %d", got, w.Process.Pid)
			}
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
			_ = w.Wait()
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestAdd: a process that is moved from outside is in all directories, with the
// limits.
func TestAdd(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, everything(h))
	w := start(t, nil, "sleep")
	w.ready(t)
	if err := g.Add(w.Process.Pid); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.Process.Pid))
	if n := strings.Count(string(text), "/"+g.Name()+"\n"); n != len(g.dirs) {
		t.Errorf("the worker is in %d of %d directories: %s", n, len(g.dirs), text)
	}
	if h.Pids.Can() && read(t, g, "pids.max") != "100" {
		t.Errorf("pids.max is %s", read(t, g, "pids.max"))
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if sig := w.signal(); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
}

// TestSecondEnter: a group serves one launch thread at a time.
func TestSecondEnter(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, Limits{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.Enter(); err != nil {
		t.Fatal(err)
	}
	if err := g.Enter(); err == nil {
		t.Error("entered twice")
	}
	if err := g.Leave(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkGroup reports medians. Each step waits first, as a launcher's does:
// in a tight loop the kernel's locks for moving others stay in their slow mode,
// which spares the wait for a grace period that every lone move pays.
func BenchmarkGroup(b *testing.B) {
	h := Probe()
	defer h.Close()
	if !h.Kill.Can() {
		b.Skip(h.Kill.Why)
	}
	l := everything(h)
	for _, bench := range []struct {
		name string
		Limits
	}{
		{"tree", Limits{}},
		{"memory", Limits{MemoryBytes: l.MemoryBytes}},
		{"memory+pids", Limits{MemoryBytes: l.MemoryBytes, Pids: l.Pids}},
		{"memory+pids+cpu", l},
	} {
		b.Run(bench.name, func(b *testing.B) {
			w := exec.Command("/proc/self/exe", workerArg, "sleep")
			if in, err := w.StdinPipe(); err != nil || w.Start() != nil {
				b.Fatal(err)
			} else {
				defer func() { in.Close(); _ = w.Wait() }()
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			steps := map[string][]time.Duration{}
			for b.Loop() {
				step := func(name string, f func() error) {
					time.Sleep(20 * time.Millisecond)
					begin := time.Now()
					if err := f(); err != nil {
						b.Fatal(err)
					}
					steps[name] = append(steps[name], time.Since(begin))
				}
				var g *Group
				step("make", func() (err error) { g, err = New(h, newID(), bench.Limits); return })
				step("enter", func() error { return errors.Join(g.Enter(), g.Leave()) })
				step("usage", func() error { g.Usage(); return nil })
				step("add", func() error { return g.Add(w.Process.Pid) })
				for _, d := range g.dirs { // and out again
					if err := writeAt(d.h.dir, "cgroup.procs", fmt.Sprint(w.Process.Pid)); err != nil {
						b.Fatal(err)
					}
				}
				step("remove", g.Remove)
			}
			for name, all := range steps {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, name+"-µs")
			}
		})
	}
}

// BenchmarkLaunch: a whole launch of a small program, bare and with groups.
func BenchmarkLaunch(b *testing.B) {
	h := Probe()
	defer h.Close()
	program, err := exec.LookPath("true")
	if err != nil || !h.Kill.Can() {
		b.Skip(err, h.Kill.Why)
	}
	for _, bench := range []struct {
		name string
		l    *Limits
	}{{"bare", nil}, {"tree", &Limits{}}, {"all", new(everything(h))}} {
		b.Run(bench.name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				time.Sleep(5 * time.Millisecond)
				begin := time.Now()
				w := &worker{Cmd: exec.Command(program)}
				w.SysProcAttr = &syscall.SysProcAttr{}
				var g *Group
				if bench.l != nil {
					if g, err = New(h, newID(), *bench.l); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.startInside(g); err != nil {
					b.Fatal(err)
				}
				if err := w.Wait(); err != nil {
					b.Fatal(err)
				}
				if g != nil {
					if err := g.Kill(); err != nil {
						b.Fatal(err)
					}
					g.Usage()
					if err := g.Remove(); err != nil {
						b.Fatal(err)
					}
				}
				all = append(all, time.Since(begin))
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "median-µs")
		})
	}
}

func BenchmarkProbe(b *testing.B) {
	var all []time.Duration
	for b.Loop() {
		begin := time.Now()
		h := Probe()
		all = append(all, time.Since(begin))
		h.Close()
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "median-µs")
}
