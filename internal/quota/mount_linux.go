package quota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/mounts"
	"sandboxd/internal/scratch"
	"sandboxd/internal/sys"
)

// Probe asks the kernel what it lets this process do, and changes nothing: what
// is tried is tried in a mount namespace that is gone afterwards.
func Probe() Host {
	h := Host{Measures: true}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		h.Memory = int64(uint64(info.Totalram) * uint64(info.Unit))
	}
	if !sys.HaveCapability(unix.CAP_SYS_ADMIN) {
		h.Why, h.Fix = "this process may not mount", "run it as root"
		return h
	}
	if err := tryMount(); err != nil {
		h.Why, h.Fix = fmt.Sprintf("this process may not mount: %v", err), "allow mounts where it is confined itself"
		return h
	}
	h.Mounts = true
	return h
}

// tryMount takes every step of a mount: a container's filter may refuse the
// first, and a security module the last alone.
func tryMount() error {
	answer := make(chan error, 1)
	sys.OnOwnThread(func() {
		answer <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("a mount namespace: %w", err)
			}
			// Until it is private, what is mounted here reaches where it is
			// copied from (mount_namespaces(7)).
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("private mounts: %w", err)
			}
			fd, err := newFS("sbx", 1<<20, os.Geteuid(), os.Getegid())
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			root, err := sys.OpenReal("/")
			if err != nil {
				return err
			}
			defer root.Close()
			return attach(fd, root)
		}()
	})
	return <-answer
}

// newFS makes a tmpfs that is mounted nowhere yet, and returns a handle to its
// root (fsopen(2), fsconfig(2), fsmount(2): Linux 5.2). It has gone when the
// handle is closed before it is attached.
func newFS(source string, size int64, uid, gid int) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("opening tmpfs: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{
		{"source", source},
		{"size", strconv.FormatInt(size, 10)},
		{"nr_inodes", strconv.FormatInt(MaxFiles(size), 10)},
		{"mode", "0700"},
		{"uid", strconv.Itoa(uid)},
		{"gid", strconv.Itoa(gid)},
	} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("tmpfs: %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("making a tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("mounting a tmpfs: %w", err)
	}
	return fd, nil
}

// attach mounts it on a directory, by handle: what was put in the directory's
// place meanwhile is not mounted on (move_mount(2)).
func attach(fd int, dir *os.File) error {
	if err := unix.MoveMount(fd, "", int(dir.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attaching a tmpfs: %w", err)
	}
	return nil
}

// FS is a file system of its own for one worker's private directories, mounted
// on a directory that only the worker's user can enter.
type FS struct {
	dir  string
	root int // a handle: the mount is busy as long as it is open
}

// Mount makes a private directory below base and mounts a tmpfs there that holds
// size bytes and [MaxFiles] files, and belongs to a user. A lease lists both
// before they are made, so that the next launcher finds them: see [RemoveLeft].
//
// The mount is seen in the whole mount namespace, and in those that get its
// mounts (mount_namespaces(7)); it leaves them when it is unmounted here. Itself
// it is made private: what others mounted inside theirs would stand in ours.
func Mount(base string, size int64, uid, gid int) (_ *FS, err error) {
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return nil, err
	}
	f := &FS{root: -1}
	if f.dir, err = scratch.Mine().Mkdir(base); err != nil {
		return nil, err
	}
	scratch.Mine().Add(scratch.Mark{Kind: KindMount, Path: markPath(f.dir)})
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Remove())
		}
	}()
	target, err := sys.OpenReal(f.dir)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	if f.root, err = newFS(filepath.Base(f.dir), size, uid, gid); err != nil {
		return nil, err
	}
	if err := attach(f.root, target); err != nil {
		return nil, err
	}
	// Linux 5.12. Nobody but root can mount there, so it is no condition.
	_ = unix.MountSetattr(f.root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	return f, nil
}

// Dir is where the file system is mounted.
func (f *FS) Dir() string { return f.dir }

// Mkdir makes a directory of mode 0700 in its root, for a user, and returns its
// path and a handle (O_PATH) to it.
func (f *FS) Mkdir(name string, uid, gid int) (path string, handle *os.File, err error) {
	path = filepath.Join(f.dir, name)
	if err := unix.Mkdirat(f.root, name, 0o700); err != nil {
		return "", nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := unix.Fchownat(f.root, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", nil, &os.PathError{Op: "chown", Path: path, Err: err}
	}
	fd, err := unix.Openat(f.root, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return path, os.NewFile(uintptr(fd), path), nil
}

// Look asks the kernel (statfs(2)).
func (f *FS) Look() Look {
	var s unix.Statfs_t
	if err := unix.Fstatfs(f.root, &s); err != nil {
		return Look{Cut: true}
	}
	return Look{
		Bytes: int64(s.Blocks-s.Bfree) * int64(s.Bsize),
		Files: int64(s.Files - s.Ffree),
		Full:  s.Bfree == 0 || s.Ffree == 0,
	}
}

// ErrDetached says that a file system was still in use when it was to go: it is
// unmounted, and goes when its last user does.
var ErrDetached = errors.New("the private temporary directory was still in use, and was detached: its memory is free when the last process lets go of it")

// unmountTime is how long a file system may be in use by what is just ending: a
// process that another launch forks holds this one's handles until it executes.
const unmountTime = time.Second

// Remove unmounts the file system and removes the directory, which stays, and
// stays noted, where the first fails. [ErrDetached] is no failure.
func (f *FS) Remove() error {
	if f.root >= 0 {
		_ = unix.Close(f.root)
		f.root = -1
	}
	err := unmount(f.dir, unmountTime)
	if errors.Is(err, unix.EBUSY) {
		if err = detach(f.dir); err == nil {
			err = ErrDetached
		}
	}
	if err != nil && !errors.Is(err, ErrDetached) {
		return fmt.Errorf("unmounting %q: %w", f.dir, err)
	}
	scratch.Mine().Drop(markPath(f.dir))
	return errors.Join(err, scratch.Mine().Remove(f.dir))
}

const markPrefix = "/tmpfs"

func markPath(dir string) string { return markPrefix + dir }

// RemoveLeft unmounts the file system of a launcher that is no more. It is left
// alone while a process of that launcher's uses it, and what is mounted there
// and is not what the lease lists, always. What is gone is no error.
func RemoveLeft(m scratch.Mark) error {
	dir, ok := strings.CutPrefix(m.Path, markPrefix)
	if !ok || filepath.Clean(dir) != dir || !filepath.IsAbs(dir) || !scratch.IsName(filepath.Base(dir)) {
		return fmt.Errorf("%q is no mount of a launcher's", m.Path)
	}
	return unmount(dir, unmountTime/5)
}

// ErrNotOurs says that something else is mounted where a file system of a
// launcher's should be.
var ErrNotOurs = errors.New("what is mounted there is not this launcher's")

// unmount unmounts what [Mount] mounted on dir. While it is in use it is tried
// for so long again, and EBUSY is the answer.
func unmount(dir string, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := umount(dir, 0)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// detach takes it out of sight, whoever uses it.
func detach(dir string) error { return umount(dir, unix.MNT_DETACH) }

// umount checks and unmounts relative to one handle on the directory above, so
// that both see the same place.
func umount(dir string, flags int) error {
	above, err := sys.OpenReal(filepath.Dir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer above.Close()
	there, err := mountAt(int(above.Fd()), filepath.Base(dir))
	if err != nil || there == nil {
		return err
	}
	if there.Type != "tmpfs" || there.Source != filepath.Base(dir) || there.Root != "/" || there.Point != dir {
		return ErrNotOurs
	}
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", above.Fd(), filepath.Base(dir)), flags|unix.UMOUNT_NOFOLLOW)
}

// mountAt returns what is mounted on a directory, nil if nothing is or if there
// is no such directory.
func mountAt(above int, name string) (*mounts.Mount, error) {
	fd, err := unix.Openat(above, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	outer, err := mountID(above)
	if err != nil {
		return nil, err
	}
	id, err := mountID(fd)
	if err != nil || id == outer {
		return nil, err
	}
	var there *mounts.Mount
	err = mounts.Own(func(m mounts.Mount) bool {
		if m.ID == id {
			there = &m
		}
		return there == nil
	})
	if err == nil && there == nil {
		err = ErrNotOurs
	}
	return there, err
}

// mountID is the id of the mount that a handle is on: mnt_id in
// /proc/PID/fdinfo (Linux 3.15), the first column of mountinfo.
func mountID(fd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("the kernel does not tell the mount of a handle")
}
