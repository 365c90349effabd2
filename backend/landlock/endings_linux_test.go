package landlock

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
)

// ending is one way in which a worker ends.
type ending struct {
	name   string
	path   string // of the command; /bin/sh if it is empty
	script string
	do     func(backend.Worker, *rand.Rand)
	fits   func(backend.Outcome) bool
}

func exits(code int) func(backend.Outcome) bool {
	return func(o backend.Outcome) bool { return o.Kind == backend.Exited && o.ExitStatus() == code }
}

func diesOf(signals ...syscall.Signal) func(backend.Outcome) bool {
	return func(o backend.Outcome) bool {
		for _, s := range signals {
			if o.Kind == backend.Signaled && o.Signal == int(s) {
				return true
			}
		}
		return false
	}
}

func either(a, b func(backend.Outcome) bool) func(backend.Outcome) bool {
	return func(o backend.Outcome) bool { return a(o) || b(o) }
}

// soon waits for a moment in which the worker may be anywhere.
func soon(random *rand.Rand) { time.Sleep(time.Duration(random.Int64N(int64(4 * time.Millisecond)))) }

var endings = []ending{
	{name: "exit", script: "exit 0", fits: exits(0)},
	{name: "failure", script: "exit 125", fits: exits(125)},
	{name: "SIGKILL", script: "kill -9 $$", fits: diesOf(unix.SIGKILL)},
	{name: "SIGSEGV", script: "kill -11 $$", fits: diesOf(unix.SIGSEGV)},
	{name: "a child is left", script: "sleep 99 & exit 3", fits: exits(3)},
	{name: "new session", script: "setsid sleep 99 & exit 4", fits: exits(4)},
	{name: "double fork", script: "(setsid sleep 99 &) & exit 5", fits: exits(5)},
	{name: "stopped child", script: "sleep 99 & kill -STOP $!; exit 6", fits: exits(6)},
	{name: "deaf child", script: "trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 1; done' & exit 7", fits: exits(7)},
	{name: "many children", script: "for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep 99 & done; exit 8", fits: exits(8)},
	{name: "forking on", script: "(while :; do true & done) 2>/dev/null & exit 9", fits: exits(9)},
	{name: "no descriptors", script: "exec 0<&- 1>&- 2>&-; sleep 99 & exit 10", fits: exits(10)},
	{name: "killed by Stop", script: "sleep 99 & sleep 99", do: func(w backend.Worker, r *rand.Rand) { soon(r); w.Stop(0) }, fits: diesOf(unix.SIGKILL)},
	{name: "asked by Stop", script: "trap 'exit 11' TERM; sleep 99 & wait", do: func(w backend.Worker, r *rand.Rand) { soon(r); w.Stop(time.Minute) }, fits: either(exits(11), diesOf(unix.SIGTERM))},
	{name: "deaf to Stop", script: "trap '' TERM; setsid sleep 99 & sleep 99", do: func(w backend.Worker, r *rand.Rand) { soon(r); w.Stop(5 * time.Millisecond) }, fits: either(diesOf(unix.SIGKILL, unix.SIGTERM), exits(143))},
	{name: "a signal", script: "sleep 99", do: func(w backend.Worker, r *rand.Rand) { soon(r); _ = w.Signal(unix.SIGHUP) }, fits: diesOf(unix.SIGHUP)},
	{name: "nothing to execute", path: "/nothing/there"},
	{name: "not executable", path: "/etc/hostname"},
}

// endingsOf tells how many launches TestEndings makes; test/run.sh asks for more.
func endingsOf(t *testing.T) int {
	if text := os.Getenv("SBX_TEST_ENDINGS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 100
}

// TestEndings: however workers end, the outcome says how, and nothing of them is
// left: no process, descriptor, cgroup or directory.
func TestEndings(t *testing.T) {
	ws, temp := realTemp(t), realTemp(t)
	t.Setenv("TMPDIR", temp)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SBX_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	groups := ownGroups(t)
	// The runtime and package os keep some descriptors from the first use on.
	launchEndings(t, ws, seed, 5, 1)
	fds := countFDs(t)
	began := time.Now()
	total := endingsOf(t)
	launchEndings(t, ws, seed, total, 1)
	t.Logf("%d launches in %v", total, time.Since(began))

	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		t.Errorf("children are left: %v", err)
	}
	if n := countFDs(t); n > fds {
		t.Errorf("descriptors: %d before, %d after", fds, n)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("temp directories are left: %v (%v)", left, err)
	}
	expectNoNewGroups(t, groups)
}

// TestEndingsAtOnce: the same, for several workers of one launcher, which needs a
// cgroup for each.
func TestEndingsAtOnce(t *testing.T) {
	h := cgroup.Probe()
	defer h.Close()
	if !h.Kill.Can() {
		t.Skipf("no cgroup can be had here: %s", h.Kill.Why)
	}
	ws, temp := realTemp(t), realTemp(t)
	runIn(t, prepare(t, testPolicy(t, ws, nil)), ws, "true") // which makes this process a subreaper
	t.Setenv("TMPDIR", temp)
	groups := ownGroups(t)
	launchEndings(t, ws, uint64(time.Now().UnixNano()), endingsOf(t)/2, 4)
	if n := zombies(t); n > 0 {
		t.Errorf("%d zombies are left", n)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("temp directories are left: %v (%v)", left, err)
	}
	expectNoNewGroups(t, groups)
}

func launchEndings(t *testing.T, ws string, seed uint64, total, atOnce int) {
	t.Helper()
	b := requireLandlock(t)
	plan, err := b.Plan(testPolicy(t, ws, nil))
	if err != nil {
		t.Fatal(err)
	}
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for range total / atOnce {
				e := endings[random.IntN(len(endings))]
				if err := e.launch(prepared, ws, random, atOnce == 1); err != nil {
					t.Errorf("%s: %v", e.name, err)
				}
			}
		})
	}
	wg.Wait()
	if err := prepared.Close(); err != nil {
		t.Error(err)
	}
}

func (e ending) launch(prepared backend.Prepared, ws string, random *rand.Rand, ownTree bool) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	dir, err := os.Open(ws)
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd := backend.Command{Path: "/bin/sh", Argv: []string{"sh", "-c", e.script}, Dir: dir, Stdin: null, Stdout: null, Stderr: null, OwnTree: ownTree}
	if e.path != "" {
		cmd.Path = e.path
	}
	w, err := prepared.Start(cmd)
	if e.path != "" {
		var exec *backend.ExecError
		if !errors.As(err, &exec) {
			return fmt.Errorf("the error is %v", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if e.do != nil {
		e.do(w, random)
	}
	r := w.Wait()
	switch {
	case len(r.Survivors) > 0:
		return fmt.Errorf("survivors: %v", r.Survivors)
	case len(r.Warnings) > 0:
		return fmt.Errorf("warnings: %q", r.Warnings)
	case !e.fits(r.Outcome):
		return fmt.Errorf("the outcome is %+v", r.Outcome)
	}
	return nil
}

// ownGroups are the directories below this process' cgroup2 that look like a
// worker's. Other launchers may come and go meanwhile.
func ownGroups(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if !strings.Contains(line, " - cgroup") || len(f) < 5 {
			continue
		}
		for member := range strings.Lines(string(own)) {
			_, path, _ := strings.Cut(strings.TrimSpace(member), "::")
			dirs, _ := filepath.Glob(filepath.Join(f[4], path, "sbx-*"))
			for _, d := range dirs {
				found[d] = true
			}
		}
	}
	return found
}

// expectNoNewGroups waits until those that have come since are gone. What comes later is
// other launchers', and so is what holds a process: none of this one's is left.
func expectNoNewGroups(t *testing.T, before map[string]bool) {
	t.Helper()
	more := ownGroups(t)
	maps.DeleteFunc(more, func(dir string, _ bool) bool { return before[dir] })
	for end := time.Now().Add(20 * time.Second); len(more) > 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		now := ownGroups(t)
		maps.DeleteFunc(more, func(dir string, _ bool) bool {
			procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			return !now[dir] || len(procs) > 0
		})
	}
	if len(more) > 0 {
		t.Errorf("cgroups are left: %v", slices.Collect(maps.Keys(more)))
	}
}
