package supervise

import (
	"testing"
	"time"

	"sandboxd/internal/sys"
)

// TestTurns: one that hangs does not have the others wait, however many hang, and has
// no part of theirs when it comes back.
func TestTurns(t *testing.T) {
	var hang [3 * maxTurns]turn
	begun := make(chan bool)
	go func() {
		for i := range hang {
			hang[i].begin()
		}
		begun <- true
	}()
	select {
	case <-begun:
	case <-time.After(10 * time.Second):
		t.Fatal("those that wait hang with those that do")
	}
	var one turn
	one.begin()
	one.end()
	for i := range hang {
		hang[i].end()
	}
	if n := len(turns); n != 0 {
		t.Errorf("%d turns are still taken", n)
	}
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	if reserved.slow != 0 {
		t.Errorf("%d loops still hang", reserved.slow)
	}
}

// TestDeputiesWait: a worker that calls for no deputy has none, and the thread for its
// first is there before it runs: with none to be had any more, it gets one.
func TestDeputiesWait(t *testing.T) {
	w := newWorld(t, modes()[0])
	w.start(w.command("/bin/sleep", "100"))
	if s := w.s.Stats(); s.Deputies != 0 {
		t.Errorf("%d deputies, and nobody has asked", s.Deputies)
	}
	reserved.mu.Lock()
	have, live := len(reserved.waiting), reserved.live
	reserved.mu.Unlock()
	if live < 1 || have < min(live, maxReserve) {
		t.Errorf("%d threads wait for %d workers", have, live)
	}
	d := startDeputy(sys.DeputyCreds{Ruleset: -1})
	defer d.stop()
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	if len(reserved.waiting) != have-1 || reserved.live != live-1 {
		t.Errorf("%d threads wait, of %d, for %d workers, of %d", len(reserved.waiting), have, reserved.live, live)
	}
	reserved.live++ // for this one is nobody's
}

// TestFloodsTakeTurns: workers that do nothing but make trapped calls do not keep
// another's from being answered.
func TestFloodsTakeTurns(t *testing.T) {
	for range 2 * maxTurns {
		w := newWorld(t, modes()[0])
		w.start(w.command("/usr/bin/python3", "-c", prelude+`
while True: t(sock().connect, 'none')
`))
	}
	w := newWorld(t, modes()[0])
	got := w.run(`
worst = 0
for _ in range(100):
    a = time.time(); t(sock().connect, 'none'); worst = max(worst, time.time() - a); time.sleep(.005)
print(worst < 1, round(worst, 3))
`)
	if got[:4] != "True" {
		t.Errorf("a call took %s s", got)
	}
	t.Log(got)
}
