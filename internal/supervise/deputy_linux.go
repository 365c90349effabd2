package supervise

import (
	"errors"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// deputy is an OS thread that is to the kernel what the worker is. A worker has one at
// most, from its first call on that needs it, for most never have one, of a thread
// that was made before: one that is made while the worker runs may not be had
// (RLIMIT_NPROC, a pids cgroup), and Go's runtime ends the process then. So
// nothing that runs on it may wait for a peer.
type deputy struct {
	enter sys.DeputyCreds
	tid   int
	up    chan struct{} // closed when it has its thread
	jobs  chan func() error
	done  chan error
	ended chan struct{}
	watch *time.Timer
	is    bool // it has entered; its own to know
}

// startDeputy makes one of a thread in reserve.
func startDeputy(enter sys.DeputyCreds) *deputy {
	d := &deputy{
		enter: enter,
		up:    make(chan struct{}), jobs: make(chan func() error),
		done: make(chan error, 1), ended: make(chan struct{}),
		watch: time.NewTimer(time.Hour),
	}
	d.watch.Stop()
	reserved.take(d.run)
	<-d.up
	return d
}

// run is a deputy's life. It never unlocks its thread, so the thread ends with
// it and nothing else ever runs with its credentials; threads that the runtime
// needs meanwhile are not cloned from a locked one.
func (d *deputy) run() {
	d.tid = unix.Gettid()
	close(d.up)
	defer close(d.ended)
	for job := range d.jobs {
		d.done <- d.do(job)
	}
}

// do takes the worker's credentials with the first job.
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
	if d == nil {
		d = startDeputy(c.s.enter)
		c.s.deputy = d
		c.s.stats.deputies.Store(1)
	}
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
