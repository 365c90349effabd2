package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/backend"
	"sandboxd/protocol"
)

// expect reads a launch's output until it holds a text.
func (c *client) expect(id int64, text string) string {
	c.t.Helper()
	var all strings.Builder
	for !strings.Contains(all.String(), text) {
		switch m := c.next().(type) {
		case *protocol.Output:
			all.Write(m.Data)
			if m.EOF {
				c.t.Fatalf("the end came before %q: %q", text, all.String())
			}
		case *protocol.Exit, *protocol.Error:
			c.t.Fatalf("%+v came before %q: %q", m, text, all.String())
		}
	}
	return all.String()
}

// TestTerminal: a worker has a terminal of its own, of the size that was asked for,
// which is resized, types what is sent, and can be closed to nobody else.
func TestTerminal(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	withTTY := func(m *protocol.Launch) { m.TTY, m.Stdio = &protocol.Size{Rows: 31, Cols: 97}, nil }
	const script = `[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; stty size; echo ready
while read line; do echo "got $line"; stty size; done; echo over; exit 5`
	id := c.launch(withTTY, "sh", "-c", script)
	worker := until[*protocol.Started](c)
	if worker.StdinWindow == 0 {
		t.Error("nothing can be typed")
	}
	if text := c.expect(id, "ready"); !strings.Contains(text, "all\r\n31 97\r\n") {
		t.Errorf("it said %q", text)
	}
	c.say(&protocol.Resize{ID: c.id(), Worker: worker.Worker, Size: protocol.Size{Rows: 40, Cols: 120}})
	until[*protocol.ResizeResult](c)
	var sent int64
	typed := func(s string) {
		c.say(&protocol.Stdin{ID: id, Offset: sent, Data: []byte(s)})
		sent += int64(len(s))
	}
	typed("hello\n")
	if text := c.expect(id, "40 120"); !strings.Contains(text, "hello\r\ngot hello\r\n") { // it echoes
		t.Errorf("it said %q", text)
	}
	typed("\x04")
	r := c.ending(id)
	if r.Outcome.ExitStatus() != 5 || !r.TTY {
		t.Errorf("%+v, tty %v", r.Outcome, r.TTY)
	}
	// What is resized too late, or has no terminal, is told so.
	c.say(&protocol.Resize{ID: c.id(), Worker: worker.Worker, Size: protocol.Size{Rows: 1, Cols: 1}})
	if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.NotFound {
		t.Errorf("%+v", e)
	}
	id = c.launch(nil, "sleep", "300")
	plain := until[*protocol.Started](c)
	c.say(&protocol.Resize{ID: c.id(), Worker: plain.Worker, Size: protocol.Size{Rows: 1, Cols: 1}})
	if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.BadValue {
		t.Errorf("%+v", e)
	}
	c.say(&protocol.Cancel{ID: c.id(), Launch: id, Grace: new(int64)})
	c.ending(id)
	// Ctrl-C is the terminal's signal; a client that goes hangs up.
	id = c.launch(withTTY, "sh", "-c", "echo ready; exec sleep 300")
	until[*protocol.Started](c)
	c.expect(id, "ready")
	c.say(&protocol.Stdin{ID: id, Data: []byte{3}})
	if r := c.ending(id); r.Outcome.Kind != backend.Signaled || r.Outcome.SignalName != "SIGINT" {
		t.Errorf("%+v", r.Outcome)
	}
	gone := dial(t, socket)
	gone.launch(withTTY, "sleep", "300")
	left := until[*protocol.Started](gone)
	_ = gone.conn.Close()
	waitUntil(t, "the end of the worker", func() bool { return !alive(left.PID) })
	// The end of an output that is long, to the last byte.
	id = c.launch(withTTY, "sh", "-c", "stty -opost; seq 20000")
	if r := c.finish(id); !strings.HasSuffix(r.out.String(), "\n19999\n20000\n") || r.report.OutputLost != "" {
		t.Errorf("%d bytes, lost %q", r.out.Len(), r.report.OutputLost)
	}
}

// ending waits for the end of a launch whose outputs were read in part.
func (c *client) ending(id int64) (r struct {
	Outcome backend.Outcome `json:"outcome"`
	TTY     bool            `json:"tty"`
}) {
	c.t.Helper()
	for {
		exit, ok := c.next().(*protocol.Exit)
		if !ok || exit.ID != id {
			continue
		}
		if err := json.Unmarshal(exit.Report, &r); err != nil {
			c.t.Fatal(err)
		}
		return r
	}
}

// TestDryRun: what would be done is told, and nothing is done.
func TestDryRun(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	for mode, backend := range map[string]string{"workspace-write": auto(), "danger-full-access": ""} {
		id := c.launch(func(m *protocol.Launch) { m.DryRun, m.Mode = true, mode }, "touch", "made")
		p, ok := c.next().(*protocol.Planned)
		if !ok || p.ID != id {
			t.Fatalf("%s: %+v", mode, p)
		}
		var plan struct {
			DryRun  bool   `json:"dry_run"`
			Backend string `json:"backend"`
			Level   string `json:"level"`
			Policy  struct {
				Mode string `json:"mode"`
			} `json:"policy"`
		}
		if err := json.Unmarshal(p.Plan, &plan); err != nil || !plan.DryRun || plan.Backend != backend || plan.Policy.Mode != mode || plan.Level == "" {
			t.Errorf("%s: %s, %v", mode, p.Plan, err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.ws, "made")); err == nil {
		t.Error("it ran")
	}
	// One that would be refused is, and the id is free again. The control runs.
	if r := c.finish(c.launch(func(m *protocol.Launch) { m.DryRun, m.Workspace = true, "/" }, "true")); r.failure == nil || r.failure.Code != protocol.Refused {
		t.Errorf("%+v", r.failure)
	}
	if r := c.finish(c.launch(func(m *protocol.Launch) { m.DryRun, m.Require = true, []string{"full"} }, "true")); r.failure == nil || r.failure.Code != protocol.Refused {
		t.Errorf("%+v", r.failure)
	}
	if r := c.run("touch", "made"); r.report.Outcome.ExitStatus() != 0 {
		t.Errorf("%+v", r.report.Outcome)
	}
	if _, err := os.Stat(filepath.Join(c.ws, "made")); err != nil {
		t.Error(err)
	}
}
