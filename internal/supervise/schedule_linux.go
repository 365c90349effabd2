package supervise

import (
	"os"
	"strconv"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// The calls that change how a task is scheduled. The kernel lets a process do that
// to all of its user's (sched_setaffinity(2), setpriority(2)), and a worker that
// made its launcher's threads idle on a processor that it keeps busy would not be
// ended in time.
//
// Whose task it is stands in a register, which nobody can change while the call
// waits: only a tracer could, of a thread that has stopped. So what is let through
// may continue: what is in memory, a set of processors, does not decide whose they
// are. What remains is that the task ends in between and its number is given to
// another of the same user. That is none of the launcher's, which makes no thread
// meanwhile.

// scheduleTask judges the calls whose first argument is a task, 0 the caller.
func (c *call) scheduleTask() (int64, error) { return c.schedule(int32(c.n.Args[0])) }

func (c *call) setpriority() (int64, error) { return c.scheduleOne(unix.PRIO_PROCESS) }

func (c *call) ioprioSet() (int64, error) {
	const process = 1 // IOPRIO_WHO_PROCESS: ioprio_set(2)
	return c.scheduleOne(process)
}

// scheduleOne refuses a process group, and all processes of a user: the launcher
// may be among them.
func (c *call) scheduleOne(process int32) (int64, error) {
	if int32(c.n.Args[0]) != process { // a user has processes elsewhere, too
		return 0, c.notOurs()
	}
	return c.schedule(int32(c.n.Args[1]))
}

func (c *call) notOurs() error {
	return &refusal{kind: KindSchedule, errno: unix.EPERM}
}

func (c *call) schedule(tid int32) (int64, error) {
	c.kind = KindSchedule
	if tid <= 0 || int(tid) == c.tid || c.s.cfg.OwnPIDs {
		return 0, errContinue // itself; a negative number is nobody's, as the kernel will say
	}
	switch err := c.s.owns(int(tid)); err {
	case nil:
		return 0, errContinue
	case unix.ESRCH:
		return 0, err // not to continue: the number may be somebody's by then
	default:
		return 0, c.notOurs()
	}
}

// owns tells whether a task is the worker's: nil, ESRCH if there is none, or EPERM.
// A domain's scope does not keep a process from itself, so the launcher's own
// threads, of which one is in the worker's domain, are told first.
func (s *Supervisor) owns(tid int) error {
	if sys.IsOwnThread(tid) {
		return unix.EPERM
	}
	if s.reach != nil {
		return s.reach(tid)
	}
	return s.ownsByFilters(tid)
}

// ownsByFilters is for a Landlock that scopes no signals: all of the worker's tasks
// have one seccomp filter more than the launcher, which no task can lose. Another
// sandbox's may have as many, and are not told from them.
func (s *Supervisor) ownsByFilters(tid int) error {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	switch {
	case os.IsNotExist(err):
		return unix.ESRCH
	case err != nil || s.filters < 0 || parseStatus(text).filters <= s.filters:
		return unix.EPERM
	}
	return nil
}
