package confine

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// Self cannot be undone, so the tests start this test binary again as the front, with
// a socketpair as descriptor 3, as the monitor will.
const childEnv = "CONFINE_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		os.Exit(front(text))
	}
	// What these tests inherited open is not to reach the front.
	if err := sys.CloseOnExecFrom(3); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// job is what the front of a test is to do.
type job struct {
	Options Options
	// Omit are steps to leave out; "canaries" is what Self tries by itself.
	Omit []string
	// Load is how long it is to work hard, with threads that come and go.
	Load time.Duration
	// One says that only the calling thread is to be confined: by "landlock" or "filter".
	One string
	// Open says that files are not confined.
	Open bool
	// Where something listens that it must not reach, and a directory to write to.
	TCP            int
	Path, Abstract string
	Outside        string
}

// told is what the front answers: what became of the attempts.
type told struct {
	Posture Posture
	// SelfErr is Self's error, after which nothing else was done.
	SelfErr string
	// Control are the attempts before Self that were refused.
	Control map[string]string
	// Through are the attempts after it that were not refused, by name, with the
	// threads (at most a few) and the answer.
	Through map[string][]string
	// How many threads tried: those of before, those that were made while Self ran, and
	// those of later.
	Before, During, Later int
	Attempts              int
	// Wrong is what should have worked, or has other values than it should.
	Wrong []string
	Echo  int64 // bytes
}

// world is what the attempts are made with.
type world struct {
	job
	tcp, path, abstract int // sockets made before, which are not connected
}

// trial is one thing that the front must not be able to do.
type trial struct {
	name string
	try  func(w *world, before bool) error
	// landlock is the ABI from which Landlock refuses it without the filter; 0: it does not.
	landlock int
	// mode says that file modes, users or the kernel's age may refuse it, too.
	mode bool
}

// trials work before Self, each for a reason of its own; the control says so.
func trials() []trial {
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	connect := func(fd func(w *world) int, family int, to func(w *world) unix.Sockaddr) func(*world, bool) error {
		return func(w *world, before bool) error {
			s := fd(w)
			if before { // not the one that is to stay unconnected
				var err error
				if s, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
					return err
				}
				defer unix.Close(s)
			}
			return unix.Connect(s, to(w))
		}
	}
	raw := func(nr uintptr, args ...uintptr) func(*world, bool) error {
		return func(*world, bool) error {
			var a [3]uintptr
			copy(a[:], args)
			r, _, errno := unix.RawSyscall(nr, a[0], a[1], a[2])
			if errno != 0 {
				return errno
			}
			switch nr {
			case unix.SYS_PIDFD_OPEN, unix.SYS_INOTIFY_INIT1, unix.SYS_TIMERFD_CREATE:
				_ = unix.Close(int(r))
			}
			return nil
		}
	}
	return []trial{
		{"read a file", func(*world, bool) error { return open("/etc/passwd", unix.O_RDONLY) }, 1, false},
		{"open the binary", func(*world, bool) error { return open("/proc/self/exe", unix.O_RDONLY) }, 1, false},
		{"open its memory", func(*world, bool) error { return open("/proc/self/mem", unix.O_RDONLY) }, 1, true},
		{"list a directory", func(*world, bool) error { return open("/", unix.O_RDONLY|unix.O_DIRECTORY) }, 1, false},
		{"make a file", func(w *world, _ bool) error {
			name := filepath.Join(w.Outside, fmt.Sprint(unix.Gettid()))
			defer os.Remove(name)
			return open(name, unix.O_WRONLY|unix.O_CREAT)
		}, 1, false},
		{"run a program", func(*world, bool) error {
			// Without descriptors, or opening /dev/null would be what is refused.
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
			if err == nil {
				_, err = syscall.Wait4(pid, nil, 0, nil)
			}
			return err
		}, 1, false},
		{"connect by path", connect(func(w *world) int { return w.path }, unix.AF_UNIX, func(w *world) unix.Sockaddr { return &unix.SockaddrUnix{Name: w.Path} }), 9, false},
		{"connect to an abstract socket", connect(func(w *world) int { return w.abstract }, unix.AF_UNIX, func(w *world) unix.Sockaddr { return &unix.SockaddrUnix{Name: w.Abstract} }), 6, false},
		{"connect over TCP", connect(func(w *world) int { return w.tcp }, unix.AF_INET, func(w *world) unix.Sockaddr {
			return &unix.SockaddrInet4{Port: w.TCP, Addr: [4]byte{127, 0, 0, 1}}
		}), 4, false},
		{"execve", func(*world, bool) error { return unless(sys.TryExec([]byte("/proc/self/exe\x00")), unix.EFAULT) }, 0, true},
		{"clone of a process", func(*world, bool) error {
			_, _, errno := unix.RawSyscall(unix.SYS_CLONE, unix.CLONE_THREAD|uintptr(unix.SIGCHLD), 0, 0)
			return unless(errno, unix.EINVAL)
		}, 0, false},
		{"a unix socket", func(*world, bool) error { return trySocket(unix.AF_UNIX) }, 0, false},
		{"an IP socket", func(*world, bool) error { return trySocket(unix.AF_INET) }, 0, false},
		{"a netlink socket", func(*world, bool) error {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}, 0, false},
		{"a socket pair", func(*world, bool) error {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				_, _ = unix.Close(p[0]), unix.Close(p[1])
			}
			return err
		}, 0, false},
		{"a pipe", func(*world, bool) error {
			var p [2]int
			err := unix.Pipe2(p[:], unix.O_CLOEXEC)
			if err == nil {
				_, _ = unix.Close(p[0]), unix.Close(p[1])
			}
			return err
		}, 0, false},
		{"a file in memory", func(*world, bool) error {
			fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}, 0, false},
		{"executable memory", func(*world, bool) error {
			m, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return fmt.Errorf("readable memory: %v", err) // no refusal of what is tried
			}
			defer unix.Munmap(m)
			return unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC)
		}, 0, false},
		{"process_vm_readv", func(*world, bool) error {
			from, to := []byte{1}, []byte{0}
			local := []unix.Iovec{{Base: &to[0], Len: 1}}
			_, err := unix.ProcessVMReadv(os.Getpid(), local, remote(&from[0]), 0)
			return err
		}, 0, false},
		{"signal itself", raw(unix.SYS_KILL, uintptr(os.Getpid()), 0), 0, false},
		{"signal the monitor", raw(unix.SYS_KILL, uintptr(os.Getppid()), 0), 0, true},
		{"signal the monitor's thread", raw(unix.SYS_TGKILL, uintptr(os.Getppid()), uintptr(os.Getppid()), 0), 0, true},
		{"pidfd_open", raw(unix.SYS_PIDFD_OPEN, uintptr(os.Getpid()), 0), 0, false},
		{"unshare", raw(unix.SYS_UNSHARE, 0), 0, false},
		{"umask", raw(unix.SYS_UMASK, 0o22), 0, false},
		{"setuid to itself", raw(unix.SYS_SETUID, uintptr(os.Getuid())), 0, false},
		{"become dumpable", raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1), 0, false},
		{"another prctl", raw(unix.SYS_PRCTL, unix.PR_GET_KEEPCAPS, 0), 0, false},
		{"inotify", raw(unix.SYS_INOTIFY_INIT1, unix.IN_CLOEXEC), 0, false},
		{"ask for a priority", raw(unix.SYS_GETPRIORITY, 0, 0), 0, false},
		{"raise a limit", func(*world, bool) error {
			var l unix.Rlimit
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &l); err != nil {
				return fmt.Errorf("reading a limit: %v", err)
			}
			return unix.Prlimit(0, unix.RLIMIT_NOFILE, &l, nil)
		}, 0, false},
	}
}

// refusal tells whether an attempt was refused, rather than failed otherwise.
func refusal(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) }

// front is the child.
func front(text string) int {
	w := &world{}
	if err := json.Unmarshal([]byte(text), &w.job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	answer := told{Control: map[string]string{}, Through: map[string][]string{}}
	if len(w.Omit) > 0 {
		omitted = func(step string) bool { return slices.Contains(w.Omit, step) }
	}
	switch w.One {
	case "landlock":
		restrictAll = func(ruleset int, _ bool) error { return ll.LandlockRestrictSelf(ruleset, 0) }
	case "filter":
		installAll = func(prog []sys.SockFilter) error {
			_, err := sys.InstallFilter(prog, false)
			return err
		}
	}
	os.Unsetenv(childEnv)
	err := w.run(&answer)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return 2
	}
	return 0
}

func (w *world) run(answer *told) error {
	for _, s := range []struct {
		fd     *int
		family int
	}{{&w.tcp, unix.AF_INET}, {&w.path, unix.AF_UNIX}, {&w.abstract, unix.AF_UNIX}} {
		fd, err := unix.Socket(s.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		*s.fd = fd
		w.Options.Keep = append(w.Options.Keep, fd)
	}
	for _, tr := range trials() {
		if err := tr.try(w, true); err != nil {
			answer.Control[tr.name] = err.Error()
		}
	}
	// Threads that exist before, and a world that is busy while it is confined.
	const old = 8
	var ready, finished sync.WaitGroup
	start := make(chan bool)
	results := make(chan result, 64)
	for i := range old {
		ready.Add(1)
		finished.Go(func() {
			runtime.LockOSThread()
			if i%2 == 0 {
				defer runtime.UnlockOSThread() // the others' threads end
			}
			ready.Done()
			if <-start {
				results <- w.attempt("before")
			}
		})
	}
	ready.Wait()
	stop := make(chan struct{})
	var noise sync.WaitGroup
	for range 4 {
		noise.Go(func() { churn(stop) })
	}
	// And threads that are made while it runs.
	var born []chan bool
	noise.Go(func() {
		for len(born) < 200 {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
			began := make(chan bool)
			born = append(born, began)
			go func() {
				runtime.LockOSThread() // its thread ends with it
				if <-began {
					results <- w.attempt("during")
				}
				began <- true
			}()
		}
	})
	time.Sleep(20 * time.Millisecond)

	posture, err := Self(w.Options)
	answer.Posture = posture
	close(stop)
	noise.Wait()
	if err != nil {
		answer.SelfErr = err.Error()
		for _, b := range born {
			b <- false
			<-b
		}
		for range old {
			start <- false
		}
		return nil
	}
	go func() {
		for range old {
			start <- true
		}
		finished.Wait()
		for _, b := range born {
			b <- true
			<-b
		}
		close(results)
	}()
	for r := range results {
		answer.take(r)
	}
	answer.take(w.attempt("main"))
	control, err := handed(os.NewFile(3, "monitor"))
	if err != nil {
		return err
	}
	if w.Load > 0 {
		w.load(answer, control)
	} else {
		for range old {
			done := make(chan result)
			go func() {
				runtime.LockOSThread() // its thread ends with it
				done <- w.attempt("later")
			}()
			answer.take(<-done)
		}
	}
	answer.Wrong = append(answer.Wrong, w.values()...)
	// The monitor looks from outside, and then lets go.
	if _, err := control.Write([]byte("done")); err != nil {
		return err
	}
	_, _ = io.ReadAll(control)
	return nil
}

// result is what one thread got.
type result struct {
	when    string
	tid     int
	tried   int
	through map[string]string
}

func (w *world) attempt(when string) result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := result{when: when, tid: unix.Gettid(), through: map[string]string{}}
	for _, tr := range trials() {
		err := tr.try(w, false)
		r.tried++
		if !refusal(err) {
			r.through[tr.name] = fmt.Sprint(err)
		}
	}
	return r
}

func (a *told) take(r result) {
	switch r.when {
	case "before":
		a.Before++
	case "during":
		a.During++
	default:
		a.Later++
	}
	a.Attempts += r.tried
	for name, got := range r.through {
		if len(a.Through[name]) < 4 {
			a.Through[name] = append(a.Through[name], fmt.Sprintf("%s %d: %s", r.when, r.tid, got))
		}
	}
}

// handed makes a connection of a descriptor, as package net duplicates it.
func handed(f *os.File) (net.Conn, error) {
	defer f.Close()
	return net.FileConn(f)
}

// churn needs all of the runtime: memory, collections, preemption of a loop without
// calls, stacks that grow, timers.
func churn(stop chan struct{}) {
	var keep [][]byte
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		keep = append(keep, bytes.Repeat([]byte{byte(i)}, 4096+i%8192))
		if len(keep) > 64 {
			keep = nil
		}
		deep(200)
		sum.Add(spin(20_000))
		if i%50 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

//go:noinline
func deep(n int) int {
	var pad [512]byte
	pad[n%512] = byte(n)
	if n == 0 {
		return int(pad[0])
	}
	return deep(n-1) + int(pad[n%512])
}

var sum atomic.Int64

//go:noinline
func spin(n int) (total int64) {
	for i := range n {
		total += int64(i)
	}
	return total
}

// load works for w.Load: the handed sockets echo while memory, timers and threads come
// and go. Every new thread tries everything.
func (w *world) load(answer *told, control net.Conn) {
	var mu sync.Mutex
	wrong := func(format string, args ...any) {
		mu.Lock()
		answer.Wrong = append(answer.Wrong, fmt.Sprintf(format, args...))
		mu.Unlock()
	}
	conns, err := receive(control.(*net.UnixConn))
	if err != nil {
		wrong("receiving descriptors: %v", err)
		return
	}
	if len(conns) == 0 {
		wrong("no descriptor came")
	}
	var echoed atomic.Int64
	var serving, working sync.WaitGroup
	for _, c := range conns {
		serving.Go(func() {
			if err := serve(c, &echoed); err != nil {
				wrong("%v: %v", c.LocalAddr(), err)
			}
		})
	}
	stop := make(chan struct{})
	for range 50 {
		working.Go(func() { churn(stop) })
	}
	working.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			runtime.GOMAXPROCS(1 + n%6)
			runtime.GC()
			fired := make(chan bool)
			time.AfterFunc(time.Millisecond, func() { close(fired) })
			<-fired
		}
	})
	for range 4 {
		working.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				done := make(chan result)
				go func() {
					runtime.LockOSThread() // its thread ends with it
					done <- w.attempt("later")
				}()
				r := <-done
				mu.Lock()
				answer.take(r)
				mu.Unlock()
			}
		})
	}
	// At least so long, and until all sockets echo by io.Copy and threads were made:
	// machines differ.
	time.Sleep(w.Load)
	for range 300 {
		mu.Lock()
		enough := answer.Later > 20 && echoed.Load() >= handedOver*copyAfter
		mu.Unlock()
		if enough {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	close(stop)
	working.Wait()
	// The monitor closes its ends when it is told so.
	_, _ = control.Write([]byte("half"))
	serving.Wait()
	answer.Echo = echoed.Load()
}

// receive takes connections, one to a message, until a message without one.
func receive(c *net.UnixConn) ([]net.Conn, error) {
	var all []net.Conn
	for {
		data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := c.ReadMsgUnix(data, oob)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return all, nil
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) != 1 {
			return nil, fmt.Errorf("%d control messages: %v", len(messages), err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return nil, fmt.Errorf("%d descriptors: %v", len(fds), err)
		}
		conn, err := handed(os.NewFile(uintptr(fds[0]), "handed"))
		if err != nil {
			return nil, err
		}
		all = append(all, conn)
	}
}

// How many sockets are handed over, and after how many bytes one echoes by io.Copy.
const (
	handedOver = 30
	copyAfter  = 20_000
)

// serve echoes: first by read and write with deadlines, then by io.Copy, which package
// net would like to do by splice(2) or sendfile(2).
func serve(c net.Conn, echoed *atomic.Int64) error {
	defer c.Close()
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := errors.Join(tcp.SetNoDelay(false), tcp.SetKeepAlive(true)); err != nil {
			return err
		}
	}
	buf := make([]byte, 3000)
	for total := 0; total < copyAfter; {
		if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			return err
		}
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		bufs := net.Buffers{buf[:n/2], buf[n/2 : n]} // writev(2)
		if _, err := bufs.WriteTo(c); err != nil {
			return err
		}
		total += n
		echoed.Add(int64(n))
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	n, err := io.Copy(c, c)
	echoed.Add(n)
	return err
}

// values looks at what of the confinement no attempt shows, and at what must work.
func (w *world) values() (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, l := range []struct {
		name     string
		resource int
		want     uint64
	}{{"core", unix.RLIMIT_CORE, 0}, {"files", unix.RLIMIT_NOFILE, w.Options.Files}, {"size", unix.RLIMIT_FSIZE, w.Options.FileSize}} {
		var got unix.Rlimit
		err := unix.Prlimit(0, l.resource, nil, &got)
		if l.want == 0 && l.resource != unix.RLIMIT_CORE {
			continue
		}
		if err != nil || got.Cur != l.want || got.Max != l.want {
			add("limit %s: %v (%v)", l.name, got, err)
		}
	}
	if w.Options.Store == "" {
		return wrong
	}
	if dir, err := syscall.Getwd(); err != nil || dir != "/" {
		add("working directory %q (%v)", dir, err)
	}
	return append(wrong, w.useStore()...)
}

// useStore does what a database does.
func (w *world) useStore() (wrong []string) {
	check := func(what string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("store: %s: %v", what, err))
		}
	}
	dir := filepath.Join(w.Options.Store, "db")
	check("mkdir", os.Mkdir(dir, 0o755))
	name := filepath.Join(dir, "a")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	check("create", err)
	if err != nil {
		return wrong
	}
	defer f.Close()
	info, err := f.Stat()
	check("stat", err)
	if err == nil && info.Mode().Perm() != 0o600 {
		check("mode", fmt.Errorf("%o, so the umask is not 077", info.Mode().Perm()))
	}
	page := bytes.Repeat([]byte("page"), 1024)
	_, err = f.WriteAt(page, 4096)
	check("pwrite", err)
	check("sync", f.Sync())
	check("fdatasync", unix.Fdatasync(int(f.Fd())))
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: 1, Len: 10}
	check("lock", unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock))
	check("flock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check("mmap", err)
	if err == nil {
		m[0] = 'x'
		check("munmap", unix.Munmap(m))
	}
	check("allocate", unix.Fallocate(int(f.Fd()), 0, 0, 16384))
	check("truncate", f.Truncate(8192))
	got := make([]byte, 4096)
	_, err = f.ReadAt(got, 4096)
	check("pread", err)
	if sha256.Sum256(got) != sha256.Sum256(page) {
		check("pread", errors.New("other bytes"))
	}
	_, err = os.Lstat(name)
	check("lstat", err)
	check("access", unix.Access(name, unix.R_OK|unix.W_OK))
	check("rename", os.Rename(name, filepath.Join(w.Options.Store, "b")))
	copied, err := os.Create(filepath.Join(dir, "copy"))
	check("create a copy", err)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
		check("seek", err)
		n, err := io.Copy(copied, f) // copy_file_range(2), if it could
		check("copy", err)
		if n != 8192 {
			check("copy", fmt.Errorf("%d bytes", n))
		}
		check("close", copied.Close())
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		check("list", fmt.Errorf("%d entries: %v", len(entries), err))
	}
	if w.Options.FileSize > 0 {
		if _, err := f.WriteAt([]byte{1}, int64(w.Options.FileSize)); !errors.Is(err, unix.EFBIG) {
			check("too much", fmt.Errorf("%v, want EFBIG", err))
		}
	}
	check("remove", errors.Join(os.Remove(filepath.Join(w.Options.Store, "b")), os.Remove(filepath.Join(dir, "copy")), os.Remove(dir)))

	for what, try := range map[string]func() error{
		"a symbolic link":    func() error { return os.Symlink("/etc", filepath.Join(w.Options.Store, "l")) },
		"a set-user-ID file": func() error { return made(filepath.Join(w.Options.Store, "s"), unix.O_CREAT|unix.O_WRONLY, 0o4755) },
		"a FIFO":             func() error { return unix.Mkfifo(filepath.Join(w.Options.Store, "f"), 0o600) },
		"a socket": func() error {
			return unix.Bind(w.path, &unix.SockaddrUnix{Name: filepath.Join(w.Options.Store, "k")})
		},
		"an open for ioctl":      func() error { return made(w.Options.Store, 3, 0) },
		"a new mode":             func() error { return os.Chmod(w.Options.Store, 0o755) },
		"the parent directory":   func() error { return made(filepath.Dir(w.Options.Store), unix.O_RDONLY|unix.O_DIRECTORY, 0) },
		"a link out of the tree": func() error { return os.Rename(w.Options.Store, w.Options.Store+"-moved") },
	} {
		if w.Open && (what == "the parent directory" || what == "a link out of the tree") {
			continue
		}
		if err := try(); !refusal(err) {
			wrong = append(wrong, fmt.Sprintf("store: %s is not refused: %v", what, err))
		}
	}
	return wrong
}

func made(name string, flags int, mode uint32) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, mode)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}
