//go:build unix

package logfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// File is a sink that begins a new file when one is full: PATH is written, PATH.1 is
// the one before it, and so on. Its directory is opened once.
type File struct {
	path string
	dir  *os.File
	name string
	max  int64
	keep int

	file *os.File
	size int64
}

// OpenFile opens the file at path, or makes it with mode 0600. max is the size in bytes
// at which the next begins, keep how many full ones stay. It is an error if the file is
// not a regular one of this user that nobody else can write, or if others could put
// another in its place.
func OpenFile(path string, max int64, keep int) (*File, error) {
	if max < 1 || keep < 1 {
		return nil, fmt.Errorf("log file %q: a size of %d and %d old ones", path, max, keep)
	}
	dir, name := filepath.Split(filepath.Clean(path))
	if dir == "" {
		dir = "."
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "opening the directory of the log", Path: dir, Err: err}
	}
	f := &File{path: path, dir: os.NewFile(uintptr(fd), dir), name: name, max: max, keep: keep}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		err = &os.PathError{Op: "fstat", Path: dir, Err: err}
		return nil, errors.Join(err, f.dir.Close())
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		_ = f.dir.Close()
		return nil, fmt.Errorf("log file %q: others than root and this user can write to its directory", path)
	}
	if err := f.open(); err != nil {
		_ = f.dir.Close()
		return nil, err
	}
	return f, nil
}

func (f *File) open() error {
	// O_NONBLOCK: a FIFO would wait for its other end.
	fd, err := unix.Openat(int(f.dir.Fd()), f.name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "opening the log", Path: f.path, Err: err}
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || st.Nlink != 1) {
		err = errors.New("no regular file of this user with one name that nobody else can write")
	}
	if err != nil {
		_ = unix.Close(fd)
		return &os.PathError{Op: "opening the log", Path: f.path, Err: err}
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.size = os.NewFile(uintptr(fd), f.path), st.Size
	return nil
}

// Reopen opens the file at the path, which may be another one by now. On an error the
// one that is open stays.
func (f *File) Reopen() error { return f.open() }

// Write appends a line, whole or not at all.
func (f *File) Write(line []byte) (int, error) {
	if f.size > 0 && f.size+int64(len(line)) > f.max {
		f.rotate()
	}
	n, err := f.file.Write(line)
	if err != nil {
		if n > 0 { // half a line is none
			if unix.Ftruncate(int(f.file.Fd()), f.size) != nil {
				f.size += int64(n)
			}
		}
		return 0, err
	}
	f.size += int64(n)
	return n, nil
}

// rotate moves the files on. Where one cannot be moved, the one that is open goes on.
func (f *File) rotate() {
	at := int(f.dir.Fd())
	old := func(i int) string {
		if i == 0 {
			return f.name
		}
		return f.name + "." + strconv.Itoa(i)
	}
	for i := f.keep - 1; i >= 0; i-- {
		if err := unix.Renameat(at, old(i), at, old(i+1)); err != nil && err != unix.ENOENT {
			return
		}
	}
	_ = f.open()
}

// Close closes the file.
func (f *File) Close() error { return errors.Join(f.file.Close(), f.dir.Close()) }
