package launch

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandboxd/backend"
	"sandboxd/internal/quota"
	"sandboxd/policy"
)

// gauge is a meter that shows what it is set to.
type gauge struct{ bytes, files, full atomic.Int64 }

func (g *gauge) Look() quota.Look {
	return quota.Look{Bytes: g.bytes.Load(), Files: g.files.Load(), Full: g.full.Load() > 0}
}

const diskLimit = 8 << 20

// startLimited starts a shell that has said that it is ready.
func startLimited(t *testing.T, script string, grace time.Duration, g *gauge) *Process {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := Start(Request{
		Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir, OwnTree: true,
		Stdio: [3]*os.File{os.Stdin, w, os.Stderr},
		Quota: &Quota{Limits: policy.Limits{Disk: diskLimit, Grace: grace}, Dir: "/its/temp", Meter: g},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	return p
}

// TestQuota: whoever put too much there is ended, and only then it is the
// limit's doing.
func TestQuota(t *testing.T) {
	const patient = time.Minute
	const asked = `trap "exit 3" TERM; echo; while :; do sleep 0.05; done`
	const deaf = `trap "" TERM; echo; while :; do sleep 0.05; done`
	for name, c := range map[string]struct {
		script       string
		grace        time.Duration
		bytes, files int64
		before       func(*Process)
		want         backend.OutcomeKind
		warning      string
	}{
		"over, ends when asked":    {script: asked, grace: patient, bytes: diskLimit + 1, want: backend.LimitHit, warning: `"/its/temp" (8M limit) is full: it held 8388609 bytes`},
		"over, is killed":          {script: deaf, grace: 100 * time.Millisecond, bytes: diskLimit + 1, want: backend.LimitHit, warning: "it held 8388609 bytes"},
		"far over, is not asked":   {script: deaf, grace: patient, bytes: 3 * diskLimit, want: backend.LimitHit, warning: "it held 25165824 bytes"},
		"too many files":           {script: asked, grace: patient, files: 4000, want: backend.LimitHit, warning: "it held 4000 files and directories, and may have 3072"},
		"over, its time was up":    {script: deaf, grace: patient, bytes: 3 * diskLimit, before: func(p *Process) { p.Stop(patient) }, want: backend.Signaled},
		"within":                   {script: "echo; sleep 0.2", bytes: diskLimit, want: backend.Exited},
		"over, but it ends itself": {script: "echo; exit 0", bytes: diskLimit + 1, before: func(p *Process) { awaitEnd(p) }, want: backend.Exited, warning: "it held 8388609 bytes; give it more with --disk; the command had ended before it was seen"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &gauge{}
			p := startLimited(t, c.script, c.grace, g)
			if c.before != nil {
				c.before(p)
			}
			g.bytes.Store(c.bytes)
			g.files.Store(c.files)
			o, survivors := p.Wait()
			if o.Kind != c.want || (o.Which == "disk") != (c.want == backend.LimitHit) || len(survivors) > 0 {
				t.Errorf("outcome %+v, survivors %v", o, survivors)
			}
			if o.Kind == backend.LimitHit && (o.ExitStatus() != 137 || !strings.Contains(o.Reason, c.warning)) {
				t.Errorf("status %d, reason %q", o.ExitStatus(), o.Reason)
			}
			warnings := strings.Join(p.Warnings(), "\n")
			if c.warning != "" && !strings.Contains(warnings, c.warning) || c.want == backend.Exited && c.warning == "" && warnings != "" {
				t.Errorf("warnings %q", warnings)
			}
			if u := p.Usage(); u.PeakTemp == nil || *u.PeakTemp != c.bytes {
				t.Errorf("usage %+v", u)
			}
		})
	}
	// A file system that is full takes no more: nobody is ended for it.
	g := &gauge{}
	g.full.Store(1)
	p := startLimited(t, "echo; exit 4", 0, g)
	if o, _ := p.Wait(); o.Kind != backend.Exited || len(p.Warnings()) != 1 || !strings.Contains(p.Warnings()[0], `"/its/temp" (8M limit) is full: `) {
		t.Errorf("outcome %+v, warnings %q", o, p.Warnings())
	}
}

func awaitEnd(p *Process) {
	for end := time.Now().Add(10 * time.Second); !p.ended() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func TestSizeText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 5: "5 bytes", 1024: "1K", 1025: "1025 bytes", 8 << 20: "8M", 3 << 30: "3G", 1536 << 20: "1536M", 2048 << 40: "2048T"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestDiskState(t *testing.T) {
	able := quota.Host{Mounts: true, Measures: true, Memory: 1 << 34}
	unable := quota.Host{Measures: true, Why: "it may not"}
	for name, c := range map[string]struct {
		host   *quota.Host
		limits policy.Limits
		want   backend.Status
		gaps   int
	}{
		"mounted":         {&able, policy.Limits{Disk: 1 << 30}, backend.Enforced, 0},
		"and with memory": {&able, policy.Limits{Disk: 1 << 30, Memory: 1 << 31}, backend.Enforced, 1},
		"too much memory": {&able, policy.Limits{Disk: 1 << 30, Memory: 1<<31 - 2}, backend.Partial, 2},
		"too large":       {&able, policy.Limits{Disk: 1 << 40}, backend.Partial, 2},
		"measured":        {&unable, policy.Limits{Disk: 1 << 30}, backend.Partial, 2},
		"nothing":         {&quota.Host{Why: "nothing holds it"}, policy.Limits{Disk: 1 << 30}, backend.Unenforced, 1},
	} {
		s := LimitStates(c.limits, Host{Disk: c.host})[policy.LimitsDisk]
		if s.Status != c.want || len(s.Gaps) != c.gaps || (len(s.By) == 0) != (c.want == backend.Unenforced) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if states := LimitStates(policy.Limits{}, Host{Disk: &able}); len(states) > 0 {
		t.Errorf("nothing is asked for: %v", states)
	}
}
