package launch

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// sweepTime bounds how long orphans are hunted. A tree that forks faster than
// the sweep for all that time is reported as surviving, never assumed away.
const sweepTime = 2 * time.Second

// endOrphans kills every child of this process, which as a subreaper inherits
// all orphans, again and again until none is left: each death hands its own
// children on to us. It returns those that are left when the time is up.
func endOrphans() []int {
	deadline := time.Now().Add(sweepTime)
	for pause := time.Duration(0); ; pause = min(pause+100*time.Microsecond, 5*time.Millisecond) {
		left := children()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		for _, pid := range left {
			// Not yet reaped children keep their pid, so it cannot be another's.
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		reap()
		time.Sleep(pause)
	}
}

// reap collects every child that has ended.
func reap() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

// children lists this process' children. ECHILD from waitid answers the usual
// case, none, with one call; else /proc/self/task/*/children names them.
func children() []int {
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == unix.ECHILD {
		return nil
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return childrenByScan()
	}
	var pids []int
	found := false
	for _, t := range tasks {
		list, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		found = true
		for _, field := range bytes.Fields(list) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if !found { // a kernel without CONFIG_PROC_CHILDREN
		return childrenByScan()
	}
	return pids
}

// childrenByScan reads every /proc/PID/stat for its parent.
func childrenByScan() []int {
	self := os.Getpid()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (comm) state ppid: comm may hold anything, so cut after the last ")".
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(self) {
			pids = append(pids, pid)
		}
	}
	return pids
}
