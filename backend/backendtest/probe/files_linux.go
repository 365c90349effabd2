package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mark is what attempts write, so that a trace of them is known by its text.
const mark = "written by the probe\n"

func init() {
	register(map[string]op{
		// Opening for writing, in every form.
		"create":            {1, opener(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, true)},
		"append":            {1, opener(unix.O_WRONLY|unix.O_APPEND, true)},
		"overwrite":         {1, opener(unix.O_WRONLY, true)},
		"read-write":        {1, opener(unix.O_RDWR, true)},
		"open-truncate":     {1, opener(unix.O_WRONLY|unix.O_TRUNC, false)},
		"readonly-truncate": {1, opener(unix.O_RDONLY|unix.O_TRUNC, false)},
		"openable-write":    {1, opener(unix.O_WRONLY, false)},
		"open-rdwr":         {1, opener(unix.O_RDWR|unix.O_NOCTTY, false)},
		"openat2-create":    {1, openat2(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, true)},
		"openat2-write":     {1, openat2(unix.O_WRONLY, true)},
		"openat2-truncate":  {1, openat2(unix.O_RDONLY|unix.O_TRUNC, false)},
		"truncate":          {1, plain(func(p string) error { return unix.Truncate(p, 0) })},
		"dirfd-overwrite":   {2, dirfdOverwrite},
		"reopen-overwrite":  {2, reopenOverwrite},
		"tmpfile-link":      {2, tmpfileLink},
		"copy-range":        {2, copyRange},
		"sendfile":          {2, sendfile},
		"fallocate":         {1, fallocate},
		"splice":            {1, spliceInto},

		// Names.
		"unlink":         {1, plain(unix.Unlink)},
		"rmdir":          {1, plain(unix.Rmdir)},
		"mkdir":          {1, plain(func(p string) error { return unix.Mkdir(p, 0o755) })},
		"mkfifo":         {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFIFO|0o644, 0) })},
		"mksock":         {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o644, 0) })},
		"mkreg":          {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFREG|0o644, 0) })},
		"mkchr":          {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))) })},
		"mkblk":          {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFBLK|0o644, int(unix.Mkdev(7, 0))) })},
		"symlink":        {2, plain2(unix.Symlink)},
		"link":           {2, plain2(unix.Link)},
		"rename":         {2, plain2(unix.Rename)},
		"exchange":       {2, renamer(unix.RENAME_EXCHANGE)},
		"whiteout":       {2, renamer(unix.RENAME_WHITEOUT)},
		"link-overwrite": {2, linkOverwrite},
		"link-read":      {2, linkRead},

		// What Landlock does not govern.
		"chmod":    {1, plain(func(p string) error { return unix.Chmod(p, 0o604) })},
		"chown":    {1, plain(func(p string) error { return unix.Lchown(p, os.Getuid(), os.Getgid()) })},
		"utimes":   {1, plain(func(p string) error { return unix.Utimes(p, []unix.Timeval{{Sec: 1}, {Sec: 1}}) })},
		"setxattr": {1, plain(func(p string) error { return unix.Setxattr(p, "user.sbx", []byte("x"), 0) })},
		"stat":     {1, plain(func(p string) error { return unix.Stat(p, new(unix.Stat_t)) })},
		"chdir":    {1, plain(unix.Chdir)},

		// Reading.
		"read":        {1, readFile},
		"read-dirfd":  {2, readDirfd},
		"read-reopen": {2, readReopen},
		"readdir":     {1, readDir},
		"readlink":    {1, readLink},
		"mmap":        {1, mmapFile},
		"exec":        {1, execFile},
		"execveat":    {1, execveat},
		"inotify":     {1, inotify},
		"readable": {1, plain(func(p string) error {
			return closing(unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0))
		})},
	})
}

// plain wraps a call on one path.
func plain(call func(string) error) func([]string) (string, error) {
	return func(a []string) (string, error) { return "", call(a[0]) }
}

func plain2(call func(string, string) error) func([]string) (string, error) {
	return func(a []string) (string, error) { return "", call(a[0], a[1]) }
}

func closing(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// opener opens and, if asked to, writes the mark.
func opener(flags int, write bool) func([]string) (string, error) {
	return func(a []string) (string, error) {
		fd, err := unix.Open(a[0], flags|unix.O_CLOEXEC, 0o644)
		return "", writing(fd, err, write)
	}
}

func openat2(flags int, write bool) func([]string) (string, error) {
	return func(a []string) (string, error) {
		how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC)}
		if flags&unix.O_CREAT != 0 {
			how.Mode = 0o644
		}
		fd, err := unix.Openat2(unix.AT_FDCWD, a[0], &how)
		return "", writing(fd, err, write)
	}
}

func writing(fd int, err error, write bool) error {
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if write {
		_, err = unix.Write(fd, []byte(mark))
	}
	return err
}

func renamer(flags uint) func([]string) (string, error) {
	return plain2(func(a, b string) error {
		return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, flags)
	})
}

// handle opens a path without any access, which Landlock does not check.
func handle(path string) (int, error) {
	return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
}

func dirfdOverwrite(a []string) (string, error) {
	dir, err := handle(a[0])
	if err != nil {
		return "", fmt.Errorf("a handle: %w", err)
	}
	fd, err := unix.Openat(dir, a[1], unix.O_WRONLY|unix.O_CLOEXEC, 0)
	return "", writing(fd, err, true)
}

// descriptorPath is the name of an open descriptor: "/proc/self/fd" and "/dev/fd".
func descriptorPath(prefix string, fd int) string { return prefix + "/" + strconv.Itoa(fd) }

func reopenOverwrite(a []string) (string, error) {
	h, err := handle(a[1])
	if err != nil {
		return "", fmt.Errorf("a handle: %w", err)
	}
	fd, err := unix.Open(descriptorPath(a[0], h), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	return "", writing(fd, err, true)
}

func readReopen(a []string) (string, error) {
	h, err := handle(a[1])
	if err != nil {
		return "", fmt.Errorf("a handle: %w", err)
	}
	return readFile([]string{descriptorPath(a[0], h)})
}

func readDirfd(a []string) (string, error) {
	dir, err := handle(a[0])
	if err != nil {
		return "", fmt.Errorf("a handle: %w", err)
	}
	fd, err := unix.Openat(dir, a[1], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return readFrom(fd, err)
}

// tmpfileLink makes a file without a name in one place and names it in another.
func tmpfileLink(a []string) (string, error) {
	fd, err := unix.Open(a[0], unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(mark)); err != nil {
		return "", err
	}
	return "", unix.Linkat(unix.AT_FDCWD, descriptorPath("/proc/self/fd", fd), unix.AT_FDCWD, a[1], unix.AT_SYMLINK_FOLLOW)
}

// both opens a source for reading and a target for writing.
func both(src, dst string) (in, out int, err error) {
	if in, err = unix.Open(src, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, fmt.Errorf("the source: %w", err)
	}
	out, err = unix.Open(dst, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	return in, out, err
}

func copyRange(a []string) (string, error) {
	in, out, err := both(a[0], a[1])
	if err != nil {
		return "", err
	}
	_, err = unix.CopyFileRange(in, nil, out, nil, 4, 0)
	return "", err
}

func sendfile(a []string) (string, error) {
	in, out, err := both(a[0], a[1])
	if err != nil {
		return "", err
	}
	_, err = unix.Sendfile(out, in, nil, 4)
	return "", err
}

func fallocate(a []string) (string, error) {
	fd, err := unix.Open(a[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return "", unix.Fallocate(fd, 0, 0, 4096)
}

func spliceInto(a []string) (string, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return "", err
	}
	if _, err := unix.Write(pipe[1], []byte(mark)); err != nil {
		return "", err
	}
	fd, err := unix.Open(a[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	_, err = unix.Splice(pipe[0], nil, fd, nil, len(mark), 0)
	return "", err
}

// linkOverwrite gives a file a second name and writes through that one.
func linkOverwrite(a []string) (string, error) {
	if err := unix.Link(a[0], a[1]); err != nil {
		return "", err
	}
	fd, err := unix.Open(a[1], unix.O_WRONLY|unix.O_CLOEXEC, 0)
	return "", writing(fd, err, true)
}

func linkRead(a []string) (string, error) {
	if err := unix.Link(a[0], a[1]); err != nil {
		return "", err
	}
	return readFile(a[1:])
}

func readFile(a []string) (string, error) {
	return readFrom(unix.Open(a[0], unix.O_RDONLY|unix.O_CLOEXEC, 0))
}

// readFrom returns the beginning of what a descriptor has. The result goes
// into the detail, where the suite looks for what must not be there.
func readFrom(fd int, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func readDir(a []string) (string, error) {
	fd, err := unix.Open(a[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 8192)
	n, err := unix.ReadDirent(fd, buf)
	if err != nil {
		return "", err
	}
	_, _, names := unix.ParseDirent(buf[:n], -1, nil)
	return strings.Join(names, " "), nil
}

func readLink(a []string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Readlink(a[0], buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func mmapFile(a []string) (string, error) {
	fd, err := unix.Open(a[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 16, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		return "", err
	}
	return string(m), nil
}

// execFile runs a program that ends by itself.
func execFile(a []string) (string, error) {
	cmd := exec.Command(a[0])
	out, err := cmd.Output()
	return string(out), err
}

// execveat runs a program by handle, without a path. It replaces this process,
// so success is told by the program's exit and not by a result.
func execveat(a []string) (string, error) {
	h, err := unix.Open(a[0], unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("a handle: %w", err)
	}
	return execFile([]string{descriptorPath("/proc/self/fd", h)})
}

func inotify(a []string) (string, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return "", err
	}
	_, err = unix.InotifyAddWatch(fd, a[0], unix.IN_MODIFY)
	return "", err
}
