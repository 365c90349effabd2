//go:build linux || darwin

package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the symbolic links of one path, as the kernel does
// (path_resolution(7)).
const maxLinks = 40

// info is what is asked of an inode, with the same types on every system.
type info struct {
	dev, ino, links uint64
	mode            uint32
	uid, gid        uint32
}

func (i info) kind() uint32         { return i.mode & unix.S_IFMT }
func (i info) same(other info) bool { return i.dev == other.dev && i.ino == other.ino }

func toInfo(st *unix.Stat_t) info {
	return info{dev: uint64(st.Dev), ino: st.Ino, links: uint64(st.Nlink), mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid}
}

func fstat(fd int) (info, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(fd, &st) })
	return toInfo(&st), err
}

// lstatAt looks at an entry of a directory, and not behind a link.
func lstatAt(dir int, name string) (info, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return toInfo(&st), err
}

// retry calls again what a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// splitPath checks the form of a socket's path, and returns its directory and
// its name there.
func splitPath(path string) (dir, name string, err error) {
	switch {
	case !filepath.IsAbs(path):
		return "", "", errors.New("the path is not absolute")
	case strings.ContainsRune(path, 0):
		return "", "", errors.New("a NUL in the path")
	case strings.HasSuffix(path, "/"):
		return "", "", errors.New("the path names a directory")
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." || part == "." { // ".." behind a link is elsewhere than it looks
			return "", "", fmt.Errorf("%q in the path", part)
		}
	}
	return filepath.Dir(path), filepath.Base(path), nil
}

// walker goes down a path by handles. What it has checked cannot be exchanged
// behind it, as each step starts from the directory that was looked at.
type walker struct {
	op   string
	euid uint32
	mode Mode // System: the directories above must be root's alone
	// making makes the last component if it is missing.
	making func(parent int, name string) error
}

// open returns a handle on the directory at path. Every directory above must
// belong to root or to this user and not be open to others' renames. Links above
// are followed if root or this user made them; the last component is no link.
func (w *walker) open(path string) (fd int, err error) {
	at := "/"
	dir, err := openAt(unix.AT_FDCWD, at, searchFlags, 0)
	if err != nil {
		return -1, &Error{Op: w.op, Path: at, Err: err}
	}
	defer func() {
		if err != nil {
			_ = unix.Close(dir)
		}
	}()
	rest := parts(path)
	if len(rest) == 0 {
		return -1, &Error{Op: w.op, Path: path, Err: ErrUntrusted, Hint: "the root directory is no place for a socket"}
	}
	for links := 0; len(rest) > 0; {
		name, last := rest[0], len(rest) == 1
		rest = rest[1:]
		if err := w.above(dir, at); err != nil {
			return -1, err
		}
		next, err := openAt(dir, name, searchFlags, 0)
		if last && w.making != nil && err == unix.ENOENT {
			if err := w.making(dir, name); err != nil {
				return -1, &Error{Op: w.op, Path: filepath.Join(at, name), Err: fmt.Errorf("making the directory: %w", err)}
			}
			next, err = openAt(dir, name, searchFlags, 0)
		}
		if err == nil {
			_ = unix.Close(dir)
			dir, at = next, filepath.Join(at, name)
			continue
		}
		full := filepath.Join(at, name)
		target, isLink := w.link(dir, name)
		switch {
		case isLink == nil && last:
			return -1, &Error{Op: w.op, Path: full, Err: fmt.Errorf("%w: the socket's directory is a symbolic link", ErrUntrusted), Hint: "name the directory itself"}
		case isLink == nil && links >= maxLinks:
			return -1, &Error{Op: w.op, Path: full, Err: unix.ELOOP}
		case isLink == nil:
			links++
			rest = append(parts(target), rest...)
			if filepath.IsAbs(target) {
				root, err := openAt(unix.AT_FDCWD, "/", searchFlags, 0)
				if err != nil {
					return -1, &Error{Op: w.op, Path: "/", Err: err}
				}
				_ = unix.Close(dir)
				dir, at = root, "/"
			}
		case errors.Is(isLink, ErrUntrusted):
			return -1, &Error{Op: w.op, Path: full, Err: isLink, Hint: "name the directory without the link"}
		case errors.Is(err, fs.ErrNotExist) && w.making != nil:
			return -1, &Error{Op: w.op, Path: full, Err: err, Hint: "only the last directory is made; make those above it"}
		case err == unix.ENOTDIR:
			return -1, &Error{Op: w.op, Path: full, Err: err, Hint: "the socket's directory must be a directory"}
		default:
			return -1, &Error{Op: w.op, Path: full, Err: err}
		}
	}
	return dir, nil
}

// parts are the names in a path. ".." stays: it is of a link's target, and is
// looked up in the directory where the link is.
func parts(path string) []string {
	var all []string
	for part := range strings.SplitSeq(path, "/") {
		if part != "" && part != "." {
			all = append(all, part)
		}
	}
	return all
}

// link returns where a symbolic link leads: nil if it is one that may be
// followed. Who makes a link decides where it leads, then and later.
func (w *walker) link(dir int, name string) (string, error) {
	st, err := lstatAt(dir, name)
	if err != nil {
		return "", err
	}
	if st.kind() != unix.S_IFLNK {
		return "", unix.EINVAL
	}
	if !w.trusts(st.uid) {
		return "", fmt.Errorf("%w: a symbolic link of user %d", ErrUntrusted, st.uid)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (w *walker) trusts(uid uint32) bool { return uid == 0 || uid == w.euid && w.mode == User }

// above judges a directory on the way: whoever may rename in it, or owns it, can
// put another directory in the place of the socket's.
func (w *walker) above(fd int, path string) error {
	st, err := fstat(fd)
	if err != nil {
		return &Error{Op: w.op, Path: path, Err: err}
	}
	sticky := st.mode&unix.S_ISVTX != 0 // only the owners of entries rename them
	var why string
	switch {
	case !w.trusts(st.uid):
		why = fmt.Sprintf("it belongs to user %d, who can replace what is in it", st.uid)
	case st.mode&0o002 != 0 && !sticky:
		why = fmt.Sprintf("mode %04o lets everybody replace what is in it", st.mode&0o7777)
	case st.mode&0o020 != 0 && !sticky && w.mode == System && !rootsGroup(st.gid):
		why = fmt.Sprintf("mode %04o lets group %d replace what is in it", st.mode&0o7777, st.gid)
	default:
		return nil
	}
	return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: %s", ErrUntrusted, why), Hint: "choose a directory below one of your own or of root's"}
}

// place is a socket's directory, opened once: everything is done by its handle.
type place struct {
	fd   int
	path string // of the socket, for people
	name string // of the socket in the directory
}

func (p *place) close() { _ = unix.Close(p.fd) }

// openPlace opens the directory that a daemon listens in, and makes it if it is
// missing.
func openPlace(path string, mode Mode, gid int) (*place, error) {
	dir, name, err := splitPath(path)
	if err != nil {
		return nil, &Error{Op: "listen", Path: path, Err: err}
	}
	w := walker{op: "listen", euid: uint32(os.Geteuid()), mode: mode, making: func(parent int, name string) error {
		return makeDir(parent, name, mode, gid)
	}}
	fd, err := w.open(dir)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		unfinished := w.unfinished(fd) // before the judgement: it may be finished in between
		if err = w.own(fd, dir, gid); err == nil || !unfinished || try >= 10 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &place{fd, path, name}, nil
}

// unfinished tells whether another daemon may be about to give a new directory
// its mode.
func (w *walker) unfinished(fd int) bool {
	st, err := fstat(fd)
	return err == nil && st.uid == w.euid && st.mode&0o077 == 0
}

// makeDir makes a private directory, and then gives it to the group: no moment
// sees it more open than it will be.
func makeDir(parent int, name string, mode Mode, gid int) error {
	err := retry(func() error { return unix.Mkdirat(parent, name, 0o700) })
	if err == unix.EEXIST { // another daemon of this user: what it made is judged like any other
		return nil
	}
	if err != nil {
		return err
	}
	perm := uint32(0o700)
	if mode == System {
		if err := unix.Fchownat(parent, name, 0, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		perm = 0o710
	}
	// The umask may have taken our own bits. The directory is ours, and only we or
	// root can rename it in a parent that passed.
	return chmodAt(parent, name, perm)
}

// own judges the socket's own directory.
func (w *walker) own(fd int, path string, gid int) error {
	st, err := fstat(fd)
	if err != nil {
		return &Error{Op: w.op, Path: path, Err: err}
	}
	perm := st.mode & 0o7777 &^ unix.S_ISGID // which directories inherit
	if w.mode == User {
		switch {
		case st.uid != w.euid:
			return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: the directory belongs to user %d", ErrUntrusted, st.uid), Hint: fmt.Sprintf("it must be user %d's own", w.euid)}
		case perm&0o077 != 0 || perm&0o700 != 0o700:
			return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: the directory has mode %04o", ErrUntrusted, perm), Hint: fmt.Sprintf("chmod 0700 %s", quote(path))}
		}
		return nil
	}
	if st.uid != 0 || st.gid != uint32(gid) || perm != 0o710 && perm != 0o750 {
		return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: the directory is %d:%d with mode %04o", ErrUntrusted, st.uid, st.gid, perm),
			Hint: fmt.Sprintf("chown 0:%d %s && chmod 0710 %[2]s", gid, quote(path))}
	}
	return nil
}

// quote makes a word for a shell of a path in a hint.
func quote(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// kindName is what people call a kind of file.
func kindName(st info) string {
	switch st.kind() {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}
