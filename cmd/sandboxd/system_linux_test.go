package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/backend/landlock"
	"sandboxd/protocol"
)

// Two users and their groups, who need no accounts, and the group that may use the
// daemon.
const (
	alice, bob  = 64101, 64102
	users       = 64100
	aliceSecond = 64103
)

// system starts a daemon of root's for two users, and connects as each. Each has a
// workspace.
func system(t *testing.T, args ...string) (p *process, a, b *client) {
	t.Helper()
	needRoot(t)
	needLandlock(t)
	p = prepare(t, append([]string{"--system", "--group", strconv.Itoa(users)}, args...)...)
	p.start().wait()
	dial := func(uid int, groups ...int) *client {
		ws := filepath.Join(p.dir, fmt.Sprint("ws", uid))
		must(t, os.Mkdir(ws, 0o700))
		must(t, os.Chown(ws, uid, uid))
		c, err := p.dialAs(uid, uid, groups, ws)
		must(t, err)
		return c
	}
	return p, dial(alice, users, aliceSecond), dial(bob, users)
}

// TestSystemWorkers: a worker is its peer, in all ids and groups, without a capability;
// and who is not in the group is not served.
func TestSystemWorkers(t *testing.T) {
	p, a, _ := system(t)
	if a.mode != "system" {
		t.Error(a.mode)
	}
	r := a.run("sh", "-c", "grep -E '^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp):' /proc/self/status; echo x >file")
	want := map[string]string{
		"Uid": strings.TrimSpace(strings.Repeat(fmt.Sprint(alice, " "), 4)), "Gid": strings.TrimSpace(strings.Repeat(fmt.Sprint(alice, " "), 4)),
		"Groups": fmt.Sprint(users, " ", aliceSecond), "CapInh": "0", "CapPrm": "0", "CapEff": "0", "CapBnd": "0", "CapAmb": "0", "NoNewPrivs": "1", "Seccomp": "2",
	}
	for line := range strings.Lines(r.out.String()) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.Join(strings.Fields(value), " ")
		if strings.HasPrefix(name, "Cap") {
			value = strings.TrimLeft(value[:len(value)-1], "0") + value[len(value)-1:]
		}
		if value != want[name] {
			t.Errorf("%s is %q, want %q", name, value, want[name])
		}
		delete(want, name)
	}
	if r.status() != 0 || len(want) != 0 {
		t.Errorf("%v: %v is missing", r, want)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(a.ws, "file"), &st); err != nil || st.Uid != alice || st.Gid != alice {
		t.Errorf("the file is of user %d and group %d, %v", st.Uid, st.Gid, err)
	}
	if c, err := p.dialAs(64199, 64199, nil, p.dir); err == nil {
		t.Errorf("a stranger is served: %+v", c)
	} else if !os.IsPermission(err) {
		t.Errorf("a stranger: %v", err)
	}
	// Not even without a sandbox is a worker more than its user.
	r = a.finish(a.launch(func(m *protocol.Launch) { m.Mode = "danger-full-access" }, "sh", "-c", "id -u; grep NoNewPrivs /proc/self/status; grep CapBnd /proc/self/status; cat "+p.dir+"/audit/*; ls "+p.dir+"/ws"+fmt.Sprint(bob)))
	if r.out.String() != fmt.Sprintf("%d\nNoNewPrivs:\t1\nCapBnd:\t0000000000000000\n", alice) {
		t.Errorf("danger-full-access: %v", r)
	}
}

// TestSystemUsers: of another user's workers there is nothing to be seen and nothing
// to be done about them, and what one uses up the other does not miss.
func TestSystemUsers(t *testing.T) {
	config := filepath.Join(publicDir(t), "config.toml")
	must(t, os.WriteFile(config, []byte("[ceiling]\nworkers = 4\nconnections = 6\n"), 0o600))
	p, a, b := system(t, "--config", config)
	a.launch(nil, "sleep", "3600")
	w := a.started()
	b.say(&protocol.Subscribe{ID: b.id(), Events: []string{"worker-started", "worker-ended"}})
	if _, err := until[*protocol.Subscribed](b); err != nil {
		t.Fatal(err)
	}
	grace := int64(0)
	for name, m := range map[string]func() protocol.Message{
		"inspect": func() protocol.Message { return &protocol.Inspect{ID: b.id(), Worker: w.Worker} },
		"cancel":  func() protocol.Message { return &protocol.Cancel{ID: b.id(), Worker: w.Worker, Grace: &grace} },
		"signal":  func() protocol.Message { return &protocol.Signal{ID: b.id(), Worker: w.Worker, Signal: "SIGKILL"} },
	} {
		b.say(m())
		if _, err := until[*protocol.Pong](b); err == nil || err.Code != protocol.NotFound {
			t.Errorf("%s: %+v", name, err)
		}
	}
	b.say(&protocol.List{ID: b.id(), Ended: true})
	if l, err := until[*protocol.ListResult](b); err != nil || len(l.Workers) != 0 {
		t.Errorf("bob sees %+v, %v", l, err)
	}
	a.say(&protocol.List{ID: a.id()})
	if l, err := until[*protocol.ListResult](a); err != nil || len(l.Workers) != 1 {
		t.Errorf("the control: alice sees %+v, %v", l, err)
	}
	// Nor by the kernel: bob's worker without a sandbox is no more than bob.
	r := b.finish(b.launch(func(m *protocol.Launch) { m.Mode = "danger-full-access" }, "sh", "-c", fmt.Sprintf("kill -9 %d", w.PID)))
	if r.status() == 0 || !alive(w.PID) {
		t.Errorf("bob kills alice's worker: %v", r)
	}
	// Alice takes all that is hers.
	for range 3 {
		a.launch(nil, "sleep", "3600")
		a.started()
	}
	if r := a.run("true"); r.failure == nil || r.failure.Code != protocol.Overloaded {
		t.Errorf("alice's fifth worker: %v", r)
	}
	var last error
	served := 1
	for range 2 * protocol.MaxConnections {
		_, err := p.dialAs(alice, alice, []int{users}, a.ws)
		if last = err; err == nil {
			served++
		}
	}
	if e, ok := last.(*protocol.Error); !ok || e.Code != protocol.TooManyConnections || served != 6 {
		t.Errorf("alice has %d connections, %v", served, last)
	}
	another, err := p.dialAs(bob, bob, []int{users}, b.ws)
	must(t, err)
	if r := another.run("echo", "served"); r.out.String() != "served\n" {
		t.Error(r)
	}
	// What alice runs bob is not told of.
	b.say(&protocol.Ping{ID: b.id()})
	for {
		m, err := b.tryNext()
		must(t, err)
		if e, ok := m.(*protocol.Event); ok && e.Info != nil && e.Info.UID != bob {
			t.Errorf("bob hears %+v", e)
		}
		if _, ok := m.(*protocol.Pong); ok {
			break
		}
	}
	if !alive(w.PID) {
		t.Error("alice's worker is gone")
	}
}

// TestSystemCaches: what is made in a user's directories is made with the user's
// rights, and is the user's.
func TestSystemCaches(t *testing.T) {
	_, a, _ := system(t)
	home, err := os.MkdirTemp("/var/lib", "sandboxd-test-") // not in a place for everybody's files
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	must(t, os.Chown(home, alice, alice))
	r := a.finish(a.launch(func(m *protocol.Launch) {
		m.HostEnv = []protocol.Variable{{Name: "XDG_CACHE_HOME", Value: protocol.Bytes(home)}, {Name: "PATH", Value: "/usr/bin:/bin"}}
	}, "true"))
	if r.status() != 0 {
		t.Error(r)
	}
	n := 0
	must(t, filepath.WalkDir(home, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if n++; err != nil || st.Uid != alice {
			t.Errorf("%s is of user %d, %v", path, st.Uid, err)
		}
		return nil
	}))
	if n != 4 { // with the directory itself, sbx, workspaces, and the workspace's
		t.Errorf("%d are there", n)
	}
}

// reach tries what a worker must not be able to do to its daemon, and prints what
// came of each. It is python, as its standard library has the calls.
const reach = `
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
sock, monitor, front, binary, audit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
def attempt(name, f):
    try: f()
    except OSError as e: print(name, e.errno)
    else: print(name, "done")
def connect():
    s = socket.socket(socket.AF_UNIX); s.connect(sock)
def trace(pid):
    if libc.ptrace(0x4206, pid, 0, 0) != 0: raise OSError(ctypes.get_errno(), "ptrace")
    libc.ptrace(17, pid, 0, 0)
attempt("connect", connect)
for name, pid in ("monitor", monitor), ("front", front):
    attempt("kill " + name, lambda: os.kill(pid, 0))
    attempt("trace " + name, lambda: trace(pid))
    attempt("memory " + name, lambda: os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR)))
    attempt("descriptors " + name, lambda: os.readlink("/proc/%d/fd/0" % pid))
attempt("replace socket", lambda: os.rename(sock, sock + ".old"))
attempt("bind beside", lambda: socket.socket(socket.AF_UNIX).bind(sock + ".other"))
attempt("write binary", lambda: os.close(os.open(binary, os.O_WRONLY | os.O_APPEND)))
attempt("replace binary", lambda: os.rename(binary, binary + ".old"))
attempt("audit log", lambda: os.listdir(audit))
`

// TestReach: no worker reaches its daemon, for a reason of the kernel's; and what is
// outside of a sandbox does, where its user may.
func TestReach(t *testing.T) {
	needLandlock(t)
	const python = "/usr/bin/python3" // where every user has it
	if _, err := os.Stat(python); err != nil {
		t.Skip("needs python3")
	}
	run := func(t *testing.T, p *process, c *client, mode, backend string) map[string]string {
		t.Helper()
		// A binary and a state that nothing but the sandbox protects.
		binary := filepath.Join(p.dir, "binary")
		must(t, os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755))
		r := c.finish(c.launch(func(m *protocol.Launch) { m.Mode, m.Backend = mode, backend }, python, "-c", reach, p.socket, strconv.Itoa(p.cmd.Process.Pid), strconv.Itoa(p.front()), binary, filepath.Join(p.dir, "audit")))
		if r.status() != 0 {
			t.Fatal(r)
		}
		got := map[string]string{}
		for line := range strings.Lines(r.out.String()) {
			i := strings.LastIndexByte(line, ' ')
			got[line[:i]] = strings.TrimSpace(line[i+1:])
		}
		if len(got) != 14 {
			t.Fatalf("%d attempts: %v", len(got), got)
		}
		_ = os.Rename(p.socket+".old", p.socket)
		_ = os.Remove(p.socket + ".other")
		return got
	}
	check := func(t *testing.T, mode, backend string, got map[string]string) {
		t.Helper()
		refusals := []unix.Errno{unix.EACCES, unix.EPERM, unix.EXDEV}
		if backend == landlock.NativeName { // it is not there, or a process of another number
			refusals = append(refusals, unix.ENOENT, unix.ESRCH, unix.EROFS)
		}
		for name, answer := range got {
			n, err := strconv.Atoi(answer)
			if err != nil || !slices.Contains(refusals, unix.Errno(n)) {
				t.Errorf("%s, %s: %s: %s", mode, backend, name, answer)
			}
		}
	}
	backends := []string{landlock.Name}
	if landlock.New(landlock.Options{Namespaces: true, Try: true}).Probe().Usable {
		backends = append(backends, landlock.NativeName)
	}
	t.Run("user", func(t *testing.T) {
		p := serving(t)
		for _, mode := range []string{"read-only", "workspace-write"} {
			for _, b := range backends {
				check(t, mode, b, run(t, p, p.dial(), mode, b))
			}
		}
		got := run(t, p, p.dial(), "danger-full-access", "")
		for _, name := range []string{"connect", "kill monitor", "write binary", "replace binary", "audit log", "replace socket"} {
			if got[name] != "done" {
				t.Errorf("the control: %s: %s", name, got[name])
			}
		}
		// A worker of this user's daemon can do what the user can, but for this.
		for _, name := range []string{"trace monitor", "memory monitor"} {
			if os.Geteuid() != 0 && got[name] == "done" {
				t.Errorf("without a sandbox: %s is done", name)
			}
		}
	})
	t.Run("system", func(t *testing.T) {
		p, a, _ := system(t)
		for _, mode := range []string{"read-only", "workspace-write"} {
			for _, b := range backends {
				check(t, mode, b, run(t, p, a, mode, b))
			}
		}
		// Without a sandbox it is the user that is in the way; the socket is open to alice.
		got := run(t, p, a, "danger-full-access", "")
		if got["connect"] != "done" {
			t.Errorf("the control: %v", got)
		}
		delete(got, "connect")
		check(t, "danger-full-access", "", got)
	})
}
