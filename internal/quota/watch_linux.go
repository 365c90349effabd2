package quota

import (
	"time"

	"sandboxd/internal/sys"
)

// Watch looks at the directories of a running worker.
type Watch struct {
	meter Meter
	size  int64
	over  func(Look)
	begin chan struct{}
	stop  chan struct{}
	done  chan struct{}
	seen  Seen
}

// NewWatch makes a watch that looks again and again from [Watch.Begin] to
// [Watch.End]. When the directories hold more than size, over is told, and once
// more when it is [Look.Far] more. It has a thread of its own from here on: a
// worker that uses up its user's processes would keep it from getting one.
func NewWatch(m Meter, size int64, over func(Look)) *Watch {
	w := &Watch{meter: m, size: size, over: over, begin: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan struct{})
	sys.OnOwnThread(func() {
		close(ready)
		w.run()
	})
	<-ready
	return w
}

// Begin begins. It may be called once.
func (w *Watch) Begin() { close(w.begin) }

// End looks a last time and tells what was seen. It may be called once, and must
// be, also where there was no Begin.
func (w *Watch) End() Seen {
	close(w.stop)
	<-w.done
	w.look()
	return w.seen
}

func (w *Watch) look() Look {
	l := w.meter.Look()
	w.seen.Last = l
	w.seen.Peak = max(w.seen.Peak, l.Bytes)
	w.seen.Full = w.seen.Full || l.Full
	w.seen.Cut = w.seen.Cut || l.Cut
	return l
}

func (w *Watch) run() {
	defer close(w.done)
	select {
	case <-w.begin:
	case <-w.stop:
		return
	}
	over, far := false, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-timer.C:
		}
		began := time.Now()
		l := w.look()
		took := time.Since(began)
		switch {
		case !far && l.Far(w.size):
			over, far = true, true
			w.over(l)
		case !over && l.Over(w.size):
			over = true
			w.over(l)
		}
		timer.Reset(pause(w.size-l.Bytes, took))
	}
}

const (
	shortest = 10 * time.Millisecond
	longest  = time.Second
	// fastest is what is written in a second at most, in bytes, where nothing
	// else is known.
	fastest = 1 << 30
)

// pause is the time until the next look: what is left may be written in it, and
// looking takes no more than a quarter of all time.
func pause(left int64, took time.Duration) time.Duration {
	left = min(max(left, 0), fastest)
	p := time.Duration(left) * time.Second / fastest
	return max(min(max(p, shortest), longest), 3*took)
}
