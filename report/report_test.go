package report

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"sandboxd/backend"
	"sandboxd/dialect"
	"sandboxd/policy"
)

var update = flag.Bool("update", false, "write the golden files")

const schemaFile = "../docs/report.schema.json"

// constructed are reports with fixed times and names, one for each way to end
// and for what is awkward to write.
func constructed(t *testing.T) map[string]*Report {
	t.Helper()
	confined := testPolicy(t, nil)
	return map[string]*Report{
		"exited": ran(confined, func(r *Report) { r.Outcome = backend.ExitedWith(3) }),
		"exited-0": ran(confined, func(r *Report) {
			r.Outcome = backend.ExitedWith(0)
			r.Survivors = []int{4711}
			r.Warnings = []string{"removing the private temporary directory: \x1b[2J"}
		}),
		"output-lost": ran(confined, func(r *Report) {
			r.Outcome, r.OutputLost = backend.ExitedWith(0), "write /dev/stdout: no space left on device"
		}),
		"signaled": ran(confined, func(r *Report) {
			r.Outcome = backend.Outcome{Kind: backend.Signaled, Signal: 11, SignalName: "SIGSEGV", CoreDumped: true}
		}),
		"realtime-signal": ran(confined, func(r *Report) { r.Outcome = backend.Outcome{Kind: backend.Signaled, Signal: 40} }),
		"terminal":        ran(confined, func(r *Report) { r.Outcome, r.TTY = backend.ExitedWith(0), true }),
		"timed-out":       ran(confined, func(r *Report) { r.Outcome = backend.Outcome{Kind: backend.TimedOut} }),
		"limit":           ran(confined, func(r *Report) { r.Outcome = backend.Outcome{Kind: backend.LimitHit, Which: "memory"} }),
		"full-access": ran(testPolicy(t, func(s *policy.Spec) {
			*s = policy.Spec{
				Mode: policy.FullAccess, Net: policy.NetHost, Workspace: "/w", Cwd: "/w", Env: s.Env,
				Weakened: []policy.Weakening{{Flag: "--mode danger-full-access", Meaning: "no sandbox: the command may do whatever you may"}},
			}
		}), func(r *Report) {
			r.Backend, r.BackendFacts, r.Dialect, r.Denials = "", nil, nil, nil
			e := backend.Unconfined(backend.State{Status: backend.Partial, By: []string{"subreaper"}, Gaps: []string{"a gap"}})
			r.Level, r.Effects = backend.LevelNone, e.Map()
			r.Outcome = backend.ExitedWith(0)
		}),
		"weakened": ran(testPolicy(t, func(s *policy.Spec) {
			s.AllowGap = policy.SetOf(policy.NetUnixPath)
			s.Deny = []string{"/srv/secret"}
			s.Weakened = []policy.Weakening{{Flag: "--allow-gap net.unix.path", Meaning: "the launch goes on"}}
		}), func(r *Report) {
			r.Profiles, r.Passed = []string{"go"}, []string{"other: not here"}
			r.Outcome = backend.ExitedWith(0)
		}),
		"denials": ran(confined, func(r *Report) {
			r.Outcome, r.DenialsLost = backend.ExitedWith(1), 12
			r.Denials = []backend.Denial{
				{
					Effect: policy.NetUnixPath, Operation: "connect", Path: "/run/docker.sock\n\x1b[31msbx: all is well", Errno: "EACCES",
					Process: &backend.Process{PID: 7, Exe: "/usr/bin/curl"}, Rule: "no grant", Certainty: backend.Observed, Source: "seccomp-notify", Count: 3,
				},
				{Effect: policy.NetUnixAbstract, Operation: "connect", Address: "@\u202etxt.exe", Errno: "EPERM", Certainty: backend.Observed, Source: "seccomp-notify", Count: 1},
				{Effect: policy.FSWrite, Operation: "open", Path: "/bad/\xff\xfe\x00utf8", Errno: "EACCES", Certainty: backend.Hint, Source: "stderr", Count: 1},
			}
		}),
		"not-utf8": ran(testPolicy(t, func(s *policy.Spec) {
			s.Workspace, s.Cwd = "/w/\xff", "/w/\xff/\n"
			s.Grants = []policy.Grant{{Path: "/w/\xff", Kind: policy.Tree, Access: policy.Read | policy.Write, Reason: "the workspace", Source: "workspace"}}
			s.Env = []string{"\xfe=1", "OK=\xff"}
		}), func(r *Report) {
			r.Argv = []policy.Raw{"sh\xff", "a\nb", "", "<&>"}
			r.Executable = "/bin/sh\xff"
			r.Outcome = backend.ExitedWith(0)
		}),
		"refused": notRan(confined, func(r *Report) {
			r.Outcome = backend.Outcome{Kind: backend.Refused, Reason: "no backend can run this: this system has none"}
		}),
		"setup-failed": notRan(confined, func(r *Report) {
			r.Outcome = backend.Outcome{Kind: backend.SetupFailed, Step: "landlock", Errno: "E2BIG", Reason: "16 domains are stacked already"}
		}),
		"not-found": notRan(confined, func(r *Report) {
			r.Outcome = backend.Outcome{Kind: backend.ExecFailed, Errno: "ENOENT", Reason: `executing "nope": no such file or directory`}
		}),
		"exec-denied": notRan(confined, func(r *Report) {
			r.Executable = "/home/u/bin/tool"
			r.Outcome = backend.Outcome{Kind: backend.ExecFailed, Errno: "EACCES", Reason: `executing "/home/u/bin/tool": permission denied`}
			r.Denials = []backend.Denial{{
				Effect: policy.FSExec, Operation: "execve", Path: "/home/u/bin/tool", Errno: "EACCES", Certainty: backend.Inferred, Source: "execve",
				Rule: "no grant lets the worker execute this path", Suggestion: "--readable /home/u/bin/tool", Count: 1,
			}}
		}),
	}
}

func testPolicy(t *testing.T, change func(*policy.Spec)) policy.Policy {
	t.Helper()
	s := policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w/sub",
		Grants: []policy.Grant{
			{Path: "/w", Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Exec, Reason: "the workspace", Source: "workspace"},
			{Path: "/dev/null", Kind: policy.File, Access: policy.Read | policy.Write | policy.Ioctl, Reason: "sink", Source: "preset:dev"},
		},
		Env:     []string{"PATH=/usr/bin", "TOKEN=secret-value"},
		TempEnv: []policy.TempVar{{Name: "TMPDIR", Sub: "."}, {Name: "PATH", Sub: "x"}},
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

// ran is a report of a launch under landlock on ABI 7.
func ran(p policy.Policy, change func(*Report)) *Report {
	states := map[policy.Effect]backend.State{}
	for i, e := range policy.Effects() {
		states[e] = []backend.State{
			{Status: backend.Enforced, By: []string{"landlock", "seccomp"}},
			{Status: backend.Partial, By: []string{"seccomp"}, Gaps: []string{"a gap", "another"}},
			{Status: backend.Unenforced, Gaps: []string{"nothing governs it"}},
			{Status: backend.NotRequested},
		}[i%4]
	}
	return notRan(p, func(r *Report) {
		r.Ran, r.Level, r.Effects = true, backend.LevelPartial, states
		change(r)
	})
}

func notRan(p policy.Policy, change func(*Report)) *Report {
	// Not the real table, whose changes are no changes of the format.
	d := dialect.Dialect{
		Backend: "landlock", Errnos: []dialect.EffectErrno{{Effect: "fs.exec", Errnos: []string{"EACCES"}, By: "landlock"}},
		Texts: []string{"permission denied"}, ExitNotes: []string{"126 from a shell: not executable"}, NotProof: []string{"file modes answer the same"},
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 250_000_000, time.UTC)
	r := &Report{
		Schema: SchemaVersion, ID: "00112233445566778899aabbccddeeff", Version: "1.2.3",
		Started: at, Ended: at.Add(1500 * time.Millisecond), Duration: 1.5,
		Argv: []policy.Raw{"sh", "-c", "exit 3"}, Executable: "/usr/bin/sh",
		Backend: "landlock", BackendFacts: map[string]any{"landlock_abi": 7, "landlock_errata": 7, "seccomp_notify": true, "arch": "amd64"},
		DenialsCover: []string{"execution of the command itself (inferred)"}, Dialect: &d,
	}
	r.DescribePolicy(p)
	change(r)
	r.ExitStatus = r.Status()
	return r
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	if err := c.AddResource("report.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestGolden(t *testing.T) {
	schema := compileSchema(t)
	for name, r := range constructed(t) {
		t.Run(name, func(t *testing.T) {
			var asJSON, asText bytes.Buffer
			if err := r.WriteJSON(&asJSON); err != nil {
				t.Fatal(err)
			}
			r.WriteText(&asText)
			golden(t, name+".json", asJSON.Bytes())
			golden(t, name+".txt", asText.Bytes())
			if err := validate(t, schema, asJSON.Bytes()); err != nil {
				t.Error(err)
			}
			if bytes.Contains(asJSON.Bytes(), []byte("secret-value")) {
				t.Error("the report holds the value of a variable")
			}
			for line := range strings.Lines(asText.String()) {
				if p := policy.Printable(strings.TrimSuffix(line, "\n")); p != strings.TrimSuffix(line, "\n") {
					t.Errorf("the text is not printable: %s", p)
				}
			}
		})
	}
}

// TestRealDialectIsValid: the table that reports really carry fits the schema.
func TestRealDialectIsValid(t *testing.T) {
	r := constructed(t)["exited"]
	d := dialect.Landlock()
	r.Dialect = &d
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if err := validate(t, compileSchema(t), b.Bytes()); err != nil {
		t.Error(err)
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test ./report -update writes it anew):\n%s", file, got)
	}
}

// TestGoldenFilesAreUsed: a file that no report makes any more is removed.
func TestGoldenFilesAreUsed(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	known := constructed(t)
	for _, f := range files {
		if known[strings.TrimSuffix(f.Name(), filepath.Ext(f.Name()))] == nil {
			t.Errorf("testdata/%s belongs to no report", f.Name())
		}
	}
}

// TestEveryKindIsGolden: each outcome has a report, but for what no code makes
// yet.
func TestEveryKindIsGolden(t *testing.T) {
	seen := map[backend.OutcomeKind]bool{}
	for _, r := range constructed(t) {
		seen[r.Outcome.Kind] = true
	}
	for _, k := range []backend.OutcomeKind{backend.Exited, backend.Signaled, backend.TimedOut, backend.LimitHit, backend.SetupFailed, backend.ExecFailed, backend.Refused} {
		if !seen[k] {
			t.Errorf("no report ends with %s", k)
		}
	}
}

// TestNothingIsLost: every byte of a path survives the way through JSON.
func TestNothingIsLost(t *testing.T) {
	r := constructed(t)["not-utf8"]
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Workspace != r.Workspace || back.Cwd != r.Cwd || !slices.Equal(back.Argv, r.Argv) || back.Executable != r.Executable ||
		!slices.Equal(back.EnvNames, r.EnvNames) || !slices.Equal(back.Grants, r.Grants) {
		t.Errorf("got %+v\nwant %+v", back, r)
	}
}

// TestSchemaRefuses: the schema says no to what a report must never be.
func TestSchemaRefuses(t *testing.T) {
	schema := compileSchema(t)
	for name, change := range map[string]func(map[string]any){
		"an unknown field":            func(m map[string]any) { m["extra"] = 1 },
		"an unknown mode":             func(m map[string]any) { m["mode"] = "open" },
		"a missing outcome":           func(m map[string]any) { delete(m, "outcome") },
		"an exit without a code":      func(m map[string]any) { m["outcome"] = map[string]any{"kind": "exited"} },
		"a signal with an exit code":  func(m map[string]any) { m["outcome"] = map[string]any{"kind": "signaled", "signal": 9, "code": 1} },
		"a refusal without a reason":  func(m map[string]any) { m["outcome"] = map[string]any{"kind": "refused"} },
		"a run without effects":       func(m map[string]any) { delete(m, "effects") },
		"a run without a level":       func(m map[string]any) { delete(m, "level") },
		"effects of what did not run": func(m map[string]any) { m["ran"] = false },
		"an effect without a state":   func(m map[string]any) { delete(m["effects"].(map[string]any), "fs.read") },
		"an unknown effect": func(m map[string]any) {
			m["effects"].(map[string]any)["fs.x"] = map[string]any{"status": "not-requested"}
		},
		"enforced by nothing": func(m map[string]any) {
			m["effects"].(map[string]any)["fs.read"] = map[string]any{"status": "enforced"}
		},
		"unenforced without a gap": func(m map[string]any) {
			m["effects"].(map[string]any)["fs.read"] = map[string]any{"status": "unenforced"}
		},
		"a hint that suggests a grant":   func(m map[string]any) { m["denials"].([]any)[2].(map[string]any)["suggestion"] = "--writable /" },
		"a path that is a number":        func(m map[string]any) { m["cwd"] = 1 },
		"bytes that are not base64":      func(m map[string]any) { m["cwd"] = map[string]any{"base64": "%"} },
		"a time that is none":            func(m map[string]any) { m["started"] = "yesterday" },
		"denials that are null":          func(m map[string]any) { m["denials"] = nil },
		"an access that is none":         func(m map[string]any) { m["grants"].([]any)[0].(map[string]any)["access"] = "" },
		"an unknown backend's facts":     func(m map[string]any) { m["backend_facts"] = map[string]any{"x": 1} },
		"an exit status out of a byte":   func(m map[string]any) { m["exit_status"] = 256 },
		"a schema version of the future": func(m map[string]any) { m["schema"] = 2 },
	} {
		var b bytes.Buffer
		if err := constructed(t)["denials"].WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if validate(t, schema, text) == nil {
			t.Errorf("%s is valid", name)
		}
	}
}

// TestSchemaKnowsEveryField walks the Go types beside the schema: a new field
// must be described, a field that went away must go there too, and what is
// always written must be required.
func TestSchemaKnowsEveryField(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	w := walker{t: t, root: root}
	w.walk("report", reflect.TypeFor[Report](), root)
	if w.structs < 8 {
		t.Errorf("only %d structs were compared", w.structs)
	}
}

type walker struct {
	t       *testing.T
	root    map[string]any
	structs int
}

var (
	textType = reflect.TypeFor[encoding.TextMarshaler]()
	jsonType = reflect.TypeFor[json.Marshaler]()
)

func (w *walker) resolve(s map[string]any) map[string]any {
	ref, ok := s["$ref"].(string)
	if !ok {
		return s
	}
	def, _ := w.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	if def == nil {
		w.t.Fatalf("%s is not defined", ref)
	}
	return def
}

func (w *walker) walk(at string, typ reflect.Type, schema map[string]any) {
	w.t.Helper()
	schema = w.resolve(schema)
	if typ.Implements(jsonType) || typ.Implements(textType) {
		return
	}
	switch typ.Kind() {
	case reflect.Pointer:
		w.walk(at, typ.Elem(), schema)
	case reflect.Slice:
		items, _ := schema["items"].(map[string]any)
		if items == nil {
			w.t.Fatalf("%s: the schema has no items", at)
		}
		w.walk(at+"[]", typ.Elem(), items)
	case reflect.Map:
		values, _ := schema["additionalProperties"].(map[string]any)
		if values == nil {
			w.t.Fatalf("%s: the schema does not describe the values", at)
		}
		w.walk(at+"{}", typ.Elem(), values)
	case reflect.Struct:
		w.fields(at, typ, schema)
	}
}

func (w *walker) fields(at string, typ reflect.Type, schema map[string]any) {
	w.structs++
	if schema["additionalProperties"] != false {
		w.t.Errorf("%s: the schema is open", at)
	}
	properties, _ := schema["properties"].(map[string]any)
	var names, always, required []string
	for _, f := range reflect.VisibleFields(typ) {
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			w.t.Errorf("%s.%s has no name in JSON", at, f.Name)
			continue
		}
		names = append(names, name)
		if !strings.Contains(options, "omitempty") {
			always = append(always, name)
		}
		p, ok := properties[name].(map[string]any)
		if !ok {
			w.t.Errorf("%s.%s is not in the schema", at, name)
			continue
		}
		w.walk(at+"."+name, f.Type, p)
	}
	for name := range properties {
		if !slices.Contains(names, name) {
			w.t.Errorf("%s.%s is in the schema and nowhere else", at, name)
		}
	}
	list, _ := schema["required"].([]any) // none is required of an object of options
	for _, r := range list {
		required = append(required, r.(string))
	}
	slices.Sort(always)
	slices.Sort(required)
	if !slices.Equal(always, required) {
		w.t.Errorf("%s: always written %v, required %v", at, always, required)
	}
}

// TestSchemaListsTheWords: the closed sets of the schema are those of the code.
func TestSchemaListsTheWords(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Defs map[string]struct {
			Enum          []string `json:"enum"`
			MinProperties int      `json:"minProperties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	var effects []string
	for _, e := range policy.Effects() {
		effects = append(effects, e.String())
	}
	for name, want := range map[string][]string{
		"effect": effects,
		"mode":   {policy.ReadOnly.String(), policy.WorkspaceWrite.String(), policy.FullAccess.String()},
		"net":    {policy.NetNone.String(), policy.NetLoopback.String(), policy.NetProxy.String(), policy.NetHost.String()},
		"level":  {backend.LevelNone.String(), backend.LevelPartial.String(), backend.LevelFull.String()},
	} {
		if got := s.Defs[name].Enum; !slices.Equal(got, want) {
			t.Errorf("%s: the schema lists %v, the code %v", name, got, want)
		}
	}
	if got := s.Defs["effects"].MinProperties; got != len(effects) {
		t.Errorf("the schema wants %d effects, the code has %d", got, len(effects))
	}
}
