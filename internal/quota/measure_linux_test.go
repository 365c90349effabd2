package quota

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func measure(t *testing.T, size int64, dirs ...string) *Tree {
	t.Helper()
	tree, err := Measure(size, dirs...)
	must(t, err)
	t.Cleanup(tree.Close)
	return tree
}

// about allows for what a file system adds and rounds.
func about(got, want int64) bool { return got >= want*9/10 && got <= want*11/10+mib/4 }

func TestLookCounts(t *testing.T) {
	temp, shm, outside := t.TempDir(), t.TempDir(), t.TempDir()
	tree := measure(t, 100*mib, temp, shm)
	if l := tree.Look(); l.Bytes != 0 || l.Files != 0 || l.Cut || l.Full {
		t.Errorf("empty directories: %+v", l)
	}
	write(t, filepath.Join(outside, "big"), 8*mib)
	for step, c := range []struct {
		name  string
		make  func()
		bytes int64
		files int64
	}{
		{"a file", func() { write(t, temp+"/a", mib) }, mib, 1},
		{"one in a directory", func() {
			must(t, os.MkdirAll(temp+"/d/e", 0o700))
			write(t, temp+"/d/e/f", mib)
		}, mib, 3},
		{"one in the other tree", func() { write(t, shm+"/s", mib) }, mib, 1},
		{"a hidden name", func() { write(t, temp+"/.h", mib) }, mib, 1},
		{"a second name", func() { must(t, os.Link(temp+"/a", temp+"/d/again")) }, 0, 0},
		{"a name in the other tree", func() { _ = os.Link(temp+"/a", shm+"/again") }, 0, 0},
		{"links that lead outside", func() {
			must(t, os.Symlink(outside, temp+"/out"))
			must(t, os.Symlink(outside+"/big", temp+"/file"))
		}, 0, 2},
		{"a hole", func() {
			write(t, temp+"/hole", 0)
			must(t, os.Truncate(temp+"/hole", 1<<40))
		}, 0, 1},
		{"no file", func() { must(t, unix.Mkfifo(temp+"/fifo", 0o600)) }, 0, 1},
		{"what is removed", func() { must(t, os.Remove(temp+"/.h")) }, -mib, -1},
	} {
		before := tree.Look()
		c.make()
		l := tree.Look()
		if d := l.Bytes - before.Bytes; l.Files-before.Files != c.files || l.Cut || c.bytes >= 0 && !about(d, c.bytes) || c.bytes < 0 && d > c.bytes*9/10 {
			t.Errorf("%d, %s: %+v, before %+v", step, c.name, l, before)
		}
	}
}

// TestLookMisses pins what the limit says is not seen.
func TestLookMisses(t *testing.T) {
	dir := t.TempDir()
	tree := measure(t, 100*mib, dir)
	file, err := os.Create(dir + "/gone")
	must(t, err)
	defer file.Close()
	_, err = file.Write(make([]byte, 2*mib))
	must(t, err)
	if l := tree.Look(); l.Bytes < mib {
		t.Errorf("the control: %+v", l)
	}
	must(t, os.Remove(file.Name()))
	if l := tree.Look(); l.Bytes != 0 || l.Cut {
		t.Errorf("a deleted file: %+v", l)
	}
	// A directory that cannot be listed: root lists it.
	must(t, os.Mkdir(dir+"/shut", 0o700))
	write(t, dir+"/shut/f", mib)
	must(t, os.Chmod(dir+"/shut", 0o300))
	if l, root := tree.Look(), os.Geteuid() == 0; l.Cut == root || (l.Bytes >= mib) != root {
		t.Errorf("a directory that cannot be listed: %+v", l)
	}
	must(t, os.Chmod(dir+"/shut", 0o700))
	// One that lies too deep.
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range maxDepth + 50 {
		must(t, unix.Mkdirat(at, "d", 0o700))
		down, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = down
	}
	must(t, unix.Close(at))
	if l := tree.Look(); !l.Cut || l.Files < maxDepth {
		t.Errorf("%d directories in each other: %+v", maxDepth+50, l)
	}
}

// TestLookEnds: a worker cannot keep its launcher counting.
func TestLookEnds(t *testing.T) {
	dir := t.TempDir()
	const size = mib
	tree := measure(t, size, dir)
	most := MaxFiles(size)
	for i := range 3 * most {
		write(t, fmt.Sprintf("%s/%d", dir, i), 0)
		if i == most {
			if l := tree.Look(); !l.Over(size) || l.Far(size) {
				t.Errorf("one file too much: %+v", l)
			}
		}
	}
	if l := tree.Look(); !l.Far(size) || l.Files >= 3*most {
		t.Errorf("three times the files: %+v", l)
	}
	w := walk{size: 1 << 50, until: time.Now().Add(-time.Second), buf: make([]byte, 4096)}
	w.directory(tree.roots[0], 1) // at its end, as it was read
	_, err := unix.Seek(tree.roots[0], 0, 0)
	must(t, err)
	w.directory(tree.roots[0], 1)
	if !w.seen.Cut || w.seen.Files > 64 {
		t.Errorf("a look without time: %+v", w.seen)
	}
}

func TestMeasureNeedsDirectories(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", 1)
	must(t, os.Symlink(dir, dir+"/link"))
	for _, path := range []string{dir + "/none", dir + "/file", dir + "/link"} {
		if tree, err := Measure(mib, dir, path); err == nil {
			tree.Close()
			t.Errorf("%s was opened", path)
		}
	}
}
