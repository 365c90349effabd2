package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandboxd/test/kernels/wire"
)

func TestNeeds(t *testing.T) {
	missing := []string{"gcc", "strace", "git", "node"}
	for text, want := range map[string]string{
		"# gcc\nsb -- true":                      "",
		"gcc -o x x.c || skip gcc":               "gcc",
		"sb -- gcc x.c":                          "gcc",
		"timeout 5 strace -f true":               "strace",
		"command -v strace || skip\nstrace -f x": "",
		"repo . ; echo":                          "git",
		"sb -- git commit":                       "git",
		"x=$(git status)":                        "git",
		"sb -- python3 -c 'import node'":         "",
		"ls .git nodejs":                         "",
	} {
		if got := needs(text, missing); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestReadCases(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "reports"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"B1": "# tag: run   type: U\nsb -- true", "B2": "# tag: daemon\ntrue", "B3": "# tag: run\ngcc x.c", "B4 x": "# tag: run\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, "reports", name+".sh"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := readCases(dir); err == nil {
		t.Error("cases without a prelude are taken")
	}
	const program = "#!/bin/bash\ncat >x <<'P'\nok() { echo PASS; }\nP\nmore\n"
	if err := os.WriteFile(filepath.Join(dir, "run-reports"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := readCases(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.texts["B1"], "ok() { echo PASS; }\n# tag: run   type: U\nsb -- true"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !slices.Equal(c.ids, []string{"B1"}) || len(c.skipped) != 1 || c.skipped[0].Test != "B3" {
		t.Errorf("got %+v", c)
	}
	if _, err := readCases(t.TempDir()); err == nil {
		t.Error("a directory without cases is taken")
	}
}

func TestCaseResults(t *testing.T) {
	got := testRun{Package: "cases"}
	none, known := declaredCase{}, declaredCase{ID: "x", Reason: "known"}
	for _, c := range []struct {
		id, out string
		gap     declaredCase
	}{
		{"B1", "PASS\n", none}, {"B2", "PASS\nFAIL: it\x1b broke\n", none}, {"B3", "FAIL: as known\n", known}, {"B4", "noise\nPASS\n", known},
		{"B5", "", none}, {"B6", "SKIP: strace\n", none}, {"B7", "no PASS\n", none}, {"B8", "PASS\n", declaredCase{ID: "B8", ByChance: true}},
	} {
		out := jobOutput{Result: wire.Result{Millis: 500, TimedOut: c.id == "B5", Exit: 1}, stdout: []byte(c.out)}
		got.count(job{Case: c.id}, out, c.gap)
	}
	if got.Passed != 2 || len(got.Skipped) != 2 || got.Skipped[0].Test != "B3" || got.Skipped[1].Test != "B6" || got.Seconds != 4 {
		t.Errorf("got %+v", got)
	}
	want := []testFailure{
		{"B2", []string{`FAIL: "it\x1b broke"`}},
		{"B4", []string{"it passes, but expect.toml says that it fails: known"}},
		{"B5", []string{"HANG: "}},
		{"B7", []string{"FAIL: exit 1 without a word"}},
	}
	if !slices.EqualFunc(got.Failed, want, func(a, b testFailure) bool { return a.Test == b.Test && slices.Equal(a.Output, b.Output) }) {
		t.Errorf("failed: %+v", got.Failed)
	}
}

// Where sbx must refuse, a case passes by that alone, whatever it says itself.
func TestRefusedCases(t *testing.T) {
	got := testRun{Package: "cases"}
	for _, c := range []struct{ id, out string }{
		{"B1", "FAIL: nothing ran\n\nsbx features: 0\nsbx run: 125\nsbx run: 125\n"}, {"B2", "PASS\n\nsbx run: 125\nsbx run: 0\n"}, {"B3", "PASS\n"},
		{"B4", "SKIP: strace\n"}, {"B5", ""},
	} {
		out := jobOutput{Result: wire.Result{TimedOut: c.id == "B5"}, stdout: []byte(c.out)}
		got.count(job{Case: c.id, Refused: true}, out, declaredCase{ID: c.id, Reason: "of a sandbox"})
	}
	want := []testFailure{
		{"B2", []string{"FAIL: sbx must refuse, and exits with 0"}},
		{"B3", []string{"FAIL: it did not call sbx run"}},
		{"B5", []string{"HANG: "}},
	}
	if got.Passed != 1 || len(got.Skipped) != 1 || !slices.EqualFunc(got.Failed, want, func(a, b testFailure) bool { return a.Test == b.Test && slices.Equal(a.Output, b.Output) }) {
		t.Errorf("got %+v", got)
	}
}

func TestGuestPath(t *testing.T) {
	for file, want := range map[string]string{
		"/lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/sh": "usr/bin/sh", "/lib64/ld.so": "usr/lib64/ld.so",
		"/bin/bash": "usr/bin/bash", "/opt/bin/x": "opt/bin/x",
	} {
		if got := guestPath(file); got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
}

func TestLibraries(t *testing.T) {
	const ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibtinfo.so.6 => /lib/x86_64-linux-gnu/libtinfo.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"
	if got := librariesIn(ldd); !slices.Equal(got, []string{"/lib/x86_64-linux-gnu/libtinfo.so.6", "/lib64/ld-linux-x86-64.so.2"}) {
		t.Errorf("got %q", got)
	}
}
