package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sandboxd/internal/listen"
	"sandboxd/internal/run"
	"sandboxd/protocol"
)

// room is what the limit of open descriptors (RLIMIT_NOFILE) has room for. A shortage
// in the middle of a message between the two halves would end the front, and all
// workers with it; so what would lead there is refused before.
type room struct{ connections, workers, places, plans int }

const (
	// ownFiles are the daemon's own, and those of the messages on their way.
	ownFiles = 192
	// workerFiles are one worker's in the monitor: the handles of its process, its
	// control group and its directories, its notification listener and what waits for
	// it. They are 13 on Linux 6.18, as TestWorkerFiles tells, and some 10 more for
	// streams and directories while it begins, or if it has a terminal.
	workerFiles = 24
	// A worker whose protected places are held has a handle on each as well: they are
	// counted by themselves, as a policy may have few or many.

	// planFiles are those of what is ready for the next launches of a policy that
	// nobody uses: in a soak of 8 clients 45.
	planFiles = 64
	// leastFiles is for some connections and workers, leastForMany for those of several
	// users: one may hand over protocol.MaxDescriptors with each of its connections.
	leastFiles, leastForMany = 1024, 16384
)

func roomFor(mode listen.Mode) (room, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return room{}, fmt.Errorf("the limit of open descriptors: %w", err)
	}
	least := uint64(leastFiles)
	if mode == listen.System {
		least = leastForMany
	}
	if limit.Cur < least {
		return room{}, &RoomError{Have: limit.Cur, Need: least}
	}
	files := int(min(limit.Cur, 1<<24)) - ownFiles
	plans := max(1, min(run.MaxCachedPlans, files/8/planFiles))
	files -= plans * planFiles
	return room{connections: files / 4, workers: files * 3 / 8 / workerFiles, places: files * 3 / 8, plans: plans}, nil
}

// errPlaces is the answer to a launch whose protected places would take more handles
// than there are.
var errPlaces = protocol.Errorf(protocol.Overloaded, "the protected places of all workers take as many open files as there may be")

// hold counts the handles of a launch's protected places.
func (l *launch) hold(places int) error {
	if int(l.m.places.Add(int64(places))) > l.m.room.places {
		l.m.places.Add(-int64(places))
		return errPlaces
	}
	l.places = places
	return nil
}

func (l *launch) letGo() { l.m.places.Add(-int64(l.places)) }

// RoomError is a limit of open descriptors that is too low to begin with.
type RoomError struct{ Have, Need uint64 }

func (e *RoomError) Error() string {
	return fmt.Sprintf("this process may open %d files, and needs %d", e.Have, e.Need)
}
