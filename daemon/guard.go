package daemon

import (
	"context"
	"errors"
	"os"
	"time"

	"sandboxd/internal/guard"
	"sandboxd/protocol"
)

// GuardName is the argv[0] of the monitor's guard, which is this program again.
const GuardName = "sandboxd-guard"

// Guard is the guard's main, and returns its exit status. A program that runs a
// [Monitor] calls it if argv[0] is [GuardName], before anything else.
func Guard() int { return guard.Main() }

// errUnguarded is the answer to a launch while there is no guard.
var errUnguarded = protocol.Errorf(protocol.Overloaded, "what ends the workers if the daemon is killed is being started again")

// startGuard starts the process that ends the workers' cgroups and removes what was
// made, if this one is killed. It is started before anything that it is for.
func (m *Monitor) startGuard() (*guard.Guard, error) {
	if err := closeInherited(); err != nil {
		return nil, err
	}
	g, err := guard.Start(GuardName)
	if err != nil {
		return nil, err
	}
	m.log.Info("the guard is there", "pid", g.PID())
	m.setGuarded(true)
	return g, nil
}

func (m *Monitor) setGuarded(is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guarded = is
	m.tellChecks()
}

// keepGuard has a guard until ctx is done; g is the first. While there is none, no
// launch begins.
func (m *Monitor) keepGuard(ctx context.Context, g *guard.Guard) {
	for pause := firstPause; ; {
		select {
		case <-ctx.Done():
			g.End()
			return
		case <-g.Gone():
		}
		m.setGuarded(false)
		m.log.Error("the guard has ended: no launches until there is another")
		g.End()
		for again := true; again; pause = min(2*pause, longestWait) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			next, err := m.startGuard()
			if again = err != nil; again {
				m.log.Error("the guard cannot be started", "error", err)
				continue
			}
			g = next
		}
	}
}

// sweep ends and removes what monitors that were killed together with their guards
// have left.
func (m *Monitor) sweep() {
	if err := guard.Sweep(); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Warn("something is left of a daemon or sbx that was killed", "error", err)
	}
}
