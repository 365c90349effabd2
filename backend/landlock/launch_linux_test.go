package landlock

import (
	"errors"
	"fmt"
	"io"
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

// testPolicy grants what a small system program needs, and ws.
func testPolicy(t testing.TB, ws string, change func(*policy.Spec)) policy.Policy {
	t.Helper()
	s := policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: ws, Cwd: ws,
		Env:     []string{"PATH=/usr/bin:/bin", "LC_ALL=C"},
		TempEnv: []policy.TempVar{{Name: "TMPDIR", Sub: "."}, {Name: "XDG_CACHE_HOME", Sub: "cache"}},
		Grants: []policy.Grant{
			{Path: policy.Raw(ws), Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Exec, Reason: "workspace"},
			{Path: "/dev/null", Kind: policy.File, Access: policy.Read | policy.Write | policy.Ioctl, Reason: "sink"},
			{Path: "/proc", Kind: policy.Tree, Access: policy.Read, Reason: "self"},
		},
	}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache"} {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || real != dir && strings.HasPrefix(real, "/usr") {
			continue
		}
		kind := policy.Tree
		if st, err := os.Stat(real); err == nil && !st.IsDir() {
			kind = policy.File
		}
		s.Grants = append(s.Grants, policy.Grant{Path: policy.Raw(real), Kind: kind, Access: policy.Read | policy.Exec, Reason: "system"})
	}
	if change != nil {
		change(&s)
	}
	p, err := policy.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func requireLandlock(t testing.TB) *Backend {
	t.Helper()
	b := New(Options{Namespaces: native()})
	if !b.Probe().Usable {
		if os.Getenv("SBX_MUST_RUN") == "1" {
			t.Fatalf("landlock must be usable here: %s", b.reason)
		}
		t.Skipf("landlock: %s", b.reason)
	}
	return b
}

func prepare(t testing.TB, p policy.Policy) backend.Prepared {
	t.Helper()
	b := requireLandlock(t)
	plan, err := b.Plan(p)
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

// runIn runs argv in the worker and returns its output.
func runIn(t testing.TB, prepared backend.Prepared, ws string, argv ...string) (string, backend.Result) {
	t.Helper()
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	w, err := prepared.Start(backend.Command{Path: path, Argv: argv, Dir: dir, Stdin: null, Stdout: pw, Stderr: pw, OwnTree: true})
	_ = pw.Close()
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string)
	go func() {
		b, _ := io.ReadAll(pr)
		out <- string(b)
	}()
	res := w.Wait()
	return <-out, res
}

func realTemp(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWorkerIsConfined(t *testing.T) {
	root := realTemp(t)
	ws, outside := filepath.Join(root, "ws"), filepath.Join(root, "outside")
	for _, d := range []string{ws, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	prepared := prepare(t, testPolicy(t, ws, nil))
	script := fmt.Sprintf("echo in >ws-file && echo temp >$TMPDIR/t && echo cached >$XDG_CACHE_HOME/c; echo out >%s/f", outside)
	if err := exec.Command("sh", "-c", "cd "+ws+"; TMPDIR=. XDG_CACHE_HOME=.; "+script).Run(); err != nil {
		t.Fatalf("the control outside the sandbox failed: %v", err)
	}
	if err := os.Remove(filepath.Join(outside, "f")); err != nil {
		t.Fatal(err)
	}
	out, res := runIn(t, prepared, ws, "sh", "-c", script)
	if res.Outcome.ExitStatus() == 0 {
		t.Errorf("the write outside succeeded: %s", out)
	}
	if _, err := os.Lstat(filepath.Join(outside, "f")); err == nil {
		t.Error("the file outside exists")
	}
	if b, err := os.ReadFile(filepath.Join(ws, "ws-file")); err != nil || string(b) != "in\n" {
		t.Errorf("the write inside: %q, %v", b, err)
	}
	if res.Enforcement.State(policy.FSWrite).Status != backend.Enforced {
		t.Errorf("fs.write is reported as %v", res.Enforcement.State(policy.FSWrite))
	}
}

// TestBegin: a launch whose Begin fails starts nothing, and leaves nothing to the next.
func TestBegin(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	no := errors.New("not now")
	for i := range 4 { // the later ones have berths that were made ahead
		var err error
		if i%2 == 0 {
			err = no
		}
		file := filepath.Join(ws, fmt.Sprint(i))
		w, serr := prepared.Start(backend.Command{Path: "/bin/touch", Argv: []string{"touch", file}, Dir: dir, Stdin: null, Stdout: null, Stderr: null, Begin: func() error {
			if _, err := os.Stat(file); err == nil {
				t.Error("the worker did not wait")
			}
			return err
		}})
		if serr == nil {
			if r := w.Wait(); r.Outcome.ExitStatus() != 0 {
				t.Errorf("%+v", r.Outcome)
			}
		}
		if _, there := os.Stat(file); !errors.Is(serr, err) || (there == nil) != (err == nil) {
			t.Errorf("launch %d: %v, its file: %v", i, serr, there)
		}
	}
}

// TestMadeAhead: berths for the next workers are made when one has ended, or has run
// for a while, and not while it begins.
func TestMadeAhead(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil)).(*prepared)
	ahead := func() int {
		prepared.mu.Lock()
		defer prepared.mu.Unlock()
		return len(prepared.ahead)
	}
	runIn(t, prepared, ws, "true")
	if n := ahead(); n != 0 {
		t.Errorf("%d were made for one launch alone", n)
	}
	runIn(t, prepared, ws, "true")
	if n := ahead(); n != aheadBerths {
		t.Errorf("%d after the second", n)
	}
	null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	defer null.Close()
	dir, _ := os.Open(ws)
	defer dir.Close()
	began := time.Now()
	w, err := prepared.Start(backend.Command{Path: "/bin/sleep", Argv: []string{"sleep", "100"}, Dir: dir, Stdin: null, Stdout: null, Stderr: null})
	if err != nil {
		t.Fatal(err)
	}
	if n := ahead(); n != aheadBerths-1 && time.Since(began) < aheadAfter {
		t.Errorf("%d while the next one begins", n)
	}
	for end := time.Now().Add(10 * time.Second); ahead() != aheadBerths; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("none was made while a worker runs")
		}
	}
	w.Stop(0)
	w.Wait()
}

func TestOutcomes(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	for _, tt := range []struct {
		script string
		kind   backend.OutcomeKind
		status int
	}{
		{"exit 0", backend.Exited, 0},
		{"exit 1", backend.Exited, 1},
		{"exit 125", backend.Exited, 125},
		{"exit 126", backend.Exited, 126},
		{"exit 255", backend.Exited, 255},
		{"kill -TERM $$", backend.Signaled, 143},
		{"kill -KILL $$", backend.Signaled, 137},
	} {
		_, res := runIn(t, prepared, ws, "sh", "-c", tt.script)
		if res.Outcome.Kind != tt.kind || res.Outcome.ExitStatus() != tt.status {
			t.Errorf("%q: got %s, status %d; want %s, %d", tt.script, res.Outcome.Kind, res.Outcome.ExitStatus(), tt.kind, tt.status)
		}
	}
}

// TestTempIsPrivate: what one worker leaves in its temp, the next cannot see,
// and nothing stays on the host.
func TestTempIsPrivate(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	first, _ := runIn(t, prepared, ws, "sh", "-c", "echo secret >$TMPDIR/s; mkdir -p $TMPDIR/a/b; chmod 0 $TMPDIR/a; echo $TMPDIR")
	second, _ := runIn(t, prepared, ws, "sh", "-c", "ls -A $TMPDIR/; echo $TMPDIR")
	if strings.Contains(second, "s\n") && strings.HasPrefix(second, "s") {
		t.Errorf("the second worker saw the first one's temp: %q", second)
	}
	if _, err := os.Lstat(strings.TrimSpace(first)); err == nil && !native() {
		t.Errorf("the first worker's temp %q is still there", first)
	}
}

// TestOrphansEnd: a setsid'ed, double-forked child that ignores SIGTERM ends
// with its worker.
func TestOrphansEnd(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	out, res := runIn(t, prepared, ws, "sh", "-c", `(setsid sh -c 'trap "" TERM HUP; echo $$ >orphan; exec sleep 300' >/dev/null 2>&1 &) ; while [ ! -s orphan ]; do sleep 0.01; done; cat orphan`)
	pid := 0
	if _, err := fmt.Sscan(out, &pid); err != nil {
		t.Fatalf("no orphan: %q", out)
	}
	if err := unix.Kill(outside(pid), 0); err == nil {
		t.Errorf("orphan %d is alive", pid)
	}
	if len(res.Survivors) != 0 {
		t.Errorf("survivors: %v", res.Survivors)
	}
}

// TestLaunchesLeakNothing counts what launches could leave behind.
func TestLaunchesLeakNothing(t *testing.T) {
	ws := realTemp(t)
	temp := realTemp(t)
	t.Setenv("TMPDIR", temp)
	p := testPolicy(t, ws, nil)
	prepared := prepare(t, p)
	for range 3 { // from the second launch on, a berth is kept ahead
		runIn(t, prepared, ws, "true")
	}
	fds, threads, shm := countFDs(t), countDir(t, "/proc/self/task"), countDir(t, "/dev/shm")
	for range 50 {
		runIn(t, prepared, ws, "true")
	}
	if n := countFDs(t); n > fds+40 { // two berths may be ready or not, of some 15 each; a leak would be 50
		t.Errorf("descriptors: %d before, %d after", fds, n)
	}
	if n := countDir(t, "/proc/self/task"); n > threads+16 { // the runtime keeps some more or fewer; a leak would be 50
		t.Errorf("threads: %d before, %d after", threads, n)
	}
	n := countDir(t, "/dev/shm")
	for end := time.Now().Add(10 * time.Second); n > shm+3 && time.Now().Before(end); n = countDir(t, "/dev/shm") {
		time.Sleep(50 * time.Millisecond) // launches of others come and go
	}
	if n > shm+3 {
		t.Errorf("/dev/shm entries: %d before, %d after", shm, n)
	}
	if n := countDir(t, temp); n > 4 {
		t.Errorf("temp directories: %d", n)
	}
}

func countFDs(t testing.TB) int { return countDir(t, "/proc/self/fd") }

func countDir(t testing.TB, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func BenchmarkLaunch(b *testing.B) {
	ws := realTemp(b)
	prepared := prepare(b, testPolicy(b, ws, nil))
	null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	defer null.Close()
	dir, _ := os.Open(ws)
	defer dir.Close()
	for b.Loop() {
		w, err := prepared.Start(backend.Command{Path: "/bin/true", Argv: []string{"true"}, Dir: dir, Stdin: null, Stdout: null, Stderr: null, OwnTree: true})
		if err != nil {
			b.Fatal(err)
		}
		if r := w.Wait(); r.Outcome.ExitStatus() != 0 {
			b.Fatal(r.Outcome)
		}
	}
}

func BenchmarkBareExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
