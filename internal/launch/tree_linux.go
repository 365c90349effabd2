package launch

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sweepTime bounds how long orphans are hunted. A tree that forks faster than
// the sweep for all that time is reported as surviving, never assumed away.
const sweepTime = 2 * time.Second

// tree is what one worker leaves to this process, which as a subreaper inherits
// its orphans.
type tree struct {
	// foreign are children that this process had before the worker: a shell
	// that execs a launcher leaves it its background jobs. They and what they
	// start are not the worker's.
	foreign map[int]bool
	filters int // of this process, where there are foreign children
	root    int

	mu    sync.Mutex // held while orphans are reaped
	used  usage      // of the orphans
	timer *time.Timer
	ended bool
}

func newTree() *tree {
	t := &tree{}
	for _, pid := range workers() {
		if t.foreign == nil {
			t.foreign, t.filters = map[int]bool{}, filtersOf("self")
		}
		t.foreign[pid] = true
	}
	return t
}

// reapEvery bounds how long an orphan that has ended stays a zombie, which
// counts against RLIMIT_NPROC, while the worker lives.
const reapEvery = 200 * time.Millisecond

// watch reaps orphans that end before the worker does. A timer and no
// goroutine: most workers end before it first fires.
func (t *tree) watch(root int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.root = root
	t.timer = time.AfterFunc(reapEvery, t.reapOrphans)
}

func (t *tree) reapOrphans() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	for _, pid := range workers() {
		if pid != t.root && !t.foreign[pid] {
			t.reap(pid)
		}
	}
	t.timer.Reset(reapEvery)
}

// end kills what is left of the tree, again and again until nothing is left:
// each death hands its own children on to us. It returns those that are left
// when the time is up.
func (t *tree) end() []int {
	if t.timer != nil { // a launch that failed before it was watched has none
		t.timer.Stop()
	}
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	deadline := time.Now().Add(sweepTime)
	for pause := time.Duration(0); ; pause = min(pause+100*time.Microsecond, 5*time.Millisecond) {
		left := t.ours()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		for _, pid := range left {
			// Not yet reaped children keep their pid, so it cannot be another's.
			_ = unix.Kill(pid, unix.SIGKILL)
			t.reap(pid)
		}
		time.Sleep(pause)
	}
}

// killAll kills what is there now of the tree, but for its root.
func (t *tree) killAll() {
	t.mu.Lock() // nobody reaps meanwhile, so that no pid becomes another's
	defer t.mu.Unlock()
	for _, pid := range t.ours() {
		if pid != t.root {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// unknown are the children of which nothing tells whether they were the worker's, and
// what these have started: one may be about to end, and its own are orphans then. They
// are left alone.
func (t *tree) unknown() []int {
	pids := slices.DeleteFunc(workers(), func(pid int) bool { return t.foreign[pid] || !t.descendsFromForeign(pid) })
	for i := 0; i < len(pids) && len(pids) < maxUnknown; i++ {
		pids = append(pids, childrenOf(strconv.Itoa(pids[i]))...)
	}
	return pids
}

// maxUnknown is about how many are named.
const maxUnknown = 1000

// ours are the children that belong to the worker.
func (t *tree) ours() []int {
	var pids []int
	for _, pid := range workers() {
		if !t.foreign[pid] && !t.descendsFromForeign(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descendsFromForeign tells an orphan of a foreign child from a worker's: only
// a confined worker's has more seccomp filters than this process, and it cannot
// lose one; an unconfined one's is told from nobody's. Without foreign children
// every orphan is the worker's.
func (t *tree) descendsFromForeign(pid int) bool {
	return len(t.foreign) > 0 && filtersOf(strconv.Itoa(pid)) == t.filters
}

// filtersOf counts a process' seccomp filters (Seccomp_filters in
// /proc/PID/status, Linux 5.9); -1 where it cannot be read, as of a zombie.
func filtersOf(pid string) int {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return -1
	}
	_, rest, ok := bytes.Cut(status, []byte("\nSeccomp_filters:"))
	if !ok {
		return -1
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.Atoi(string(bytes.TrimSpace(line)))
	if err != nil {
		return -1
	}
	return n
}

// reap collects a child if it has ended.
func (t *tree) reap(pid int) {
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, &ru)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && got == pid && !ws.Stopped(): // it stops if it has made us its tracer
			t.used.add(&ru)
		case err == nil && got == 0:
			reapThreads(pid, nil)
		}
		return
	}
}

// helpers are children of this process that are its own, and no worker's.
var helpers = struct {
	sync.Mutex
	pids map[int]bool
	// roots are the workers' in PID namespaces of their own that nobody has waited for.
	roots map[int]bool
}{pids: map[int]bool{}, roots: map[int]bool{}}

// StartHelper starts a process beside the workers, so that none of their trees
// takes it for its own.
func StartHelper(start func() (pid int, err error)) error {
	helpers.Lock()
	defer helpers.Unlock()
	pid, err := start()
	if err == nil {
		helpers.pids[pid] = true
	}
	return err
}

// HelperEnded is called when a helper was waited for.
func HelperEnded(pid int) {
	helpers.Lock()
	defer helpers.Unlock()
	delete(helpers.pids, pid)
}

// collectStrays waits for what has ended of the children of this process that are in a PID
// namespace below its own, but for the workers' roots: a worker has made them, and
// nobody else asks for them.
func collectStrays() {
	depth := depthOf("self")
	helpers.Lock()
	defer helpers.Unlock()
	for _, pid := range children() {
		if !helpers.pids[pid] && !helpers.roots[pid] && depthOf(strconv.Itoa(pid)) > depth {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// depthOf counts the PID namespaces in which a process has a number (NSpid in
// /proc/PID/status, Linux 4.1).
func depthOf(pid string) int {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return len(bytes.Fields(line))
}

// OwnTasks lists what a worker must not slow down: the threads of this process, its
// helpers', and its parent's, which is a launcher's keeper, or its caller.
func OwnTasks() (tids []int) {
	helpers.Lock()
	pids := append([]int{os.Getpid(), os.Getppid()}, slices.Collect(maps.Keys(helpers.pids))...)
	helpers.Unlock()
	for _, pid := range pids {
		tasks, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task") // 0, or hidden: none
		for _, task := range tasks {
			if tid, err := strconv.Atoi(task.Name()); err == nil {
				tids = append(tids, tid)
			}
		}
	}
	return tids
}

// workers lists this process' children but for its helpers.
func workers() []int {
	helpers.Lock()
	defer helpers.Unlock()
	return slices.DeleteFunc(children(), func(pid int) bool { return helpers.pids[pid] })
}

// children lists this process' children. ECHILD from waitid answers the usual
// case, none, with one call; else /proc/self/task/*/children names them.
func children() []int {
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == unix.ECHILD {
		return nil
	}
	if pids, ok := childrenByTask("self"); ok {
		return pids
	}
	return childrenByScan(os.Getpid())
}

// childrenOf lists a process' children.
func childrenOf(pid string) []int {
	if pids, ok := childrenByTask(pid); ok {
		return pids
	}
	n, _ := strconv.Atoi(pid)
	return childrenByScan(n)
}

// childrenByTask reads /proc/PID/task/TID/children; false on a kernel without
// CONFIG_PROC_CHILDREN.
func childrenByTask(pid string) (pids []int, ok bool) {
	tasks, err := os.ReadDir("/proc/" + pid + "/task")
	if err != nil {
		return nil, os.IsNotExist(err) && pid != "self" // it is gone
	}
	for _, t := range tasks {
		list, err := os.ReadFile("/proc/" + pid + "/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		ok = true
		for _, field := range bytes.Fields(list) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, ok
}

// childrenByScan reads every /proc/PID/stat for its parent.
func childrenByScan(parent int) []int {
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
		if statField(stat, 1) == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}
