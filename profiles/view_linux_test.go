package profiles

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sandboxd/policy"
)

// A listing answers as lstat does, whatever the names are.
func TestListingAgreesWithLstat(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b", "ab", "ba", "aba", ".x", "..x", "name with spaces", "\xff\xfe", strings.Repeat("l", maxName)}
	for i := range 900 { // more than one buffer holds
		names = append(names, "padding-to-fill-more-than-one-buffer-"+strconv.Itoa(i))
	}
	for i, n := range names {
		p := join(dir, n)
		switch i % 3 {
		case 0:
			err = os.WriteFile(p, nil, 0o600)
		case 1:
			err = os.Mkdir(p, 0o700)
		default:
			err = os.Symlink("nowhere", p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	v := newView()
	v.keep(dir)
	l := v.listed(dir)
	if l == nil || len(l.entries) != len(names) {
		t.Fatalf("listed %+v, want %d names", l, len(names))
	}
	for _, n := range append(names, "c", "abb", "padding", "", ".", "..", strings.Repeat("l", maxName-1)) {
		kind, found := l.find(n)
		var st syscall.Stat_t
		there := n != "" && n != "." && n != ".." && lstat(join(dir, n), &st) == nil
		if found != there || found && kind != uint32(st.Mode)&syscall.S_IFMT {
			t.Errorf("%q: found %v kind %o, want %v %o", n, found, kind, there, st.Mode&syscall.S_IFMT)
		}
	}
	if n := v.lstat(join(dir, strings.Repeat("l", maxName+1))); n.errno != syscall.ENAMETOOLONG {
		t.Errorf("a name that is too long: %v", n.errno)
	}
	// A second listing leaves the first as it is.
	v.keep("/")
	if _, found := l.find("aba"); !found || v.listed("/") == nil {
		t.Error("one listing lost another")
	}
}

func TestEvalCleansTheRoot(t *testing.T) {
	for _, p := range []string{"//etc", "///etc", "//etc/../etc", "/./etc", "//etc//passwd"} {
		want, err := filepath.EvalSymlinks(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := newView().eval(p); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", p, got, err, want)
		}
	}
}

// A variable that names the root as the place of a secret is nonsense, and
// does not take everything away.
func TestSecretAtTheRoot(t *testing.T) {
	w := newWorld(t)
	w.env("NETRC=/", "KUBECONFIG=//")
	s, _ := w.ok()
	wantGrant(t, s, "/usr", "rx", policy.Tree)
}

// The target of a link may be longer than what is read at first.
func TestLongLink(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("d/../", 100)
	w.mkdir("d")
	if err := os.Symlink(long+"d", w.root+"/link"); err != nil {
		t.Fatal(err)
	}
	if got, n, err := newView().eval(w.root + "/link"); err != nil || got != w.root+"/d" || !n.isDir() {
		t.Errorf("%s %v", got, err)
	}
}

func TestReadBounded(t *testing.T) {
	w := newWorld(t)
	text := strings.Repeat("x", 100_000)
	file := w.write("f", text)
	if got, err := readRegular(file, 0); err != nil || string(got) != text {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := readBounded(file, 0, len(text)); err != nil {
		t.Errorf("as long as it may be: %v", err)
	}
	if _, err := readBounded(file, 0, len(text)-1); err != errTooBig {
		t.Errorf("too big: %v", err)
	}
	if want := strconv.Itoa(maxFile>>10) + " KiB"; !strings.HasSuffix(errTooBig.Error(), want) {
		t.Errorf("%v, want %s", errTooBig, want)
	}
	if _, err := readRegular(w.root, 0); err != errNotRegular {
		t.Errorf("a directory: %v", err)
	}
	// What says that it has no size may still hold something.
	if got, err := readRegular("/proc/self/status", 0); err != nil || !strings.Contains(string(got), "Name:") {
		t.Skipf("no /proc: %v", err)
	}
}
