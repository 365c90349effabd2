package backendtest

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// launcherSecret is a variable of the test process that no worker may have.
const launcherSecret = "SBX_TEST_LAUNCHER_SECRET"

// oddName is a file name with what shells and parsers stumble on.
const oddName = "-odd 'name'\n\"\\($x)\xff"

// fixture is a small host of its own: a workspace, files, listeners and a
// process outside of it, and objects beside the file system.
type fixture struct {
	Place
	root   string
	secret string
	ear    *ear
	victim *victim
	vars   map[string]string
	names  *strings.Replacer // {variable} to value
	// before is what the rows' own directories were like.
	before map[string]snapshot
}

func newFixture(t testing.TB, rows []Row) *fixture {
	t.Helper()
	// Not t.TempDir: with the test's name in it, sockets' paths are too long.
	base, err := os.MkdirTemp("", "sbt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Errorf("removing the fixture: %v", err)
		}
	})
	root, err := filepath.EvalSymlinks(base)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{root: root, ear: &ear{}, secret: "secret-" + random(), vars: map[string]string{}, before: map[string]snapshot{}}
	f.Workspace, f.Probe = filepath.Join(root, "ws"), filepath.Join(root, "bin", "probe")
	f.Readable = filepath.Join(root, "data")
	t.Cleanup(f.ear.Close)
	for _, step := range []struct {
		what string
		do   func(testing.TB) error
	}{
		{"files", f.makeFiles},
		{"listeners", f.makeListeners},
		{"host process", f.makeVictim},
		{"terminal", f.makeTerminal},
		{"shared objects", f.makeObjects},
		{"descriptors", f.plantDescriptors},
	} {
		if err := step.do(t); err != nil {
			t.Fatalf("making the fixture's %s: %v", step.what, err)
		}
	}
	for _, r := range rows {
		if err := f.makeRow(r); err != nil {
			t.Fatalf("making the fixture of %q: %v", r.Name, err)
		}
	}
	var names []string
	for name, value := range f.vars {
		names = append(names, "{"+name+"}", value)
	}
	f.names = strings.NewReplacer(names...)
	return f
}

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

func (f *fixture) path(elem ...string) string {
	return filepath.Join(append([]string{f.root}, elem...)...)
}

func (f *fixture) makeFiles(t testing.TB) error {
	for _, dir := range []string{"ws", "ws-evil", "outside", "host", "bin", "data"} {
		if err := os.Mkdir(f.path(dir), 0o755); err != nil {
			return err
		}
	}
	for file, text := range map[string]string{
		f.path("ws-evil", "secret"): f.secret, f.path("host", "held"): f.secret, f.path("data", "file"): "original\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	// A host's program would need its loader, or its name: the probe needs neither.
	for _, path := range []string{f.Probe, f.path("outside", "program"), f.path("data", "program")} {
		if err := InstallProbe(path); err != nil {
			return err
		}
	}
	f.vars["data"] = f.Readable
	f.vars["root"], f.vars["ws"], f.vars["out"] = f.root, f.Workspace, f.path("outside")
	f.vars["oddname"], f.vars["given"] = oddName, given
	f.vars["unique"] = "sbxtest-" + random()
	t.Cleanup(func() {
		for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
			left, _ := filepath.Glob(filepath.Join(dir, f.vars["unique"]+"*"))
			for _, path := range left {
				_ = os.Remove(path)
			}
		}
	})
	return f.makeSuid()
}

// makeSuid finds a program that would run as another user: root makes one that
// is somebody else's, an ordinary user takes the system's su.
func (f *fixture) makeSuid() error {
	f.vars["suid"] = "/usr/bin/su"
	if os.Geteuid() != 0 {
		return nil
	}
	const somebody = 65534
	f.vars["suid"] = f.path("bin", "suid")
	if err := InstallProbe(f.vars["suid"]); err != nil {
		return err
	}
	if err := os.Chown(f.vars["suid"], somebody, somebody); err != nil {
		return err
	}
	return os.Chmod(f.vars["suid"], 0o755|os.ModeSetuid)
}

func (f *fixture) makeListeners(testing.TB) error {
	for _, l := range []struct{ name, network, address string }{
		{"tcp4", "tcp4", "127.0.0.1:0"},
		{"tcp6", "tcp6", "[::1]:0"},
		{"udp4", "udp4", "127.0.0.1:0"},
		{"udp6", "udp6", "[::1]:0"},
		{"stream", "unix", f.path("host", "stream")},
		{"dgram", "unixgram", f.path("host", "dgram")},
		{"seqpacket", "unixpacket", f.path("host", "seqpacket")},
		{"wsstream", "unix", f.path("ws", "host-stream")},
		{"wsdgram", "unixgram", f.path("ws", "host-dgram")},
		{"abstream", "unix", "@" + f.vars["unique"] + "-s"},
		{"abdgram", "unixgram", "@" + f.vars["unique"] + "-d"},
		{"abseqpacket", "unixpacket", "@" + f.vars["unique"] + "-p"},
	} {
		listen := f.ear.stream
		if strings.HasPrefix(l.network, "udp") || l.network == "unixgram" {
			listen = f.ear.packet
		}
		addr, err := listen(l.network, l.address)
		if err != nil && strings.HasSuffix(l.network, "6") {
			addr, err = &net.TCPAddr{IP: net.IPv6loopback, Port: 9}, nil // no IPv6: the control says so
		}
		if err != nil {
			return err
		}
		f.vars[l.name] = addr.String()
		if _, port, err := net.SplitHostPort(addr.String()); err == nil {
			f.vars[l.name+"port"] = port
		}
	}
	return nil
}

func (f *fixture) makeVictim(t testing.TB) error {
	env := append(os.Environ(), "SBX_TEST_HOST_SECRET="+f.secret)
	v, err := startVictim(f.Probe, f.path("host", "held"), f.root, env)
	if err != nil {
		return err
	}
	f.victim = v
	t.Cleanup(v.Close)
	f.vars["host"], f.vars["hostfd"] = strconv.Itoa(v.PID), strconv.Itoa(v.FD)
	f.vars["hostaddr"] = strconv.FormatUint(v.Addr, 10)
	f.vars["launcher"] = strconv.Itoa(os.Getpid())
	return nil
}

func (f *fixture) makeTerminal(t testing.TB) error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	f.vars["pts"] = "/dev/pts/" + strconv.Itoa(n)
	return err
}

// makeObjects makes what is named beside the file system.
func (f *fixture) makeObjects(t testing.TB) error {
	for name, nr := range map[string]uintptr{"shmkey": unix.SYS_SHMGET, "semkey": unix.SYS_SEMGET, "msgkey": unix.SYS_MSGGET} {
		if err := f.makeSysV(t, name, nr); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range []string{"hostshm", "spareshm"} {
		f.vars[name] = f.vars["unique"] + "-" + name
		if err := os.WriteFile("/dev/shm/"+f.vars[name], []byte("original\n"), 0o600); err != nil {
			return err
		}
	}
	f.vars["mq"] = f.vars["unique"]
	name, err := unix.BytePtrFromString(f.vars["mq"])
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600, 0, 0, 0)
	if errno != 0 {
		return nil // no queues here: the row's control says so
	}
	_ = unix.Close(int(fd))
	t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0) })
	return nil
}

func (f *fixture) makeSysV(t testing.TB, name string, nr uintptr) error {
	var b [4]byte
	_, _ = rand.Read(b[:])
	key := uintptr(binary.NativeEndian.Uint32(b[:])&0x7fffffff | 1)
	f.vars[name] = strconv.Itoa(int(key))
	const flags = unix.IPC_CREAT | unix.IPC_EXCL | 0o600
	args := [2]uintptr{1, flags} // (key, size or count, flags)
	if nr == unix.SYS_MSGGET {
		args = [2]uintptr{flags, 0}
	}
	id, _, errno := unix.Syscall(nr, key, args[0], args[1])
	if errno != 0 {
		return errno
	}
	t.Cleanup(func() {
		switch nr {
		case unix.SYS_SHMGET:
			_, _, _ = unix.Syscall(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0)
		case unix.SYS_SEMGET:
			_, _, _ = unix.Syscall(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID)
		case unix.SYS_MSGGET:
			_, _, _ = unix.Syscall(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0)
		}
	})
	return nil
}

// plantDescriptors leaves descriptors open that are not close-on-exec, high
// enough not to be anyone's by chance.
func (f *fixture) plantDescriptors(t testing.TB) error {
	open := func(path string, flags int) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) }
	}
	for _, d := range []struct {
		name string
		make func() (int, error)
	}{
		{"fdfile", open(f.path("host", "held"), unix.O_RDWR)},
		{"fddir", open(f.path("outside"), unix.O_RDONLY|unix.O_DIRECTORY)},
		{"fdlistener", func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }},
		{"fdmemory", func() (int, error) { return unix.MemfdCreate("sbx-test", unix.MFD_CLOEXEC) }},
		{"fdepoll", func() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }},
		{"fdpid", func() (int, error) { return unix.PidfdOpen(os.Getpid(), 0) }},
	} {
		fd, err := d.make()
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 200)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		t.Cleanup(func() { _ = unix.Close(high) })
		f.vars[d.name] = strconv.Itoa(high)
	}
	return nil
}

// leak takes the planted descriptors' close-on-exec away, as a careless parent
// of the launcher would have left them; the returned function restores it.
func (f *fixture) leak() (restore func()) {
	set := func(flags int) {
		for name, value := range f.vars {
			if fd, err := strconv.Atoi(value); err == nil && strings.HasPrefix(name, "fd") {
				_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags)
			}
		}
	}
	set(0)
	return func() { set(unix.FD_CLOEXEC) }
}

// makeRow makes of the row's own two directories what its attempt names or
// comes to by a link: making everything for every row takes longer than all
// attempts.
func (f *fixture) makeRow(r Row) error {
	mine, there := f.path("ws", r.slug()), f.path("outside", r.slug())
	names := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(r.Op, w) })
	}
	inMine := names("{mine}")
	inThere := names("{there}", "outside/{token}", "{mine}/link", "{mine}/chain", "{mine}/secretlink", "{mine}/hard")
	file := func(path, text string) func() error {
		return func() error { return os.WriteFile(path, []byte(text), 0o644) }
	}
	link := func(target, name string) func() error {
		return func() error { return os.Symlink(target, filepath.Join(mine, name)) }
	}
	dir := func(path string) func() error { return func() error { return os.Mkdir(path, 0o755) } }
	for _, e := range []struct {
		wanted bool
		make   func() error
	}{
		{inMine, dir(mine)},
		{inThere, dir(there)},
		{names("{mine}/dir"), dir(filepath.Join(mine, "dir"))},
		{names("{there}/dir"), dir(filepath.Join(there, "dir"))},
		{names("{mine}/file"), file(filepath.Join(mine, "file"), "mine\n")},
		{names("victim", "{mine}/link", "{mine}/chain"), file(filepath.Join(there, "victim"), "original\n")},
		{inThere && names("secret"), file(filepath.Join(there, "secret"), f.secret)},
		{names("{mine}/link", "chain"), link(filepath.Join(there, "victim"), "link")},
		{names("chain"), link("link", "chain")},
		{names("linkdir"), link(there, "linkdir")},
		{names("secretlink"), link(filepath.Join(there, "secret"), "secretlink")},
		{names("programlink"), link(f.path("outside", "program"), "programlink")},
		{names("streamlink"), link(f.vars["stream"], "streamlink")},
		{names("dgramlink"), link(f.vars["dgram"], "dgramlink")},
		{names("{mine}/hard"), file(filepath.Join(there, "linked"), "known by two names\n")},
		{names("{mine}/hard"), func() error { return os.Link(filepath.Join(there, "linked"), filepath.Join(mine, "hard")) }},
		// A link changes the socket's inode for all, so one row only has it.
		{names("streamhard"), func() error { return os.Link(f.vars["stream"], filepath.Join(mine, "streamhard")) }},
	} {
		if !e.wanted {
			continue
		}
		if err := e.make(); err != nil {
			return err
		}
	}
	for _, dir := range []string{mine, there} {
		s, err := snap(dir)
		if err != nil {
			return err
		}
		f.before[dir] = s
	}
	return nil
}

// changed lists what became different in a row's directory: "ws" or "outside".
func (f *fixture) changed(where string, r Row) ([]string, error) {
	dir := f.path(where, r.slug())
	now, err := snap(dir)
	if err != nil {
		return nil, err
	}
	return f.before[dir].changes(now), nil
}

// request makes the row's attempt with this fixture's names. Operands are cut
// first, so that a value may hold spaces.
func (f *fixture) request(r Row) attempt.Request {
	own := strings.NewReplacer("{mine}", f.path("ws", r.slug()), "{there}", f.path("outside", r.slug()), "{token}", r.slug())
	words := strings.Fields(r.Op)
	req := attempt.Request{ID: r.Name, Op: words[0]}
	for _, w := range words[1:] {
		req.Args = append(req.Args, policy.Raw(f.names.Replace(own.Replace(w))))
	}
	return req
}
