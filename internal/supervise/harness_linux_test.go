package supervise

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// The test filter: what a launcher's filter hands over, built by hand.

const (
	bpfLoad  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfBits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	bpfRet   = unix.BPF_RET | unix.BPF_K
)

func testFilter() []unix.SockFilter {
	arg := func(n int) uint32 { return uint32(16 + 8*n) } // low half
	var p []unix.SockFilter
	add := func(code int, k uint32, jt, jf uint8) {
		p = append(p, unix.SockFilter{Code: uint16(code), Jt: jt, Jf: jf, K: k})
	}
	notify := func() { add(bpfRet, unix.SECCOMP_RET_USER_NOTIF, 0, 0) }
	allow := func() { add(bpfRet, unix.SECCOMP_RET_ALLOW, 0, 0) }
	add(bpfLoad, 4, 0, 0)
	add(bpfEqual, sys.NotifArch, 1, 0)
	allow()
	add(bpfLoad, 0, 0, 0)
	for _, nr := range slices.Concat(trappedAlways, trappedSchedulers) {
		add(bpfEqual, uint32(nr), 0, 1)
		notify()
	}
	// sendto with an address.
	add(bpfEqual, unix.SYS_SENDTO, 0, 6)
	add(bpfLoad, arg(4), 0, 0)
	add(bpfEqual, 0, 0, 2)
	add(bpfLoad, arg(4)+4, 0, 0)
	add(bpfEqual, 0, 1, 0)
	notify()
	allow()
	for nr, flags := range trappedOpens {
		add(bpfEqual, uint32(nr), 0, 6)
		add(bpfLoad, arg(flags), 0, 0)
		// glibc's sem_open makes its file without O_NOFOLLOW.
		add(bpfEqual, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 2, 0)
		add(bpfBits, unix.O_NOFOLLOW, 0, 2)
		add(bpfBits, unix.O_CREAT|unix.O_WRONLY|unix.O_RDWR, 0, 1)
		notify()
		allow()
	}
	allow()
	return p
}

// trappedSchedulers are trapped for the caller itself, too, which a launcher's filter
// lets through.
var trappedSchedulers = []int{unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET}

func installFilter(flags uintptr) (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	prog := testFilter()
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(&f)))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// mode is whose credentials a worker has.
type mode struct {
	name     string
	uid, gid int
	drop     bool
}

// modes are those of an ordinary launcher, or for root its own uid and another.
func modes() []mode {
	uid, gid := os.Getuid(), os.Getgid()
	list := []mode{{"same uid", uid, gid, uid != 0}}
	if uid == 0 {
		list = append(list, mode{"dropped uid", 65534, 65534, true})
	}
	return list
}

func eachMode(t *testing.T, f func(t *testing.T, m mode)) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

// world is one worker's surroundings: a workspace that it may write to, a host
// directory that it may not, and a private shm.
type world struct {
	t               testing.TB
	m               mode
	work, host, shm string
	cfg             Config
	plain           bool // no WAIT_KILLABLE_RECV, as before 5.19
	reach           func(tid int) error
	mu              sync.Mutex
	events          []Event
	s               *Supervisor
}

func newWorld(t testing.TB, m mode) *world {
	t.Helper()
	top, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	os.Chmod(top, 0o755)
	if top, err = filepath.EvalSymlinks(top); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, m: m, work: top + "/work", host: top + "/host", shm: top + "/shm"}
	for dir, perm := range map[string]os.FileMode{w.work: 0o755, w.host: 0o777, w.shm: 0o700} {
		if err := os.Mkdir(dir, perm); err != nil {
			t.Fatal(err)
		}
		os.Chmod(dir, perm)
		os.Chown(dir, m.uid, m.gid)
	}
	w.cfg = Config{
		Unix: true, Truncate: true,
		WritableRoots: []string{w.work}, Shm: w.shm,
		UID: m.uid, GID: m.gid, DropCaps: m.drop,
		OnEvent: func(e Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	}
	if m.uid == os.Getuid() {
		w.cfg.Groups, _ = os.Getgroups()
	}
	return w
}

// told is all that was told of a worker that has ended: an event comes after its answer.
func (w *world) told() []Event {
	w.t.Helper()
	if w.s != nil {
		if err := w.s.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Event(nil), w.events...)
}

// command prepares argv in the workspace, not started.
func (w *world) command(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = w.work
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + w.work, "TMPDIR=" + w.work,
		"WORK=" + w.work, "HOST=" + w.host, "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONWARNINGS=ignore::DeprecationWarning"} // Python 3.12 has one for a fork beside threads
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: 0}
	if w.m.uid != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.m.uid), Gid: uint32(w.m.gid)}
	}
	return cmd
}

// start starts cmd from a thread that has the filter, and the supervisor.
func (w *world) start(cmd *exec.Cmd) {
	w.t.Helper()
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if w.plain {
		flags = 0
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			done <- errMain
			select {}
		}
		fd, err := installFilter(flags)
		if err == nil {
			w.s, err = w.supervise(fd)
		}
		if err == nil {
			err = cmd.Start()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
	s := w.s
	w.t.Cleanup(func() {
		cmd.Process.Kill()
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) supervise(fd int) (*Supervisor, error) {
	if w.reach == nil {
		return Start(fd, w.cfg)
	}
	s, err := New(w.cfg)
	if err == nil {
		s.Scope(w.reach)
		s.Attach(fd)
	}
	return s, err
}

var errMain = fmt.Errorf("the goroutine got the main thread")

// TestMain keeps the main thread out of the goroutines' reach, and is the Go
// worker, or a launcher to be exhausted, when it is told so.
func TestMain(m *testing.M) {
	if os.Getenv("SUPERVISE_GO_WORKER") != "" {
		goWorker()
		return
	}
	if os.Getenv("SUPERVISE_LAUNCHER") != "" {
		exhaustLauncher()
	}
	os.Exit(m.Run())
}

func init() { runtime.LockOSThread() } // main goroutine on the main thread

// run runs a Python script under supervision and returns what it printed.
func (w *world) run(script string, env ...string) string {
	w.t.Helper()
	cmd := w.command("/usr/bin/python3", "-c", prelude+script)
	cmd.Env = append(cmd.Env, env...)
	return w.finish(cmd)
}

func (w *world) finish(cmd *exec.Cmd) string {
	w.t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	w.start(cmd)
	end := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer end.Stop()
	if err := cmd.Wait(); err != nil {
		w.t.Fatalf("worker: %v\n%s\nevents: %+v", err, out.String(), w.told())
	}
	return strings.TrimSpace(out.String())
}

// control runs the same script without supervision.
func (w *world) control(script string, env ...string) string {
	w.t.Helper()
	cmd := w.command("/usr/bin/python3", "-c", prelude+script)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("control: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func want(t testing.TB, what, got, wanted string) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s:\n got %s\nwant %s", what, got, wanted)
	}
}

const prelude = `
import os, sys, socket, errno, struct, ctypes, time, threading, signal, array
WORK, HOST = os.environ['WORK'], os.environ['HOST']
libc = ctypes.CDLL(None, use_errno=True)
def t(f, *a):
    try:
        r = f(*a)
        return 'ok' if r is None or not isinstance(r, int) else str(r)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e.errno))
def sock(kind=socket.SOCK_STREAM): return socket.socket(socket.AF_UNIX, kind)
STREAM, DGRAM, SEQ = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
def raw(name, *a):
    r = getattr(libc, name)(*a)
    return str(r) if r >= 0 else errno.errorcode[ctypes.get_errno()]
`

// hostSocket is a listener of the host that counts what reaches it.
type hostSocket struct {
	mu   sync.Mutex
	hits int
}

func (h *hostSocket) hit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hits++
}

func (h *hostSocket) count() int {
	time.Sleep(20 * time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hits
}

func listenHost(t testing.TB, network, name string) *hostSocket {
	t.Helper()
	h := &hostSocket{}
	addr := &net.UnixAddr{Net: network, Name: name}
	if network == "unixgram" {
		c, err := net.ListenUnixgram(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			var b [64]byte
			for {
				if _, _, err := c.ReadFrom(b[:]); err != nil {
					return
				}
				h.hit()
			}
		}()
	} else {
		l, err := net.ListenUnix(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				h.hit()
				c.Close()
			}
		}()
	}
	if !strings.HasPrefix(name, "@") {
		os.Chmod(name, 0o777)
	}
	return h
}
