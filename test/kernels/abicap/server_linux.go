package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// filter hands over the Landlock calls, whose numbers are the same on every
// architecture, and PR_SET_DUMPABLE (see memory), whose number is not.
var filter = []sys.SockFilter{
	0:  {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4}, // seccomp_data.arch
	1:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: sys.NotifArch, Jf: 4},
	2:  {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // .nr
	3:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PRCTL, Jf: 2},
	4:  {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // .args[0], its lower half
	5:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PR_SET_DUMPABLE, Jt: 3, Jf: 4},
	6:  {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
	7:  {Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jf: 2},
	8:  {Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: unix.SYS_LANDLOCK_RESTRICT_SELF, Jt: 1},
	9:  {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
	10: {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
}

// fake is the Landlock that the command sees.
type fake struct {
	errno syscall.Errno // of every call, if it is not 0
	abi   int
	kernel
}

type server struct {
	fake
	listener int
	memory   memory
	failed   atomic.Bool
}

// answer is a value or an errno; neither lets the kernel carry the call out.
type answer struct {
	value int64
	errno syscall.Errno
}

var proceed = answer{}

func refuse(errno syscall.Errno) answer { return answer{errno: errno} }

// serve answers one call after the other until this process ends. It waits in
// system calls that the runtime knows of, so one CPU is enough.
func (s *server) serve() {
	for {
		n, err := sys.NotifRecv(s.listener)
		switch {
		case err == unix.EINTR || err == unix.ENOENT: // the caller was interrupted or is gone
			continue
		case err != nil:
			s.fail(fmt.Errorf("receiving a call: %w", err))
			return
		}
		a := s.judge(n)
		if a == proceed {
			err = sys.NotifContinue(s.listener, n.ID)
		} else {
			err = sys.NotifSend(s.listener, n.ID, a.value, a.errno)
		}
		if err != nil && err != unix.ENOENT { // ENOENT: interrupted; it will ask again
			s.fail(fmt.Errorf("answering a call: %w", err))
		}
	}
}

// fail says what this process could not do. The command goes on, and its exit
// status will not count.
func (s *server) fail(err error) {
	fmt.Fprintln(os.Stderr, "abicap:", err)
	s.failed.Store(true)
}

func (s *server) judge(n sys.Notif) answer {
	tid := int(n.PID)
	if n.Nr == unix.SYS_PRCTL {
		if n.Args[1] == 0 {
			s.memory.keep(tid)
		}
		return proceed
	}
	if s.errno != 0 {
		return refuse(s.errno)
	}
	switch n.Nr {
	case unix.SYS_LANDLOCK_CREATE_RULESET:
		return s.createRuleset(n.ID, tid, n.Args[0], n.Args[1], uint32(n.Args[2]))
	case unix.SYS_LANDLOCK_ADD_RULE:
		return s.addRule(tid, int32(n.Args[0]), uint32(n.Args[1]), uint32(n.Args[3]))
	default:
		return s.restrictSelf(tid, uint32(n.Args[1]))
	}
}

func (s *server) createRuleset(id uint64, tid int, attr, size uint64, flags uint32) answer {
	if flags != 0 {
		asks := attr == 0 && size == 0
		switch {
		case asks && flags == unix.LANDLOCK_CREATE_RULESET_VERSION:
			return s.version()
		case asks && flags == unix.LANDLOCK_CREATE_RULESET_ERRATA && s.errata:
			return proceed
		}
		return refuse(unix.EINVAL)
	}
	// What is no struct of any ABI, every kernel refuses alike: it may do so.
	if attr == 0 || size < 8 || size > uint64(os.Getpagesize()) {
		return proceed
	}
	b := make([]byte, size)
	switch err := s.memory.read(tid, attr, b); {
	case errors.Is(err, errFault):
		return proceed // and be EFAULT
	case err != nil && !sys.NotifValid(s.listener, id):
		return proceed // it was killed meanwhile
	case err != nil:
		s.fail(fmt.Errorf("reading the ruleset of thread %d: %w", tid, err))
		return refuse(unix.EPERM)
	}
	if errno := s.judgeAttr(b); errno != 0 {
		return refuse(errno)
	}
	return proceed
}

// version is the smaller of the two. A kernel without Landlock says so itself.
func (s *server) version() answer {
	real, err := landlockVersion()
	if err != nil {
		return proceed
	}
	return answer{value: int64(min(real, s.abi))}
}

func landlockVersion() (int, error) {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0, errno
	}
	return int(v), nil
}

// addRule looks at no rule: one can only allow what its ruleset handles, and no
// ruleset was made that handles something unknown.
func (s *server) addRule(tid int, ruleset int32, ruleType, flags uint32) answer {
	switch {
	case flags&^s.ruleFlags != 0:
		return refuse(unix.EINVAL)
	case ruleType > s.ruleTypes: // 0 no kernel knows
		return refuse(notRuleset(tid, ruleset))
	}
	return proceed
}

// notRuleset is the errno of an unknown rule type: the descriptor is looked at
// before it. Where /proc may not be read it is taken for a ruleset.
func notRuleset(tid int, fd int32) syscall.Errno {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, fd))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return unix.EBADF
	case err == nil && !strings.Contains(link, "landlock-ruleset"):
		return unix.EBADFD
	}
	return unix.EINVAL
}

func (s *server) restrictSelf(tid int, flags uint32) answer {
	switch {
	case flags&^s.restrictFlags == 0:
		return proceed
	case !mayRestrict(tid): // is asked before the flags
		return refuse(unix.EPERM)
	}
	return refuse(unix.EINVAL)
}

// mayRestrict tells whether the thread has no_new_privs or CAP_SYS_ADMIN.
func mayRestrict(tid int) bool {
	caps, err := strconv.ParseUint(statusField(tid, "CapEff"), 16, 64)
	return err == nil && caps>>unix.CAP_SYS_ADMIN&1 == 1 || statusField(tid, "NoNewPrivs") == "1"
}
