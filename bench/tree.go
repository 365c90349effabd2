//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/cgroup"
	"sandboxd/policy"
)

// groups measures library launches with limits against bare os/exec: those of
// cgroup2 from the worker's birth, those of cgroup1 with the thread that starts it.
func (b *bench) groups() error {
	host := cgroup.Probe()
	defer host.Close()
	for _, limits := range []struct {
		name string
		can  cgroup.Ability
		set  policy.Limits
	}{
		{"no limits", host.Kill, policy.Limits{}},
		{"--pids", host.Pids, policy.Limits{Pids: 100}},
		{"--memory", host.Memory, policy.Limits{Memory: 256 << 20}},
		{"--memory --pids --cpus", host.CPU, policy.Limits{Memory: 256 << 20, Pids: 100, CPUs: 1}},
	} {
		if !limits.can.Can() {
			fmt.Printf("SKIP launch, %s: %s\n", limits.name, limits.can.Why)
			continue
		}
		med, err := b.limited(limits.set)
		if err != nil {
			return fmt.Errorf("%s: %w", limits.name, err)
		}
		say(fmt.Sprintf("launch, %s (%s)", limits.name, limits.can.By), med[0], med[1], "os/exec", 1.6)
	}
	return nil
}

func (b *bench) limited(l policy.Limits) ([]time.Duration, error) {
	ws := b.dir("groups")
	p, err := b.policy(ws)
	if err != nil {
		return nil, err
	}
	spec := p.Spec()
	spec.Limits = l
	if p, err = policy.New(spec); err != nil {
		return nil, err
	}
	plan, err := landlock.New(landlock.Options{}).Plan(p)
	if err != nil {
		return nil, err
	}
	prepared, err := plan.Prepare()
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	dir, err := os.Open(ws)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return rounds(b.n, func() error { return b.launch(prepared, dir) }, func() error {
		c := exec.Command("/bin/true")
		c.Dir, c.Env, c.Stdin, c.Stdout, c.Stderr = ws, []string{}, b.null, b.null, b.null
		return c.Run()
	})
}

// tree measures how long the launcher takes to end a thousand processes, each in
// a session of its own, and a fork bomb that has reached its limit.
func (b *bench) tree() error {
	ws := b.dir("tree")
	const processes = 1000
	script := fmt.Sprintf(`import os, time
for i in range(%d):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
time.sleep(0.2)
open("ended", "w").write(repr(time.clock_gettime(time.CLOCK_MONOTONIC)))
os._exit(0)`, processes)
	if _, err := exec.LookPath("python3"); err != nil {
		fmt.Println("SKIP tree: no python3")
		return nil
	}
	var least, most time.Duration
	for i := range 5 {
		if err := b.sbxIn(ws, "run", "-q", "--", "python3", "-c", script); err != nil {
			return err
		}
		took, err := since(filepath.Join(ws, "ended"))
		if err != nil {
			return err
		}
		if least, most = min(least, took), max(most, took); i == 0 {
			least = took
		}
	}
	fmt.Printf("%d setsid'ed processes are gone, and sbx with them, after %v to %v (at most 250ms)\n", processes, least.Round(time.Millisecond), most.Round(time.Millisecond))
	return b.bomb(ws)
}

// bomb forks without end under --pids and --timeout.
func (b *bench) bomb(ws string) error {
	host := cgroup.Probe()
	defer host.Close()
	if !host.Pids.Can() {
		fmt.Printf("SKIP bomb: %s\n", host.Pids.Why)
		return nil
	}
	const timeout = 2 * time.Second
	began := time.Now()
	slowest := make(chan time.Duration)
	stop := make(chan struct{})
	go func() { // the machine stays usable: another program starts all the time
		var worst time.Duration
		for {
			select {
			case <-stop:
				slowest <- worst
				return
			default:
				start := time.Now()
				_ = exec.Command("/bin/true").Run()
				worst = max(worst, time.Since(start))
				time.Sleep(20 * time.Millisecond)
			}
		}
	}()
	err := b.sbxIn(ws, "run", "-q", "--pids", "64", "--timeout", "2", "--grace", "0", "--", "sh", "-c", "bomb() { bomb | bomb & }; bomb; while :; do (sleep 9 &); done 2>/dev/null")
	took := time.Since(began)
	close(stop)
	worst := <-slowest
	if status := exitStatus(err); status != backend.StatusTimedOut {
		return fmt.Errorf("the bomb ended with status %d: %v", status, err)
	}
	fmt.Printf("a fork bomb under --pids 64 ends %v after its timeout (at most 1s); meanwhile /bin/true took %v at worst\n", (took - timeout).Round(time.Millisecond), worst.Round(time.Millisecond))
	return nil
}

func (b *bench) sbxIn(ws string, args ...string) error {
	c := exec.Command(b.sbx, args...)
	c.Dir = ws
	return c.Run()
}

func exitStatus(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return -1
}

// since is the time since the moment that a process has written to a file.
func since(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	then, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return 0, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()) - time.Duration(then*1e9), nil
}
