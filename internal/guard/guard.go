// Package guard has a process beside this one that does, when this one is killed,
// what it can do no more: end its workers' cgroups, and remove what was made. What
// that is says this process' lease (package scratch), so a guard is told nothing
// and one is enough for any number of workers.
package guard

import (
	"errors"

	"sandboxd/internal/hold"
	"sandboxd/internal/launch"
	"sandboxd/internal/quota"
	"sandboxd/internal/scratch"
)

// Sweep removes what dead launchers of this user left. An error says that something
// is left still.
func Sweep() error {
	swept, err := scratch.Mine().Sweep(removeLeft)
	for _, s := range swept {
		err = errors.Join(err, s.Err)
	}
	return err
}

func removeLeft(m scratch.Mark) error {
	switch m.Kind {
	case launch.KindGroup:
		return launch.RemoveLeftGroup(m)
	case quota.KindMount:
		return quota.RemoveLeft(m)
	case hold.KindPlaces:
		return hold.RemoveLeft(m)
	}
	return errors.New("left by another version: " + m.Kind)
}
