package supervise

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// deputy is an OS thread that is to the kernel what the worker is.
type deputy struct {
	tid  int
	jobs chan job
}

type job struct {
	run  func() error
	done chan error
}

// pool starts deputies when they are needed, one for each call at a time, and
// keeps a few.
type pool struct {
	enter sys.DeputyCreds

	mu    sync.Mutex
	idle  []*deputy
	live  int
	ended sync.WaitGroup
}

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live
}

func (p *pool) busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live - len(p.idle)
}

func (p *pool) get() (*deputy, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		d := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return d, nil
	}
	p.live++
	p.ended.Add(1)
	p.mu.Unlock()
	d := &deputy{jobs: make(chan job)}
	started := make(chan error)
	go p.run(d, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

func (p *pool) put(d *deputy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < keepIdle {
		p.idle = append(p.idle, d)
		return
	}
	close(d.jobs)
}

// stop ends the idle deputies. No call is in flight.
func (p *pool) stop() {
	p.mu.Lock()
	for _, d := range p.idle {
		close(d.jobs)
	}
	p.idle = nil
	p.mu.Unlock()
	p.ended.Wait()
}

// run is a deputy's life. It never unlocks its thread, so the thread ends with
// it and nothing else ever runs with its credentials; threads that the runtime
// needs meanwhile are not cloned from a locked one.
func (p *pool) run(d *deputy, started chan<- error) {
	runtime.LockOSThread()
	d.tid = unix.Gettid()
	if d.tid == os.Getpid() {
		// The main thread cannot end, and /proc/self shows its state. Hold it
		// until another thread has taken the place.
		elsewhere := make(chan error)
		go p.run(d, elsewhere)
		err := <-elsewhere
		runtime.UnlockOSThread()
		started <- err
		return
	}
	defer func() {
		p.mu.Lock()
		p.live--
		p.mu.Unlock()
		p.ended.Done()
	}()
	if err := sys.DeputyEnter(p.enter); err != nil {
		started <- err
		return
	}
	started <- nil
	for j := range d.jobs {
		j.done <- j.run()
	}
}

// Most calls are done at once; a watch begins for those that are not.
const (
	watchAfter = 10 * time.Millisecond
	watchEvery = 20 * time.Millisecond
)

// asWorker runs f on a deputy. While f blocks it watches whether it still
// should, and interrupts it otherwise. It comes back only when f has.
func (c *call) asWorker(f func() error) error {
	d, err := c.s.pool.get()
	if err != nil {
		return gap("a thread with the worker's credentials cannot be had", err)
	}
	j := job{f, make(chan error, 1)}
	d.jobs <- j
	timer := time.NewTimer(watchAfter)
	defer timer.Stop()
	for {
		select {
		case err := <-j.done:
			c.s.pool.put(d)
			return err
		case <-timer.C:
		}
		if c.abandoned() {
			if err := sys.DeputyInterrupt(d.tid); err != nil && !errors.Is(err, unix.ESRCH) {
				c.s.emit(Event{Op: c.op, PID: c.tid, Errno: errnoOf(err), Gap: "a blocked call cannot be interrupted"})
			}
		}
		timer.Reset(watchEvery)
	}
}

// asWorkerNow runs f, which does not block and needs nothing of a deputy but the
// credentials, right here where the launcher has the same.
func (c *call) asWorkerNow(f func() error) error {
	if c.s.same {
		return f()
	}
	return c.asWorker(f)
}
