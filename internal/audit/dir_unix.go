//go:build unix

package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dir is a log's directory, open: files are reached through it, whatever becomes
// of the path.
type dir struct {
	path     string
	file     *os.File
	lockFile *os.File
}

// openDir opens a log's directory. A writer's is made if it is missing, and must
// be its own: whoever else could write there could put any file in its place.
func openDir(path string, write bool) (*dir, error) {
	if path == "" {
		return nil, &Error{Msg: "no directory is named for the audit log", Hint: "name one"}
	}
	// Absolute, as it is looked at again later; and "link/" would be followed.
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &Error{Msg: "finding the audit log's directory", Hint: "name it by an absolute path", Err: err}
	}
	open := func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	fd, err := open()
	if write && errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(path, 0o700); err == nil {
			fd, err = open()
		}
	}
	if err != nil {
		hint := "name the directory of an audit log that you can read, and no symbolic link to it"
		if write {
			hint = "name a directory that you can write, and no symbolic link to it"
		}
		return nil, &Error{Msg: fmt.Sprintf("opening the audit log's directory %q", path), Hint: hint, Err: err}
	}
	d := &dir{path: path, file: os.NewFile(uintptr(fd), path)}
	if !write {
		return d, nil
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0) {
		err = errors.New("it belongs to another user, or others can write to it")
	}
	if err != nil {
		d.close()
		return nil, &Error{Msg: fmt.Sprintf("the directory %q is not safe for an audit log", path), Hint: "make it yours, with mode 0700", Err: err}
	}
	return d, nil
}

func (d *dir) close() {
	_ = d.file.Close()
	if d.lockFile != nil {
		_ = d.lockFile.Close()
	}
}

// exposed tells whether others than its owner can write to the directory.
func (d *dir) exposed() bool {
	var st unix.Stat_t
	return unix.Fstat(int(d.file.Fd()), &st) == nil && st.Mode&0o022 != 0
}

// openat opens a regular file in the directory, and no link to one.
func (d *dir) openat(name string, flags int) (*os.File, error) {
	path := filepath.Join(d.path, name)
	// O_NONBLOCK: a FIFO must not hang the opener before it is refused.
	fd, err := unix.Openat(int(d.file.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.New("it is no regular file")
	case flags&unix.O_ACCMODE != unix.O_RDONLY && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || st.Nlink != 1):
		err = errors.New("it belongs to another user, others can write to it, or it has another name")
	}
	if err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

func (d *dir) openRead(name string) (*os.File, error) { return d.openat(name, unix.O_RDONLY) }

// openAppend opens a segment to read and append; a new one must not be there.
func (d *dir) openAppend(name string, create bool) (*os.File, error) {
	flags := unix.O_RDWR | unix.O_APPEND
	if create {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	return d.openat(name, flags)
}

func (d *dir) remove(name string) error {
	if err := unix.Unlinkat(int(d.file.Fd()), name, 0); err != nil {
		return &os.PathError{Op: "remove", Path: filepath.Join(d.path, name), Err: err}
	}
	return nil
}

// sync writes the directory's names to the disk.
func (d *dir) sync() error { return d.file.Sync() }

// segments are the numbers of the segments that are there, ascending.
func (d *dir) segments() ([]int, error) {
	// A new descriptor: this one's position is shared by whoever else lists.
	fd, err := unix.Openat(int(d.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.path, Err: err}
	}
	list := os.NewFile(uintptr(fd), d.path)
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		if n := segmentNumber(name); n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// lock takes the right to write. flock(2) lets go of it when the process ends,
// however it ends.
func (d *dir) lock() error {
	f, err := d.openat(lockName, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return &Error{Msg: "opening the audit log's lock", Hint: "make the directory and what is in it yours, with no links", Err: err}
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return &Error{Msg: fmt.Sprintf("locking the audit log in %q", d.path), Hint: "put it on a file system that has locks", Err: err}
		}
		holder := "another process"
		var b [16]byte
		n, _ := f.ReadAt(b[:], 0)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
			holder = fmt.Sprintf("process %d", pid)
		}
		return &Error{Msg: fmt.Sprintf("%s writes the audit log in %q", holder, d.path), Hint: "end it first, or name another directory: a log has one writer"}
	}
	// For the message above; the lock is what counts.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	d.lockFile = f
	return nil
}

// check tells whether the segment and the lock are still what this process
// opened, where it opened them, and the segment is as long as it left it.
func (d *dir) check(segment *os.File, name string, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(segment.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: segment.Name(), Err: err}
	}
	if st.Size != size {
		return fmt.Errorf("%s has %d bytes and was left with %d: somebody else cut or wrote it", name, st.Size, size)
	}
	if err := d.same(int(d.file.Fd()), name, segment); err != nil {
		return err
	}
	if err := d.same(int(d.file.Fd()), lockName, d.lockFile); err != nil {
		return err
	}
	return d.same(unix.AT_FDCWD, d.path, d.file)
}

// same tells whether a path leads to an open file.
func (d *dir) same(at int, path string, f *os.File) error {
	var there, mine unix.Stat_t
	if err := unix.Fstatat(at, path, &there, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Fstat(int(f.Fd()), &mine); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if there.Dev != mine.Dev || there.Ino != mine.Ino {
		return fmt.Errorf("%q is another file than the one that was opened", path)
	}
	return nil
}

// writeOnce is one write(2), so that the bytes are in one place; it can be short.
func writeOnce(f *os.File, b []byte) (int, error) {
	for {
		n, err := unix.Write(int(f.Fd()), b)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				err = &os.PathError{Op: "write", Path: f.Name(), Err: err}
			}
			return max(n, 0), err
		}
	}
}
