package supervise

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd/internal/sys"
)

// Threads are made in New, before there is a worker that could leave none to be had.
// One that runs its first deputy, and a loop that hangs, take one of those.

const (
	// maxReserve is how many threads wait for a deputy to need one. Up to so many
	// workers each have theirs, as good as made.
	maxReserve = 16
	// spareBatch is how many idle threads more than it needs now the runtime gets, in
	// a process that has had many workers. Each takes one for good, so that this is done
	// for the first of so many only: it wakes them all.
	spareBatch = 16
	// maxTurns is how many loops are busy at a time, and so how many threads they take.
	maxTurns = 4
)

// reserve is the process' threads that wait.
type reserve struct {
	mu      sync.Mutex
	waiting []*thread
	coming  int           // being made
	here    chan struct{} // closed when all of these are
	live    int           // supervisors that have no deputy
	all     int           // supervisors that there ever were
	spared  <-chan struct{}
	credit  int // threads that may be taken for good before there must be more to spare
	slow    int // loops that have given up their turn
	given   int // threads that the runtime got for them
}

var reserved reserve

// thread is an OS thread, not the main one, that waits for what it is for.
type thread struct{ job chan func() }

func (t *thread) run() {
	if f := <-t.job; f != nil {
		f()
		return // still locked: the thread ends
	}
	runtime.UnlockOSThread() // from here on it is the runtime's
}

// ensure has threads for n more supervisors made, if there are too few. The channel
// is closed when they are there.
func (r *reserve) ensure(n int) <-chan struct{} {
	for range min(r.live+n, maxReserve) - len(r.waiting) - r.coming {
		if r.coming == 0 {
			r.here = make(chan struct{})
		}
		r.coming++
		r.credit--
		sys.OnOwnThread(func() {
			t := &thread{make(chan func(), 1)}
			r.mu.Lock()
			r.waiting = append(r.waiting, t)
			if r.coming--; r.coming == 0 {
				close(r.here)
			}
			r.mu.Unlock()
			t.run()
		})
	}
	if r.coming == 0 {
		return nil
	}
	return r.here
}

// spare leaves the runtime with idle threads, as one more worker takes one.
func (r *reserve) spare() <-chan struct{} {
	r.all++
	if r.credit--; r.spared == nil || r.credit < 0 {
		batch := min(r.all/4, spareBatch)
		turns := 0
		if r.live > 0 {
			turns = maxTurns - 1 // one is in what SpareThreads counts
		}
		r.spared, r.credit = sys.SpareThreads(batch+turns), batch
	}
	return r.spared
}

// crew waits for what one New has asked for.
type crew struct{ deputy, spare <-chan struct{} }

func (c *crew) wait() {
	if c.deputy != nil {
		<-c.deputy
	}
	<-c.spare
}

var next atomic.Pointer[crew]

func makeThreads(n int) *crew {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	return &crew{reserved.ensure(n), reserved.spare()}
}

// Prepare makes the threads of the next New in the background. It is for a launcher
// that knows early that there will be one, and has other things to do.
func Prepare() {
	if next.Load() == nil {
		next.CompareAndSwap(nil, makeThreads(1))
	}
}

// enlist counts a supervisor, and has its threads made.
func enlist() *crew {
	prepared := next.Swap(nil)
	if prepared == nil {
		prepared = makeThreads(1)
	}
	reserved.mu.Lock()
	reserved.live++
	reserved.mu.Unlock()
	return prepared
}

// dismiss counts a supervisor out that never had a deputy.
func dismiss() {
	reserved.mu.Lock()
	reserved.live--
	reserved.mu.Unlock()
}

// take gives a supervisor that is counted its deputy's thread. Only if more have been
// taken than are in reserve one has to be made.
func (r *reserve) take(f func()) {
	r.mu.Lock()
	r.live--
	t := r.pop()
	r.mu.Unlock()
	if t == nil {
		sys.OnOwnThread(f)
		return
	}
	t.job <- f
}

func (r *reserve) pop() *thread {
	last := len(r.waiting) - 1
	if last < 0 {
		return nil
	}
	t := r.waiting[last]
	r.waiting = r.waiting[:last]
	return t
}

// turns are taken by loops that have something to do. Each may wait in a system call
// and take a thread, and no more than so many threads are spare for that. Who
// waits for a turn is next when its time comes, however much others have to do.
var turns = make(chan struct{}, maxTurns)

// turn is one loop's.
type turn struct {
	state atomic.Int32
	timer *time.Timer
}

const (
	turnNone = iota
	turnHeld
	turnGivenUp
)

// slowAfter is how long a loop has the others wait.
const slowAfter = 10 * time.Millisecond

func (t *turn) begin() {
	turns <- struct{}{}
	t.state.Store(turnHeld)
	if t.timer == nil {
		t.timer = time.AfterFunc(slowAfter, t.giveUp)
		return
	}
	t.timer.Reset(slowAfter)
}

func (t *turn) end() {
	t.timer.Stop()
	if t.state.Swap(turnNone) == turnHeld {
		<-turns
		return
	}
	reserved.mu.Lock()
	reserved.slow--
	reserved.mu.Unlock()
}

// giveUp lets others have the turn of a loop that hangs, on a file system that does
// not answer, and gives the runtime a thread for the one that is lost so long.
func (t *turn) giveUp() {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	if !t.state.CompareAndSwap(turnHeld, turnGivenUp) {
		return
	}
	if reserved.slow++; reserved.slow > reserved.given {
		if spare := reserved.pop(); spare != nil {
			reserved.given++
			spare.job <- nil
		}
	}
	<-turns
}
