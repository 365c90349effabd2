package launch

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Stop asks the whole tree to end (SIGTERM, and SIGCONT for what is stopped),
// and kills its root after grace if it is still there then; the rest goes with
// the root, as ever. It returns at once, and reports whether the root was alive:
// if not, its end is its own and none of the caller's doing.
func (p *Process) Stop(grace time.Duration) bool { return p.stopBy(byCaller, grace) }

func (p *Process) stop(grace time.Duration) bool {
	if p.ended() {
		return false
	}
	if grace <= 0 {
		return p.kill()
	}
	// Listed before the root can go, and told after it: it may want to end
	// them itself.
	below := descendants(p.pid)
	if p.stage != nil { // to whom its orphans go
		init, _ := p.stage.PID()
		below = append(below, descendants(init)...)
	}
	_ = p.Signal(unix.SIGTERM)
	_ = p.Signal(unix.SIGCONT)
	for _, pid := range below {
		terminate(pid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped && p.killer == nil {
		p.killer = time.AfterFunc(grace, func() { p.kill() })
	}
	return true
}

func (p *Process) kill() bool {
	alive := !p.ended()
	if alive {
		p.killed.Store(true)
	}
	_ = p.Signal(unix.SIGKILL)
	return alive
}

// ended tells whether the root has ended, reaped or not.
func (p *Process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return true
	}
	if p.pidfd < 0 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/stat")
		return err != nil || stateOf(stat) == 'Z'
	}
	// A pidfd polls readable when its process has ended (pidfd_open(2)).
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// maxDescendants bounds what one Stop looks at. Those beyond it are not asked;
// they are killed with the rest.
const maxDescendants = 10_000

// descendants lists the processes below pid, parents first.
func descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all) && len(all) < maxDescendants; i++ {
		all = append(all, childrenOf(strconv.Itoa(all[i]))...)
	}
	return all[1:]
}

// terminate asks one process to end. The pid may have been given to another
// process since it was read, so it is pinned first and then looked at again.
func terminate(pid int) {
	parent := parentOf(pid)
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if parent == 0 || parentOf(pid) != parent {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
}

func parentOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(statField(stat, 1))
	return n
}

// statField returns a field of /proc/PID/stat after the name, which may hold
// anything: 0 is the state, 1 the parent.
func statField(stat []byte, n int) string {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if n >= len(fields) {
		return ""
	}
	return string(fields[n])
}

func stateOf(stat []byte) byte {
	if s := statField(stat, 0); s != "" {
		return s[0]
	}
	return 0
}
