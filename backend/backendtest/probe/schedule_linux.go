package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	register(map[string]op{
		"setpriority":       {1, onPid(keepPriority), shared},
		"setpriority-group": {1, onPid(keepGroupPriority), shared},
		"sched-affinity":    {1, onPid(setAffinity), shared},
		"sched-scheduler":   {1, onPid(setScheduler), shared},
		"sched-param":       {1, onPid(setSchedParam), shared},
		"sched-attr":        {1, onPid(keepSchedAttr), shared},
		"ioprio":            {1, onPid(func(pid int) error { return setIOPriority(ioprioProcess, pid) }), shared},
		"ioprio-group":      {1, onPid(keepGroupIOPriority), shared},
		"schedule-threads":  {1, onPid(scheduleThreads), shared},
		"schedule-own":      {0, scheduleOwn, alone},
		"kill-threads":      {1, onPid(killThreads), shared},
		"memory-threads":    {1, onPid(memoryThreads), shared},
	})
}

// Each sets what is the case, or what most have: to change it for the better takes
// a capability, whoever's process it is.

// keepPriority sets the priority that the process has.
func keepPriority(pid int) error { return keepPriorityOf(unix.PRIO_PROCESS, pid) }

func keepGroupPriority(pid int) error {
	group, err := unix.Getpgid(pid)
	if err != nil {
		return err
	}
	return keepPriorityOf(unix.PRIO_PGRP, group)
}

func keepPriorityOf(which, who int) error {
	got, err := unix.Getpriority(which, who)
	if err != nil {
		return err
	}
	return unix.Setpriority(which, who, 20-got) // getpriority(2): 20 less the nice value
}

func setAffinity(pid int) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		return err
	}
	return unix.SchedSetaffinity(pid, &set)
}

func setScheduler(pid int) error {
	priority := int32(0)
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(pid), unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&priority)))
	return orNil(errno)
}

func setSchedParam(pid int) error {
	priority := int32(0)
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETPARAM, uintptr(pid), uintptr(unsafe.Pointer(&priority)), 0)
	return orNil(errno)
}

func keepSchedAttr(pid int) error {
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		return err
	}
	return unix.SchedSetAttr(pid, attr, 0)
}

const (
	ioprioProcess = 1 // ioprio_set(2)
	ioprioGroup   = 2
)

// setIOPriority sets the class "best effort" and its middle, which is the default.
func setIOPriority(which, who int) error {
	const bestEffort, middle = 2 << 13, 4
	_, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, uintptr(which), uintptr(who), bestEffort|middle)
	return orNil(errno)
}

func keepGroupIOPriority(pid int) error {
	group, err := unix.Getpgid(pid)
	if err != nil {
		return err
	}
	return setIOPriority(ioprioGroup, group)
}

var schedulers = []func(int) error{keepPriority, setAffinity, setScheduler, setSchedParam, keepSchedAttr,
	func(tid int) error { return setIOPriority(ioprioProcess, tid) }}

func scheduleThreads(pid int) error { return onThreads(pid, schedulers...) }

// killThreads sends no signal. The kernel takes a thread's number for its process',
// and then asks who the thread is (kill(2)).
func killThreads(pid int) error {
	return onThreads(pid,
		func(tid int) error { return unix.Kill(tid, 0) },
		func(tid int) error { return unix.Tgkill(pid, tid, 0) })
}

func memoryThreads(pid int) error {
	return onThreads(pid, func(tid int) error {
		fd, err := unix.Open("/proc/"+strconv.Itoa(tid)+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	})
}

// onThreads succeeds if one call on one thread of a process does.
func onThreads(pid int, calls ...func(tid int) error) error {
	tids, err := threadsOf(pid)
	if err != nil {
		return err
	}
	err = errors.New("it has no threads")
	for _, tid := range tids {
		for _, call := range calls {
			switch e := call(tid); {
			case e == nil:
				return nil
			case !errors.Is(e, unix.ESRCH) && !errors.Is(e, unix.ENOENT): // it has ended
				err = e
			}
		}
	}
	return err
}

func threadsOf(pid int) (tids []int, err error) {
	list, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, task := range list {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, err
}

// scheduleOwn makes each call on itself by 0, by its pid, its threads and a child.
func scheduleOwn([]string) (string, error) {
	cmd, _, err := child(nil)
	if err != nil {
		return "", err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for what, id := range map[string]int{"0": 0, "its pid": os.Getpid(), "its thread": unix.Gettid(), "its child": cmd.Process.Pid} {
		for i, call := range schedulers {
			if err := call(id); err != nil {
				return "", fmt.Errorf("call %d on %s: %w", i, what, err)
			}
		}
	}
	tids, err := threadsOf(os.Getpid())
	if err != nil {
		return "", err
	}
	// No thread of a Go program ends by itself.
	if i := slices.IndexFunc(tids, func(tid int) bool { return setAffinity(tid) != nil }); i >= 0 {
		return "", fmt.Errorf("processors of thread %d of %v: %w", tids[i], tids, setAffinity(tids[i]))
	}
	return "", nil
}
