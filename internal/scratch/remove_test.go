//go:build unix

package scratch

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memory is a file system in memory, for a disk may take a millisecond to make a
// file; where there is none, the usual one.
func memory() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.Mode().Perm()&0o002 != 0 {
		return "/dev/shm"
	}
	return ""
}

// tree makes a directory, which goes at the test's end, and one beside it that
// holds something precious.
func tree(t *testing.T) (dir, outside string) {
	t.Helper()
	return treeIn(t, memory())
}

func treeIn(t *testing.T, in string) (dir, outside string) {
	t.Helper()
	base, err := os.MkdirTemp(in, "scratch-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := RemoveTree(base); err != nil {
			t.Error(err)
		}
	})
	dir, outside = filepath.Join(base, "tree"), filepath.Join(base, "outside")
	for _, d := range []string{dir, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, outside
}

// kept tells whether the outside is as [tree] made it.
func kept(t *testing.T, outside string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(outside, "precious"))
	if err != nil || string(data) != "x" {
		t.Errorf("what is outside: %q, %v", data, err)
	}
	for path, want := range map[string]os.FileMode{outside: 0o755, filepath.Join(outside, "precious"): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
}

// deepen makes a chain of directories, each with files.
func deepen(t *testing.T, dir string, levels, files int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range levels {
		if err != nil {
			t.Fatal(err)
		}
		for i := range files {
			fd, err := unix.Openat(at, fmt.Sprint("file", i), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
		}
		if err := unix.Mkdirat(at, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		var down int
		down, err = unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		at = down
	}
	unix.Close(at)
}

func never() bool { return false }

func write(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// withoutRename is a system that refuses to move directories.
func withoutRename(t *testing.T) {
	t.Helper()
	real := renameat
	renameat = func(int, string, int, string) error { return unix.EXDEV }
	t.Cleanup(func() { renameat = real })
}

// bothWays runs a test where directories can be moved and where they cannot.
func bothWays(t *testing.T, test func(t *testing.T, moves bool)) {
	t.Run("moved", func(t *testing.T) { test(t, true) })
	t.Run("in place", func(t *testing.T) {
		withoutRename(t)
		test(t, false)
	})
}

func TestRemoveDeepWithFewDescriptors(t *testing.T) {
	bothWays(t, func(t *testing.T, _ bool) {
		dir, _ := tree(t)
		deepen(t, dir, 2_000, 1)
		var old unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
		low := old
		low.Cur = 32
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
		err := (&remover{late: never}).remove(dir)
		if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); rerr != nil {
			t.Fatal(rerr)
		}
		if err != nil || present(dir) != 0 {
			t.Error(err)
		}
	})
}

// TestRemoveIsLinear counts system calls, for time is no measure.
func TestRemoveIsLinear(t *testing.T) {
	shapes := map[string]func(t *testing.T, dir string, n int){
		"deep": func(t *testing.T, dir string, n int) { deepen(t, dir, n, 0) },
		"wide": func(t *testing.T, dir string, n int) {
			for i := range n {
				write(t, filepath.Join(dir, fmt.Sprint(i)))
			}
		},
		"directories": func(t *testing.T, dir string, n int) {
			for i := range n / 4 {
				write(t, filepath.Join(dir, fmt.Sprint(i), "file"), filepath.Join(dir, "sub", fmt.Sprint(i), "file"))
			}
		},
		"comb": func(t *testing.T, dir string, n int) { deepen(t, dir, n/4, 3) },
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			count := func(n int) uint64 {
				dir, _ := tree(t)
				shape(t, dir, n)
				r := remover{late: never}
				if err := r.remove(dir); err != nil || present(dir) != 0 {
					t.Fatal(err)
				}
				return r.calls
			}
			few, many := count(1000), count(4000)
			if many > 5*few || few > 12*1000 {
				t.Errorf("%d calls for 1000, %d for 4000", few, many)
			}
		})
	}
}

func TestRemoveDoesNotFollowLinks(t *testing.T) {
	bothWays(t, func(t *testing.T, _ bool) {
		dir, outside := tree(t)
		write(t, filepath.Join(dir, "a/b/file"))
		for _, at := range []string{"link", "a/link", "a/b/link"} {
			if err := errors.Join(os.Symlink(outside, filepath.Join(dir, at)), os.Symlink(filepath.Join(outside, "precious"), filepath.Join(dir, at+"2"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(filepath.Join(outside, "precious"), filepath.Join(dir, "hard")); err != nil {
			t.Fatal(err)
		}
		if err := RemoveTree(dir); err != nil || present(dir) != 0 {
			t.Error(err)
		}
		kept(t, outside)
		// What took the directory's own place goes by itself.
		if err := os.Symlink(outside, dir); err != nil {
			t.Fatal(err)
		}
		if err := RemoveTree(dir); err != nil || present(dir) != 0 {
			t.Error(err)
		}
		kept(t, outside)
		if err := RemoveTree(dir); err != nil { // nothing is there
			t.Error(err)
		}
	})
}

func TestRemoveWithoutPermissions(t *testing.T) {
	bothWays(t, func(t *testing.T, moves bool) {
		asUser(t)
		removeClosed(t, moves)
	})
}

// removeClosed removes trees with directories of all modes that are in the way.
func removeClosed(t *testing.T, moves bool) {
	t.Helper()
	for _, mode := range []os.FileMode{0, 0o100, 0o200, 0o400, 0o500, 0o600} {
		dir, outside := tree(t)
		closed := []string{"a/b/c", "a/b", "a", "e", "."}
		write(t, filepath.Join(dir, "a/b/c/file"), filepath.Join(dir, "e/file"), filepath.Join(dir, "a/file"))
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "empty"), mode), os.Symlink(outside, filepath.Join(dir, "a/link"))); err != nil {
			t.Fatal(err)
		}
		for _, d := range closed {
			if err := os.Chmod(filepath.Join(dir, d), mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "a/b/c/new"), nil, 0o600); !errors.Is(err, os.ErrPermission) {
			t.Fatalf("mode %o is no obstacle: %v", mode, err)
		}
		r := remover{late: never}
		if err := r.remove(dir); err != nil || present(dir) != 0 {
			t.Errorf("mode %o: %v", mode, err)
		}
		if moves && r.end != 4 {
			t.Errorf("mode %o: %d directories were moved", mode, r.end)
		}
		kept(t, outside)
	}
}

// TestRemoveStopsWhenADirectoryIsMoved: a process of the worker is alive, and
// moves what is being emptied, or swaps it.
func TestRemoveStopsWhenADirectoryIsMoved(t *testing.T) {
	const files = 4 * removeChunk
	for _, swap := range []string{"nothing", "link", "directory"} {
		t.Run("for "+swap, func(t *testing.T) {
			dir, outside := tree(t)
			for i := range files {
				write(t, filepath.Join(dir, "a", fmt.Sprint("file", i)), filepath.Join(outside, fmt.Sprint("file", i)))
			}
			stolen := filepath.Join(outside, "stolen")
			r := remover{late: never}
			r.looked = func(at string) {
				if at == dir || present(stolen) == 1 {
					return
				}
				err := os.Rename(filepath.Join(dir, at), stolen)
				switch swap {
				case "link":
					err = errors.Join(err, os.Symlink(outside, filepath.Join(dir, at)))
				case "directory": // one that was outside, so that it may be removed or not
					err = errors.Join(err, os.Mkdir(filepath.Join(dir, at), 0o700))
				}
				if err != nil {
					t.Error(err)
				}
			}
			if err := r.remove(dir); !errors.Is(err, errMoved) || present(dir) != 1 {
				t.Errorf("it ended with %v", err)
			}
			kept(t, outside)
			if n := len(entries(t, stolen)); n < files-removeChunk {
				t.Errorf("%d files of what was moved are left", n)
			}
			if n := len(entries(t, outside)); n != files+2 {
				t.Errorf("%d entries are left outside", n)
			}
			if err := RemoveTree(dir); err != nil || present(dir) != 0 {
				t.Error("the next try:", err)
			}
			kept(t, outside)
		})
	}
	t.Run("and leaves the others", func(t *testing.T) {
		dir, outside := tree(t)
		for i := range 3 * files {
			write(t, filepath.Join(dir, fmt.Sprint(i%3), fmt.Sprint("file", i)))
		}
		stolen := filepath.Join(outside, "stolen")
		r := remover{late: never}
		r.looked = func(at string) {
			if at != dir && present(stolen) == 0 {
				if err := os.Rename(filepath.Join(dir, at), stolen); err != nil {
					t.Error(err)
				}
			}
		}
		err := r.remove(dir)
		left := 0
		for _, name := range entries(t, dir) {
			left += len(entries(t, filepath.Join(dir, name)))
		}
		if !errors.Is(err, errMoved) || left != 2*files {
			t.Errorf("it ended with %v; of the others %d files are left", err, left)
		}
	})
	t.Run("the whole", func(t *testing.T) {
		dir, outside := tree(t)
		deepen(t, dir, 10, 1)
		stolen := filepath.Join(outside, "stolen")
		r := remover{late: never}
		r.looked = func(string) {
			if present(stolen) == 0 {
				if err := errors.Join(os.Rename(dir, stolen), os.Symlink(outside, dir)); err != nil {
					t.Error(err)
				}
			}
		}
		if err := r.remove(dir); !errors.Is(err, errMoved) || present(dir) != 1 {
			t.Errorf("it ended with %v", err)
		}
		kept(t, outside)
	})
	t.Run("on the way up", func(t *testing.T) {
		withoutRename(t)
		dir, outside := tree(t)
		deepen(t, dir, 10, 1)
		stolen := filepath.Join(outside, "stolen")
		looks := 0
		r := remover{late: never}
		r.looked = func(string) {
			if looks++; looks == 6 {
				if err := os.Rename(filepath.Join(dir, "d/d/d/d/d"), stolen); err != nil {
					t.Error(err)
				}
			}
		}
		if err := r.remove(dir); !errors.Is(err, errMoved) || present(dir, stolen) != 2 {
			t.Errorf("it ended with %v", err)
		}
		kept(t, outside)
	})
}

// TestRemoveDoesNotFollowWhatIsSwapped: a directory is one when it is looked at,
// and a link when it is opened.
func TestRemoveDoesNotFollowWhatIsSwapped(t *testing.T) {
	bothWays(t, func(t *testing.T, moves bool) {
		dir, outside := tree(t)
		deepen(t, dir, 3, 1)
		before, swapped := renameat, 0
		t.Cleanup(func() { renameat = before })
		renameat = func(from int, name string, to int, as string) error {
			err := before(from, name, to, as)
			if !moves {
				to, as = from, name
			}
			if swapped++; swapped == 1 {
				if err := errors.Join(unix.Renameat(to, as, to, "parked"), unix.Symlinkat(outside, to, as)); err != nil {
					t.Error(err)
				}
			}
			return err
		}
		_ = RemoveTree(dir) // whether it ends is chance: what was parked may be seen
		kept(t, outside)
		if swapped == 0 {
			t.Error("nothing was swapped")
		}
		if err := RemoveTree(dir); err != nil || present(dir) != 0 {
			t.Error("the next try:", err)
		}
		kept(t, outside)
	})
}

// TestRemoveWhileSomethingIsWritten: what came after a directory was read goes.
func TestRemoveWhileSomethingIsWritten(t *testing.T) {
	bothWays(t, func(t *testing.T, _ bool) {
		dir, _ := tree(t)
		deepen(t, dir, 3, 1)
		r := remover{late: never}
		looks := 0
		r.looked = func(at string) {
			if looks++; looks%2 == 1 && looks < 8 {
				if at != dir {
					at = filepath.Join(dir, at)
				}
				write(t, filepath.Join(at, fmt.Sprint("new", looks)))
			}
		}
		if err := r.remove(dir); err != nil || present(dir) != 0 || looks < 5 {
			t.Errorf("%v, after %d looks", err, looks)
		}
	})
}

func TestRemoveGoesOnWhereItStopped(t *testing.T) {
	shapes := map[string]func(t *testing.T, dir string){
		"deep": func(t *testing.T, dir string) { deepen(t, dir, 1000, 1) },
		"wide": func(t *testing.T, dir string) {
			for i := range 2000 {
				write(t, filepath.Join(dir, fmt.Sprint("d", i%500), fmt.Sprint("file", i)))
			}
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			dir, _ := tree(t)
			shape(t, dir)
			tries := 0
			for ; tries < 100; tries++ {
				looks := 0
				r := remover{late: func() bool { looks++; return looks > 400 }}
				err := r.remove(dir)
				if err == nil {
					break
				}
				if !errors.Is(err, errTooLong) || r.gone == 0 {
					t.Fatalf("%v, %d entries are gone", err, r.gone)
				}
			}
			if present(dir) != 0 || tries < 3 || tries == 100 {
				t.Errorf("after %d tries", tries)
			}
		})
	}
}

// TestRemoveThatTookTooLongStaysNoted: the next launcher's sweep ends it.
func TestRemoveThatTookTooLongStaysNoted(t *testing.T) {
	state := t.TempDir()
	l := New(state)
	dir, err := l.Mkdir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	deepen(t, dir, 100, 1)
	usual := removeTime
	removeTime = -time.Second
	err = l.Remove(dir)
	if !errors.Is(err, errTooLong) || present(dir) != 1 {
		t.Errorf("it ended with %v", err)
	}
	_ = l.file.Close() // as if it were killed
	swept, err := New(state).Sweep(nil)
	if err != nil || len(swept) != 1 || swept[0].Err == nil || len(entries(t, state)) != 1 {
		t.Errorf("a sweep without time: %+v, %v", swept, err)
	}
	removeTime = usual
	swept, err = New(state).Sweep(nil)
	if err != nil || len(swept) != 1 || swept[0].Err != nil || present(dir) != 0 || len(entries(t, state)) != 0 {
		t.Errorf("swept %+v, %v", swept, err)
	}
}

// TestRemoveTriesTheRest: what cannot be removed does not keep the rest, and is
// told of in few words.
func TestRemoveTriesTheRest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	bothWays(t, func(t *testing.T, _ bool) {
		dir, _ := tree(t)
		foreign := filepath.Join(dir, "a", "b", strings.Repeat("\n\x1b", 120))
		write(t, filepath.Join(foreign, "file"), filepath.Join(dir, "z", "file"), filepath.Join(dir, "a", "file"), filepath.Join(dir, "a", "b", "c", "file"))
		for _, d := range []string{".", "z", "a", "a/b", "a/b/c"} {
			if err := os.Lchown(filepath.Join(dir, d), nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Lchown(filepath.Dir(dir), nobody, nobody); err != nil {
			t.Fatal(err)
		}
		asUser(t)
		err := RemoveTree(dir)
		if err == nil || errors.Is(err, errTooLong) || len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("it ended with %q", err)
		}
		left, files := 0, 0
		_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
			if err == nil {
				left++
			}
			if !e.IsDir() {
				files++
			}
			return nil
		})
		if left < 2 || left > 4 || files != 0 { // what cannot be entered, and what it is in
			t.Errorf("%d are left, %d of them files", left, files)
		}
	})
}

// TestRemoveRandomTrees: whatever is in them.
func TestRemoveRandomTrees(t *testing.T) {
	bothWays(t, func(t *testing.T, _ bool) {
		asUser(t)
		for seed := range int64(12) {
			removeRandom(t, seed)
		}
	})
}

func removeRandom(t *testing.T, seed int64) {
	t.Helper()
	rnd := rand.New(rand.NewSource(seed))
	in := ""
	if seed > 5 {
		in = memory()
	}
	dir, outside := treeIn(t, in)
	dirs := []string{dir}
	for range 200 {
		name := make([]byte, 1+rnd.Intn(40))
		if rnd.Intn(10) == 0 {
			name = make([]byte, 255)
		}
		for i := range name {
			for name[i] == 0 || name[i] == '/' {
				name[i] = byte(rnd.Intn(127)) // macOS wants UTF-8
			}
		}
		at := filepath.Clean(dirs[rnd.Intn(len(dirs))] + "/" + string(name))
		switch rnd.Intn(6) {
		case 0, 1:
			if len(at) < 800 && os.Mkdir(at, 0o700) == nil {
				dirs = append(dirs, at)
			}
		case 2:
			_ = os.Symlink(outside, at)
		case 3:
			_ = unix.Mkfifo(at, 0o600)
		case 4:
			_ = os.Link(filepath.Join(outside, "precious"), at)
		case 5:
			_ = os.WriteFile(at, []byte("y"), os.FileMode(rnd.Intn(0o1000)))
		}
	}
	for _, d := range dirs[1:] {
		if rnd.Intn(3) == 0 {
			_ = os.Chmod(d, os.FileMode(rnd.Intn(0o1000)))
		}
	}
	if err := RemoveTree(dir); err != nil || present(dir) != 0 {
		t.Fatalf("seed %d: %v", seed, err)
	}
	kept(t, outside)
}

// TestWhatTookTooLongIsNotTriedAgain: not in the same sweep.
func TestWhatTookTooLongIsNotTriedAgain(t *testing.T) {
	asked := map[string]int{}
	sweepMarks([]Mark{{Kind: "a", Path: "/long"}, {Kind: "a", Path: "/busy"}, {Kind: "a", Path: "/gone"}}, func(m Mark) error {
		asked[m.Path]++
		return map[string]error{"/long": fmt.Errorf("removing: %w", errTooLong), "/busy": errors.New("busy")}[m.Path]
	})
	if asked["/long"] != 1 || asked["/busy"] != 2 || asked["/gone"] != 1 {
		t.Errorf("tried %v", asked)
	}
}
