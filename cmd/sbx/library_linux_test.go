package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/capture"
	"sandboxd/policy"
	"sandboxd/profiles"
)

// library is README.md's example, word for word.
func library(dir string, workdir, null, out *os.File) error {
	// begin README.md
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

// begin docs/library.md

// runConfined runs the program at path in the workspace, confined, and returns what it
// wrote and what is known of it. It ends the program when ctx is done.
func runConfined(ctx context.Context, workspace, path string, args ...string) (capture.Output, backend.Result, error) {
	var none capture.Output
	home, err := os.UserHomeDir()
	if err != nil {
		return none, backend.Result{}, err
	}
	spec, _, err := profiles.Resolve(profiles.Request{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: workspace, Cwd: workspace, Dir: workspace,
		HostEnv: os.Environ(), Home: home, UID: os.Geteuid(), GID: os.Getegid(), Cache: profiles.CachePrivate,
	})
	if err != nil {
		return none, backend.Result{}, err // a *profiles.RefusalError
	}
	p, err := policy.New(spec)
	if err != nil {
		return none, backend.Result{}, err
	}
	choice, err := backend.Select(p, []backend.Backend{landlock.New(landlock.Options{})})
	if err != nil {
		return none, backend.Result{}, err // a *backend.RefusalError
	}
	prepared, err := choice.Plan.Prepare()
	if err != nil {
		return none, backend.Result{}, err
	}
	defer prepared.Close()

	dir, err := os.Open(workspace)
	if err != nil {
		return none, backend.Result{}, err
	}
	defer dir.Close()
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return none, backend.Result{}, err
	}
	defer stdin.Close()
	out, err := capture.New(capture.Options{MaxOutput: 64 << 10})
	if err != nil {
		return none, backend.Result{}, err
	}
	defer out.Close()

	worker, err := prepared.Start(backend.Command{
		Path: path, Argv: append([]string{path}, args...), Dir: dir,
		Stdin: stdin, Stdout: out.File(), Stderr: out.File(), OwnTree: true,
	})
	if err != nil {
		return none, backend.Result{}, err // a *backend.SetupError or a *backend.ExecError: nothing ran
	}
	defer context.AfterFunc(ctx, func() { worker.Stop(policy.DefaultGrace) })()
	result := worker.Wait()
	if err := out.Drain(time.Second); err != nil {
		result.Warnings = append(result.Warnings, err.Error())
	}
	return out.Output(), result, nil
}

// end

// compareExample wants that a page has the example between this file's marks,
// word for word.
func compareExample(t *testing.T, page string) {
	t.Helper()
	src, err := os.ReadFile("library_linux_test.go")
	if err != nil {
		t.Skipf("the source is not here: %v", err)
	}
	m := regexp.MustCompile(`(?s)\n(\t?)// begin ` + regexp.QuoteMeta(page) + `\n(.*?)\n\t?// end\n`).FindSubmatch(src)
	if m == nil {
		t.Fatalf("there is no example of %s", page)
	}
	code := regexp.MustCompile(`(?m)^`+string(m[1])).ReplaceAllString(string(m[2]), "")
	if text := readDoc(t, page); !strings.Contains(text, "```go\n"+strings.TrimSpace(code)+"\n```\n") {
		t.Errorf("%s has another example than:\n%s", page, code)
	}
}

// TestLibraryExample runs README.md's example, and compares it.
func TestLibraryExample(t *testing.T) {
	compareExample(t, "README.md")
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

// TestLibraryPage runs docs/library.md's example, and compares it.
func TestLibraryPage(t *testing.T) {
	compareExample(t, "docs/library.md")
	needLandlock(t)
	ws, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	out, result, err := runConfined(t.Context(), ws, "/bin/sh", "-c", "echo made > file; cat file; echo x > ../outside; seq 100000; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if result.Outcome.ExitStatus() != 3 || len(result.Warnings) > 0 || !out.Truncated || out.Bytes < 588895 ||
		!strings.HasPrefix(string(out.Head), "made\n") || !strings.Contains(string(out.Head), "ermission denied") || !strings.HasSuffix(string(out.Tail), "\n100000\n") {
		t.Errorf("%+v\n%.200s", result, out)
	}
	if _, err := os.Lstat(filepath.Join(ws, "../outside")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it wrote outside: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if out, result, err = runConfined(ctx, ws, "/bin/sh", "-c", "echo begun; exec sleep 300"); err != nil || result.Outcome.SignalName != "SIGTERM" || out.String() != "begun\n" {
		t.Errorf("%q, %+v, %v", out, result.Outcome, err)
	}
}
