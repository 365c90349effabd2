package run

import (
	"io"
	"os"
	"testing"
	"time"

	"sandboxd/backend"
	"sandboxd/internal/stream"
	"sandboxd/policy"
)

// fake is a worker that ends when it is stopped, or by itself.
type fake struct {
	ended chan backend.Outcome
	after backend.Outcome // of a Stop
	alive bool
}

func (f *fake) PID() int               { return 1 }
func (f *fake) Signal(os.Signal) error { return nil }
func (f *fake) Stop(time.Duration) bool {
	if f.alive {
		f.ended <- f.after
	}
	return f.alive
}
func (f *fake) Wait() backend.Result { return backend.Result{Outcome: <-f.ended} }

func TestCauses(t *testing.T) {
	killed := backend.Outcome{Kind: backend.Signaled, Signal: 9}
	terminated := backend.Outcome{Kind: backend.Signaled, Signal: 15}
	itself := backend.ExitedWith(3)
	for name, c := range map[string]struct {
		limits policy.Limits
		cancel bool
		alive  bool
		ends   backend.Outcome // of a Stop, or by itself if it was not alive
		want   backend.OutcomeKind
		which  string
	}{
		"time, killed":             {policy.Limits{Time: 1}, false, true, killed, backend.TimedOut, "time"},
		"time, exits when asked":   {policy.Limits{Time: 1}, false, true, itself, backend.TimedOut, "time"},
		"idle":                     {policy.Limits{Idle: 1}, false, true, terminated, backend.TimedOut, "idle"},
		"time, but it had ended":   {policy.Limits{Time: 1}, false, false, itself, backend.Exited, ""},
		"time, after its own kill": {policy.Limits{Time: 1}, false, false, killed, backend.Signaled, ""},
		"canceled, killed":         {policy.Limits{}, true, true, killed, backend.Canceled, ""},
		"canceled, ends in grace":  {policy.Limits{}, true, true, terminated, backend.Signaled, ""},
		"canceled, exits in grace": {policy.Limits{}, true, true, itself, backend.Exited, ""},
		"canceled after its end":   {policy.Limits{}, true, false, killed, backend.Signaled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{ended: make(chan backend.Outcome, 10), after: c.ends, alive: c.alive}
			w := watch(f, c.limits, nil)
			if c.cancel {
				w.Stop(0)
			}
			if !c.alive {
				time.Sleep(5 * time.Millisecond) // the clocks have rung
				f.ended <- c.ends
			}
			if o := w.Wait().Outcome; o.Kind != c.want || o.Which != c.which {
				t.Errorf("outcome %+v, want %s %s", o, c.want, c.which)
			}
		})
	}
}

// TestActivityDelaysIdleness: the time without output counts from the last byte
// of either stream.
func TestActivityDelaysIdleness(t *testing.T) {
	var taps []*stream.Tap
	for range 2 {
		tap, err := stream.NewTap(io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		taps = append(taps, tap)
	}
	f := &fake{ended: make(chan backend.Outcome, 10), after: backend.ExitedWith(0), alive: true}
	began := time.Now()
	w := watch(f, policy.Limits{Idle: 200 * time.Millisecond}, taps)
	for i := range 4 {
		time.Sleep(100 * time.Millisecond)
		_, _ = taps[i%2].Worker.WriteString("x")
	}
	for _, tap := range taps {
		_ = tap.Worker.Close()
	}
	r := w.Wait()
	if r.Outcome.Kind != backend.TimedOut || time.Since(began) < 550*time.Millisecond {
		t.Errorf("%+v after %v", r.Outcome, time.Since(began))
	}
}
