package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// progress tells on stderr what is going on: each step of the tool as it
// begins, and every few seconds what the running machines do.
type progress struct {
	mu      sync.Mutex
	begin   time.Time
	running []runningMachine
}

type runningMachine struct {
	name  string
	boot  *boot
	since time.Time
}

func newProgress() *progress { return &progress{begin: time.Now()} }

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(os.Stderr, "kernels: %3.0f s: %s\n", time.Since(p.begin).Seconds(), fmt.Sprintf(format, args...))
}

// start adds a machine until done is called.
func (p *progress) start(name string, b *boot) (done func()) {
	stale := ""
	if b.kernel.Stale != "" {
		stale = ", from the cache: " + printable(b.kernel.Stale)
	}
	p.say("%s: booting %s%s", name, b.kernel.Version, stale)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, runningMachine{name, b, time.Now()})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, r := range p.running {
			if r.boot == b {
				p.running = append(p.running[:i:i], p.running[i+1:]...)
				return
			}
		}
	}
}

// watch reports until the context ends.
func (p *progress) watch(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		running := p.running
		p.mu.Unlock()
		var steps []string
		for _, r := range running {
			steps = append(steps, fmt.Sprintf("%s %s (%.0f s)", r.name, printable(r.boot.progress()), time.Since(r.since).Seconds()))
		}
		if steps != nil {
			p.say("%s", strings.Join(steps, ", "))
		}
	}
}
