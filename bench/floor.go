//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/internal/launch"
	"sandboxd/internal/sys"
	"sandboxd/policy"
)

// floor measures the least that a confined launch takes by the kernel's calls alone,
// with what can be made before its request comes made before: a thread without rights,
// a ruleset of what the usual policy grants, and a filter; no directory, cgroup,
// supervisor or report. What is beyond it is ours.
func (b *bench) floor() error {
	ws := b.dir("floor")
	p, err := b.policy(ws)
	if err != nil {
		return err
	}
	ruleset, err := rulesetOf(p)
	if err != nil {
		return err
	}
	defer unix.Close(ruleset)
	dir, err := os.Open(ws)
	if err != nil {
		return err
	}
	defer dir.Close()
	filter := []sys.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	confine := func(t *launch.Thread) error {
		return t.Do(func() error {
			if err := ll.LandlockRestrictSelf(ruleset, 0); err != nil {
				return err
			}
			_, err := sys.InstallFilter(filter, false)
			return err
		})
	}
	ready := func(confined bool) (*launch.Thread, error) {
		t, err := launch.NewThread()
		if err == nil {
			err = t.Do(func() error { return launch.Become(nil) })
		}
		if err == nil && confined {
			err = confine(t)
		}
		return t, err
	}
	start := func(t *launch.Thread) error {
		w, err := t.Start(launch.Request{
			Path: "/bin/true", Argv: []string{"true"}, Dir: dir, Stdio: [3]*os.File{b.null, b.null, b.null}, Domain: &sys.Domain{Ruleset: ruleset},
		})
		if err != nil {
			return err
		}
		if o, _ := w.Wait(); o.ExitStatus() != 0 {
			return fmt.Errorf("it ended with %+v", o)
		}
		return nil
	}
	spawn := b.spawn(ws)
	var times [3][]time.Duration
	for i := range b.n + b.n/10 {
		for side := range times {
			var t *launch.Thread
			var err error
			if side > 0 { // before its request comes
				if t, err = ready(side == 2); err != nil {
					return err
				}
			}
			began := time.Now()
			switch side {
			case 0:
				err = spawn()
			case 1:
				err = errors.Join(confine(t), start(t))
			case 2:
				err = start(t)
			}
			if err != nil {
				return err
			}
			if i >= b.n/10 { // the first tenth warms up
				times[side] = append(times[side], time.Since(began))
			}
		}
	}
	runtime.KeepAlive(dir)
	for side, name := range []string{1: "floor, thread made before", 2: "floor, thread confined before"} {
		if side > 0 {
			say(name, median(times[side]), median(times[0]), "os/exec", 1)
		}
	}
	return nil
}

func rulesetOf(p policy.Policy) (int, error) {
	const all = ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg
	const file = ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile
	fd, err := sys.CreateRuleset(sys.RulesetAttr{HandledFS: all}, 8)
	if err != nil {
		return -1, err
	}
	for _, g := range p.Grants() {
		handle, err := sys.OpenRealFD(string(g.Path))
		if errors.Is(err, os.ErrNotExist) { // a cache that Prepare would make
			continue
		}
		if err != nil {
			return -1, err
		}
		rights := uint64(file)
		if g.Kind == policy.Tree {
			rights = all
		}
		err = ll.LandlockAddPathBeneathRule(fd, &ll.PathBeneathAttr{AllowedAccess: rights, ParentFd: handle}, 0)
		_ = unix.Close(handle)
		if err != nil {
			return -1, err
		}
	}
	return fd, nil
}
