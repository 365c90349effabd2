package landlock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/backend/backendtest"
	"sandboxd/backend/backendtest/attempt"
	"sandboxd/internal/cgroup"
	"sandboxd/policy"
)

// posture is what /proc tells of a process, by property. Two of them are
// compared as they are: what nobody expected is a difference too.
type posture map[string]string

// statusLines are the lines of /proc/PID/status that make up a posture.
var statusLines = []string{"Uid", "Gid", "Groups", "Umask", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
	"NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed", "NStgid"}

// threadLines are those that every thread must have alike.
var threadLines = []string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"}

func postureOf(pid int) (posture, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	status, err := statusOf(dir)
	if err != nil {
		return nil, err
	}
	p := posture{}
	for _, name := range statusLines {
		if name != "NStgid" { // the pid itself; its number of levels counts
			p["status "+name] = status[name]
		} else {
			p["pid namespace levels"] = strconv.Itoa(len(strings.Fields(status[name])))
		}
	}
	for _, step := range []func(string, posture) error{links, namespaces, descriptors, limits, environ, threads, session, texts} {
		if err := step(dir, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func statusOf(dir string) (map[string]string, error) {
	text, err := os.ReadFile(dir + "/status")
	if err != nil {
		return nil, err
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.Join(strings.Fields(value), " ")
	}
	return lines, nil
}

func links(dir string, p posture) (err error) {
	for _, name := range []string{"cwd", "root", "exe"} {
		if p[name], err = os.Readlink(dir + "/" + name); err != nil {
			return err
		}
	}
	return nil
}

func namespaces(dir string, p posture) error {
	entries, err := os.ReadDir(dir + "/ns")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if p["namespace "+e.Name()], err = os.Readlink(dir + "/ns/" + e.Name()); err != nil {
			return err
		}
	}
	mounts, err := os.ReadFile(dir + "/mountinfo")
	p["mounts"] = strconv.Itoa(bytes.Count(mounts, []byte("\n")))
	return err
}

// descriptors lists all that are open.
func descriptors(dir string, p posture) error {
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return err
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink(dir + "/fd/" + e.Name())
		if err != nil {
			return err
		}
		open = append(open, e.Name())
		p["descriptor "+e.Name()] = target
	}
	p["descriptors"] = strings.Join(open, " ")
	return nil
}

func limits(dir string, p posture) error {
	text, err := os.ReadFile(dir + "/limits")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if len(line) > 26 && strings.HasPrefix(line, "Max ") {
			p["limit "+strings.TrimSpace(line[:26])] = strings.Join(strings.Fields(line[26:]), " ")
		}
	}
	return nil
}

func environ(dir string, p posture) error {
	text, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return err
	}
	vars := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	slices.Sort(vars)
	p["environment"] = strings.Join(vars, "\n")
	return nil
}

// threads tells whether all tasks are confined alike.
func threads(dir string, p posture) error {
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, t := range tasks {
		status, err := statusOf(dir + "/task/" + t.Name())
		if err != nil {
			continue // a thread that has ended
		}
		var text []string
		for _, name := range threadLines {
			text = append(text, name+" "+status[name])
		}
		seen[strings.Join(text, ", ")] = true
	}
	p["threads"] = "alike"
	if len(seen) != 1 {
		p["threads"] = "differ: " + strings.Join(slices.Sorted(maps.Keys(seen)), " | ")
	}
	return nil
}

// session reads /proc/PID/stat: pid (comm) state ppid pgrp session tty ...
func session(dir string, p posture) error {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return err
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 17 {
		return fmt.Errorf("%s/stat has %d fields", dir, len(f))
	}
	p["parent"], p["process group"], p["session"], p["terminal"], p["nice"] = f[1], f[2], f[3], f[4], f[16]
	return nil
}

func texts(dir string, p posture) error {
	for _, name := range []string{"oom_score_adj", "personality", "cgroup", "coredump_filter"} {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return err
		}
		p[name] = groupName.ReplaceAllString(strings.TrimSpace(string(b)), "/sbx-ID")
	}
	return nil
}

var groupName = regexp.MustCompile(`/sbx-[0-9a-f]{32}\b`)

// diff lists the properties in which got is not what was wanted.
func (want posture) diff(got posture) map[string]string {
	d := map[string]string{}
	for name := range union(want, got) {
		if want[name] != got[name] {
			d[name] = fmt.Sprintf("got %q, want %q", got[name], want[name])
		}
	}
	return d
}

func union(a, b posture) posture {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// echo is a program that opens and blocks nothing of its own, as a Go program
// does, and that tells when it is ready to be looked at.
const echo = "/usr/bin/cat"

// stage is where a program can be started, confined or not, with the same files.
type stage struct {
	backendtest.Place
	stdin, stdout, stderr *os.File // what the child gets
	in, out               *os.File // our ends
}

func newStage(t *testing.T) *stage {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{}
	s.Workspace, s.Probe = filepath.Join(root, "ws"), filepath.Join(root, "bin", "probe")
	for _, dir := range []string{s.Workspace, filepath.Dir(s.Probe)} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := backendtest.InstallProbe(s.Probe); err != nil {
		t.Fatal(err)
	}
	var ends []*os.File
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, r, w)
	}
	t.Cleanup(func() {
		for _, f := range ends {
			_ = f.Close()
		}
	})
	s.stdin, s.stdout, s.stderr = ends[0], ends[3], ends[5]
	s.in, s.out = ends[1], ends[2]
	return s
}

// ready waits until the echo answers: its loader is done by then.
func (s *stage) ready(t *testing.T) {
	t.Helper()
	const word = "ready\n"
	if _, err := s.in.WriteString(word); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(word))
	_ = s.out.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(s.out, buf); err != nil || string(buf) != word {
		t.Fatalf("waiting for the echo: got %q, %v", buf, err)
	}
}

func (s *stage) look(t *testing.T, pid int) posture {
	t.Helper()
	s.ready(t)
	p, err := postureOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// plain starts the echo without any sandbox and looks at it. change alters
// the launch, after acts on the started process.
func (s *stage) plain(t *testing.T, change func(*exec.Cmd), after func(pid int) error) posture {
	t.Helper()
	cmd := exec.Command(echo)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Workspace, s.stdin, s.stdout, s.stderr
	cmd.Env = []string{"A=1"}
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if after != nil {
		if err := after(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	return s.look(t, cmd.Process.Pid)
}

// confined starts the echo as the backend does, looks at it, and returns the
// worker's own temp too.
func (s *stage) confined(t *testing.T, b backend.Backend, p policy.Policy) (posture, string) {
	t.Helper()
	w := s.start(t, preparedFor(t, b, p), echo)
	got := s.look(t, w.PID())
	temp := w.(*worker).slot.temp
	if err := w.Signal(os.Kill); err != nil {
		t.Error(err)
	}
	if r := w.Wait(); r.Outcome.Kind != backend.Signaled || r.Outcome.Signal != int(unix.SIGKILL) {
		t.Errorf("the killed worker's outcome is %+v", r.Outcome)
	}
	return got, temp
}

func (s *stage) start(t *testing.T, pr backend.Prepared, argv ...string) backend.Worker {
	t.Helper()
	dir, err := os.Open(s.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	w, err := pr.Start(backend.Command{Path: argv[0], Argv: argv, Dir: dir, Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// noCapabilities is an empty set as /proc shows it.
const noCapabilities = "0000000000000000"

// expected is what a worker of a policy must look like: a plain child of the
// same launcher, but for what the policy and the launch change. plain is that
// child.
func expected(p policy.Policy, temp string, plain posture) posture {
	want := maps.Clone(plain)
	// What the plain child has inherited beside the three is no example.
	maps.DeleteFunc(want, func(name, _ string) bool {
		fd, isFD := strings.CutPrefix(name, "descriptor ")
		return isFD && !slices.Contains([]string{"0", "1", "2"}, fd)
	})
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		want["status "+set] = noCapabilities
	}
	if os.Geteuid() == 0 { // else CAP_SETPCAP is missing, and no_new_privs does
		want["status CapBnd"] = noCapabilities
	}
	filters, _ := strconv.Atoi(plain["status Seccomp_filters"])
	want["status NoNewPrivs"], want["status Seccomp"], want["status Seccomp_filters"] = "1", "2", strconv.Itoa(filters+1)
	want["cwd"], want["root"], want["threads"], want["descriptors"] = p.Cwd(), "/", "alike", "0 1 2"
	want["status SigBlk"] = noCapabilities // no signal is blocked
	want["limit Max core file size"] = "0 0 bytes"
	if groups := cgroup.Probe(); groups.Kill.By == "cgroup2" { // it lives in one of its own there
		want["cgroup"] = regexp.MustCompile(`(?m)^(0::.*?)/?$`).ReplaceAllString(want["cgroup"], "$1/sbx-ID")
		_ = groups.Close()
	}
	env := p.Env()
	for _, v := range p.Spec().TempEnv {
		env = append(env, v.Name+"="+filepath.Join(temp, v.Sub))
	}
	slices.Sort(env)
	want["environment"] = strings.Join(env, "\n")
	return want
}

func TestPosture(t *testing.T) {
	b := usable(t)
	for _, mode := range backendtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			s := newStage(t)
			p, err := backendtest.Policy(mode, s.Place)
			if err != nil {
				t.Fatal(err)
			}
			plain := s.plain(t, nil, nil)
			got, temp := s.confined(t, b, p)
			for name, d := range expected(p, temp, plain).diff(got) {
				t.Errorf("%s: %s", name, d)
			}
			if _, err := os.Lstat(temp); !os.IsNotExist(err) {
				t.Errorf("the private temp %s is left: %v", temp, err)
			}
		})
	}
}

// TestPostureAsUser: a worker that root starts as somebody else is that user
// whole, with no group of root's.
func TestPostureAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may start workers as another user")
	}
	usable(t)
	const uid, gid, group = 65534, 65533, 65532
	b := New(Options{User: &User{UID: uid, GID: gid, Groups: []int{group}}})
	s := newStage(t)
	p, err := backendtest.Policy(policy.WorkspaceWrite, s.Place)
	if err != nil {
		t.Fatal(err)
	}
	plain := s.plain(t, nil, nil)
	got, temp := s.confined(t, b, p)
	want := expected(p, temp, plain)
	four := func(id int) string { return strings.TrimSpace(strings.Repeat(strconv.Itoa(id)+" ", 4)) }
	want["status Uid"], want["status Gid"], want["status Groups"] = four(uid), four(gid), strconv.Itoa(group)
	for name, d := range want.diff(got) {
		t.Errorf("%s: %s", name, d)
	}
}

// TestPostureOfThreads looks at a worker that has several.
func TestPostureOfThreads(t *testing.T) {
	b := usable(t)
	s := newStage(t)
	p, err := backendtest.Policy(policy.WorkspaceWrite, s.Place)
	if err != nil {
		t.Fatal(err)
	}
	pr := preparedFor(t, b, p)
	w := s.start(t, pr, s.Probe, "-pause")
	defer func() { _ = w.Signal(os.Kill); w.Wait() }()
	var r attempt.Ready
	if err := json.NewDecoder(s.out).Decode(&r); err != nil {
		t.Fatal(err)
	}
	got := posture{}
	if err := threads(fmt.Sprintf("/proc/%d", w.PID()), got); err != nil {
		t.Fatal(err)
	}
	if got["threads"] != "alike" {
		t.Error(got["threads"])
	}
}

func preparedFor(t *testing.T, b backend.Backend, p policy.Policy) backend.Prepared {
	t.Helper()
	plan, err := b.Plan(p)
	if err != nil {
		t.Fatal(err)
	}
	pr, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pr.Close() })
	return pr
}

// TestPostureOfPlainChild is the control: an unconfined child must differ from
// what a worker must be in everything that the launch changes.
func TestPostureOfPlainChild(t *testing.T) {
	s := newStage(t)
	p, err := backendtest.Policy(policy.WorkspaceWrite, s.Place)
	if err != nil {
		t.Fatal(err)
	}
	plain := s.plain(t, nil, nil)
	want := []string{"environment", "status NoNewPrivs", "status Seccomp", "status Seccomp_filters"}
	if os.Geteuid() == 0 {
		want = append(want, "status CapBnd", "status CapEff", "status CapPrm")
	}
	d := expected(p, "/nowhere", plain).diff(plain)
	for _, name := range want {
		if d[name] == "" {
			t.Errorf("an unconfined child does not differ in %s, only in %v", name, d)
		}
	}
}

// TestPostureNotices alters one property at a time and wants to see it.
func TestPostureNotices(t *testing.T) {
	s := newStage(t)
	// The probe, as a shell would change more than it is told to.
	become := func(what string) func(*exec.Cmd) {
		return func(c *exec.Cmd) {
			c.Args = []string{s.Probe, "-become", what, c.Path}
			c.Path = s.Probe
		}
	}
	attr := func(a syscall.SysProcAttr) func(*exec.Cmd) { return func(c *exec.Cmd) { c.SysProcAttr = &a } }
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	plain := s.plain(t, nil, nil)
	if d := plain.diff(s.plain(t, nil, nil)); len(d) != 0 {
		t.Fatalf("two plain children differ: %v", d)
	}
	for _, row := range []struct {
		want   string
		change func(*exec.Cmd)
		after  func(pid int) error
	}{
		{want: "descriptor 3", change: func(c *exec.Cmd) { c.ExtraFiles = []*os.File{null} }},
		{want: "descriptors", change: func(c *exec.Cmd) { c.ExtraFiles = []*os.File{null} }},
		{want: "descriptor 2", change: func(c *exec.Cmd) { c.Stderr = null }},
		{want: "environment", change: func(c *exec.Cmd) { c.Env = append(c.Env, "B=2") }},
		{want: "cwd", change: func(c *exec.Cmd) { c.Dir = "/" }},
		{want: "status Umask", change: become("umask=0057")},
		{want: "status SigIgn", change: become(fmt.Sprintf("ignore=%d", unix.SIGUSR2))},
		{want: "status SigBlk", change: become(fmt.Sprintf("block=%d", unix.SIGWINCH))},
		{want: "limit Max open files", after: func(pid int) error {
			return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 77, Max: 78}, nil)
		}},
		{want: "limit Max core file size", after: func(pid int) error {
			return unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 0, Max: 4096}, nil)
		}},
		{want: "nice", after: func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 7) }},
		{want: "session", change: attr(syscall.SysProcAttr{Setsid: true})},
		{want: "process group", change: attr(syscall.SysProcAttr{Setpgid: true})},
		{want: "namespace uts", change: attr(syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWUTS})},
		{want: "namespace user", change: attr(syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})},
		{want: "oom_score_adj", after: func(pid int) error {
			return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("900"), 0)
		}},
	} {
		t.Run(row.want, func(t *testing.T) {
			if d := plain.diff(s.plain(t, row.change, row.after)); d[row.want] == "" {
				t.Errorf("the altered %s is not seen, only %v", row.want, d)
			}
		})
	}
}

// TestPostureNoticesOneThread confines one thread of this process.
func TestPostureNoticesOneThread(t *testing.T) {
	before := posture{}
	if err := threads("/proc/self", before); err != nil {
		t.Fatal(err)
	}
	set, done := make(chan error), make(chan struct{})
	defer close(done)
	go onOtherThread(func() {
		set <- unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		<-done
	})
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	after := posture{}
	if err := threads("/proc/self", after); err != nil {
		t.Fatal(err)
	}
	if after["threads"] == "alike" || after["threads"] == before["threads"] {
		t.Error("a thread that differs is not seen")
	}
}

// onOtherThread runs f on a thread that ends with it, and that is not the main
// thread, which cannot end.
func onOtherThread(f func()) {
	runtime.LockOSThread() // never unlocked, unless this is the main thread
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOtherThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// TestLeaderStaysFree: the thread group's leader stands for this process in
// kill(2), ptrace(2) and /proc/PID. Were it the thread that is confined, its
// worker would share its domain, and so could trace it and read its memory.
func TestLeaderStaysFree(t *testing.T) {
	b := usable(t)
	s := newStage(t)
	p, err := backendtest.Policy(policy.WorkspaceWrite, s.Place)
	if err != nil {
		t.Fatal(err)
	}
	pr := preparedFor(t, b, p)
	// With one processor the launch's goroutine is likely to get the main thread.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for i := range 40 {
		w := s.start(t, pr, echo)
		leader, err := statusOf("/proc/self/task/" + strconv.Itoa(os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		confined := leader["NoNewPrivs"] == "1" || leader["Seccomp"] == "2"
		_ = w.Signal(os.Kill)
		w.Wait()
		if confined {
			t.Fatalf("launch %d confined the main thread of the launcher: its worker can trace the launcher", i+1)
		}
	}
}

// launcherVariable makes TestDeathOfLauncher be the launcher that dies.
const launcherVariable = "SBX_TEST_LAUNCHER"

// TestDeathOfLauncher: no worker outlives its launcher.
func TestDeathOfLauncher(t *testing.T) {
	b := usable(t)
	if os.Getenv(launcherVariable) != "" {
		beLauncher(t, b)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestDeathOfLauncher$")
	cmd.Env = append(os.Environ(), launcherVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var worker launched
	err = json.NewDecoder(out).Decode(&worker)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the launcher told no worker: %v", err)
	}
	pidfd, err := unix.PidfdOpen(worker.PID, 0)
	if err != nil {
		t.Fatalf("the worker is gone before its launcher: %v", err)
	}
	defer unix.Close(pidfd)
	// A launcher that is killed cannot tidy up; this test does.
	defer func() {
		for _, dir := range worker.Dirs {
			_ = os.RemoveAll(dir)
		}
	}()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !ended(pidfd, 5*time.Second) {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		t.Error("the worker outlives its launcher")
	}
}

func ended(pidfd int, within time.Duration) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(within.Milliseconds()))
	return err == nil && n == 1
}

// launched is what the launcher that will die tells.
type launched struct {
	PID  int      `json:"pid"`
	Dirs []string `json:"dirs"`
}

// beLauncher launches a worker, tells its pid, and waits to be killed.
func beLauncher(t *testing.T, b *Backend) {
	s := newStage(t)
	p, err := backendtest.Policy(policy.WorkspaceWrite, s.Place)
	if err != nil {
		t.Fatal(err)
	}
	w := s.start(t, preparedFor(t, b, p), echo)
	s.ready(t)
	dirs := []string{w.(*worker).slot.temp, w.(*worker).slot.shm, filepath.Dir(filepath.Dir(s.Workspace))}
	if err := json.NewEncoder(os.Stdout).Encode(launched{w.PID(), dirs}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
}
