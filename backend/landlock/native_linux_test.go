package landlock

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"sandboxd/backend"
	"sandboxd/backend/backendtest"
	"sandboxd/capture"
	"sandboxd/policy"
)

// TestConformanceNative: what is refused elsewhere may be absent here, and what is the
// worker's own it may touch.
func TestConformanceNative(t *testing.T) {
	// The control's orphans come to this process, if an earlier launch has made it a
	// subreaper.
	defer func() {
		for pid, err := 1, error(nil); pid > 0 && err == nil; {
			pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}()
	b := needNative(t)
	errnos, skip := dialectOf(b.Facts())
	own := map[string]string{
		"create in /tmp": "its own /tmp", "create in /dev/shm": "its own /dev/shm",
		"create beside the workspace": "its own /tmp, in which the workspace lies here", "list the parent of the workspace": "its own /tmp",
	}
	own["list the root"] = "its own root"
	for _, name := range []string{"tcp bind", "tcp bind v6", "tcp listen", "tcp listen without bind", "udp connect and send", "udp connect and send v6", "udp sendto", "udp sendto v6",
		"udp sendmsg", "udp sendmmsg", "udp bind", "udp-lite socket"} {
		own[name] = "its own network"
	}
	instead := map[string]string{"EACCES": "ENOENT|EROFS|EXDEV|ESRCH|ECONNREFUSED|EINPROGRESS|EPROTONOSUPPORT|ESOCKTNOSUPPORT|EPERM", "EPERM": "ESRCH|ENOENT|ECONNREFUSED", "ELOOP": "ENOENT", "EXDEV": "ENOENT"}
	backendtest.Run(t, backendtest.Target{Backend: b, Errno: errnos, Skip: skip, Instead: instead, Own: own})
}

// nativeVariable has the tests of this package launch with namespaces, and those that
// they start.
const nativeVariable = "SBX_TEST_NATIVE"

func native() bool { return os.Getenv(nativeVariable) != "" }

// TestNative runs tests that are about every backend of this package with the other one.
func TestNative(t *testing.T) {
	needNative(t)
	t.Setenv(nativeVariable, "1")
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Endings", TestEndings}, {"EndingsAtOnce", TestEndingsAtOnce}, {"Outcomes", TestOutcomes}, {"Begin", TestBegin},
		{"NetworkSocketsAsStdio", TestNetworkSocketsAsStdio}, {"AllowExecCoversTemp", TestAllowExecCoversTemp}, {"HandleGivesNoRights", TestHandleGivesNoRights},
		{"TracedWorkerIsNotEnded", TestTracedWorkerIsNotEnded}, {"TracersDoNotHoldTheLauncher", TestTracersDoNotHoldTheLauncher},
		{"OrphansAreReaped", TestOrphansAreReaped}, {"OrphansEnd", TestOrphansEnd}, {"MadeAhead", TestMadeAhead}, {"TempIsPrivate", TestTempIsPrivate},
		{"LaunchesLeakNothing", TestLaunchesLeakNothing}, {"StdinOfWorkers", TestStdinOfWorkers}, {"FullDiskOfWorkers", TestFullDiskOfWorkers},
		{"CaptureOfWorkers", TestCaptureOfWorkers}, {"ConversationWithWorker", TestConversationWithWorker}, {"ReaderOfWorkerLeaves", TestReaderOfWorkerLeaves},
		{"ChildHoldsOutput", TestChildHoldsOutput}, {"TerminalIsTheWorkers", TestTerminalIsTheWorkers}, {"DeathOfLauncher", TestDeathOfLauncher}, {"DirectoriesAreTheUsers", TestDirectoriesAreTheUsers},
		{"DiskWithoutLimit", TestDiskWithoutLimit}, {"DiskOfFailedLaunch", TestDiskOfFailedLaunch},
	} {
		t.Run(test.name, test.run)
	}
}

// nobody is a number that no process has: proc_sys_kernel(5), pid_max.
const nobody = 1<<22 + 1

// outside is the number by which this process knows one that the worker knows by
// another.
func outside(inner int) int {
	if !native() {
		return inner
	}
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, line, _ := bytes.Cut(text, []byte("\nNSpid:"))
		line, _, _ = bytes.Cut(line, []byte("\n"))
		if list := strings.Fields(string(line)); len(list) > 1 && list[len(list)-1] == fmt.Sprint(inner) {
			if pid, _ := strconv.Atoi(list[0]); isBelow(pid) {
				return pid
			}
		}
	}
	return nobody
}

// isBelow tells whether a process descends from this one; other tests have workers, too.
func isBelow(pid int) bool {
	for pid > 1 && pid != os.Getpid() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return false
		}
		_, line, _ := bytes.Cut(text, []byte("\nPPid:"))
		line, _, _ = bytes.Cut(line, []byte("\n"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(line)))
	}
	return pid == os.Getpid()
}

func needNative(t *testing.T) *Backend {
	t.Helper()
	b := New(Options{Namespaces: true, Try: true})
	if c := b.Probe(); !c.Usable {
		t.Skipf("native: %s", c.Reason)
	}
	return b
}

// nativeIn prepares a policy's plan with a network, for one worker.
func nativeIn(t *testing.T, ws string, net policy.Net, allow ...string) backend.Prepared {
	t.Helper()
	b := needNative(t)
	plan, err := b.Plan(testPolicy(t, ws, func(s *policy.Spec) { s.Net, s.NetAllow = net, allow }))
	if err != nil {
		t.Fatal(err)
	}
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prepared.Close(); err != nil {
			t.Error(err)
		}
	})
	return prepared
}

// listen is a server of the host's on loopback, which counts who comes.
func listen(t *testing.T) (port int, came func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var n atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			_, _ = c.Read(make([]byte, 1000))
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhost\n"))
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, func() int { return int(n.Load()) }
}

const dial = `python3 -c 'import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"); print(s.recv(999).decode()[-5:].strip())' `

// TestNativeLoopback: servers and clients of the worker's find each other, in both
// families, and nobody else's; also where no network was asked for.
func TestNativeLoopback(t *testing.T) {
	for _, n := range []policy.Net{policy.NetNone, policy.NetLoopback} {
		t.Run(n.String(), func(t *testing.T) { testNativeLoopback(t, n) })
	}
}

func testNativeLoopback(t *testing.T, n policy.Net) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	ws := realTemp(t)
	port, came := listen(t)
	if out, err := exec.Command("sh", "-c", dial+strconv.Itoa(port)).Output(); err != nil || string(out) != "host\n" || came() != 1 {
		t.Fatalf("the control: %q, %v", out, err)
	}
	out, res := runIn(t, nativeIn(t, ws, n), ws, "sh", "-c", `python3 -c 'import socket
for family, at in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
	s = socket.socket(family); s.bind((at, 0)); s.listen()
	c = socket.create_connection(s.getsockname()[:2]); d, _ = s.accept(); c.sendall(b"tcp"); print(d.recv(9).decode())
	u = socket.socket(family, socket.SOCK_DGRAM); u.bind((at, 0)); v = socket.socket(family, socket.SOCK_DGRAM); v.sendto(b"udp", u.getsockname()); print(u.recv(9).decode())'
		`+dial+strconv.Itoa(port)+` 2>&1 | tail -1; python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), 5)' 2>&1 | tail -1`)
	if !strings.HasPrefix(out, "tcp\nudp\ntcp\nudp\n") || !strings.Contains(out, "Connection refused") || !strings.Contains(out, "Network is unreachable") || came() != 1 {
		t.Errorf("%s, %d came, %+v", out, came(), res.Outcome)
	}
	for _, e := range []policy.Effect{policy.NetTCPConnect, policy.NetTCPBind, policy.NetUDP, policy.NetRaw, policy.NetOther, policy.NetUnixAbstract} {
		if s := res.Enforcement.State(e); s.Status != backend.Enforced || !slices.Contains(s.By, "network namespace") {
			t.Errorf("%s: %+v", e, s)
		}
	}
}

// TestNativeProxy: the worker reaches what is allowed, by the proxy alone, and what is
// refused is told.
func TestNativeProxy(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	ws := realTemp(t)
	allowed, came := listen(t)
	other, cameOther := listen(t)
	get := func(port int) string {
		return fmt.Sprintf(`python3 -c 'import socket
s = socket.create_connection(("127.0.0.1", 3128), 5)
s.sendall(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%[1]d\r\nConnection: close\r\n\r\n")
print(s.makefile().readline().strip())'; `, port)
	}
	out, res := runIn(t, nativeIn(t, ws, policy.NetProxy, fmt.Sprintf("127.0.0.1:%d", allowed)), ws, "sh", "-c",
		get(allowed)+get(other)+dial+strconv.Itoa(allowed)+` 2>&1 | tail -1; echo $http_proxy $HTTPS_PROXY`)
	want := "HTTP/1.1 200 OK\nHTTP/1.1 403 Forbidden\nConnectionRefusedError: [Errno 111] Connection refused\nhttp://127.0.0.1:3128 http://127.0.0.1:3128\n"
	if out != want || came() != 1 || cameOther() != 0 {
		t.Errorf("%q, want %q; %d and %d came", out, want, came(), cameOther())
	}
	if len(res.Denials) != 1 || res.Denials[0].Certainty != backend.Observed || res.Denials[0].Source != "proxy" || res.Denials[0].Address != fmt.Sprintf("127.0.0.1:%d", other) {
		t.Errorf("%+v", res.Denials)
	}
	// Nothing is allowed by an empty list.
	out, _ = runIn(t, nativeIn(t, ws, policy.NetProxy), ws, "sh", "-c", get(allowed))
	if out != "HTTP/1.1 403 Forbidden\n" || came() != 1 {
		t.Errorf("an empty list: %q, %d came", out, came())
	}
}

// TestNativeBystander: what ends a worker's processes ends nobody else's of its user,
// although the launcher's parent is none whom this user could signal.
func TestNativeBystander(t *testing.T) {
	ws := realTemp(t)
	bystander := exec.Command("sleep", "300")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	b := needNative(t)
	plan, err := b.Plan(testPolicy(t, ws, nil))
	if err != nil {
		t.Fatal(err)
	}
	noGroups(plan.(*Plan))
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	if _, res := runIn(t, prepared, ws, "sh", "-c", "sleep 300 & exit 0"); len(res.Survivors) > 0 || res.Enforcement.State(policy.TreeKill).Status != backend.Enforced {
		t.Errorf("%+v", res)
	}
	if err := bystander.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if state, _ := bystander.Process.Wait(); state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it was ended by another: %v", state)
	}
}

// TestNativeWithoutListener: inside of a sandbox that has the one listener there may be
// (sbx inside sbx) workers have their own places, too.
func TestNativeWithoutListener(t *testing.T) {
	ws := realTemp(t)
	plan, err := needNative(t).WithoutNotify("a test").Plan(testPolicy(t, ws, nil))
	if err != nil {
		t.Fatal(err)
	}
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	out, res := runIn(t, prepared, ws, "sh", "-c", "echo x >/dev/shm/x && cat /dev/shm/x; echo y >$TMPDIR/y && cat /tmp/y; echo z >z")
	if out != "x\ny\n" || res.Outcome.ExitStatus() != 0 || len(res.Warnings) > 0 {
		t.Errorf("%q, %+v, %q", out, res.Outcome, res.Warnings)
	}
	if s := res.Enforcement.State(policy.NetUnixPath); s.Status != backend.Enforced {
		t.Errorf("host sockets: %+v", s)
	}
}

// TestNativeSiblings: processes that a worker has made its launcher's children, of which
// the launcher knows nothing, do not hold it, whether the tree is its own or not.
func TestNativeSiblings(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("no /usr/bin/python3")
	}
	needNative(t)
	t.Setenv(nativeVariable, "1")
	const script = `import ctypes, os, platform, time
clone, parent = (56 if platform.machine() == "x86_64" else 220), 0x8000
libc = ctypes.CDLL(None)
for ends in (True, False, False):
    if libc.syscall(clone, parent | 17, 0, 0, 0, 0) == 0:
        if ends: os._exit(0)
        time.sleep(300)
print(os.getppid(), flush=True)
os._exit(3)`
	for _, own := range []bool{false, true} {
		ws := realTemp(t)
		out := newCapture(t, capture.Options{})
		w := launchIn(t, prepare(t, testPolicy(t, ws, nil)), ws, backend.Command{Stdout: out.File(), OwnTree: own}, "/usr/bin/python3", "-c", script)
		res := waitAtOnce(t, w)
		if res.Outcome.ExitStatus() != 3 || len(res.Survivors) > 0 || zombies(t) > 0 {
			t.Errorf("own tree %t: %+v, survivors %v, %d zombies", own, res.Outcome, res.Survivors, zombies(t))
		}
	}
}
