package run

import (
	"errors"
	"os"
	"sync"
	"time"

	"sandboxd/backend"
	"sandboxd/internal/stream"
	"sandboxd/policy"
)

// The reasons for which a launcher ends a worker.
const (
	byTime   = "time"
	byIdle   = "idle"
	byCaller = "caller"
)

// watched is a worker whose end may be the launcher's doing. It remembers why:
// the first reason counts.
type watched struct {
	backend.Worker
	limits policy.Limits
	taps   []*stream.Tap

	mu         sync.Mutex
	cause      string
	time, idle *time.Timer
	ended      bool
	// hurry is closed when somebody wants an end: then the output's reader is
	// not waited for without bound.
	hurry   chan struct{}
	hurries sync.Once
	// lost is why output did not arrive; nil if all did.
	lost error
}

// watch starts the worker's clocks.
func watch(w backend.Worker, limits policy.Limits, taps []*stream.Tap) *watched {
	v := &watched{Worker: w, limits: limits, taps: taps, hurry: make(chan struct{})}
	v.mu.Lock()
	defer v.mu.Unlock()
	if limits.Time > 0 {
		v.time = time.AfterFunc(limits.Time, func() { v.stop(byTime, limits.Grace) })
	}
	if limits.Idle > 0 {
		v.idle = time.AfterFunc(limits.Idle, v.checkIdle)
	}
	return v
}

func (v *watched) checkIdle() {
	var last time.Time
	for _, t := range v.taps {
		if l := t.Last(); l.After(last) {
			last = l
		}
	}
	if left := v.limits.Idle - time.Since(last); left > 0 {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !v.ended {
			v.idle.Reset(left)
		}
		return
	}
	v.stop(byIdle, v.limits.Grace)
}

// Stop is the caller's.
func (v *watched) Stop(grace time.Duration) bool { return v.stop(byCaller, grace) }

func (v *watched) stop(cause string, grace time.Duration) bool {
	v.hasten()
	// Wait reads the cause, and comes right after the signal.
	v.mu.Lock()
	defer v.mu.Unlock()
	alive := v.Worker.Stop(grace)
	if alive && v.cause == "" {
		v.cause = cause
	}
	return alive
}

// Signal passes a signal on. One that comes when the worker has ended is for
// whoever still waits for the reader of its output.
func (v *watched) Signal(sig os.Signal) error {
	v.mu.Lock()
	ended := v.ended
	v.mu.Unlock()
	if ended {
		v.hasten()
		return nil
	}
	return v.Worker.Signal(sig)
}

func (v *watched) hasten() { v.hurries.Do(func() { close(v.hurry) }) }

// Wait waits for the worker, stops the clocks, delivers the rest of the output,
// and says what the outcome means.
func (v *watched) Wait() backend.Result {
	r := v.Worker.Wait()
	v.mu.Lock()
	v.ended = true
	if v.idle != nil {
		v.idle.Stop()
	}
	cause := v.cause
	v.mu.Unlock()
	r.Outcome = endedBy(cause, r.Outcome)
	r.Warnings = append(r.Warnings, v.drain()...) // within the time that the worker had
	if v.time != nil {
		v.time.Stop()
	}
	var bytes int64
	for _, t := range v.taps {
		bytes += t.Bytes()
	}
	if r.Usage != nil && len(v.taps) > 0 {
		r.Usage.BytesOut = &bytes
	}
	return r
}

// drain delivers the rest of the output, and says what did not arrive.
func (v *watched) drain() (warnings []string) {
	errs := make([]error, len(v.taps))
	var wg sync.WaitGroup
	for i, t := range v.taps {
		wg.Go(func() { errs[i] = t.Drain(drainGrace, v.hurry) })
	}
	wg.Wait()
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, stream.ErrHeld):
			warnings = append(warnings, err.Error())
		default:
			v.lost = errors.Join(v.lost, err)
		}
	}
	return warnings
}

// endedBy says what an end means for which the launcher had a reason. Whatever a
// worker that ran out of time does with SIGTERM, it was out of time. One that the
// caller asked to end has ended by itself if it did so within the grace.
func endedBy(cause string, o backend.Outcome) backend.Outcome {
	const sigkill = 9
	switch {
	case o.Kind != backend.Exited && o.Kind != backend.Signaled:
		return o
	case cause == byTime || cause == byIdle:
		return backend.Outcome{Kind: backend.TimedOut, Which: cause}
	case cause == byCaller && o.Kind == backend.Signaled && o.Signal == sigkill:
		return backend.Outcome{Kind: backend.Canceled}
	}
	return o
}

// drainGrace is how long a process that outlived the worker's tree may hold its
// output, and how long a reader may take nothing when somebody wants an end.
const drainGrace = time.Second

// tapOutputs puts taps between the worker and its output, if the limits ask for
// what only they know.
func tapOutputs(cmd *backend.Command, limits policy.Limits) (taps []*stream.Tap, err error) {
	if limits.Idle == 0 {
		return nil, nil
	}
	shared := sameFile(cmd.Stdout, cmd.Stderr) // 2>&1: one pipe, so that the order stays
	for _, out := range []**os.File{&cmd.Stdout, &cmd.Stderr} {
		if len(taps) == 1 && shared {
			*out = taps[0].Worker
			break
		}
		t, err := stream.NewTap(*out)
		if err != nil {
			return taps, &backend.SetupError{Step: "output", Err: err}
		}
		taps = append(taps, t)
		*out = t.Worker
	}
	return taps, nil
}

func sameFile(a, b *os.File) bool {
	sa, aerr := a.Stat()
	sb, berr := b.Stat()
	return errors.Join(aerr, berr) == nil && os.SameFile(sa, sb)
}
