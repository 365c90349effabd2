package landlock

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/policy"
)

// The tests here hold faults that were found by attacking the launcher.

func startWith(t *testing.T, prepared backend.Prepared, ws string, stdin *os.File, argv ...string) (backend.Worker, error) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if stdin == nil {
		stdin = null
	}
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	return prepared.Start(backend.Command{Path: path, Argv: argv, Dir: dir, Stdin: stdin, Stdout: null, Stderr: null, OwnTree: true})
}

// TestNetworkSocketsAsStdio: a socket that could listen or send again, once it
// is disconnected, is no standard descriptor of a worker without a network.
func TestNetworkSocketsAsStdio(t *testing.T) {
	ws := realTemp(t)
	none := prepare(t, testPolicy(t, ws, nil))
	host := prepare(t, testPolicy(t, ws, func(s *policy.Spec) { s.Net = policy.NetHost }))
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	listening, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Close()
	c, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	connected, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer connected.Close()
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	datagram, err := u.File()
	if err != nil {
		t.Fatal(err)
	}
	defer datagram.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	local := os.NewFile(uintptr(pair[0]), "pair")
	defer local.Close()
	for name, f := range map[string]*os.File{"listening": listening, "connected": connected, "datagram": datagram} {
		if w, err := startWith(t, none, ws, f, "true"); err == nil {
			w.Wait()
			t.Errorf("a %s socket was taken as a worker's stdin", name)
		}
		w, err := startWith(t, host, ws, f, "true")
		if err != nil {
			t.Errorf("with the host's network, %s: %v", name, err)
			continue
		}
		w.Wait()
	}
	w, err := startWith(t, none, ws, local, "true")
	if err != nil {
		t.Fatalf("a unix socket pair: %v", err)
	}
	w.Wait()
}

// TestAllowExecCoversTemp: with an exec allow-list, what the worker copies to
// its temp cannot be run. The control: without the list it can.
func TestAllowExecCoversTemp(t *testing.T) {
	ws := realTemp(t)
	const script = `cp /usr/bin/true "$TMPDIR/x" && "$TMPDIR/x"`
	if _, res := runIn(t, prepare(t, testPolicy(t, ws, nil)), ws, "sh", "-c", script); res.Outcome.ExitStatus() != 0 {
		t.Fatalf("the control: %+v", res.Outcome)
	}
	listed := testPolicy(t, ws, func(s *policy.Spec) {
		s.ExecOnly = true
		for i := range s.Grants {
			if s.Grants[i].Path == policy.Raw(ws) {
				s.Grants[i].Access &^= policy.Exec
			}
		}
	})
	if out, res := runIn(t, prepare(t, listed), ws, "sh", "-c", script); res.Outcome.ExitStatus() != 126 {
		t.Errorf("%+v %s", res.Outcome, out)
	}
}

// TestHandleGivesNoRights: a handle (O_PATH) on a file outside, as a standard
// descriptor, does not make that file readable.
func TestHandleGivesNoRights(t *testing.T) {
	root := realTemp(t)
	ws := filepath.Join(root, "ws")
	secret := filepath.Join(root, "secret")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("s"), 0o644); err != nil {
		t.Fatal(err)
	}
	prepared := prepare(t, testPolicy(t, ws, nil))
	for name, tt := range map[string]struct {
		flags int
		want  int
	}{
		"handle":      {unix.O_PATH, 1},
		"ioctl only":  {3, 1},
		"for reading": {unix.O_RDONLY, 0}, // the control
	} {
		fd, err := unix.Open(secret, tt.flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), secret)
		w, err := startWith(t, prepared, ws, f, "sh", "-c", `[ "$(cat /proc/self/fd/0)" = s ]`)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Wait().Outcome.ExitStatus(); got != tt.want {
			t.Errorf("%s: status %d, want %d", name, got, tt.want)
		}
		_ = f.Close()
	}
}

// TestTracedWorkerIsNotEnded: a worker that makes its parent its tracer and
// stops has not ended, whatever waitid reports.
func TestTracedWorkerIsNotEnded(t *testing.T) {
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("no /usr/bin/python3")
	}
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	for _, sig := range []string{"SIGUSR1", "SIGSEGV", "SIGWINCH", "SIGTRAP"} {
		script := `import ctypes, os, signal
signal.signal(signal.` + sig + `, lambda *a: None)
for i in range(3):
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.` + sig + `)
os._exit(7)`
		_, res := runIn(t, prepared, ws, python, "-c", script)
		if res.Outcome.Kind != backend.Exited || res.Outcome.ExitStatus() != 7 {
			t.Errorf("%s: %+v", sig, res.Outcome)
		}
	}
	// And a death under a tracer is a death.
	_, res := runIn(t, prepared, ws, python, "-c", "import ctypes, os\nctypes.CDLL(None).ptrace(0,0,0,0)\nos.kill(os.getpid(), 15)")
	if res.Outcome.Kind != backend.Signaled || res.Outcome.Signal != 15 {
		t.Errorf("%+v", res.Outcome)
	}
}

// TestTracersDoNotHoldTheLauncher: whoever traces whom in the tree, the worker's
// end is seen, and what is left goes with it.
func TestTracersDoNotHoldTheLauncher(t *testing.T) {
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("no /usr/bin/python3")
	}
	const prelude = "import ctypes, os, signal, threading, time\nlibc = ctypes.CDLL(None)\nseize, traceme = 0x4206, 0\n"
	for name, script := range map[string]string{
		"a child traces the worker": `
r, w = os.pipe()
if os.fork() == 0:
    libc.ptrace(seize, os.getppid(), 0, 0)
    os.write(w, b"x")
    while True: signal.pause()
os.read(r, 1)
os._exit(3)`,
		"a child out of its session traces the worker": `
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    libc.ptrace(seize, os.getppid(), 0, 0)
    os.write(w, b"x")
    while True: signal.pause()
os.read(r, 1)
os._exit(3)`,
		"a thread made the launcher its tracer": `
t = threading.Thread(target=lambda: libc.ptrace(traceme, 0, 0, 0)); t.start(); t.join()
os._exit(3)`,
		"a thread that stands still made it so": `
def stop():
    libc.ptrace(traceme, 0, 0, 0)
    getattr(libc, "raise")(signal.SIGUSR1) # outside of the interpreter's lock
threading.Thread(target=stop, daemon=True).start()
time.sleep(0.1)
os._exit(3)`,
		"the worker stands still, again and again": `
signal.signal(signal.SIGUSR1, lambda *a: None)
for _ in range(5):
    libc.ptrace(traceme, 0, 0, 0)
    getattr(libc, "raise")(signal.SIGUSR1)
os._exit(3)`,
		"a thread of an orphan made it so": `
r, w = os.pipe()
if os.fork() == 0:
    above = os.getpid()
    if os.fork() == 0:
        os.setsid()
        while os.getppid() == above: time.sleep(0.001)
        t = threading.Thread(target=lambda: libc.ptrace(traceme, 0, 0, 0)); t.start(); t.join()
        os.write(w, b"x")
        time.sleep(300)
    os._exit(0)
os.read(r, 1)
os._exit(3)`,
	} {
		for _, own := range []bool{true, false} { // a launcher with many workers waits in another way
			if !own && strings.Contains(name, "orphan") {
				continue // of such a launcher none is a child
			}
			t.Run(fmt.Sprintf("%s, alone %v", name, own), func(t *testing.T) {
				ws := realTemp(t)
				w := launchIn(t, prepare(t, testPolicy(t, ws, nil)), ws, backend.Command{OwnTree: own}, python, "-c", prelude+script)
				res := waitAtOnce(t, w)
				if res.Outcome.Kind != backend.Exited || res.Outcome.ExitStatus() != 3 || len(res.Survivors) > 0 {
					t.Errorf("%+v, survivors %v", res.Outcome, res.Survivors)
				}
			})
		}
	}
}

// TestOrphansAreReaped: an orphan that has ended does not count against the
// worker's process limit until the worker ends.
func TestOrphansAreReaped(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	had := zombies(t) // a worker that is not alone leaves its own to its launcher
	w, err := startWith(t, prepared, ws, nil, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do (true &) ; done; : >made; while [ ! -e go ]; do sleep 0.02; done")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Wait()
	defer os.WriteFile(filepath.Join(ws, "go"), nil, 0o644)
	deadline := time.Now().Add(5 * time.Second)
	for {
		_, err := os.Stat(filepath.Join(ws, "made"))
		if err == nil && zombies(t) <= had {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d zombies after 5 s, %d before", zombies(t), had)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func zombies(t *testing.T) (n int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lists {
		pids, _ := os.ReadFile(l)
		for _, pid := range bytes.Fields(pids) {
			stat, _ := os.ReadFile("/proc/" + string(pid) + "/stat")
			if i := bytes.LastIndexByte(stat, ')'); i > 0 && strings.HasPrefix(string(stat[i+1:]), " Z") {
				n++
			}
		}
	}
	return n
}
