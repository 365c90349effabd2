package supervise

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// scheduling are the calls on one task, each with what changes nothing that matters.
var scheduling = fmt.Sprintf(`
NICE = os.getpriority(os.PRIO_PROCESS, 0) # a better one takes a capability
def attr(tid):
    b = ctypes.create_string_buffer(struct.pack('IIQiIQQQ', 48, 0, 0, NICE, 0, 0, 0, 0))
    return libc.syscall(%d, tid, b, 0)
def raw_call(r): return 'ok' if r == 0 else errno.errorcode[ctypes.get_errno()]
CALLS = {
    'affinity': lambda i: t(os.sched_setaffinity, i, os.sched_getaffinity(0)),
    'scheduler': lambda i: t(os.sched_setscheduler, i, os.SCHED_OTHER, os.sched_param(0)),
    'param': lambda i: t(os.sched_setparam, i, os.sched_param(0)),
    'attr': lambda i: raw_call(attr(i)),
    'priority': lambda i: t(os.setpriority, os.PRIO_PROCESS, i, NICE),
    'ioprio': lambda i: raw_call(libc.syscall(%d, 1, i, 2 << 13 | 4)),
}
def every(i): return ' '.join(sorted(set(f(i) for f in CALLS.values())))
def each(i): return ' '.join(n + '=' + f(i) for n, f in CALLS.items())
`, unix.SYS_SCHED_SETATTR, unix.SYS_IOPRIO_SET)

const ownTasks = `
go = threading.Event()
other = threading.Thread(target=go.wait, daemon=True)
other.start()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print('self', every(0), every(os.getpid()), every(threading.get_native_id()))
print('thread', every(other.native_id))
print('child', every(child))
def of_thread(): print('from a thread', every(threading.get_native_id()), every(0), every(os.getpid()), every(child))
u = threading.Thread(target=of_thread)
u.start()
u.join()
os.kill(child, 9)
os.waitpid(child, 0)
print('gone', every(child), 'negative', CALLS['affinity'](-1), CALLS['priority'](-5))
`

const ownAnswers = `self ok ok ok
thread ok
child ok
from a thread ok ok ok ok
gone ESRCH negative ESRCH ESRCH`

const foreignTasks = `
print('host', each(int(os.environ['HOSTPID'])))
print('launcher', sorted({every(int(i)) for i in os.listdir('/proc/%d/task' % os.getppid())}))
print('groups', t(os.setpriority, os.PRIO_PGRP, 0, 0), t(os.setpriority, os.PRIO_USER, 0, 0),
    raw_call(libc.syscall(IOPRIO, 2, 0, 2 << 13 | 4)), raw_call(libc.syscall(IOPRIO, 3, 0, 2 << 13 | 4)))
`

const foreignAnswers = `host affinity=EPERM scheduler=EPERM param=EPERM attr=EPERM priority=EPERM ioprio=EPERM
launcher ['EPERM']
groups EPERM EPERM EPERM EPERM`

// hostTask starts a process of the worker's user that is not the worker's.
func (w *world) hostTask() int {
	w.t.Helper()
	cmd := w.command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestScheduling: a worker schedules its own tasks by whatever number, and no other.
func TestScheduling(t *testing.T) {
	foreign := strings.ReplaceAll(foreignTasks, "IOPRIO", strconv.Itoa(unix.SYS_IOPRIO_SET))
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		host := "HOSTPID=" + strconv.Itoa(w.hostTask())
		want(t, "control, own", w.control(scheduling+ownTasks), ownAnswers)
		got := w.control(scheduling+"print(each(int(os.environ['HOSTPID'])))", host)
		want(t, "control, host", got, "affinity=ok scheduler=ok param=ok attr=ok priority=ok ioprio=ok")
		want(t, "own", w.run(scheduling+ownTasks), ownAnswers)
		if ev := w.told(); len(ev) > 0 {
			t.Errorf("denials of own tasks: %+v", ev)
		}
		w = newWorld(t, m)
		want(t, "foreign", w.run(scheduling+foreign, host), foreignAnswers)
		for _, op := range []string{"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "setpriority", "ioprio_set"} {
			if !slices.ContainsFunc(w.told(), func(e Event) bool {
				return e.Op == op && e.Kind == KindSchedule && e.Errno == unix.EPERM && e.Gap == "" && e.PID != 0
			}) {
				t.Errorf("no event of %s: %+v", op, w.told())
			}
		}
	})
}

// TestSchedulingScoped: where the domain tells, it decides; but not of the
// launcher's own threads, about which it can be wrong.
func TestSchedulingScoped(t *testing.T) {
	m := modes()[0]
	for _, c := range []struct {
		answer                 error
		host, launcher, sister string
	}{
		{nil, "ok", "EPERM", "ok"},
		{unix.EPERM, "EPERM", "EPERM", "EPERM"},
		{unix.ESRCH, "ESRCH", "EPERM", "ESRCH"},
	} {
		w := newWorld(t, m)
		host := w.hostTask()
		var asked []int
		w.reach = func(tid int) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			asked = append(asked, tid)
			return c.answer
		}
		got := w.run(scheduling+`
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(every(int(os.environ['HOSTPID'])), every(os.getppid()), every(child), every(os.getpid()))
os.kill(child, 9)
`, "HOSTPID="+strconv.Itoa(host))
		want(t, fmt.Sprint(c.answer), got, strings.Join([]string{c.host, c.launcher, c.sister, "ok"}, " "))
		w.mu.Lock()
		about := slices.Clone(asked)
		w.mu.Unlock()
		if !slices.Contains(about, host) || slices.Contains(about, os.Getpid()) {
			t.Errorf("asked about %v, not as it should of %d and not of %d", about, host, os.Getpid())
		}
	}
}

func TestParseFilters(t *testing.T) {
	for text, want := range map[string]int{
		"Tgid:\t7\nSeccomp:\t2\nSeccomp_filters:\t3\n": 3,
		"Seccomp_filters:\t0\n":                        0,
		"Tgid:\t7\nSeccomp:\t2\n":                      -1,
	} {
		if got := parseStatus([]byte(text)).filters; got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
