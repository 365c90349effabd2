package run

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandboxd/backend"
	"sandboxd/dialect"
	"sandboxd/internal/cgroup"
	"sandboxd/policy"
	"sandboxd/report"
)

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	file("a/prog", 0o755)
	file("b/prog", 0o755)
	file("a/plain", 0o644)
	file("b/plain", 0o755)
	file("only/plain2", 0o644)
	file("a/sub/x", 0o755)
	if err := os.Symlink("prog", filepath.Join(dir, "a/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "a/dangling")); err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{"", ".", "relative", dir + "/missing", dir + "/a", dir + "/b", dir + "/only"}, ":")
	for _, tt := range []struct {
		name, want string
		errno      syscall.Errno
	}{
		{"prog", dir + "/a/prog", 0},
		{"link", dir + "/a/link", 0},
		{"plain", dir + "/b/plain", 0}, // the one that may be executed
		{"plain2", "", syscall.EACCES},
		{"sub", "", syscall.EACCES}, // a directory
		{"none", "", syscall.ENOENT},
		{"dangling", "", syscall.ENOENT},
		{"", "", syscall.ENOENT},
		{"--bind", "", syscall.ENOENT},
		{"a\x00b", "", syscall.EINVAL},
		{"./a/prog", dir + "/./a/prog", 0},
		{"a/sub/x", dir + "/a/sub/x", 0},
		{"a/none", "", syscall.ENOENT},
		{"a/prog/x", "", syscall.ENOTDIR},
		{dir + "/b/prog", dir + "/b/prog", 0},
		{dir + "/a", "", syscall.EACCES},
	} {
		got, err := LookPath(tt.name, path, dir)
		var e *backend.ExecError
		if tt.errno == 0 {
			if err != nil || got != tt.want {
				t.Errorf("%q: got %q, %v; want %q", tt.name, got, err, tt.want)
			}
		} else if !errors.As(err, &e) || e.Errno != tt.errno {
			t.Errorf("%q: got %q, %v; want %v", tt.name, got, err, tt.errno)
		}
	}
}

// TestShellQuote asks a real shell: what a hint prints can be pasted.
func TestShellQuote(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash to ask")
	}
	for _, s := range []string{"", "plain", "/a b", "it's", `"`, "$(touch x)", "`x`", "a\nb", "\x1b[2J", "\xff\xfe", "-x", "~", "ü ü", "a\\b", "*", "#", "'\n'"} {
		out, err := exec.Command(bash, "-c", "printf %s "+ShellQuote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q is quoted as %s, which bash reads as %q (%v)", s, ShellQuote(s), out, err)
		}
		if strings.ContainsAny(ShellQuote(s), "\n\x1b") {
			t.Errorf("%q is quoted with control characters", s)
		}
	}
}

func testPolicy(t *testing.T) policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w",
		Grants: []policy.Grant{{Path: "/usr", Kind: policy.Tree, Access: policy.Read | policy.Exec, Reason: "system"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// begun is a plan whose workers note what was before them.
type begun struct {
	backend.Backend
	backend.Prepared
	knows bool
	got   []string
}

func (b *begun) Begins() bool { return b.knows }

func (b *begun) Start(cmd backend.Command) (backend.Worker, error) {
	b.got = append(b.got, "start")
	if cmd.Begin != nil {
		return nil, cmd.Begin()
	}
	return nil, nil
}

// TestBeginIsOverBeforeTheStart: a backend that does not call Begin gets none, and is
// started after it, or not at all.
func TestBeginIsOverBeforeTheStart(t *testing.T) {
	for _, knows := range []bool{false, true} {
		for _, fails := range []error{nil, errors.New("no")} {
			b := &begun{knows: knows}
			_, err := start(b, b, backend.Command{Begin: func() error {
				b.got = append(b.got, "begin")
				return fails
			}})
			want := "begin start"
			if knows {
				want = "start begin"
			} else if fails != nil {
				want = "begin"
			}
			if got := strings.Join(b.got, " "); got != want || err != fails {
				t.Errorf("it knows %v, and fails with %v: %s, %v", knows, fails, got, err)
			}
		}
	}
}

// TestKnownGroups: what the caller knows of cgroups is not found out again.
func TestKnownGroups(t *testing.T) {
	known := cgroup.Host{Kill: cgroup.Ability{Cause: cgroup.NotMounted, Why: "the caller says so"}}
	d := newDirect(testPolicy(t), true, func() *cgroup.Host { return &known })
	defer d.close()
	if d.groups.Kill != known.Kill {
		t.Errorf("%+v", d.groups.Kill)
	}
	asked := newDirect(testPolicy(t), true, nil)
	defer asked.close()
	if asked.groups.Kill == known.Kill || asked.groups.Kill == (cgroup.Ability{}) {
		t.Errorf("nobody has asked the host: %+v", asked.groups.Kill)
	}
}

// TestInferredDenial: a refused execution is called a denial only when the
// policy denies it, the errno fits the dialect, and a layer was engaged.
func TestInferredDenial(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(outside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	d := dialect.Landlock()
	for _, tt := range []struct {
		name    string
		path    string
		errno   syscall.Errno
		backend string
		dialect *dialect.Dialect
		want    bool
	}{
		{"outside the grants", outside, syscall.EACCES, "landlock", &d, true},
		{"inside the grants", "/usr/bin/env", syscall.EACCES, "landlock", &d, false},
		{"another errno", outside, syscall.ENOEXEC, "landlock", &d, false},
		{"an errno that is not the backend's", outside, syscall.EPERM, "landlock", &d, false},
		{"no layer engaged", outside, syscall.EACCES, "", nil, false},
		{"no dialect", outside, syscall.EACCES, "landlock", nil, false},
	} {
		r := &report.Report{Backend: tt.backend, Dialect: tt.dialect, Executable: policy.Raw(tt.path)}
		f := explain(testPolicy(t), r, &backend.ExecError{Path: tt.path, Errno: tt.errno})
		if got := len(r.Denials) == 1; got != tt.want {
			t.Errorf("%s: denials %v", tt.name, r.Denials)
		}
		if tt.want && (r.Denials[0].Certainty != backend.Inferred || !strings.Contains(f.Hint, "--readable")) {
			t.Errorf("%s: %+v, hint %q", tt.name, r.Denials[0], f.Hint)
		}
		if r.Outcome.Kind != backend.ExecFailed || f.Line == "" {
			t.Errorf("%s: outcome %+v", tt.name, r.Outcome)
		}
	}
}

func TestExplainNamesTheStep(t *testing.T) {
	r := &report.Report{}
	f := explain(testPolicy(t), r, errors.Join(&backend.SetupError{Step: "seccomp", Err: syscall.EBUSY, Hint: "h"}, errors.New("and more")))
	if r.Outcome.Kind != backend.SetupFailed || r.Outcome.Step != "seccomp" || r.Outcome.Errno != "EBUSY" || f.Hint != "h" || r.Outcome.ExitStatus() != 125 {
		t.Errorf("%+v, %+v", r.Outcome, f)
	}
	r = &report.Report{}
	if f := explain(testPolicy(t), r, errors.New("unforeseen")); r.Outcome.ExitStatus() != 125 || f == nil {
		t.Errorf("an unforeseen error is status %d", r.Outcome.ExitStatus())
	}
}

func (b *begun) Rechecks() bool { return true }

// TestSame: of equal policies one is held, as long as launches share what is made for it.
func TestSame(t *testing.T) {
	var c Cache
	first, second := testPolicy(t), testPolicy(t)
	if !c.Same(first).Equal(first) {
		t.Error("an empty cache has another policy")
	}
	b := &begun{}
	c.add(first, nil, backend.Choice{Backend: b}, "", b)
	other, err := policy.New(policy.Spec{Mode: policy.ReadOnly, Net: policy.NetNone, Workspace: "/w", Cwd: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Same(second).Equal(first) || !c.Same(other).Equal(other) || c.Same(other).Equal(first) {
		t.Error("another policy in the place of one")
	}
}
