package landlock

import (
	"errors"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/hold"
	"sandboxd/internal/sys"
)

// taking is the holding of a policy's guarded places, which needs nothing that a berth
// is made of.
type taking struct {
	done chan struct{}
	set  *hold.Set
	err  error
}

// takePlaces begins to hold them for one worker; nil where nothing holds them.
func (p *Plan) takePlaces() *taking {
	if p.Tree == nil {
		return nil
	}
	t := &taking{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.set, t.err = hold.Take(p.Tree.Places)
	}()
	return t
}

// into makes them the berth's, whose worker they are held for.
func (t *taking) into(b *berth) error {
	<-t.done
	if b.held = t.set; t.err == nil {
		return nil
	}
	b.held = nil
	setup := &backend.SetupError{Step: "protected and denied paths", Err: t.err}
	if errors.Is(t.err, hold.ErrChanged) {
		setup.Hint = "run again"
	}
	return setup
}

// drop gives them up where no worker begins.
func (t *taking) drop() error {
	if t == nil {
		return nil
	}
	if <-t.done; t.err != nil {
		return nil // it gave up what it had
	}
	_, err := t.set.Release()
	return err
}

// leavePlaces gives them up, once all of the worker's processes have ended.
func (b *berth) leavePlaces() (changed []string, err error) {
	if b.held == nil {
		return nil, nil
	}
	changed, err = b.held.Release()
	b.held = nil
	return changed, err
}

// idleCaps are what the first process of a PID namespace needs to remove placeholders
// if the launcher is killed: to take the mounts off them, and, as root, to end the
// worker and to write where it may not. Nobody reaches that process, and it executes
// nothing.
func idleCaps(userNS bool) (caps []int) {
	caps = []int{unix.CAP_SYS_ADMIN}
	if userNS {
		return caps
	}
	for _, c := range []int{unix.CAP_KILL, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER} {
		if sys.HaveCapability(c) {
			caps = append(caps, c)
		}
	}
	return caps
}
