package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandboxd/backend"
	"sandboxd/backend/backendtest"
	"sandboxd/backend/landlock"
	"sandboxd/policy"
	"sandboxd/profiles"
	"sandboxd/report"
)

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Skipf("the documentation is not here: %v", err)
	}
	return string(text)
}

// allTests are the names of all test functions of the repository.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	decl := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		src, err := os.ReadFile(p)
		for _, m := range decl.FindAllSubmatch(src, -1) {
			found[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var quoted = regexp.MustCompile("`([^`]+)`")

// TestEnforcementIsDocumented: docs/enforcement.md has each effect once, names
// real rows of that effect and real tests, has every row that pins a gap, and
// every gap that a plan can report.
func TestEnforcementIsDocumented(t *testing.T) {
	text := readDoc(t, "docs/enforcement.md")
	rows := map[string]policy.Effect{}
	for _, r := range backendtest.Rows() {
		rows[r.Name] = r.Effect
		if r.Gap() && !strings.Contains(text, "`"+r.Name+"`") {
			t.Errorf("the row %q pins a gap and is not named", r.Name)
		}
	}
	tests := allTests(t)
	var effects []string
	var now policy.Effect
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			e, err := policy.ParseEffect(strings.TrimSpace(name))
			if err != nil {
				t.Error(err)
			}
			now = e
			effects = append(effects, e.String())
		}
		if strings.HasPrefix(line, "## What every launch holds") {
			now = 0
		}
		if list, ok := strings.CutPrefix(line, "- Rows: "); ok {
			for _, m := range quoted.FindAllStringSubmatch(list, -1) {
				if e, known := rows[m[1]]; !known || e != now {
					t.Errorf("%s: %q is no row of this effect", now, m[1])
				}
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(m[1], "Test") && !tests[m[1]] {
				t.Errorf("there is no test %s", m[1])
			}
			if _, known := rows[m[1]]; strings.Contains(line, "rows `"+m[1]+"`") && !known {
				t.Errorf("there is no row %q", m[1])
			}
		}
	}
	var all []string
	for _, e := range policy.Effects() {
		all = append(all, e.String())
	}
	slices.Sort(effects)
	slices.Sort(all)
	if !slices.Equal(effects, all) {
		t.Errorf("the page has %v", effects)
	}
	for gap := range reportableGaps(t) {
		if !strings.Contains(text, gap) {
			t.Errorf("the gap %q is not explained", gap)
		}
	}
}

// terminals is what the presets grant, and tty.inject is judged by.
var terminals = []policy.Grant{{Path: "/dev/pts", Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Ioctl, Reason: "terminals"}}

// reportableGaps are the gaps of every plan that this backend can make.
func reportableGaps(t *testing.T) map[string]bool {
	t.Helper()
	gaps := map[string]bool{}
	for abi := 1; abi <= landlock.MaxABI; abi++ {
		for _, notify := range []bool{false, true} {
			for _, spec := range []policy.Spec{
				{Mode: policy.WorkspaceWrite, Net: policy.NetNone}, {Mode: policy.WorkspaceWrite, Net: policy.NetHost},
				{Mode: policy.ReadOnly, Net: policy.NetNone, ExecOnly: true},
			} {
				spec.Workspace, spec.Cwd, spec.Grants = "/w", "/w", terminals
				p, err := policy.New(spec)
				if err != nil {
					t.Fatal(err)
				}
				plan, err := landlock.Compile(p, landlock.Facts{ABI: abi, Notify: notify, Arch: "amd64"})
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range plan.Enforcement().Map() {
					for _, g := range s.Gaps {
						gaps[g] = true
					}
				}
			}
		}
	}
	return gaps
}

// TestNamedTestsExist: a test that any page names is there.
func TestNamedTestsExist(t *testing.T) {
	_ = readDoc(t, "README.md") // else this is not the repository
	tests := allTests(t)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../../README.md", "../../SECURITY.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Skipf("the documentation is not here: %v", err)
		}
		for _, m := range regexp.MustCompile("`(Test\\w+)").FindAllSubmatch(text, -1) {
			if !tests[string(m[1])] {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
	}
}

// TestSecurityNamesRows: the rows that SECURITY.md says pin a gap do.
func TestSecurityNamesRows(t *testing.T) {
	text := readDoc(t, "SECURITY.md")
	pins := map[string]bool{}
	for _, r := range backendtest.Rows() {
		pins[r.Name] = r.Gap()
	}
	text = strings.ReplaceAll(text, "\n  ", " ")
	count := 0
	for _, m := range regexp.MustCompile(`(?m)Pinned: (?:rows? )?([^\n]+?)\.(?: |$)`).FindAllStringSubmatch(text, -1) {
		for _, q := range quoted.FindAllStringSubmatch(m[1], -1) {
			count++
			if !pins[q[1]] {
				t.Errorf("%q pins no gap", q[1])
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d rows were found", count)
	}
}

// TestFlagsAreDocumented: docs/cli.md has every command and every flag.
func TestFlagsAreDocumented(t *testing.T) {
	text := readDoc(t, "docs/cli.md")
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if !c.Hidden && !strings.Contains(text, "`"+c.CommandPath()) && !strings.Contains(text, c.CommandPath()+" ") && !strings.Contains(text, "`"+c.Name()) {
			t.Errorf("the command %q is not documented", c.CommandPath())
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s --%s is not documented", c.CommandPath(), f.Name)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(&bytes.Buffer{}, &bytes.Buffer{}, false))
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)").FindAllStringSubmatch(text, -1) {
		if newRun(&bytes.Buffer{}, &bytes.Buffer{}).Flags().Lookup(m[1]) == nil {
			t.Errorf("--%s is documented and does not exist", m[1])
		}
	}
}

// TestDocumentedProfiles: the examples of docs/profiles.md are sound.
func TestDocumentedProfiles(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(readDoc(t, "docs/profiles.md"), -1)
	if len(blocks) < 2 {
		t.Fatalf("%d examples", len(blocks))
	}
	project := false
	for _, b := range blocks {
		name := "data.toml"
		if strings.HasPrefix(b[1], "# "+profiles.ProjectFile) {
			name, project = profiles.ProjectFile, true
		}
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(b[1]), 0o644); err != nil {
			t.Fatal(err)
		}
		problems, err := profiles.Lint(profiles.LintContext{Home: "/home/nobody"}, file)
		if err != nil {
			t.Error(err)
		}
		for _, p := range problems {
			if p.Severity != profiles.SeverityInfo {
				t.Errorf("%s in:\n%s", p, b[1])
			}
		}
	}
	if !project {
		t.Error("no example of a project's file")
	}
}

// TestArchitectureNamesPackages: docs/architecture.md has every package.
func TestArchitectureNamesPackages(t *testing.T) {
	text := readDoc(t, "docs/architecture.md")
	dirs := map[string]bool{}
	err := filepath.WalkDir("../..", func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go") && !strings.Contains(p, "testdata") {
			rel, err := filepath.Rel("../..", filepath.Dir(p))
			dirs[rel] = err == nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range dirs {
		if !strings.HasPrefix(dir, "test/tools") && !strings.Contains(text, "`"+dir+"`") {
			t.Errorf("the package %s is not named", dir)
		}
	}
}

// TestKernelTable: the table of docs/kernel-support.md is what plans say.
func TestKernelTable(t *testing.T) {
	text := readDoc(t, "docs/kernel-support.md")
	_, text, _ = strings.Cut(text, "## What a workspace-write run reports")
	text, _, _ = strings.Cut(text, "\n## ")
	seen := map[int]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| ([0-9]+)(?:(, | to )([0-9]+))? \\| `([^`]*)` \\| `([^`]*)` \\| `([^`]*)` \\|$").FindAllStringSubmatch(text, -1) {
		first, _ := strconv.Atoi(m[1])
		last := first
		if m[3] != "" {
			last, _ = strconv.Atoi(m[3])
		}
		for abi := first; abi <= last; abi++ {
			seen[abi] = true
			checkKernel(t, abi, m[4], m[5], m[6])
		}
	}
	for abi := 1; abi <= landlock.MaxABI; abi++ {
		if !seen[abi] {
			t.Errorf("ABI %d is not in the table", abi)
		}
	}
}

func checkKernel(t *testing.T, abi int, unenforced, partial, filter string) {
	t.Helper()
	p, err := policy.New(policy.Spec{Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w", Grants: terminals})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := landlock.Compile(p, landlock.Facts{ABI: abi, Errata: 7, Notify: true, Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	var none, some []string
	for _, e := range policy.Effects() {
		switch plan.Enforcement().State(e).Status {
		case backend.Unenforced:
			none = append(none, e.String())
		case backend.Partial:
			some = append(some, e.String())
		}
	}
	if got := strings.Join(none, " "); got != unenforced {
		t.Errorf("ABI %d: unenforced are %s", abi, got)
	}
	if got := strings.Join(some, " "); got != partial {
		t.Errorf("ABI %d: partial are %s", abi, got)
	}
	if plan.FilterName != filter {
		t.Errorf("ABI %d: the filter is %s", abi, plan.FilterName)
	}
}

// TestLinks: what a page links to in this repository is there.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../../README.md", "../../SECURITY.md", "../../CHANGELOG.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Skipf("the documentation is not here: %v", err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllSubmatch(text, -1) {
			to := string(m[1])
			if strings.Contains(to, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), to)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// TestReadmeShowsTheReport: the effects in README.md's examples are what a run on such
// a host prints today, with namespaces and without.
func TestReadmeShowsTheReport(t *testing.T) {
	text := readDoc(t, "README.md")
	p, err := policy.New(policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w", Grants: terminals,
		Guarded: []policy.Guarded{{Path: "/w/.vscode", Guard: policy.GuardMissing}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, namespaces := range []bool{false, true} {
		plan, err := landlock.Compile(p, landlock.Facts{ABI: 7, Errata: 7, Notify: true, Arch: "amd64", Namespaces: namespaces})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		report.WriteEffects(&b, plan.Enforcement().Map())
		var want strings.Builder
		for line := range strings.Lines(b.String()) {
			want.WriteString("sbx: " + line)
		}
		if !strings.Contains(text, want.String()) {
			t.Errorf("README.md does not show:\n%s", want.String())
		}
	}
}
