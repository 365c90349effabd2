package launch

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/policy"
)

// runaways are shell snippets that leave a process behind, each in another way.
// It prints its pid on descriptor 3.
var runaways = map[string]string{
	"new session":         `setsid sh -c 'echo $$ >&3; exec sleep 300' &`,
	"double fork":         `(setsid sh -c 'echo $$ >&3; exec sleep 300' &) &`,
	"stopped":             `setsid sh -c 'echo $$ >&3; kill -STOP $$; exec sleep 300' &`,
	"deaf to SIGTERM":     `setsid sh -c 'trap "" TERM HUP INT; echo $$ >&3; while :; do sleep 1; done' &`,
	"without environment": `setsid env -i /bin/sh -c 'echo $$ >&3; exec sleep 300' &`,
	"without descriptors": `setsid sh -c 'echo $$ >&3; exec sleep 300 0<&- 1>&- 2>&- 3>&-' &`,
}

// launchRunaway runs a snippet and returns the pid that it told.
func launchRunaway(t *testing.T, snippet string, end func(*Process)) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := Start(Request{
		Path: "/bin/sh", Argv: []string{"sh", "-c", "exec 3>&1 1>/dev/null; " + snippet + " sleep 0.3"}, Dir: dir, OwnTree: true,
		Env: []string{"PATH=/usr/bin:/bin"}, Stdio: [3]*os.File{null, w, null},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var line [32]byte
	n, err := r.Read(line[:])
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatalf("the runaway told %q", line[:n])
	}
	end(p)
	return pid
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }

// TestRunawaysEnd: whatever a process does to get away, it is gone when Wait
// returns.
func TestRunawaysEnd(t *testing.T) {
	for name, snippet := range runaways {
		t.Run(name, func(t *testing.T) {
			pid := launchRunaway(t, snippet, func(p *Process) {
				if outcome, survivors := p.Wait(); outcome.Kind != backend.Exited || len(survivors) > 0 {
					t.Errorf("the outcome is %+v, survivors are %v", outcome, survivors)
				}
			})
			if alive(pid) {
				t.Error("the process is still there")
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		})
	}
}

// TestRunawaysControl: the same processes outlive a parent that does not end
// them.
func TestRunawaysControl(t *testing.T) {
	for name, snippet := range runaways {
		t.Run(name, func(t *testing.T) {
			pid := launchRunaway(t, snippet, func(p *Process) {
				p.tree.timer.Stop()
				p.tree.mu.Lock()
				p.tree.foreign = map[int]bool{}
				for _, pid := range children() { // taken for another's, nobody ends them
					p.tree.foreign[pid] = true
				}
				p.tree.mu.Unlock()
				time.Sleep(500 * time.Millisecond)
			})
			if !alive(pid) {
				t.Error("the process is gone by itself, so the test above proves nothing")
			}
			for _, pid := range append(descendants(os.Getpid()), pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			for len(children()) > 0 {
				_, _ = unix.Wait4(-1, nil, 0, nil)
			}
		})
	}
}

// TestResourceLimits: they hold from the first instruction, for the worker alone.
func TestResourceLimits(t *testing.T) {
	b, err := Bound(policy.Limits{FileSize: 1 << 20, Files: 64}, Host{}, false)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	p, err := Start(Request{
		Path: "/bin/sh", Argv: []string{"sh", "-c", "ulimit -f; ulimit -n; ulimit -c"}, Dir: dir, Bounds: b,
		Stdio: [3]*os.File{os.Stdin, w, os.Stderr},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _ := p.Wait(); outcome.Kind != backend.Exited {
		t.Errorf("the outcome is %+v", outcome)
	}
	if got := strings.Fields(string(text)); len(got) != 3 || got[0] != "2048" || got[1] != "64" || got[2] != "0" {
		t.Errorf("the worker's limits are %q: file size in 512 bytes, open files, core", got)
	}
}

// TestLimitOfOpenFiles: a worker's limit is the one that its launcher was started
// with, though Go has raised that.
func TestLimitOfOpenFiles(t *testing.T) {
	if os.Getenv("LAUNCH_AGAIN") != "" {
		dir, err := os.Open("/")
		if err != nil {
			t.Fatal(err)
		}
		p, err := Start(Request{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "echo limits $(ulimit -Sn) $(ulimit -Hn)"}, Dir: dir,
			Stdio: [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
		})
		if err != nil {
			t.Fatal(err)
		}
		p.Wait()
		return
	}
	again := exec.Command("/bin/sh", "-c", `ulimit -Sn 100; ulimit -Hn 200; exec "$0" -test.run=^TestLimitOfOpenFiles$ -test.v`, os.Args[0])
	again.Env = append(os.Environ(), "LAUNCH_AGAIN=1")
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "limits 100 200\n") {
		t.Errorf("started with 100 and 200: %v: %s", err, out)
	}
}
