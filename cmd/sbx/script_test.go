package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"sandboxd/backend/landlock"
	"sandboxd/daemon/daemontest"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/quota"
)

// The scripts in testdata run this test's own binary under the name sbx: the
// real command line, in a process of its own.
func TestMain(m *testing.M) {
	daemontest.Main()
	if isGuard() || findKeeper() {
		main() // started by an sbx, under a name of its own
	}
	testscript.Main(m, programs)
}

// programs are what scripts can run by name beside what is installed.
var programs = map[string]func(){"sbx": main, "starve": starve}

func TestScripts(t *testing.T) { testscript.Run(t, scripts()) }

// byLandlock are the scripts about what is seen inside, which differs without namespaces.
var byLandlock = []string{"nested", "output", "report", "run", "status"}

// TestScriptsByLandlock: what a host without namespaces gets.
func TestScriptsByLandlock(t *testing.T) {
	p := scripts()
	for _, name := range byLandlock {
		p.Files = append(p.Files, filepath.Join(p.Dir, name+".txtar"))
	}
	p.Dir = ""
	conditions := p.Condition
	p.Condition = func(cond string) (bool, error) {
		if cond == "native" {
			return false, nil
		}
		return conditions(cond)
	}
	p.Setup = func(e *testscript.Env) error {
		err := setup(e)
		if landlockUsable() {
			e.Setenv("SBX_BACKEND", landlock.Name)
		}
		return err
	}
	testscript.Run(t, p)
}

func scripts() testscript.Params {
	return testscript.Params{
		Dir:   "testdata",
		Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":    cmdStatus,
			"refused":   cmdRefused,
			"snapshot":  cmdSnapshot,
			"unchanged": cmdUnchanged,
			"schema":    cmdSchema,
			"lines":     cmdLines,
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "landlock":
				return landlockUsable(), nil
			case "native":
				return nativeUsable(), nil
			case "cgroups":
				h := cgroup.Probe()
				defer h.Close()
				return h.Memory.Can() && h.Pids.Can() && h.CPU.Can() && h.Kill.Can(), nil
			case "mounts":
				return quota.Probe().Mounts, nil
			case "daemon":
				return false, nil
			case "root":
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
	}
}

// raceOptions: under the race detector each program sleeps a second at its end
// otherwise.
const raceOptions = "atexit_sleep_ms=0"

func landlockUsable() bool {
	return runtime.GOOS == "linux" && landlock.New(landlock.Options{}).Probe().Usable
}

func nativeUsable() bool {
	return runtime.GOOS == "linux" && landlock.New(landlock.Options{Namespaces: true, Try: true}).Probe().Usable
}

// setup gives a script a home, and starts it in a project directory beside it.
func setup(e *testscript.Env) error {
	home, ws := filepath.Join(e.WorkDir, "home"), filepath.Join(e.WorkDir, "ws")
	for _, dir := range []string{home, ws} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	e.Cd = ws
	for _, kv := range []string{"HOME=" + home, "USER=tester", "LOGNAME=tester", "LANG=C.UTF-8", "TERM=xterm", "WS=" + ws, "PWD=" + ws} {
		k, v, _ := strings.Cut(kv, "=")
		e.Setenv(k, v)
	}
	e.Setenv("GORACE", raceOptions)
	e.Values["snapshot"] = map[string]string{}
	return nil
}

// cmdStatus: status N PROGRAM ARGS... runs the program and wants that status.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N PROGRAM [ARGS...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitStatus(ts.Exec(args[1], args[2:]...)); got != want {
		ts.Fatalf("%s exits with %d, want %d\nstdout:\n%s\nstderr:\n%s", args[1], got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// cmdRefused: refused ARGS... wants that sbx refuses them as every refusal has
// to be: status 125, one line, one hint, nothing on stdout, nothing changed.
func cmdRefused(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("refused cannot be negated")
	}
	before := tree(ts)
	status := exitStatus(ts.Exec("sbx", args...))
	stdout, stderr := ts.ReadFile("stdout"), ts.ReadFile("stderr")
	if why := refusalProblem(status, stdout, stderr); why != "" {
		ts.Fatalf("sbx %q: %s\nstatus %d\nstdout:\n%s\nstderr:\n%s", args, why, status, stdout, stderr)
	}
	if d := difference(before, tree(ts)); d != "" {
		ts.Fatalf("sbx %q was refused and left something behind:\n%s", args, d)
	}
}

func refusalProblem(status int, stdout, stderr string) string {
	lines := strings.SplitAfter(stderr, "\n")
	switch {
	case status != 125:
		return "the status is not 125"
	case stdout != "":
		return "something is on stdout"
	case len(lines) != 3 || lines[2] != "":
		return "stderr is not one line and one hint"
	case !strings.HasPrefix(lines[0], "sbx: ") || strings.HasPrefix(lines[0], "sbx: hint: "):
		return "the first line is not sbx's own"
	case !strings.HasPrefix(lines[1], "sbx: hint: ") || len(lines[1]) < len("sbx: hint: x\n"):
		return "the second line is no hint"
	}
	return ""
}

func cmdSnapshot(ts *testscript.TestScript, _ bool, _ []string) {
	m := ts.Value("snapshot").(map[string]string)
	clear(m)
	maps.Copy(m, tree(ts))
}

// cmdUnchanged wants that nothing was made, changed or removed since snapshot,
// but for the paths (relative to $WORK) that it is given.
func cmdUnchanged(ts *testscript.TestScript, _ bool, args []string) {
	before, now := maps.Clone(ts.Value("snapshot").(map[string]string)), tree(ts)
	except := func(p, _ string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return p == a || strings.HasPrefix(p, a+"/") })
	}
	maps.DeleteFunc(before, except)
	maps.DeleteFunc(now, except)
	if d := difference(before, now); d != "" {
		ts.Fatalf("changed since the snapshot:\n%s", d)
	}
}

// stateDirs are where an ordinary user's leases are.
var stateDirs = []string{"home/.local", "home/.local/state", "home/.local/state/sbx"}

// tree lists everything below $WORK, home and temporary directory included.
func tree(ts *testscript.TestScript) map[string]string {
	root := ts.Getenv("WORK")
	m := map[string]string{}
	ts.Check(filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(stateDirs, rel) {
			return nil // it stays, as docs/cli.md says; a file in it does not
		}
		m[rel] = info.Mode().String()
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			m[rel] += fmt.Sprintf(" %q", b)
			return err
		}
		return nil
	}))
	return m
}

func difference(before, now map[string]string) string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(now)) {
		if old, ok := before[p]; !ok {
			fmt.Fprintf(&b, "  new: %s %s\n", p, now[p])
		} else if old != now[p] {
			fmt.Fprintf(&b, "  changed: %s from %s to %s\n", p, old, now[p])
		}
	}
	for _, p := range slices.Sorted(maps.Keys(before)) {
		if _, ok := now[p]; !ok {
			fmt.Fprintf(&b, "  gone: %s\n", p)
		}
	}
	return b.String()
}

// cmdSchema: schema NAME FILE wants that the JSON in the file is what
// docs/report.schema.json calls NAME.
func cmdSchema(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: schema NAME FILE")
	}
	err := validJSON(args[0], []byte(ts.ReadFile(args[1])))
	ts.Check(err)
}

var schemaPath = func() string {
	wd, _ := os.Getwd()
	return filepath.Join(wd, "../../docs/report.schema.json")
}()

func validJSON(name string, text []byte) error {
	schema, err := os.ReadFile(schemaPath)
	if errors.Is(err, fs.ErrNotExist) { // the package's directory alone, as when another user runs the tests
		schema, err = []byte(`{"$defs":{"`+name+`":{"type":"object"}}}`), nil
	}
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	if err := c.AddResource("report.schema.json", doc); err != nil {
		return err
	}
	s, err := c.Compile("report.schema.json#/$defs/" + name)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%w in %q", err, text)
	}
	return s.Validate(v)
}

// cmdLines: lines N FILE wants that many lines.
func cmdLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines N FILE")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := strings.Count(ts.ReadFile(args[1]), "\n"); got != want {
		ts.Fatalf("%s has %d lines, want %d", args[1], got, want)
	}
}
