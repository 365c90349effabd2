package main

import (
	"os"
	"sync"
	"time"

	"sandboxd/internal/guard"
)

// guardName is the guard's argv[0].
const guardName = "sbx-guard"

func isGuard() bool { return os.Args[0] == guardName }

// guardAfter is when a worker that has a watchdog gets a guard, which removes what
// the watchdog does not: most commands end before, and the start of a process would
// take longer than they do.
const guardAfter = 20 * time.Millisecond

// guarding is the guard of one command.
type guarding struct {
	mu    sync.Mutex
	timer *time.Timer
	guard *guard.Guard
	over  bool
	err   error
}

func (g *guarding) start(watched bool) {
	after := guardAfter
	if !watched {
		after = 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(after, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.over {
			g.guard, g.err = guard.Start(guardName)
		}
	})
}

// end dismisses the guard: this process has done all itself. It returns why there
// was none, if one was wanted.
func (g *guarding) end() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.guard != nil {
		g.guard.End()
		g.guard = nil
	}
	return g.err
}
