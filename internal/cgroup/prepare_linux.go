package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Prepare makes ready what [New] needs for such limits; New calls it. It matters
// to a program that starts other processes of its own: in cgroup2 a cgroup with
// processes cannot limit those below it, so unless this process is at the root,
// Prepare moves it to a leaf, if it is alone in its cgroup. A process that it
// started before would keep it from that.
func (h Host) Prepare(id string, l Limits) error {
	if err := checkID(id); err != nil {
		return err
	}
	var need []string
	for _, s := range l.settings() {
		a := h.ability(s.limit)
		if !a.Can() {
			return cannot(s.limit, a)
		}
		if a.By == two && !slices.Contains(need, s.limit) {
			need = append(need, s.limit)
		}
	}
	if len(need) == 0 {
		return nil
	}
	return h.state.enable(holder(h.state.all, need[0]), need, leafPrefix+id)
}

// enable hands controllers on to this process' children in cgroup2.
func (s *state) enable(h *hierarchy, need []string, leaf string) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Writing what is there already would wait for cgroups that are being
	// removed (cgroup_kn_lock_live).
	have := words(h.dir, "cgroup.subtree_control")
	need = slices.DeleteFunc(need, func(c string) bool { return slices.Contains(have, c) })
	if len(need) == 0 {
		return nil
	}
	failed := func(op, file string, err error) error {
		return &Error{Limit: strings.Join(need, ","), Op: op, File: file, Err: fmt.Errorf("in cgroup2 %s: %w", h.path, err)}
	}
	// The kernel would not refuse +pids or +cpu with processes here: it would
	// make it a threaded domain, below which no process can start.
	inside, others := here(h.dir)
	if !h.top && len(others) > 0 {
		now := *h
		now.others = others
		return cannot(need[0], now.limit(need[0], s.caller))
	}
	if !h.top && inside {
		if err := moveSelf(h.dir, leaf); err != nil {
			return failed("move to", leaf, err)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, moveBack(h.dir, leaf))
			} else {
				s.leaf = leaf
			}
		}()
	}
	if err := s.hand(h.dir, "+", need); err != nil {
		return failed("write", "cgroup.subtree_control", err)
	}
	s.given = append(s.given, need...)
	return nil
}

func (s *state) hand(dir int, sign string, controllers []string) error {
	return writeAt(dir, "cgroup.subtree_control", sign+strings.Join(controllers, " "+sign))
}

// moveSelf moves this process, all its threads, to a new cgroup below its own.
func moveSelf(dir int, leaf string) error {
	if err := unix.Mkdirat(dir, leaf, 0o755); err != nil {
		return err
	}
	fd, err := openAt(dir, leaf, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err == nil {
		err = writeAt(fd, "cgroup.procs", "0")
		unix.Close(fd)
	}
	if err != nil {
		err = errors.Join(err, unix.Unlinkat(dir, leaf, unix.AT_REMOVEDIR))
	}
	return err
}

func moveBack(dir int, leaf string) error {
	if err := writeAt(dir, "cgroup.procs", "0"); err != nil {
		return fmt.Errorf("leaving %q: %w", leaf, err)
	}
	if err := untilIdle(func() error { return removeTree(dir, leaf, 0) }); err != nil {
		return fmt.Errorf("removing %q: %w", leaf, err)
	}
	return nil
}

func writeAt(dir int, file, text string) error {
	fd, err := openAt(dir, file, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write(fd, []byte(text))
}

// Close releases the handles, and takes back the move of [Host.Prepare], so
// that the cgroup can be used again as it was found. It fails if there is
// still a group. What was enabled at the root of cgroup2 stays: others may rely
// on it by now.
func (h Host) Close() error {
	s := h.state
	if s == nil { // nobody has probed
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaf != "" {
		dir := holder(s.all, s.given[0]).dir
		left, err := children(dir)
		if left = slices.DeleteFunc(left, func(c string) bool { return c == s.leaf }); err != nil || len(left) > 0 {
			return errors.Join(fmt.Errorf("cgroups are left, which would lose their limits: %q", left), err)
		}
		if err := s.hand(dir, "-", s.given); err != nil {
			return fmt.Errorf("taking back controllers: %w", err)
		}
		if err := moveBack(dir, s.leaf); err != nil {
			return err
		}
		s.leaf, s.given = "", nil
	}
	for _, h := range s.all {
		closeAll(&h.dir, &h.tasks)
	}
	return nil
}
