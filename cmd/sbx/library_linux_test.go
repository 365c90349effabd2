package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/policy"
)

// library is README.md's example, word for word.
func library(dir string, workdir, null, out *os.File) error {
	// begin
	p, err := policy.New(policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: dir, Cwd: dir,
		Grants: []policy.Grant{
			{Path: policy.Raw(dir), Kind: policy.Tree, Access: policy.Read | policy.Write, Reason: "workspace"},
			{Path: "/usr", Kind: policy.Tree, Access: policy.Read | policy.Exec, Reason: "system"},
			{Path: "/etc/ld.so.cache", Kind: policy.File, Access: policy.Read, Reason: "loader"},
		},
		Env: []string{"PATH=/usr/bin"},
	})
	if err != nil {
		return err
	}
	choice, err := backend.Select(p, []backend.Backend{landlock.New(landlock.Options{})})
	if err != nil {
		return err // a *backend.RefusalError says what is missing, and what helps
	}
	prepared, err := choice.Plan.Prepare()
	if err != nil {
		return err
	}
	defer prepared.Close()
	worker, err := prepared.Start(backend.Command{
		Path: "/usr/bin/id", Argv: []string{"id", "-u"}, Dir: workdir, Stdin: null, Stdout: out, Stderr: out,
	})
	if err != nil {
		return err
	}
	result := worker.Wait()
	fmt.Println(result.Outcome.Kind, result.Enforcement.Level(p))
	// end
	return nil
}

// TestLibraryExample runs README.md's example, and compares it.
func TestLibraryExample(t *testing.T) {
	src, err := os.ReadFile("library_linux_test.go")
	if err != nil {
		t.Skipf("the source is not here: %v", err)
	}
	_, code, _ := strings.Cut(string(src), "\t// begin\n")
	code, _, _ = strings.Cut(code, "\t// end\n")
	code = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(code, "")
	if readme := readDoc(t, "README.md"); !strings.Contains(readme, "```go\n"+code+"```\n") {
		t.Errorf("README.md has another example than:\n%s", code)
	}

	needLandlock(t)
	needProgram(t, "/usr/bin/id")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	workdir, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer workdir.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := library(dir, workdir, null, out); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out.Name()); err != nil || string(got) != fmt.Sprintln(os.Geteuid()) {
		t.Errorf("the worker wrote %q, %v", got, err)
	}
}
