package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sandboxd/backend"
	"sandboxd/internal/audit"
	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

// auditedDaemon runs a daemon with an audit log.
func auditedDaemon(t *testing.T) (log *audit.Log, dir, socket string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(dir, audit.Options{Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	_, socket = serve(t, func(o *Options) {
		o.Audit, o.NoAudit = log, false
		o.Ceilings.Default.Limits.Memory = 1 << 40
	})
	return log, dir, socket
}

// records are those of a kind.
func records[B any](t *testing.T, dir, kind string) (list []B) {
	t.Helper()
	r, err := audit.NewReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Read(func(e audit.Entry) error {
		if e.Kind != kind {
			return nil
		}
		var b B
		list = append(list, b)
		return json.Unmarshal(e.Body, &list[len(list)-1])
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func limited(m *protocol.Launch) { m.Limits = &protocol.LaunchLimits{Memory: 1 << 30} }

// TestDryRunsAreAudited: what was only asked is in the log before it is answered, with
// what it would have been, or why it would be refused; and no end follows.
func TestDryRunsAreAudited(t *testing.T) {
	needLandlock(t)
	_, dir, socket := auditedDaemon(t)
	c := dial(t, socket)
	c.launch(func(m *protocol.Launch) {
		limited(m)
		m.AllowGap, m.DryRun = []string{"limits.memory"}, true
	}, "touch", "made")
	until[*protocol.Planned](c)
	requests, decisions := records[audit.Request](t, dir, audit.KindRequest), records[audit.Decision](t, dir, audit.KindDecision)
	if len(requests) != 1 || len(decisions) != 1 {
		t.Fatalf("%d requests, %d decisions", len(requests), len(decisions))
	}
	q, d := requests[0], decisions[0]
	if !q.DryRun || q.Worker == "" || q.Worker != d.Worker || q.Mode != "workspace-write" || len(q.Argv) != 2 {
		t.Errorf("%+v", q)
	}
	if d.Decision != audit.Allow || d.Backend != auto() || d.Level == "" || d.PlanHash == "" || d.Effects["fs.write"] != "enforced" {
		t.Errorf("%+v", d)
	}
	c.launch(func(m *protocol.Launch) { m.DryRun = true }, "true") // above the ceiling
	if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.Ceiling {
		t.Errorf("%+v", e)
	}
	decisions = records[audit.Decision](t, dir, audit.KindDecision)
	if len(decisions) != 2 || decisions[1].Decision != audit.Refuse || string(decisions[1].Source) != "ceiling" {
		t.Errorf("%+v", decisions)
	}
	if ends := records[audit.End](t, dir, audit.KindEnd); len(ends) != 0 {
		t.Errorf("%d ends", len(ends))
	}
	ran := c.finish(c.launch(func(m *protocol.Launch) {
		limited(m)
		m.AllowGap = []string{"limits.memory"}
	}, "true"))
	if all := records[audit.Request](t, dir, audit.KindRequest); !ran.report.Ran || len(all) != 3 || all[2].DryRun {
		t.Errorf("a launch: %+v", all)
	}
}

func TestAudit(t *testing.T) {
	needLandlock(t)
	log, dir, socket := auditedDaemon(t)
	c := dial(t, socket)
	const secret = "s3cr3t-value"
	// What the worker finds in the log is what was there before it began.
	ran := c.finish(c.launch(func(m *protocol.Launch) {
		limited(m)
		m.AllowGap = []string{"limits.memory"}
		m.Env = []protocol.Variable{{Name: "TOKEN", Value: secret}}
		m.Readable = []protocol.Bytes{protocol.Bytes(dir)}
	}, "sh", "-c", "cat "+dir+"/*; exit 3"))
	if !ran.report.Ran || ran.report.Outcome.ExitStatus() != 3 {
		t.Fatalf("%+v %+v", ran.report.Outcome, ran.failure)
	}
	for _, word := range []string{`"kind":"request"`, `"kind":"decision"`, ran.report.ID, "TOKEN"} {
		if !strings.Contains(ran.out.String(), word) {
			t.Errorf("no %s before the worker: %s", word, ran.out.String())
		}
	}
	// Three ways of being refused: nothing of them runs.
	for name, change := range map[string]func(*protocol.Launch){
		"ceiling":           func(*protocol.Launch) {},
		"request bad-value": func(m *protocol.Launch) { limited(m); m.Mode = "no-mode" },
		"host exec-failed": func(m *protocol.Launch) {
			limited(m)
			m.AllowGap = []string{"limits.memory"}
			m.Argv[0] = "no-such-" + secret
		},
	} {
		before := len(records[audit.Decision](t, dir, audit.KindDecision))
		r := c.finish(c.launch(change, "true"))
		if r.report.Ran {
			t.Errorf("%s: it ran", name)
		}
		all := records[audit.Decision](t, dir, audit.KindDecision)
		if len(all) != before+1 {
			t.Fatalf("%s: %d decisions more", name, len(all)-before)
		}
		d := all[before]
		if d.Decision != audit.Refuse || !strings.HasPrefix(string(d.Source)+" "+string(d.Reason), name) || strings.Contains(string(d.Reason), secret) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	requests, decisions, ends := records[audit.Request](t, dir, audit.KindRequest), records[audit.Decision](t, dir, audit.KindDecision), records[audit.End](t, dir, audit.KindEnd)
	if len(requests) != 4 || len(decisions) != 4 || len(ends) != 1 {
		t.Fatalf("%d requests, %d decisions, %d ends", len(requests), len(decisions), len(ends))
	}
	q, d, e := requests[0], decisions[0], ends[0]
	if q.Worker != ran.report.ID || q.UID != os.Getuid() || q.PID != os.Getpid() || q.Mode != "workspace-write" || string(q.Cwd) != c.ws || len(q.Argv) != 3 {
		t.Errorf("%+v", q)
	}
	if d.Worker != q.Worker || d.Decision != audit.Allow || d.PlanHash != ran.started.PlanHash || d.Backend != auto() || d.Level != "partial" || d.Effects["fs.write"] != "enforced" {
		t.Errorf("%+v", d)
	}
	if e.Worker != q.Worker || e.Outcome.Code == nil || *e.Outcome.Code != 3 || e.ExitStatus != 3 || e.PlanHash != d.PlanHash || e.Level != "partial" {
		t.Errorf("%+v", e)
	}
	_ = log.Close()
	if r, err := audit.Verify(dir, audit.VerifyOptions{}); err != nil || !r.Whole {
		t.Errorf("%+v %v", r, err)
	}
	for _, segment := range []string{"audit-000001.jsonl"} {
		text, err := os.ReadFile(filepath.Join(dir, segment))
		if err != nil || strings.Contains(string(text), `"`+secret) || strings.Contains(string(text), "="+secret) {
			t.Errorf("%s has a value, %v", segment, err)
		}
	}
}

// TestAuditFails: what cannot be written down is not done, and after an end that
// could not be nothing more is.
func TestAuditFails(t *testing.T) {
	needLandlock(t)
	log, _, socket := auditedDaemon(t)
	c := dial(t, socket)
	touch := func(name string) *result {
		return c.finish(c.launch(func(m *protocol.Launch) { limited(m); m.AllowGap = []string{"limits.memory"} }, "touch", name))
	}
	if r := touch("control"); !r.report.Ran {
		t.Fatalf("%+v", r.failure)
	}
	health := func() *protocol.HealthResult {
		c.say(&protocol.Health{ID: c.id()})
		return until[*protocol.HealthResult](c)
	}
	if h := health(); h.Status != "ok" || !reflect.DeepEqual(h.Checks, []protocol.HealthCheck{{Name: "audit", OK: true}, {Name: "guard", OK: true}}) {
		t.Errorf("the control's health: %+v", h)
	}
	id := c.launch(func(m *protocol.Launch) {
		limited(m)
		m.AllowGap, m.Stdio.Stdin = []string{"limits.memory"}, "stream"
	}, "cat")
	until[*protocol.Started](c)
	_ = log.Close()
	c.say(&protocol.Stdin{ID: id, EOF: true})
	r := c.finish(id)
	if r.report.Outcome.Kind != backend.Exited || !strings.Contains(strings.Join(r.report.Warnings, " "), "not in the audit log") {
		t.Errorf("%+v, warnings %q", r.report.Outcome, r.report.Warnings)
	}
	if r := touch("refused"); r.failure == nil || r.failure.Code != protocol.Unaudited || r.failure.Hint == "" || r.report.Ran {
		t.Errorf("%+v", r)
	}
	if h := health(); h.Status != "degraded" || len(h.Checks) != 2 || h.Checks[0].OK || h.Checks[0].Message == "" || h.Checks[0].Hint == "" || !h.Checks[1].OK {
		t.Errorf("health: %+v", h)
	}
	if _, err := os.Stat(filepath.Join(c.ws, "control")); err != nil {
		t.Errorf("the control: %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.ws, "refused")); err == nil {
		t.Error("it ran")
	}
}

func TestAuditIsNeeded(t *testing.T) {
	o := Options{Socket: listen.Options{Path: filepath.Join(t.TempDir(), "s"), Mode: listen.User}}
	if _, err := New(o); err == nil {
		t.Error("no log, and nobody said that there is none")
	}
	o.NoAudit, o.Audit = true, new(audit.Log)
	if _, err := New(o); err == nil {
		t.Error("a log, and none")
	}
}
