package launch

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// lookEvery is how often is looked at what the kernel does not tell, and lookSoon after
// a worker was found that stood still.
const (
	lookEvery = 200 * time.Millisecond
	lookSoon  = 5 * time.Millisecond
)

// watch looks after a worker whose end nobody would be told of, because one of its
// own tracees or tracers keeps it from being reaped. A timer and no goroutine: most
// workers end before it first fires.
func (p *Process) watch() {
	p.ending.Lock()
	defer p.ending.Unlock()
	p.look = time.AfterFunc(lookEvery, p.lookAfter)
}

func (p *Process) lookAfter() {
	p.ending.Lock()
	defer p.ending.Unlock()
	if p.over {
		return
	}
	// A thread that has made its parent its tracer (PTRACE_TRACEME) is waited for
	// by nobody else when it ends, and its process is not over before.
	reapThreads(p.pid, func(tid, sig int) {
		p.onThread <- func() { sys.PtraceDetach(tid, sig) }
	})
	// A process that another one traces is shown to its parent when that has let
	// go of it (waitid(2) does not, a pidfd does): so its tracer must go.
	if p.pidfd >= 0 && p.ended() {
		p.endRest()
	}
	next := lookEvery
	if p.letGo() {
		next = lookSoon
	}
	p.look.Reset(next)
}

// letGo lets a worker go on that has made its parent its tracer and stands still, if
// nobody waits for that: see waitEnd.
func (p *Process) letGo() bool {
	if p.tree != nil {
		return false
	}
	info, err := sys.LookAtChild(p.pid)
	if err != nil || !info.Stopped() {
		return false
	}
	p.onThread <- func() { sys.PtraceDetach(p.pid, info.StopSignal()) }
	return true
}

// endRest ends all of the tree but the root, which has ended, and tells whether
// nothing of it can have escaped. It is called under the lock.
func (p *Process) endRest() (all bool) {
	all = p.bounds.kill()
	p.killScope()
	if p.stage != nil {
		p.stage.Kill()
		all = true
	}
	if p.tree != nil && p.stage == nil { // whatever the root starts is in its PID namespace
		p.tree.killAll()
	}
	return all || p.scoped
}

// reapThreads collects the threads of a process that has ended but for them, if
// this process traces them; those that stand still are told to stopped.
func reapThreads(pid int, stopped func(tid, sig int)) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil || stateOf(stat) != 'Z' {
		return
	}
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil || tid == pid {
			continue
		}
		var ws unix.WaitStatus
		got, err := unix.Wait4(tid, &ws, unix.WALL|unix.WNOHANG, nil) // ECHILD: it is not traced by us
		if err == nil && got == tid && ws.Stopped() && stopped != nil {
			stopped(tid, int(ws.StopSignal()))
		}
	}
}
