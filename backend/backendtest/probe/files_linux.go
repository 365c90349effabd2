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
		"create":            {1, opener(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, true), shared},
		"append":            {1, opener(unix.O_WRONLY|unix.O_APPEND, true), shared},
		"overwrite":         {1, opener(unix.O_WRONLY, true), shared},
		"read-write":        {1, opener(unix.O_RDWR, true), shared},
		"open-truncate":     {1, opener(unix.O_WRONLY|unix.O_TRUNC, false), shared},
		"readonly-truncate": {1, opener(unix.O_RDONLY|unix.O_TRUNC, false), shared},
		"openable-write":    {1, opener(unix.O_WRONLY, false), shared},
		"open-rdwr":         {1, opener(unix.O_RDWR|unix.O_NOCTTY, false), shared},
		"openat2-create":    {1, openat2(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, true), shared},
		"openat2-write":     {1, openat2(unix.O_WRONLY, true), shared},
		"openat2-truncate":  {1, openat2(unix.O_RDONLY|unix.O_TRUNC, false), shared},
		"truncate":          {1, plain(func(p string) error { return unix.Truncate(p, 0) }), shared},
		"dirfd-overwrite":   {2, dirfdOverwrite, shared},
		"reopen-overwrite":  {2, reopenOverwrite, shared},
		"tmpfile-link":      {2, tmpfileLink, shared},
		"copy-range":        {2, copyRange, shared},
		"sendfile":          {2, sendfile, shared},
		"fallocate":         {1, fallocate, shared},
		"splice":            {1, spliceInto, shared},

		// Names.
		"unlink":         {1, plain(unix.Unlink), shared},
		"rmdir":          {1, plain(unix.Rmdir), shared},
		"mkdir":          {1, plain(func(p string) error { return unix.Mkdir(p, 0o755) }), shared},
		"mkfifo":         {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFIFO|0o644, 0) }), shared},
		"mksock":         {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o644, 0) }), shared},
		"mkreg":          {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFREG|0o644, 0) }), shared},
		"mkchr":          {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))) }), shared},
		"mkblk":          {1, plain(func(p string) error { return unix.Mknod(p, unix.S_IFBLK|0o644, int(unix.Mkdev(7, 0))) }), shared},
		"symlink":        {2, plain2(unix.Symlink), shared},
		"link":           {2, plain2(unix.Link), shared},
		"rename":         {2, plain2(unix.Rename), shared},
		"exchange":       {2, renamer(unix.RENAME_EXCHANGE), shared},
		"whiteout":       {2, renamer(unix.RENAME_WHITEOUT), shared},
		"link-overwrite": {2, linkOverwrite, shared},
		"link-read":      {2, linkRead, shared},

		// What Landlock does not govern.
		"chmod":    {1, plain(func(p string) error { return unix.Chmod(p, 0o604) }), shared},
		"chown":    {1, plain(func(p string) error { return unix.Lchown(p, os.Getuid(), os.Getgid()) }), shared},
		"utimes":   {1, plain(func(p string) error { return unix.Utimes(p, []unix.Timeval{{Sec: 1}, {Sec: 1}}) }), shared},
		"setxattr": {1, plain(func(p string) error { return unix.Setxattr(p, "user.sbx", []byte("x"), 0) }), shared},
		"stat":     {1, plain(func(p string) error { return unix.Stat(p, new(unix.Stat_t)) }), shared},
		"chdir":    {1, plain(unix.Chdir), alone},

		// Reading.
		"read":        {1, readFile, shared},
		"read-dirfd":  {2, readDirfd, shared},
		"read-reopen": {2, readReopen, shared},
		"readdir":     {1, readDir, shared},
		"readlink":    {1, readLink, shared},
		"mmap":        {1, mmapFile, shared},
		"exec":        {1, execFile, alone},
		"execveat":    {1, execveat, alone},
		"inotify":     {1, inotify, shared},
		"readable": {1, plain(func(p string) error {
			return closing(unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0))
		}), shared},
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

// execFile runs a program that ends by itself: this one lists its attempts, and
// true(1) does not care.
func execFile(a []string) (string, error) {
	return "", exec.Command(a[0], "-ops").Run()
}

// execveat runs a program by handle, without a path.
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
