package supervise

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// deputy is an OS thread that is to the kernel what the worker is. There is
// one, made in Start: a thread that is made while the worker runs may not be had
// (RLIMIT_NPROC, a pids cgroup), and Go's runtime ends the process then. So
// nothing that runs on it may wait for a peer.
type deputy struct {
	enter sys.DeputyCreds // set before the first job
	tid   int
	up    chan struct{} // closed when it has its thread
	jobs  chan func() error
	done  chan error
	ended chan struct{}
	watch *time.Timer
	is    bool // it has entered; its own to know
}

func startDeputy() *deputy {
	d := &deputy{
		up: make(chan struct{}), jobs: make(chan func() error),
		done: make(chan error, 1), ended: make(chan struct{}),
		watch: time.NewTimer(time.Hour),
	}
	d.watch.Stop()
	go d.run()
	return d
}

// run is a deputy's life. It never unlocks its thread, so the thread ends with
// it and nothing else ever runs with its credentials; threads that the runtime
// needs meanwhile are not cloned from a locked one.
func (d *deputy) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread cannot end, and /proc/self shows its state. Hold it
		// until another thread has taken the place.
		go d.run()
		<-d.up
		runtime.UnlockOSThread()
		return
	}
	d.tid = unix.Gettid()
	close(d.up)
	defer close(d.ended)
	for job := range d.jobs {
		d.done <- d.do(job)
	}
}

// do takes the worker's credentials with the first job, for most workers never
// have one.
func (d *deputy) do(job func() error) error {
	if !d.is {
		if err := sys.DeputyEnter(d.enter); err != nil {
			return gap("a thread with the worker's credentials cannot be had", err)
		}
		d.is = true
	}
	return job()
}

func (d *deputy) stop() {
	close(d.jobs)
	<-d.ended
}

// MaxProcs is the GOMAXPROCS for which Start makes sure that Go's runtime needs
// no new thread while the worker runs. A launcher that may run with more should
// lower it.
const MaxProcs = 4

// spareThreads leaves the runtime with as many idle threads as it can put to
// use: one for each processor, one for the loop when it waits in the kernel, one
// that waits for timers and files, and four more for what else the launcher waits
// for in system calls (its worker, its terminal, its files).
// Goroutines that are locked to their threads at the same time have that many
// threads, and the runtime keeps every thread that it has; where it has enough
// this costs some wake-ups. The threads are there when the channel is closed.
func spareThreads() <-chan struct{} {
	var missing atomic.Int32
	missing.Store(int32(min(runtime.GOMAXPROCS(0), MaxProcs) + 6))
	all := make(chan struct{})
	for range missing.Load() {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if missing.Add(-1) == 0 {
				close(all)
			}
			<-all
		}()
	}
	return all
}

// crew is the threads that one Start needs.
type crew struct {
	deputy *deputy
	spare  <-chan struct{}
}

var next atomic.Pointer[crew]

func makeThreads() *crew { return &crew{startDeputy(), spareThreads()} }

// Prepare makes the threads of the next Start in the background. It is for a
// launcher that knows early that there will be one, and has other things to do.
func Prepare() {
	if next.Load() != nil {
		return
	}
	if t := makeThreads(); !next.CompareAndSwap(nil, t) {
		close(t.deputy.jobs)
	}
}

// A job is done at once. One that is not is on a slow file system, where there
// is nothing to do but to wait, or the worker has set its socket to blocking
// while its connect was made; that is interrupted.
const (
	watchAfter = 10 * time.Millisecond
	watchEvery = 20 * time.Millisecond
)

// asWorker runs f on the deputy. It comes back only when f has.
func (c *call) asWorker(f func() error) error {
	d := c.s.deputy
	c.cancelled.Store(false)
	d.jobs <- f
	d.watch.Reset(watchAfter)
	defer d.watch.Stop()
	for {
		select {
		case err := <-d.done:
			return err
		case <-d.watch.C:
		}
		if c.connecting.Load() || c.abandoned() {
			c.cancelled.Store(true)
			if err := sys.DeputyInterrupt(d.tid); err != nil && !errors.Is(err, unix.ESRCH) {
				c.s.emit(Event{Kind: c.kind, Op: c.op, PID: c.tid, Errno: errnoOf(err), Gap: "a blocked call cannot be interrupted"})
			}
		}
		d.watch.Reset(watchEvery)
	}
}

// asWorkerNow runs f, which needs nothing of the deputy but the credentials,
// right here where the launcher has the same.
func (c *call) asWorkerNow(f func() error) error {
	if c.s.same {
		return f()
	}
	return c.asWorker(f)
}
