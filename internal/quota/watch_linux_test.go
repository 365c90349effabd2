package quota

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// script is a meter that shows one look after the other, the last for ever.
type script struct {
	mu    sync.Mutex
	looks []Look
	shown int
}

func (s *script) Look() Look {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.looks[min(s.shown, len(s.looks)-1)]
	s.shown++
	return l
}

// all waits until the last look was shown.
func (s *script) all(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		done := s.shown > len(s.looks)
		s.mu.Unlock()
		if done {
			return
		}
	}
	t.Fatal("nobody looks")
}

func TestWatch(t *testing.T) {
	const size = 10 * mib
	bytes := func(n ...int64) (looks []Look) {
		for _, b := range n {
			looks = append(looks, Look{Bytes: b * mib})
		}
		return looks
	}
	for name, c := range map[string]struct {
		looks []Look
		told  []int64 // in MiB
		peak  int64
	}{
		"within":               {bytes(0, 5, 10, 3), nil, 10},
		"over":                 {bytes(0, 11, 5, 12, 12), []int64{11}, 12},
		"over, then far":       {bytes(0, 11, 19, 22, 30, 22), []int64{11, 22}, 30},
		"far at once":          {bytes(0, 99, 99, 12), []int64{99}, 99},
		"files":                {[]Look{{}, {Files: MaxFiles(size) + 1}}, []int64{0}, 0},
		"what is below a peak": {bytes(9, 1), nil, 9},
	} {
		t.Run(name, func(t *testing.T) {
			var told []int64
			s := &script{looks: c.looks}
			w := NewWatch(s, size, func(l Look) { told = append(told, l.Bytes/mib) })
			w.Begin()
			s.all(t)
			seen := w.End()
			if !slices.Equal(told, c.told) || seen.Peak != c.peak*mib || seen.Full || seen.Cut || seen.Last != c.looks[len(c.looks)-1] {
				t.Errorf("told %v, seen %+v", told, seen)
			}
			s.mu.Lock()
			shown := s.shown
			s.mu.Unlock()
			time.Sleep(2 * shortest)
			if s.mu.Lock(); s.shown != shown {
				t.Error("it looks on after its end")
			}
			s.mu.Unlock()
		})
	}
	s := &script{looks: []Look{{Full: true}, {Cut: true}, {}}}
	w := NewWatch(s, size, func(Look) { t.Error("it is not over") })
	w.Begin()
	s.all(t)
	if seen := w.End(); !seen.Full || !seen.Cut || seen.Last.Full {
		t.Errorf("%+v", seen)
	}
}

func TestWatchLooksAtTheEnd(t *testing.T) {
	s := &script{looks: []Look{{}, {Bytes: 3, Full: true}}}
	w := NewWatch(s, mib, func(Look) {})
	w.Begin()
	for s.mu.Lock(); s.shown == 0; s.mu.Lock() {
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	s.mu.Unlock()
	if seen := w.End(); seen.Peak != 3 || !seen.Full {
		t.Errorf("%+v", seen)
	}
}

func TestWatchThatNeverBegins(t *testing.T) {
	s := &script{looks: []Look{{Bytes: 2 * mib}}}
	w := NewWatch(s, mib, func(Look) { t.Error("it looks") })
	time.Sleep(2 * shortest)
	if s.mu.Lock(); s.shown > 0 {
		t.Error("it looks")
	}
	s.mu.Unlock()
	w.End()
}

func TestPause(t *testing.T) {
	for _, c := range []struct {
		left int64
		took time.Duration
		want time.Duration
	}{
		{8 * mib, time.Millisecond, shortest},
		{-8 * mib, time.Millisecond, shortest},
		{fastest / 2, time.Millisecond, time.Second / 2},
		{1 << 50, time.Millisecond, longest},
		{0, 20 * time.Millisecond, 60 * time.Millisecond},
		{1 << 50, time.Second, 3 * time.Second},
	} {
		if got := pause(c.left, c.took); got != c.want {
			t.Errorf("%d left, %v a look: %v, want %v", c.left, c.took, got, c.want)
		}
	}
}
