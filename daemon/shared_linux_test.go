package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/protocol"
)

// TestSharedIsLookedAtAgain: what launches share never grants what a launch by itself
// would not, when a directory, a link or a profile has changed between two of them.
// Each begins with launches that do share, and shows by them what is granted.
func TestSharedIsLookedAtAgain(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	base := t.TempDir()
	at := func(parts ...string) string { return filepath.Join(append([]string{base}, parts...)...) }
	put := func(dir, text string) {
		t.Helper()
		if err := os.Mkdir(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(dir, "f"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// reads launches often enough for what is made ahead to be used, and says whether
	// the worker could read.
	reads := func(times int, change func(*protocol.Launch), path, want string) {
		t.Helper()
		for range times {
			r := c.finish(c.launch(change, "cat", path))
			if got := r.out.String(); got != want || (want == "") != (strings.Contains(r.errOut.String(), "Permission denied") || strings.Contains(r.errOut.String(), "No such file")) {
				t.Errorf("%s: %q %q %+v, want %q", path, got, r.errOut.String(), r.failure, want)
			}
		}
	}
	grant := func(path string) func(*protocol.Launch) {
		return func(m *protocol.Launch) { m.Readable = []protocol.Bytes{protocol.Bytes(path)} }
	}

	// A directory is replaced.
	put("dir", "old")
	reads(5, grant(at("dir")), at("dir", "f"), "old")
	must(os.Rename(at("dir"), at("moved")))
	put("dir", "new")
	reads(3, grant(at("dir")), at("moved", "f"), "")
	reads(3, grant(at("dir")), at("dir", "f"), "new")

	// A link leads elsewhere.
	put("a", "of a")
	put("b", "of b")
	must(os.Symlink("a", at("link")))
	reads(5, grant(at("link")), at("a", "f"), "of a")
	must(os.Remove(at("link")))
	must(os.Symlink("b", at("link")))
	reads(3, grant(at("link")), at("a", "f"), "")
	reads(3, grant(at("link")), at("b", "f"), "of b")

	// A profile grants something else.
	profile := func(dir string) {
		t.Helper()
		must(os.WriteFile(at("p.toml"), []byte("[[grant]]\npath = \""+at(dir)+"\"\naccess = \"r\"\nreason = \"for the test\"\n"), 0o644))
	}
	with := func(m *protocol.Launch) { m.Profiles = []protocol.Bytes{protocol.Bytes(at("p.toml"))} }
	profile("a")
	reads(5, with, at("a", "f"), "of a")
	profile("b")
	reads(3, with, at("a", "f"), "")
	reads(3, with, at("b", "f"), "of b")

	// A workspace is replaced by a link to what is not granted.
	must(os.RemoveAll(at("dir")))
	must(os.Symlink("moved", at("dir")))
	reads(3, grant(at("a")), at("moved", "f"), "")
}

// TestSharedTemp: no worker finds what another one left in its private directory.
func TestSharedTemp(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	for range 6 {
		r := c.run("sh", "-c", `ls -A "$TMPDIR" | grep -v ^TestSharedTemp; echo x > "$TMPDIR/left"; chmod 755 "$TMPDIR"`)
		if r.out.Len() > 0 || r.report.Outcome.ExitStatus() != 0 {
			t.Fatalf("%q %q", r.out.String(), r.errOut.String())
		}
	}
}
