package supervise

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// exhaustWorker uses up the processes of its user, and then blocks in 200
// connects to a full listener of its own and in sends on full sockets.
const exhaustWorker = prelude + `
threading.stack_size(131072)
N = 200
l = sock(); l.bind('s'); l.listen(0); c = sock(); c.connect('s')
go, up, out = threading.Event(), [], {}
def note(r): out[r] = out.get(r, 0) + 1
def blocked(): up.append(1); go.wait(); k = sock(); note(t(k.connect, 's'))
def full(): up.append(1); go.wait(); x, y = socket.socketpair(); note(t(x.sendmsg, [b'x' * (1 << 20)])); y.close()
def dgram():
    up.append(1); go.wait(); a, b = socket.socketpair(socket.AF_UNIX, DGRAM)
    while True: a.sendmsg([b'x' * 1000])
for f, n in ((blocked, N), (full, 8), (dgram, 4)):
    for _ in range(n): threading.Thread(target=f, daemon=True).start()
while len(up) < N + 12: time.sleep(.01)
kids = []
while True:
    try: pid = os.fork()
    except OSError as e: print('exhausted', errno.errorcode[e.errno], len(kids) > 3, flush=True); break
    if pid == 0:
        try:
            while True: time.sleep(100)
        finally: os._exit(0)
    kids.append(pid)
go.set()
time.sleep(1)
# Others still work, and still cannot be had.
m = sock(); r = [t(m.bind, 'm')]; m.listen(9)
for _ in range(50): r.append(t(sock().connect, 'm')); a, _ = m.accept(); a.close()
r += [t(sock().connect, HOST+'/s'), t(os.unlink, '/dev/shm/none'), t(os.truncate, 's', 0)]
print(len(r), sorted(set(r)), flush=True)
# Room for some: they get through, one by one.
for _ in range(20): l.accept()
end = time.time() + 5
while out.get('ok', 0) < 19 and time.time() < end: time.sleep(.01)
print('through', out.get('ok', 0) >= 19, set(out), flush=True)
sys.stdin.read()
`

// exhaustLauncher is the launcher of TestExhaustedProcesses, in a process and
// under a uid of its own.
func exhaustLauncher() {
	unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 280, Max: 280})
	done := make(chan error)
	var s *Supervisor
	work := os.Getenv("WORK")
	cmd := exec.Command("/usr/bin/python3", "-c", exhaustWorker)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	hold, _ := cmd.StdinPipe()
	go func() {
		runtime.LockOSThread()
		fd, err := installFilter(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
		if err == nil {
			s, err = Start(fd, Config{Unix: true, Truncate: true, WritableRoots: []string{work}, Shm: os.Getenv("SHM"),
				UID: os.Getuid(), GID: os.Getgid(), DropCaps: true})
		}
		if err == nil {
			err = cmd.Start()
		}
		done <- err
		select {}
	}()
	if err := <-done; err != nil {
		fmt.Println("launcher:", err)
		os.Exit(1)
	}
	began := threadCount()
	io.ReadFull(os.Stdin, make([]byte, 1)) // the worker has said its last
	for range 5 {
		runtime.GC() // wants a thread for each processor
	}
	st := s.Stats()
	begin := time.Now()
	err := s.Close()
	// The runtime may use the threads that it has, and must have got no other.
	fmt.Println("closed", err, time.Since(begin) < time.Second, st.InFlight > 150, threadCount() <= began, st.Gaps)
	hold.Close()
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	os.Exit(0)
}

func threadCount() int {
	e, _ := os.ReadDir("/proc/self/task")
	return len(e)
}

func TestExhaustedProcesses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs a user of its own")
	}
	uid := 61000 + os.Getpid()%1000
	m := mode{"own user", uid, uid, true}
	w := newWorld(t, m)
	listenHost(t, "unix", w.host+"/s")
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(filepath.Dir(w.work), "launcher")
	if err := os.WriteFile(bin, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := w.command(bin)
	cmd.Env = append(cmd.Env, "SUPERVISE_LAUNCHER=1", "SHM="+w.shm)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killAll := func() { // whatever is left of the user's
		exec.Command("/usr/bin/setpriv", "--reuid", strconv.Itoa(uid), "--clear-groups", "/bin/sh", "-c", "kill -9 -1").Run()
	}
	defer killAll()
	end := time.AfterFunc(15*time.Second, killAll)
	defer end.Stop()
	var got strings.Builder
	buf := make([]byte, 4096)
	for asked := false; ; {
		n, err := out.Read(buf)
		got.Write(buf[:n])
		if !asked && strings.Contains(got.String(), "through") {
			asked = true
			io.WriteString(in, "x")
		}
		if err != nil || strings.Contains(got.String(), "closed") {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("launcher: %v\n%.2000s", err, stderr.String())
	}
	want(t, "exhausted", strings.TrimSpace(got.String()), `exhausted EAGAIN True
54 ['EACCES', 'EINVAL', 'ENOENT', 'ok']
through True {'ok'}
closed <nil> true true true 0`)
}

// The launcher has few descriptors, and the worker makes it hold as many as it
// can. That must not change how a name that became a host's is judged.
func TestExhaustedDescriptors(t *testing.T) {
	w := newWorld(t, modes()[0])
	var old unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &old)
	base := descriptors(t)
	low := unix.Rlimit{Cur: uint64(base + 64), Max: old.Max}
	cmd := w.command("/usr/bin/python3", "-c", prelude+`
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
N = '\0gone' + WORK
l = sock(); l.bind(N); l.listen(); r = []
p = sock(); r.append(t(p.bind, 'p')); p.listen(99)
for i in range(200): s = sock(); x = t(s.bind, 'p%d' % i); r.append(x); s.close()
print(sorted(set(r)), flush=True)
fds = [os.open('/dev/null', 0) for _ in range(250)]
def hold(n):
    a, b = socket.socketpair(); t(a.sendmsg, [b'x' * 400000], [(1, 1, array.array('i', fds[:n]))])
    b.close()
for n in [1, 8, 16] * 30: threading.Thread(target=hold, args=(n,), daemon=True).start()
x, y = socket.socketpair()
print(t(x.sendmsg, [b'x'], [(1, 1, array.array('i', fds))]), flush=True)
time.sleep(.3); l.close(); print('go', flush=True); sys.stdin.readline()
print(set(t(sock().connect, N) for _ in range(50)), t(sock().connect, 'p'), flush=True)
os._exit(0)
`)
	var out bytes.Buffer
	in, _ := cmd.StdinPipe()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: low.Cur + 16, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	w.start(cmd)
	unix.Setrlimit(unix.RLIMIT_NOFILE, &low)
	buf := make([]byte, 4096)
	var h *hostSocket
	most := 0
	for {
		n, err := pipe.Read(buf)
		out.Write(buf[:n])
		most = max(most, descriptors(t)-base)
		if h == nil && strings.Contains(out.String(), "go\n") {
			h = listenHost(t, "unix", "@gone"+w.work)
			io.WriteString(in, "\n")
		}
		if err != nil {
			break
		}
	}
	cmd.Wait()
	want(t, "few descriptors", strings.TrimSpace(out.String()), "['ENOSPC', 'ok']\nENOBUFS\ngo\n{'EPERM'} ok")
	if h == nil || h.count() != 0 {
		t.Error("the host's socket was reached")
	}
	if w.s.own.noDiag {
		t.Error("sock_diag was given up")
	}
	t.Logf("%d descriptors at most; %+v", most, w.s.Stats())
}

// Nobody to ask: what the worker had once is no proof.
func TestNamesWithoutDiag(t *testing.T) {
	for name, spoil := range map[string]func(o *ownSet){
		"none": func(o *ownSet) { o.noDiag = true },
		"failing": func(o *ownSet) {
			unix.Shutdown(o.diag, 2)
			unix.Close(o.diag)
			o.diag, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, modes()[0])
			w.cfg.OnEvent = func(e Event) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.events = append(w.events, e)
			}
			cmd := w.command("/usr/bin/python3", "-c", prelude+`
sys.stdin.readline()
N = '\0own' + WORK; l = sock(); l.bind(N); l.listen(); print(t(sock().connect, N), t(sock().connect, '\0none'))
`)
			in, _ := cmd.StdinPipe()
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			w.start(cmd)
			w.s.own.mu.Lock()
			spoil(w.s.own)
			w.s.own.mu.Unlock()
			io.WriteString(in, "\n")
			cmd.Wait()
			want(t, "names", strings.TrimSpace(out.String()), "EPERM EPERM")
			e := w.told()
			if len(e) != 2 || e[0].Kind != KindUnixAbstract || e[0].Gap == "" || e[1].Gap != "" || e[1].Kind != KindUnixAbstract {
				t.Errorf("events: %+v", e)
			}
		})
	}
}

// With Inet every other socket than AF_UNIX and NETLINK_ROUTE is refused.
func TestOtherSocketsAreRefused(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	for _, refuse := range []bool{true, false} {
		t.Run(fmt.Sprintf("refuse=%v", refuse), func(t *testing.T) {
			c, err := net.Dial("tcp4", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			f, err := c.(*net.TCPConn).File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w := newWorld(t, modes()[0])
			if refuse {
				w.cfg.Inet = func(string, netip.AddrPort) syscall.Errno { return syscall.EACCES }
			}
			cmd := w.command("/usr/bin/python3", "-c", prelude+`
unspec = struct.pack('H', 0) + b'\0' * 14
r = [raw('connect', 0, unspec, 16), raw('bind', 0, unspec, 16), raw('sendto', 0, b'x', 1, socket.MSG_NOSIGNAL, unspec, 16)]
u = socket.socket(type=DGRAM); r.append(raw('sendto', u.fileno(), b'x', 1, 0, struct.pack('!HHI', 0, 9, 0x7f000001) + b'\0' * 8, 16))
for fam, kind, addr in ((40, STREAM, struct.pack('HHIIB3x', 40, 0, 1024, 1, 0)), (38, SEQ, struct.pack('H14s64s', 38, b'hash', b'sha256') + b'\0' * 8)):
    try: v = socket.socket(fam, kind)
    except OSError: r.append('none'); continue
    r.append(raw('connect' if fam == 40 else 'bind', v.fileno(), addr, len(addr)))
k = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); k.bind((0, 0)); r.append(len(socket.if_nameindex()) > 0)
n = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15); r.append(t(n.bind, (0, 0)))
print(*r)
`)
			cmd.Stdin = f
			got := strings.Fields(w.finish(cmd))
			if len(got) != 8 {
				t.Fatal(got)
			}
			if !refuse {
				if got[0] != "0" || got[7] != "ok" || got[4] == "EACCES" {
					t.Errorf("with the host's network: %v", got)
				}
				return
			}
			for i, r := range got {
				if i == 6 && r != "True" || i != 6 && r != "EACCES" && r != "none" {
					t.Errorf("call %d: %s", i, r)
				}
			}
			for i, e := range w.told() {
				kind := KindInet
				if i > 3 {
					kind = KindOther
				}
				if e.Kind != kind || e.Gap != "" || e.Errno != syscall.EACCES {
					t.Errorf("event: %+v", e)
				}
			}
		})
	}
}

// A blocking TCP connect is made without blocking, and ends as it would.
func TestBlockingInetConnect(t *testing.T) {
	w := newWorld(t, modes()[0])
	got := w.run(`
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1); a = l.getsockname(); keep = []
for i in range(2): s = socket.socket(); s.connect(a); assert s.getblocking(); keep.append(s)
s = socket.socket(); s.setsockopt(1, socket.SO_SNDTIMEO, struct.pack('ll', 0, 200000)); b = time.time(); print(t(s.connect, a), .1 < time.time() - b < 2)
r = []
def late(): k = socket.socket(); r.append(t(k.connect, a)); keep.append(k)
th = threading.Thread(target=late); th.start(); time.sleep(.2); print(th.is_alive())
for i in range(2): l.accept()
th.join(10); print(r); n = socket.socket(); n.bind(('127.0.0.1', 0)); print(t(socket.socket().connect, n.getsockname()))
f = keep[0]; print(t(f.connect, a))
`)
	want(t, "tcp", got, "EINPROGRESS True\nTrue\n['ok']\nECONNREFUSED\nEISCONN")
}

// A worker that takes O_NONBLOCK off its socket all the time makes the deputy
// block now and then. It is freed, and the calls end.
func TestUnblockedSocket(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		got := w.run(`
import fcntl
l = sock(); l.bind('s'); l.listen(0); c = sock(); c.connect('s')
o = sock(); o.bind('o'); o.listen(999)
b = sock(); bad = ctypes.CDLL(None)
def flip():
    while True: bad.fcntl(b.fileno(), 4, 2)
def go(): t(b.connect, 's')
for f in (flip, go): threading.Thread(target=f, daemon=True).start()
end, worst = time.time() + 2, 0
while time.time() < end: a = time.time(); sock().connect('o'); o.accept(); worst = max(worst, time.time() - a); time.sleep(.001)
print(worst < 1); sys.stdout.flush(); os._exit(0)
`)
		want(t, "others", got, "True")
		begin := time.Now()
		if err := w.s.Close(); err != nil || time.Since(begin) > time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(begin))
		}
	})
}

func BenchmarkStart(b *testing.B) {
	for _, prepared := range []bool{false, true} {
		b.Run(fmt.Sprintf("prepared=%v", prepared), func(b *testing.B) { benchmarkStart(b, prepared) })
	}
}

func benchmarkStart(b *testing.B, prepared bool) {
	w := newWorld(b, modes()[0])
	var took []time.Duration
	for range b.N {
		if prepared {
			Prepare()
		}
		fds := make(chan int)
		end := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			fd, err := installFilter(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
			if err != nil {
				b.Error(err)
			}
			fds <- fd
			<-end
		}()
		fd := <-fds
		begin := time.Now()
		s, err := Start(fd, w.cfg)
		took = append(took, time.Since(begin))
		if err != nil {
			b.Fatal(err)
		}
		close(end)
		s.Close()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "median-µs")
	b.ReportMetric(float64(took[0].Nanoseconds())/1e3, "min-µs")
}
