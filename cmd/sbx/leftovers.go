package main

import (
	"time"

	"sandboxd/internal/guard"
)

// sweeping removes what launchers that were killed left behind, while this one's
// command runs: nobody waits for it.
type sweeping struct{ done chan struct{} }

func (s *sweeping) start() {
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		// What cannot be removed is tried again by the next launch.
		_ = guard.Sweep()
	}()
}

// wait lets a sweep under way end, for half of one helps nobody.
func (s *sweeping) wait() {
	if s.done == nil {
		return
	}
	select {
	case <-s.done:
	case <-time.After(time.Second):
	}
}
