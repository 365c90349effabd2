package sys

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTry: of calls that are tried, those after one that fails are left out, and the
// program goes on.
func TestTry(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "f"), &st); err != nil {
		t.Fatal(err)
	}
	p := new(Program)
	at := p.Open(AtCwd, dir, unix.O_PATH|unix.O_DIRECTORY)
	file := p.Look(at, "f")
	p.Unchanged(file, st)
	p.Try(func() {
		p.Unlink(at, "missing", 0)
		p.Unlink(at, "f", 0)
	})
	p.Try(func() {
		p.Same(file, st.Dev, st.Ino+1)
		p.Unlink(at, "f", 0)
	})
	other := st
	other.Size++
	p.Try(func() {
		p.Unchanged(file, other)
		p.Unlink(at, "f", 0)
	})
	p.Close(file)
	p.Try(func() { p.Mkdir(at, "d", 0o700) })
	p.Make(at, "made", "text", 0o600)
	p.Unlink(at, "d", unix.AT_REMOVEDIR)
	p.Close(at)
	for i := range p.regs {
		p.regs[i] = ^uintptr(0)
	}
	var f failed
	if p.run(&f); f.errno != 0 || p.Err() != nil {
		t.Fatalf("%v %v", f.error(p), p.Err())
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "made")); string(text) != "text" {
		t.Errorf("%q %v", text, err)
	}
	p = new(Program)
	p.Step("outside")
	p.Unlink(AtCwd, filepath.Join(dir, "missing"), 0)
	f = failed{}
	if p.run(&f); f.errno != uint32(unix.ENOENT) {
		t.Errorf("outside: %v", f.error(p))
	}
}
