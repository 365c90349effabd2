package supervise

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
)

// hostProbe reaches for every host socket in every way.
const hostProbe = `
P = {STREAM: HOST+'/stream', DGRAM: HOST+'/dgram', SEQ: HOST+'/seq'}
os.path.lexists(WORK+'/link') or os.symlink(HOST+'/stream', WORK+'/link')
r = []
for k in (STREAM, DGRAM, SEQ):
    r.append(t(sock(k).connect, P[k]))
r.append(t(sock().connect, WORK+'/link'))
r.append(t(sock().connect, 'link'))
r.append(t(sock().connect, '../host/stream'))
r.append(t(sock().connect, WORK+'/planted'))
r.append(t(sock(DGRAM).sendto, b'x', P[DGRAM]))
r.append(t(sock(DGRAM).sendmsg, [b'x'], [], 0, P[DGRAM]))
r.append(t(sock().connect, '\0'+ABS))
print(' '.join(r))
`

func TestHostSocketsAreOutOfReach(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		name := "supervise-test-" + strings.ReplaceAll(w.host, "/", "-")
		all := []*hostSocket{
			listenHost(t, "unix", w.host+"/stream"),
			listenHost(t, "unixgram", w.host+"/dgram"),
			listenHost(t, "unixpacket", w.host+"/seq"),
			listenHost(t, "unix", w.work+"/planted"),
			listenHost(t, "unix", "@"+name),
		}
		hits := func() (n int) {
			for _, h := range all {
				n += h.count()
			}
			return n
		}
		script := "ABS='" + name + "'\n" + hostProbe
		want(t, "control", w.control(script), "ok ok ok ok ok ok ok 1 1 ok")
		before := hits()
		if before != 9 { // a datagram connect is not seen
			t.Errorf("the control was seen %d times, want 9", before)
		}
		want(t, "supervised", w.run(script), "EACCES EACCES EACCES EACCES EACCES EACCES EACCES EACCES EACCES EPERM")
		if n := hits() - before; n != 0 {
			t.Errorf("host sockets were reached %d times", n)
		}
		events := w.told()
		if len(events) != 10 {
			t.Fatalf("events: %+v", events)
		}
		e := events[0]
		if e.Op != "connect" || e.Path != w.host+"/stream" || e.Errno != syscall.EACCES || e.Gap != "" || !strings.Contains(e.Exe, "python") {
			t.Errorf("event: %+v", e)
		}
		if a := events[9].Address; a != "@"+name {
			t.Errorf("abstract address: %q", a)
		}
	})
}

func TestAllowedSocket(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		h := listenHost(t, "unix", w.host+"/agent")
		w.cfg.AllowSockets = []string{w.host + "/agent", w.host + "/missing"}
		want(t, "connect", w.run(`print(t(sock().connect, HOST+'/agent'))`), "ok")
		if h.count() != 1 {
			t.Error("the listener saw nothing")
		}
		if e := w.told(); len(e) != 1 || e[0].Op != "start" || e[0].Errno != syscall.ENOENT {
			t.Errorf("events: %+v", e)
		}
	})
}

func TestOwnSocketsWork(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		got := w.run(`
os.umask(0o027)
r = []
for k in (STREAM, SEQ):
    l = sock(k); l.bind(WORK+'/s%d' % k); l.listen(8)
    r.append(oct(os.stat(WORK+'/s%d' % k).st_mode))
    os.symlink('s%d' % k, WORK+'/l%d' % k)
    for p in (WORK+'/s%d' % k, 's%d' % k, './/s%d' % k, 'l%d' % k):
        c = sock(k); c.connect(p); a, _ = l.accept()
        c.send(b'hi'); r.append(a.recv(9).decode())
        assert c.getpeername() == WORK+'/s%d' % k, c.getpeername()
d = sock(DGRAM); d.bind('rel'); assert d.getsockname() == 'rel'
c = sock(DGRAM); c.bind(WORK+'/c')
c.sendto(b'one', 'rel'); r.append(d.recvfrom(9))
c.sendmsg([b'two', b'half'], [], 0, WORK+'/rel'); b, who = d.recvfrom(9); r.append(b)
d.sendto(b'back', who); r.append(c.recv(9))
c.connect('rel'); c.send(b'three'); r.append(d.recv(9)); c.sendmsg([b'four']); r.append(d.recv(9))
class iovec(ctypes.Structure): _fields_ = [('b', ctypes.c_char_p), ('n', ctypes.c_size_t)]
class msghdr(ctypes.Structure): _fields_ = [('name', ctypes.c_char_p), ('nl', ctypes.c_uint), ('iov', ctypes.POINTER(iovec)), ('ni', ctypes.c_size_t), ('c', ctypes.c_void_p), ('cl', ctypes.c_size_t), ('f', ctypes.c_int)]
class mmsghdr(ctypes.Structure): _fields_ = [('h', msghdr), ('n', ctypes.c_uint)]
def mm(*names):
    v = (mmsghdr * len(names))()
    for x, n in zip(v, names):
        x.h.name = struct.pack('H', 1) + n; x.h.nl = 2 + len(n)
        x.h.iov = ctypes.pointer(iovec(b'12345', 5)); x.h.ni = 1
    s = sock(DGRAM)
    return raw('sendmmsg', s.fileno(), v, len(names), 0), [x.n for x in v]
r.append(mm(b'rel', WORK.encode()+b'/rel'))
r.append(mm(b'rel', b'nosuch', b'rel'))
r.append(mm(b'nosuch', b'rel'))
r.append(d.recv(9)+d.recv(9)+d.recv(9))
d.setblocking(False); r.append(t(d.recv, 9))
r.append(t(sock().bind, 'rel')); r.append(t(sock().bind, 'x/y')); r.append(t(sock().bind, 'x/')); r.append(t(sock().bind, '.'))
r.append(t(sock().connect, 'nosuch')); r.append(t(sock().connect, 'rel/x')); r.append(t(sock().connect, 'rel'))
open('file', 'w').close(); r.append(t(sock().connect, 'file'))
r.append(t(sock().bind, HOST+'/new')); r.append(t(sock().bind, '../host/new')); r.append(os.listdir(HOST))
os.symlink(HOST, 'away'); r.append(t(sock().bind, 'away/new')); os.mkdir('sub'); r.append(t(sock().bind, 'sub/../sub/n'))
s = sock(); s2 = sock(); long = struct.pack('H', 1) + b'sub/' + b'x'*104
r.append(raw('bind', s.fileno(), long, 110)); s.listen(); r.append(raw('connect', s2.fileno(), long, 110)); assert s.getsockname() == long[2:].decode(), s.getsockname()
os.rename('sub/n', 'sub/m'); r.append(t(sock().connect, 'sub/m'))
a, b = socket.socketpair(); a.sendmsg([b'pair']); r.append(b.recv(9))
r.append(t(sock().connect, '/proc/self/fd/0')); r.append(t(sock().connect, '/proc/self/cwd/rel'))
for x in r: print(x)
`)
		want(t, "own sockets", got, strings.TrimSpace(`
0o140750
hi
hi
hi
hi
0o140750
hi
hi
hi
hi
(b'one', '`+w.work+`/c')
b'twohalf'
b'back'
b'three'
b'four'
('2', [5, 5])
('1', [5, 0, 0])
('ENOENT', [0, 0])
b'123451234512345'
EAGAIN
EADDRINUSE
ENOENT
ENOENT
EADDRINUSE
ENOENT
ENOTDIR
EPROTOTYPE
ECONNREFUSED
EACCES
EACCES
[]
EACCES
ok
0
0
ECONNREFUSED
b'pair'
ELOOP
ELOOP`))
	})
}

func TestAbstractNames(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		pipe, hold, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer pipe.Close()
		cmd := w.command("/usr/bin/python3", "-c", prelude+`
N = '\0own' + WORK
l = sock(); l.bind(N); l.listen()
r = [t(sock().connect, N), t(sock().connect, N + '\0'), t(sock().connect, '\0')]
d = sock(DGRAM); d.bind(''); name = d.getsockname(); assert name[:1] == b'\0', name
s = sock(DGRAM); r.append(t(s.sendto, b'x', name)); r.append(d.recv(2))
p = sock(DGRAM); p.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); p.sendto(b'y', name)
b, who = d.recvfrom(3); d.sendto(b'z', who); r.append(p.recv(3))
l.close()
print(*r, flush=True)
sys.stdin.read(1)
print(t(sock().connect, N))
`)
		in, _ := cmd.StdinPipe()
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = hold, &out
		w.start(cmd)
		hold.Close()
		buf := make([]byte, 256)
		n, _ := pipe.Read(buf)
		want(t, "names", strings.TrimSpace(string(buf[:n])), "ok EPERM EPERM 1 b'x' b'z'")
		// The name that the worker gave up is a host's now.
		h := listenHost(t, "unix", "@own"+w.work)
		in.Close()
		n, _ = pipe.Read(buf)
		want(t, "a name given up", strings.TrimSpace(string(buf[:n])), "EPERM")
		if err := cmd.Wait(); err != nil {
			t.Error(err, out.String())
		}
		if h.count() != 0 {
			t.Error("the host socket was reached")
		}
	})
}

func TestAddressLengths(t *testing.T) {
	w := newWorld(t, modes()[0])
	got := w.run(`
l = sock(); p = (WORK+'/s').encode(); l.bind(p); l.listen()
A = ctypes.create_string_buffer(struct.pack('H', 1) + p, 4096)
full = ctypes.create_string_buffer(struct.pack('H', 1) + p + b'x'*(108-len(p)), 110)
keep = []
def sk(k=STREAM): keep.append(socket.socket(socket.AF_UNIX, k)); return keep[-1].fileno()
def c(fd, b, n): return raw('connect', fd, b, n)
r = [c(sk(), A, n) for n in (2+len(p), 110, 111, 128, 129, 1<<30, -1, 0, 1, 2)]
r.append(c(sk(), full, 110))
r.append(c(sk(), ctypes.c_void_p(8), 110))
r.append(c(sk(), None, 110))
r.append(c(999, A, 110)); r.append(c(-1, A, 110)); r.append(c(0, A, 110))
A[0:2] = struct.pack('H', 2); r.append(c(sk(), A, 110))
A[0:2] = struct.pack('H', 0); r.append(c(sk(DGRAM), A, 110))
A[0:2] = struct.pack('H', 0); r.append(raw('bind', sk(DGRAM), A, 110))
print(*r)
`)
	want(t, "lengths", got, "0 0 EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL EINVAL ENOENT EFAULT EFAULT EBADF EBADF ENOTSOCK EINVAL 0 EINVAL")
}

func TestDescriptorsAndCredentialsPass(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		got := w.run(`
a, b = socket.socketpair()
r1, w1 = os.pipe(); r2, w2 = os.pipe()
socket.send_fds(a, [b'x'], [w1, w2]); m, fds, _, _ = socket.recv_fds(b, 9, 9)
os.write(fds[0], b'one'); os.write(fds[1], b'two'); print(m, os.read(r1, 9), os.read(r2, 9))
socket.send_fds(b, [b'y'], [r1]); m, fds, _, _ = socket.recv_fds(a, 9, 9)
os.write(w1, b'back'); print(m, os.read(fds[0], 9))
print(t(a.sendmsg, [b'x'], [(1, 1, array.array('i', [999]))]), t(a.sendmsg, [b'x'], [(1, 7, b'1234')]))
d, e = socket.socketpair(socket.AF_UNIX, DGRAM); e.setsockopt(1, socket.SO_PASSCRED, 1)
d.sendmsg([b'x']); m, anc, _, _ = e.recvmsg(9, 99); p, u, g = struct.unpack('iii', anc[0][2]); print(p != os.getpid(), u == os.getuid(), g == os.getgid())
print(t(d.sendmsg, [b'x'], [(1, 2, struct.pack('iii', os.getpid(), os.getuid(), os.getgid()))]))
print(t(d.sendmsg, [b'x'], [(1, 2, struct.pack('iii', os.getpid(), os.getuid()+1, os.getgid()))]))
l = sock(); l.bind('s'); l.listen(); c = sock(); c.connect('s'); s, _ = l.accept()
p, u, g = struct.unpack('iii', s.getsockopt(1, socket.SO_PEERCRED, 12)); print(u == os.getuid(), g == os.getgid(), p == os.getppid())
print(len(os.listdir('/proc/self/fd')) < 30)
`)
		refused := "EPERM"
		if m.uid == 0 && !m.drop {
			refused = "1" // root may claim any uid
		}
		want(t, "passing", got, "b'x' b'one' b'two'\nb'y' b'back'\nEBADF EINVAL\nTrue True True\n1\n"+refused+"\nTrue True True\nTrue")
	})
}

func TestInetWorks(t *testing.T) {
	w := newWorld(t, modes()[0])
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	got := w.run(`
s = socket.socket(); s.connect(('127.0.0.1', ` + port + `)); s.sendall(b'x' * (1<<20) if False else b'x'); s.sendmsg([b'y'])
n = socket.socket(); n.setblocking(False); print(n.connect_ex(('127.0.0.1', ` + port + `)) in (0, errno.EINPROGRESS))
u = socket.socket(type=DGRAM); u.bind(('127.0.0.1', 0)); v = socket.socket(type=DGRAM)
v.sendto(b'a', u.getsockname()); v.sendmsg([b'b'], [], 0, u.getsockname()); print(u.recv(9), u.recv(9))
print(t(v.sendto, b'x' * 70000, u.getsockname()))
k = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); k.bind((0, 0)); print(k.getsockname()[0] != 0, len(socket.if_nameindex()) > 0)
print(t(socket.getaddrinfo, 'localhost', 1))
`)
	want(t, "inet", got, "True\nb'a' b'b'\nEMSGSIZE\nTrue True\nok")
	w = newWorld(t, modes()[0])
	w.cfg.Inet = func(op string, to netip.AddrPort) syscall.Errno { return syscall.EACCES }
	want(t, "refused", w.run(`print(t(socket.socket().connect, ('127.0.0.1', 1)), t(socket.socket(socket.AF_INET6).connect, ('::ffff:127.0.0.1', 1)))`), "EACCES EACCES")
	if e := w.told(); len(e) != 2 || e[1].Address != "127.0.0.1:1" {
		t.Errorf("events: %+v", e)
	}
}

func TestTruncate(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		if err := os.WriteFile(w.host+"/f", []byte("keep"), 0o666); err != nil {
			t.Fatal(err)
		}
		os.Chmod(w.host+"/f", 0o666)
		got := w.run(`
open('f', 'w').write('0123456789'); os.symlink(HOST+'/f', 'l'); os.mkdir('d'); os.mkfifo('p')
r = [t(os.truncate, 'f', 4), os.stat('f').st_size, t(os.truncate, WORK+'/f', 6), os.stat('f').st_size]
r += [t(os.truncate, p, n) for p, n in ((HOST+'/f', 0), ('l', 0), ('d', 0), ('p', 0), ('none', 0), ('f', -1))]
os.chmod('f', 0o444); r.append(t(os.truncate, 'f', 1))
import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.chmod('f', 0o644)
r.append(t(os.truncate, 'f', 101))
print(*r)
`)
		ro := "EACCES"
		if m.uid == 0 && !m.drop {
			ro = "ok"
		}
		want(t, "truncate", got, "ok 4 ok 6 EACCES EACCES EISDIR EINVAL ENOENT EINVAL "+ro+" EFBIG")
		if b, _ := os.ReadFile(w.host + "/f"); string(b) != "keep" {
			t.Errorf("the host's file is %q", b)
		}
	})
}

func TestShm(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		w := newWorld(t, m)
		host := "/dev/shm/supervise-host"
		if err := os.WriteFile(host, make([]byte, 4096), 0o666); err != nil {
			t.Fatal(err)
		}
		os.Chmod(host, 0o666)
		defer os.Remove(host)
		before := shmNames(t)
		got := w.run(`
if __name__ == '__main__':
    import multiprocessing as mp
    from multiprocessing import shared_memory
    mp.set_start_method('fork')
    def f(x): return x * x
    with mp.Pool(2) as p: print(p.map(f, range(5)))
    l = mp.Lock()
    with l: pass
    q = mp.Queue(); q.put(7); print(q.get())
    s = shared_memory.SharedMemory(create=True, size=5000); s.buf[0] = 42
    o = shared_memory.SharedMemory(name=s.name); print(o.buf[0], s.name in os.listdir('/dev/shm')); del o
    try: shared_memory.SharedMemory(name='supervise-host'); print('opened')
    except FileNotFoundError: print('not found')
    m = mp.Manager(); d = m.dict(); d['a'] = 1; print(dict(d)); m.shutdown()
    os.umask(0o22)
    fd = os.open('/dev/shm/x', os.O_RDWR|os.O_CREAT|os.O_EXCL|os.O_NOFOLLOW, 0o666); print(oct(os.fstat(fd).st_mode), os.get_inheritable(fd))
    print(t(os.open, '/dev/shm/x', os.O_RDWR|os.O_CREAT|os.O_EXCL|os.O_NOFOLLOW), t(os.link, '/dev/shm/x', '/dev/shm/y'), t(os.unlink, '/dev/shm/x'), t(os.unlink, '/dev/shm/x'), t(os.unlink, '/dev/shm//./y'))
    open('f', 'w').close(); print(t(os.unlink, 'f'), t(os.unlink, WORK+'/none'))
    print(t(os.open, '/dev/shm/a/b', os.O_RDWR|os.O_NOFOLLOW), t(os.open, '/dev/shm/n', os.O_RDWR|os.O_NOFOLLOW))
    s.close(); s.unlink()
`)
		want(t, "shm", got, `[0, 1, 4, 9, 16]
7
42 False
not found
{'a': 1}
0o100644 False
EEXIST ok ok ENOENT ok
ok ENOENT
ENOENT ENOENT`)
		want(t, "the host's /dev/shm", shmNames(t), before)
		want(t, "what is left", list(t, w.shm), "")
		w2 := newWorld(t, m)
		w2.cfg.Shm = ""
		want(t, "no shm", w2.run(`print(t(os.open, '/dev/shm/x', os.O_RDWR|os.O_CREAT|os.O_NOFOLLOW))`), "EACCES")
	})
}

func list(t *testing.T, dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// shmNames are the names that this test's worker uses; others test here too.
func shmNames(t *testing.T) string {
	var names []string
	for _, name := range strings.Fields(list(t, "/dev/shm")) {
		if strings.HasPrefix(name, "psm_") || strings.HasPrefix(name, "sem.mp-") || name == "x" || name == "y" {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}
