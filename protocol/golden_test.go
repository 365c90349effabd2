package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files that are missing, the schema, and the tables of docs/protocol.md")

func ptr(n int64) *int64 { return &n }

const workerName = "00112233445566778899aabbccddeeff"

// constructed are messages of version 1, each type and each variant that is
// read in its own way. Their files are what clients of version 1 send and get:
// a file is never written anew, so that a daemon of a later day that does not
// understand one of them fails here.
func constructedRequests() map[string]Message {
	return map[string]Message{
		"hello": &ClientHello{Versions: []int64{1}, Client: Peer{"example", "1.0"}, Capabilities: []string{"grease-1b3t"}},
		"launch": &Launch{
			ID: 1, Argv: []Bytes{"make", "-j4", "test"}, Dir: "/home/u/project", HostEnv: []Variable{{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"LANG", "C.UTF-8"}},
			Stdio: &Stdio{Stdout: StdioStream, Stderr: StdioStream}, OutputWindow: 65536,
		},
		"launch-everything": &Launch{
			ID: 2, Argv: []Bytes{"sh", "-c", "printf '\\0\t\"<&>\"\n'; exit 3"}, Dir: "/home/u", Workspace: "project", Cwd: "project/sub",
			Mode: "read-only", Net: "none", Readable: []Bytes{"/opt/data", "/srv/caf\xe9"}, Writable: []Bytes{"/scratch"}, Deny: []Bytes{"**/.env"},
			AllowExec: []Bytes{"/usr/bin/make"}, Profiles: []Bytes{"go", "./ci.toml"}, NoProjectProfile: true, Cache: "private",
			Env: []Variable{{"TOKEN", "s\xffcret"}, {"EMPTY", ""}}, HostEnv: []Variable{{"PATH", "/bin"}},
			Require: []string{"fs.protected"}, AllowGap: []string{"tty.inject"}, Backend: "landlock",
			Limits: &LaunchLimits{
				Memory: 512 << 20, Pids: 64, CPU: 1500, Disk: 1 << 30, FileSize: 1 << 20, Files: 256, Core: 4096,
				Timeout: 60000, IdleTimeout: 5000, Grace: ptr(0),
			},
			Stdio: &Stdio{StdioStream, StdioDescriptor, StdioNull}, OutputWindow: 1 << 20, Descriptors: []PassedDescriptor{{3}, {9}},
			DescriptorsUnsafe: true, Label: "nightly \u00fc", Keep: true,
		},
		"launch-net-allow": &Launch{
			ID: 16, Argv: []Bytes{"git", "fetch"}, Dir: "/home/u/project", Net: "proxy", NetAllow: []string{"example.com", "*.example.org:443", "[2001:db8::1]:8000-8099"},
		},
		"launch-tty":     &Launch{ID: 3, Argv: []Bytes{"bash", "-i"}, Dir: "/home/u/project", TTY: &Size{24, 80}, OutputWindow: 65536},
		"launch-dry-run": &Launch{ID: 4, Dir: "/home/u/project", Mode: "workspace-write", DryRun: true},
		"stdin":          &Stdin{ID: 1, Offset: 0, Data: Data("hello\n")},
		"stdin-eof":      &Stdin{ID: 1, Offset: 6, Data: Data{}, EOF: true},
		"credit":         &Credit{ID: 1, Stream: "stdout", Bytes: 32768},
		"cancel-launch":  &Cancel{ID: 5, Launch: 1},
		"cancel-worker":  &Cancel{ID: 6, Worker: workerName, Grace: ptr(500)},
		"signal":         &Signal{ID: 7, Worker: workerName, Signal: "SIGHUP"},
		"resize":         &Resize{ID: 8, Launch: 3, Size: Size{50, 132}},
		"list":           &List{ID: 9},
		"list-ended":     &List{ID: 10, Ended: true},
		"inspect":        &Inspect{ID: 11, Worker: workerName},
		"health":         &Health{ID: 12},
		"features":       &Features{ID: 13},
		"subscribe":      &Subscribe{ID: 14, Events: []string{EventWorkerStarted, EventWorkerEnded, "grease-x"}},
		"unsubscribe":    &Unsubscribe{ID: 15, Subscription: 14},
		"ping":           &Ping{ID: MaxInteger},
	}
}

func constructedAnswers() map[string]Message {
	running := WorkerInfo{
		Worker: workerName, State: "running", PID: 4711, UID: 1000, Label: "nightly", Command: "make -j4 test", Mode: "workspace-write", Net: "none",
		Backend: "landlock", Level: "partial", Started: 1796083200000, Kept: true,
	}
	ended := running
	ended.State, ended.PID, ended.Kept, ended.Ended = "ended", 0, false, 1796083201500
	refused := Errorf(Refused, "no backend can run this: landlock does not enforce fs.protected").For(2, "launch")
	refused.Hint = "drop --require for fs.protected"
	version := Errorf(Version, "none of the client's versions is spoken here").For(0, "hello")
	version.Versions, version.Field = []int64{1}, "versions"
	return map[string]Message{
		"hello": &DaemonHello{
			Version: 1, Daemon: Peer{"sandboxd", "1.2.3"}, Capabilities: []Capability{{CapDescriptors, "2026-12"}, {CapTTY, "2026-12"}},
			Limits: DefaultLimits(), Mode: "user", UID: 1000,
		},
		"error":              Errorf(UnknownField, "no such member").under("colour").For(9, "list"),
		"error-refused":      refused,
		"error-version":      version,
		"error-without-id":   Errorf(BadJSON, "a colon is expected, at byte 7"),
		"error-stdin":        Errorf(BadOffset, "begins at 4; the stream is at 6").under("offset").For(1, "stdin"),
		"started":            &Started{ID: 1, Worker: workerName, PID: 4711, PlanHash: "sha256:9f86d081", Backend: "landlock", Level: "partial", StdinWindow: 65536, Warnings: []string{"accepted as not enforced: tty.inject"}},
		"started-no-stdin":   &Started{ID: 1, Worker: workerName, PID: 4711, Level: "none"},
		"output":             &Output{ID: 1, Stream: "stdout", Offset: 0, Data: Data("ok\n\x00\xff")},
		"output-eof":         &Output{ID: 1, Stream: "stderr", Offset: 5, Data: Data{}, EOF: true},
		"credit":             &Credit{ID: 1, Stream: "stdin", Bytes: 6},
		"exit":               &Exit{ID: 1, Worker: workerName, Report: Object(`{"schema":1,"id":"` + workerName + `","ran":true,"duration_seconds":1.5,"outcome":{"kind":"exited","code":3},"exit_status":3}`)},
		"exit-not-run":       &Exit{ID: 2, Worker: workerName, Message: `executing "nope": no such file or directory`, Hint: "see PATH", Report: Object(`{"schema":1,"ran":false,"outcome":{"kind":"exec-failed","errno":"ENOENT"},"exit_status":127}`)},
		"planned":            &Planned{ID: 4, Plan: Object(`{"schema":1,"dry_run":true,"level":"partial"}`)},
		"cancel-result":      &CancelResult{ID: 5},
		"signal-result":      &SignalResult{ID: 7},
		"resize-result":      &ResizeResult{ID: 8},
		"list-result":        &ListResult{ID: 9, Workers: []WorkerInfo{running}},
		"list-result-more":   &ListResult{ID: 10, Workers: []WorkerInfo{running, ended}, More: 3},
		"list-result-none":   &ListResult{ID: 10},
		"inspect-running":    &InspectResult{ID: 11, Info: running, Policy: Object(`{"mode":"workspace-write"}`)},
		"inspect-ended":      &InspectResult{ID: 11, Info: ended, Report: Object(`{"schema":1,"ran":true}`)},
		"health-result":      &HealthResult{ID: 12, Status: "ok", Uptime: 86400000, Workers: 1, Connections: 2},
		"health-degraded":    &HealthResult{ID: 12, Status: "degraded", Uptime: 1, Checks: []HealthCheck{{"audit", false, "the log cannot be written: no space left on device", "make room"}}},
		"features-result":    &FeaturesResult{ID: 13, Features: Object(`{"schema":1,"os":"linux"}`)},
		"subscribed":         &Subscribed{ID: 14, Events: []string{EventWorkerStarted, EventWorkerEnded}},
		"event-started":      &Event{ID: 14, Seq: 1, Kind: EventWorkerStarted, At: 1796083200000, Info: &running},
		"event-ended-lost":   &Event{ID: 14, Seq: 5, Lost: 3, Kind: EventWorkerEnded, At: 1796083201500, Info: &ended, Outcome: Object(`{"kind":"exited","code":0}`)},
		"event-stopping":     &Event{ID: 14, Seq: 6, Kind: EventStopping, At: 1796083202000},
		"subscribe-result":   &SubscribeResult{ID: 14},
		"subscribe-lost":     &SubscribeResult{ID: 14, Lost: 2},
		"unsubscribe-result": &UnsubscribeResult{ID: 15},
		"pong":               &Pong{ID: MaxInteger},
	}
}

const goldenDir = "testdata/golden/v1"

type side struct {
	dir         string
	constructed map[string]Message
	parse       func([]byte) (Message, error)
	list        []Message
}

func sides() []side {
	return []side{
		{"requests", constructedRequests(), ParseRequest, requestList},
		{"answers", constructedAnswers(), ParseAnswer, answerList},
	}
}

func TestGolden(t *testing.T) {
	schema := compileSchema(t)
	for _, s := range sides() {
		for name, m := range s.constructed {
			t.Run(s.dir+"/"+name, func(t *testing.T) {
				file := filepath.Join(goldenDir, s.dir, name+".json")
				encoded, err := Encode(m)
				if err != nil {
					t.Fatal(err)
				}
				text, err := os.ReadFile(file)
				if *update && errors.Is(err, os.ErrNotExist) {
					text = append(encoded, '\n')
					err = os.WriteFile(file, text, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				text = bytes.TrimSuffix(text, []byte("\n"))
				got, err := s.parse(text)
				if err != nil {
					t.Fatalf("what version 1 sends is not understood: %v", err)
				}
				if !reflect.DeepEqual(got, m) {
					t.Errorf("got %+v\nwant %+v", got, m)
				}
				if again, err := Encode(got); err != nil || !bytes.Equal(again, text) {
					t.Errorf("encoded again: %v\n%s\nwant\n%s", err, again, text)
				}
				if err := validate(t, schema, text); err != nil {
					t.Error(err)
				}
				v, err := json.Marshal(json.RawMessage(text)) // another reader of JSON agrees that it is one
				if err != nil || !json.Valid(v) {
					t.Error(err)
				}
			})
		}
		files, err := os.ReadDir(filepath.Join(goldenDir, s.dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if s.constructed[strings.TrimSuffix(f.Name(), ".json")] == nil {
				t.Errorf("%s/%s belongs to no message", s.dir, f.Name())
			}
		}
		for _, m := range s.list {
			found := false
			for _, c := range s.constructed {
				found = found || reflect.TypeOf(c) == reflect.TypeOf(m)
			}
			if !found {
				t.Errorf("no golden message is a %s", m.Type())
			}
		}
	}
}

// TestOrderAndSpaceMeanNothing: what a client writes in its own order and with
// white space and escapes is the same message.
func TestOrderAndSpaceMeanNothing(t *testing.T) {
	for _, s := range sides() {
		for name, m := range s.constructed {
			want, err := Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			var v map[string]json.RawMessage
			if err := json.Unmarshal(want, &v); err != nil {
				t.Fatal(err)
			}
			other, err := json.MarshalIndent(v, "", "\t") // by name, with white space, and with escapes of < and &
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.parse(other)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			again, err := Encode(got)
			if err != nil {
				t.Fatal(err)
			}
			var a, b any
			if json.Unmarshal(again, &a) != nil || json.Unmarshal(want, &b) != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("%s: %s\nwant %s", name, again, want)
			}
		}
	}
}

// TestReportsTravelVerbatim: every report that this repository makes fits, and
// comes out as it went in.
func TestReportsTravelVerbatim(t *testing.T) {
	files, err := filepath.Glob("../report/testdata/*.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d reports: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := Encode(&Exit{ID: 1, Worker: workerName, Report: text})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		m, err := ParseAnswer(encoded)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var want bytes.Buffer
		if err := json.Compact(&want, text); err != nil {
			t.Fatal(err)
		}
		if got := m.(*Exit).Report; !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: %s\nwant %s", file, got, want.Bytes())
		}
	}
}

// TestAnswersMayGrow: a client of today reads what a daemon of a later day adds.
func TestAnswersMayGrow(t *testing.T) {
	schema := compileSchema(t)
	for name, m := range constructedAnswers() {
		encoded, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseAnswer(GreaseAnswer(encoded))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%s: got %+v\nwant %+v", name, got, m)
		}
		if err := validate(t, schema, GreaseAnswer(encoded)); err != nil {
			t.Errorf("%s: the schema is closed: %v", name, err)
		}
	}
	nested := `{"type":"hello","version":1,"daemon":{"name":"d","version":"2","new":1},"capabilities":[{"name":"x","since":"2030-01","until":"2031-01"}],"limits":{"frame_bytes":1,"answer_bytes":1,"depth":1,"string_bytes":1,"items":1,"chunk_bytes":1,"window_bytes":1,"descriptors":1,"requests":1,"connections":1,"new":[{}]},"mode":"new","uid":0}`
	if _, err := ParseAnswer([]byte(nested)); err != nil {
		t.Error(err)
	}
	if err := validate(t, schema, []byte(nested)); err != nil {
		t.Error(err)
	}
	for range 10 {
		m, err := ParseAnswer(GreaseMessage())
		if u, ok := m.(*Unknown); err != nil || !ok || !strings.HasPrefix(u.Type(), "grease-") {
			t.Fatalf("%v, %v", m, err)
		}
	}
	if m, err := ParseAnswer([]byte(`{"type":"later","id":9}`)); err != nil || ID(m) != 9 {
		t.Errorf("%v, %v", m, err)
	}
}

// TestNewerClient: what a client of a later day sends is answered with a typed
// error that leaves the connection open, or ignored where that is promised.
func TestNewerClient(t *testing.T) {
	files, err := filepath.Glob("testdata/newer/*.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c struct {
				Sent   json.RawMessage `json:"sent"`
				Answer json.RawMessage `json:"answer"` // null if the message is understood
			}
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
			m, err := ParseRequest(c.Sent)
			if h, ok := m.(*ClientHello); ok {
				_, err = Negotiate(h)
			}
			if string(c.Answer) == "null" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("it is understood: %+v", m)
			}
			if e.Fatal != (e.Code == Version) {
				t.Errorf("%s ends the connection: %v", e.Code, e.Fatal)
			}
			var want bytes.Buffer
			if err := json.Compact(&want, c.Answer); err != nil {
				t.Fatal(err)
			}
			if got, err := Encode(e); err != nil || !bytes.Equal(got, want.Bytes()) {
				t.Errorf("answered %v\n%s\nwant\n%s", err, got, want.Bytes())
			}
		})
	}
}

// TestFinal: docs/protocol.md says which answer is the final one, in a table.
func TestFinal(t *testing.T) {
	page, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| request | final answer | before it |")
	table, _, _ = strings.Cut(table, "\n\n")
	for name, m := range constructedAnswers() {
		if m.Type() == "hello" || name == "error-stdin" {
			if Final(m) {
				t.Errorf("%s is final", name)
			}
			continue
		}
		final := strings.HasSuffix(m.Type(), "-result")
		for line := range strings.Lines(table) {
			if cells := strings.Split(line, "|"); len(cells) > 3 && strings.Contains(cells[2], "`"+m.Type()+"`") {
				final = true
			}
		}
		if Final(m) != final {
			t.Errorf("%s is final: %v", name, Final(m))
		}
	}
	if Final(Errorf(IDInUse, "x").For(1, "launch")) || Final(&Unknown{Name: "x", ID: 1}) {
		t.Error("a request ends with what is not its answer")
	}
}

func TestNegotiate(t *testing.T) {
	for range 100 {
		h := &ClientHello{Versions: []int64{1, 2, 99}, Client: Peer{Name: "x"}}
		h.Grease()
		encoded, err := Encode(h)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ParseRequest(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := Negotiate(m.(*ClientHello)); v != 1 || err != nil {
			t.Fatalf("%d, %v", v, err)
		}
	}
	if v, ok := common([]int64{9, 1, 4, 2, 3}, []int64{1, 2, 3, 4}); v != 4 || !ok {
		t.Errorf("of four versions %d is taken", v)
	}
	var e *Error
	if v, err := Negotiate(&ClientHello{Versions: []int64{2, 3}}); v != 0 || !errors.As(err, &e) || e.Code != Version || !reflect.DeepEqual(e.Versions, Versions()) {
		t.Errorf("%d, %v", v, err)
	}
}
