package daemon

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

// TestIDInUse: a second request with an id in flight is answered so, whatever else is
// wrong with it, and the first goes on.
func TestIDInUse(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	id := c.launch(nil, "sleep", "300")
	until[*protocol.Started](c)
	for _, body := range []string{`{"type":"ping","id":1,"bogus":true}`, `{"type":"launch","id":1}`, `{"type":"list","id":1}`} {
		frame := append([]byte{0, 0, 0, byte(len(body))}, body...)
		if err := listen.Send(c.conn, frame, nil); err != nil {
			t.Fatal(err)
		}
		if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.IDInUse || e.ID != id || e.Fatal {
			t.Errorf("%s: %+v", body, e)
		}
	}
	body := `{"type":"ping","id":2,"bogus":true}` // the control
	if err := listen.Send(c.conn, append([]byte{0, 0, 0, byte(len(body))}, body...), nil); err != nil {
		t.Fatal(err)
	}
	if e, ok := c.next().(*protocol.Error); !ok || e.Code != protocol.UnknownField {
		t.Errorf("%+v", e)
	}
	c.last = 2
	c.say(&protocol.Cancel{ID: c.id(), Launch: id, Grace: new(int64)})
	if r := c.finish(id); !r.report.Ran {
		t.Errorf("%+v", r)
	}
}

// TestInspect: of a worker that runs it shows the policy, of one that has ended the
// report.
func TestInspect(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	id := c.launch(func(m *protocol.Launch) { m.Mode = "read-only" }, "sleep", "300")
	worker := until[*protocol.Started](c).Worker
	c.say(&protocol.Inspect{ID: c.id(), Worker: worker})
	r := until[*protocol.InspectResult](c)
	var p struct {
		Mode   string `json:"mode"`
		Grants []any  `json:"grants"`
	}
	if err := json.Unmarshal(r.Policy, &p); err != nil || p.Mode != "read-only" || len(p.Grants) == 0 || r.Info.State != "running" || r.Report != nil {
		t.Errorf("%s, %v", r.Policy, err)
	}
	c.say(&protocol.Cancel{ID: c.id(), Launch: id, Grace: new(int64)})
	c.finish(id)
	c.say(&protocol.Inspect{ID: c.id(), Worker: worker})
	if r := until[*protocol.InspectResult](c); r.Info.State != "ended" || len(r.Report) == 0 {
		t.Errorf("%+v", r)
	}
}

// TestWaitingConnectionsAreCounted: while no front is ready, a user has no more
// connections than else.
func TestWaitingConnectionsAreCounted(t *testing.T) {
	never := filepath.Join(t.TempDir(), "never-ready")
	if err := os.WriteFile(never, []byte("#!/bin/sh\nexec sleep 300\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	m, socket := serve(t, func(o *Options) { o.FrontPath = never })
	dialOne := func() net.Conn {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for range protocol.MaxConnections {
		dialOne()
	}
	waitUntil(t, "that they wait", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.waiting[os.Geteuid()] == protocol.MaxConnections
	})
	frame, err := protocol.NewReader(dialOne(), protocol.MaxAnswer).ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if a, err := protocol.ParseAnswer(frame); err != nil || a.(*protocol.Error).Code != protocol.TooManyConnections {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestRootOfAUsersDaemon: to the daemon of a user root is that user, as whom its
// workers run.
func TestRootOfAUsersDaemon(t *testing.T) {
	needLandlock(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be a peer that is not the daemon's user")
	}
	const uid = 1001
	_, socket, state := startMortal(t, uid)
	c := dialDirectly(t, socket, filepath.Join(filepath.Dir(state), "ws"))
	if c.uid != uid {
		t.Errorf("the hello says %d", c.uid)
	}
	c.launch(nil, "sleep", "300")
	until[*protocol.Started](c)
	c.say(&protocol.List{ID: c.id()})
	if l := until[*protocol.ListResult](c); len(l.Workers) != 1 || l.Workers[0].UID != uid {
		t.Errorf("%+v", l.Workers)
	}
}
