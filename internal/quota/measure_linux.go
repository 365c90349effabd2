package quota

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is directories whose contents are counted. A worker that means to hide
// can: a file that was deleted and is still open is in no directory, and one
// whose directory cannot be listed is not found.
type Tree struct {
	size  int64
	roots []int
}

// Measure opens directories that may hold size bytes together.
func Measure(size int64, dirs ...string) (*Tree, error) {
	t := &Tree{size: size}
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Close()
			return nil, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		t.roots = append(t.roots, fd)
	}
	return t, nil
}

// Close closes the handles.
func (t *Tree) Close() {
	for _, fd := range t.roots {
		_ = unix.Close(fd)
	}
	t.roots = nil
}

const (
	// lookTime bounds one look; what was counted until then is what was seen.
	lookTime = time.Second
	// maxDepth bounds the handles that one look holds.
	maxDepth = 256
)

// Look counts what the directories hold, as far as it must: it ends where the
// answer is plain.
func (t *Tree) Look() Look {
	w := walk{size: t.size, until: time.Now().Add(lookTime), buf: make([]byte, 16<<10)}
	for _, fd := range t.roots {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			w.seen.Cut = true
			continue
		}
		w.dev = uint64(st.Dev)
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			w.seen.Cut = true
			continue
		}
		w.directory(fd, 1)
	}
	return w.seen
}

// walk is one look.
type walk struct {
	seen   Look
	names  int // looked at, counted or not
	size   int64
	until  time.Time
	late   bool
	dev    uint64 // other file systems are not the worker's
	linked map[[2]uint64]bool
	buf    []byte
}

func (w *walk) directory(fd, depth int) {
	var below []string
	for {
		n, err := unix.ReadDirent(fd, w.buf)
		if err != nil {
			w.failed(err)
		}
		if n <= 0 {
			break
		}
		_, _, names := unix.ParseDirent(w.buf[:n], -1, nil)
		for _, name := range names {
			if w.enough() {
				return
			}
			if w.file(fd, name) {
				below = append(below, name)
			}
		}
	}
	for _, name := range below {
		if w.enough() {
			return
		}
		if depth == maxDepth {
			w.seen.Cut = true
			return
		}
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			w.failed(err)
			continue
		}
		w.directory(sub, depth+1)
		_ = unix.Close(sub)
	}
}

// file counts one name, and tells whether it is a directory to look into.
func (w *walk) file(dir int, name string) (isDir bool) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		w.failed(err)
		return false
	}
	isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir && uint64(st.Dev) != w.dev {
		return false
	}
	if !isDir && st.Nlink > 1 { // a file of several names is there once
		id := [2]uint64{uint64(st.Dev), st.Ino}
		if w.linked[id] {
			return false
		}
		if w.linked == nil {
			w.linked = map[[2]uint64]bool{}
		}
		w.linked[id] = true
	}
	w.seen.Files++
	w.seen.Bytes += st.Blocks * 512 // stat(2): whatever the file system's blocks are
	return isDir
}

// failed: what has gone or has been replaced meanwhile holds nothing.
func (w *walk) failed(err error) {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		w.seen.Cut = true
	}
}

// enough tells that looking on would change nothing, or takes too long.
func (w *walk) enough() bool {
	if w.names++; w.names%64 == 0 && time.Now().After(w.until) {
		w.late, w.seen.Cut = true, true
	}
	return w.late || w.seen.Far(w.size)
}
