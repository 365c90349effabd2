package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// grace is for what is on its way out when a job's first process ends. An
	// emulated machine is ten times slower than its host.
	grace    = 500 * time.Millisecond
	killTime = 10 * time.Second // for a killed process to go
	tick     = 10 * time.Millisecond
)

// reapUntil reaps what ends until one process does, and returns how. Orphans are
// the init's to reap, and jobs wait to see that done. So nothing else may wait
// for a child meanwhile.
func reapUntil(pid int) (ws unix.WaitStatus, err error) {
	for {
		switch got, err := unix.Wait4(-1, &ws, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return ws, fmt.Errorf("wait4: %w", err)
		case got == pid:
			return ws, nil
		}
	}
}

// reap reaps what has ended.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != unix.EINTR && (err != nil || pid == 0) {
			return
		}
	}
}

// sweep ends all processes but this one and the kernel's, and names those that
// did not end by themselves.
func sweep() error {
	if os.Getpid() != 1 {
		return errors.New("only an init may end everything")
	}
	left, err := waitForNone(grace)
	if len(left) == 0 {
		return err
	}
	names := list(left)
	// All at once, so that none can fork its way out; this process is spared (kill(2)).
	for end := time.Now().Add(killTime); len(left) > 0; left, err = waitForNone(tick) {
		if time.Now().After(end) {
			return fmt.Errorf("%s; could not be killed: %s", names, list(left))
		}
		_ = unix.Kill(-1, unix.SIGKILL)
	}
	return errors.Join(errors.New(names), err)
}

// list is a list for people.
func list(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// waitForNone returns the processes that are there after a time, or none sooner.
func waitForNone(d time.Duration) (left []string, err error) {
	for end := time.Now().Add(d); ; time.Sleep(tick) {
		reap()
		left, err = processes()
		if err != nil || len(left) == 0 || time.Now().After(end) {
			return left, err
		}
	}
}

// processes names the processes of user space but this one.
func processes() (names []string, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it is gone
		}
		p, err := parseStat(string(stat))
		if err != nil {
			return nil, err
		}
		if !p.kernel {
			names = append(names, fmt.Sprintf("%d (%s)", pid, p.name))
		}
	}
	return names, nil
}

type process struct {
	name   string
	kernel bool // it is a kernel thread
}

// parseStat reads /proc/PID/stat, "PID (NAME) STATE PPID PGRP SESSION TTY TPGID
// FLAGS ...", where a name may contain anything.
func parseStat(stat string) (process, error) {
	const kthread = 0x00200000 // PF_KTHREAD
	open, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
	if open < 0 || end < open {
		return process{}, fmt.Errorf("unknown process status %q", stat)
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 7 {
		return process{}, fmt.Errorf("unknown process status %q", stat)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("unknown process status %q", stat)
	}
	return process{stat[open+1 : end], flags&kthread != 0}, nil
}
