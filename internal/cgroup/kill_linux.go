package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// killTime bounds how long Kill waits for there to be fewer processes. A task in
// an uninterruptible wait does not end sooner for being told again.
const killTime = 5 * time.Second

// leaveTime bounds the wait for the launch thread, which stays for a fork.
const leaveTime = time.Second

// Kill ends every process of the group and of those below it, and waits until
// none is left; the error says what is. It waits for a launch thread to leave, as
// what that forks would come after. After it the group serves Usage and Remove.
//
// In cgroup2 it is cgroup.kill, which no fork escapes (Linux 5.14). Before, and
// in cgroup1, the group is frozen, so that it cannot fork, and its processes
// are told one by one.
func (g *Group) Kill() error {
	if len(g.dirs) == 0 { // removed, and so empty
		return nil
	}
	for end := time.Now().Add(leaveTime); g.threadInside() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if empty, _ := g.Empty(); empty {
		return nil
	}
	for before := math.MaxInt; ; {
		err := g.killOnce()
		now := len(g.Procs())
		if err == nil || now == 0 || now >= before {
			return err
		}
		before = now
	}
}

func (g *Group) killOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	if g.kill < 0 {
		return g.sweep(ctx)
	}
	if err := write(g.kill, []byte("1")); err != nil {
		return &Error{Limit: kill, Op: "write", File: "cgroup.kill", Err: err}
	}
	return g.WaitEmpty(ctx)
}

// sweep kills what is in the group, again and again until nothing is: first as
// it runs, as most trees do not fight; then frozen, so that it cannot fork.
func (g *Group) sweep(ctx context.Context) error {
	freeze := func(on bool) {}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		freeze(true)
		list, err := g.procs()
		for some := range slices.Chunk(list, batch) {
			err = errors.Join(err, g.signal(some, unix.SIGKILL))
		}
		// In cgroup1 a task dies only once it is thawed. In cgroup2 a frozen one
		// can be killed (cgroup-v2.rst), and none must be let go before.
		if g.tree.h.id != 0 {
			freeze(false)
		}
		time.Sleep(pause)
		switch empty, _ := g.Empty(); {
		case empty:
			freeze(false)
			return nil
		case ctx.Err() != nil:
			freeze(false)
			return errors.Join(err, g.WaitEmpty(ctx))
		case pause == time.Millisecond:
			freeze = g.freezer()
		}
	}
}

// freezer returns what freezes and thaws the group. It waits a short while for
// the freeze: some waits of a task do not end for it, and a fork that is missed
// is found the next time. With nothing to freeze by, the group is at least kept
// from forking, if it can be.
func (g *Group) freezer() func(on bool) {
	file, thawed, frozen, report, sign := "cgroup.freeze", "0", "1", "cgroup.events", "frozen 1"
	if g.tree.h.id != 0 {
		// A launch thread inside would be frozen, too, and with it, sooner or
		// later, this process: the collector waits for every thread that runs.
		if !g.tree.h.has("freezer") || g.threadInside() {
			u := g.Usage()
			g.last = &u // the forks that fail from here on are not the limit's
			for _, d := range g.dirs {
				if d.h.has(pids) {
					_ = writeAt(d.fd, "pids.max", "0")
				}
			}
			return func(bool) {}
		}
		file, thawed, frozen, report, sign = "freezer.state", "THAWED", "FROZEN", "freezer.state", "FROZEN"
	}
	return func(on bool) {
		if !on {
			_ = writeAt(g.tree.fd, file, thawed)
			return
		}
		// Failure leaves what is without a freezer, too: the sweep.
		if writeAt(g.tree.fd, file, frozen) != nil {
			return
		}
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
			if text, _ := readBounded(g.tree.fd, report, 4096); bytes.Contains(text, []byte(sign)) {
				return
			}
		}
	}
}

func (g *Group) threadInside() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside || g.stuck
}

// batch bounds the descriptors that the sweep has open.
const batch = 128

// signal sends a signal to those of the processes that are in the group. Each
// is first held by a handle (pidfd_open(2)), then looked for in the group: a
// number that is there while the handle holds its process is that process; if
// that has ended, the signal goes nowhere. It never goes to a stranger that got
// the number.
func (g *Group) signal(list []int, sig unix.Signal) (failed error) {
	handles := map[int]int{}
	for _, pid := range list {
		fd, err := unix.PidfdOpen(pid, 0)
		switch err {
		case nil:
			defer unix.Close(fd)
			handles[pid] = fd
		case unix.ESRCH, unix.EINVAL: // it has ended; or 0, of another pid namespace
		default:
			failed = &Error{Limit: kill, Op: "open", File: fmt.Sprint("process ", pid), Err: err}
		}
	}
	inside, err := g.procs()
	if err != nil {
		return err
	}
	for _, pid := range inside {
		if fd, ok := handles[pid]; ok {
			if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
				failed = &Error{Limit: kill, Op: "signal", File: fmt.Sprint("process ", pid), Err: err}
			}
		}
	}
	return failed
}

// maxProcs bounds a list of processes: some 500,000.
const maxProcs = 4 << 20

// Procs are the processes of the group and of those below it, as far as they
// can be read, but never this process, whose launch thread may be inside. 0 is
// a process of another pid namespace.
func (g *Group) Procs() []int {
	list, _ := g.procs()
	return list
}

func (g *Group) procs() ([]int, error) {
	list, err := procsBelow(g.tree.fd, 0)
	if err != nil {
		err = &Error{Limit: kill, Op: "read", File: "cgroup.procs", Err: err}
	}
	return slices.DeleteFunc(list, func(pid int) bool { return pid == os.Getpid() }), err
}

func procsBelow(dir, depth int) ([]int, error) {
	text, err := readBounded(dir, "cgroup.procs", maxProcs)
	list := numbers(text)
	if err != nil || depth > maxDepth {
		return list, err
	}
	names, err := children(dir)
	for _, name := range names {
		fd, e := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if e == nil {
			var more []int
			more, e = procsBelow(fd, depth+1)
			list = append(list, more...)
			unix.Close(fd)
		}
		if e != nil && e != unix.ENOENT && e != unix.ENODEV { // it has gone meanwhile
			err = e
		}
	}
	return list, err
}

// Empty tells that no process is left in the group or below it. A zombie is not
// in it.
func (g *Group) Empty() (bool, error) {
	if g.tree.h.id != 0 {
		list, err := g.procs()
		return err == nil && len(list) == 0, err
	}
	text, err := readBounded(g.tree.fd, "cgroup.events", 4096)
	if err != nil {
		return false, &Error{Limit: kill, Op: "read", File: "cgroup.events", Err: err}
	}
	populated, ok := value(text, "populated")
	return ok && populated == 0, nil
}

// WaitEmpty waits until no process is left in the group or below it.
func (g *Group) WaitEmpty(ctx context.Context) error {
	// Most waits are short, and the kernel tells changes of populated at most
	// every 10 ms (cgroup_file_notify): look often before listening.
	const often, seldom = 5 * time.Millisecond, 20 * time.Millisecond
	events := -1
	defer closeAll(&events)
	for pause := 50 * time.Microsecond; ; {
		empty, err := g.Empty()
		switch {
		case empty || err != nil:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("processes are left in the group, %s: %w", pidList(g.Procs()), ctx.Err())
		case pause < often:
			time.Sleep(pause)
			pause *= 2
		case g.tree.h.id != 0:
			time.Sleep(seldom)
		default:
			if err := g.listen(&events, seldom); err != nil {
				return err
			}
		}
	}
}

// listen waits for a change of cgroup.events, which is POLLPRI for who has read
// it (cgroup-v2.rst).
func (g *Group) listen(events *int, most time.Duration) (err error) {
	if *events < 0 {
		if *events, err = openAt(g.tree.fd, "cgroup.events", unix.O_RDONLY); err != nil {
			return &Error{Limit: kill, Op: "open", File: "cgroup.events", Err: err}
		}
	}
	var buf [256]byte
	n, _ := unix.Pread(*events, buf[:], 0)
	if populated, ok := value(buf[:max(n, 0)], "populated"); ok && populated == 0 {
		return nil
	}
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(*events), Events: unix.POLLPRI}}, int(most/time.Millisecond))
	return nil
}
