//go:build unix

package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rootStateDir is root's state directory; it is emptied at boot, like what the
// leases in it list mostly is.
const rootStateDir = "/run/sbx"

// StateDir is where the leases of this user are: /run/sbx for root, if it may write there, else below
// XDG_RUNTIME_DIR if that is the user's own, else below XDG_STATE_HOME or
// ~/.local/state (XDG Base Directory Specification).
func StateDir() (string, error) {
	uid := os.Geteuid()
	// Root of a user namespace may not write there.
	if uid == 0 && (unix.Access(rootStateDir, unix.W_OK) == nil || unix.Access(filepath.Dir(rootStateDir), unix.W_OK) == nil) {
		return rootStateDir, nil
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		if mine, err := isMyDir(dir); err == nil && mine {
			return filepath.Join(dir, "sbx"), nil
		}
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbx"), nil
	}
	home := os.Getenv("HOME")
	if mine, err := isMyDir(home); !filepath.IsAbs(home) || err != nil || !mine {
		return "", errors.New("there is no home directory of this user for a state directory")
	}
	return filepath.Join(home, ".local", "state", "sbx"), nil
}

// isMyDir tells whether path is a directory of this user, and no link to one.
func isMyDir(path string) (bool, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return false, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return uint32(st.Mode)&syscall.S_IFMT == syscall.S_IFDIR && int(st.Uid) == os.Geteuid(), nil
}

// isLeft tells whether path is a directory that a launcher of this user may have
// made: root gives those of its workers to other users.
func isLeft(path string) (bool, error) {
	mine, err := isMyDir(path)
	if err == nil && !mine && os.Geteuid() == 0 {
		st, serr := os.Lstat(path)
		return serr == nil && st.IsDir(), serr
	}
	return mine, err
}

// isMountPoint tells whether path is on another mount than the directory that
// holds it: its contents are not what was made there.
func isMountPoint(path string) (bool, error) {
	here, _, err := look(unix.AT_FDCWD, path)
	if err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	dir := filepath.Dir(path)
	above, _, err := look(unix.AT_FDCWD, dir+"/.") // it may be a link
	if err != nil {
		return false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return !here.sameMount(above), nil
}

// createLocked makes a new locked file in the state directory, which must be
// this user's alone: whoever could write a lease could have others' things
// removed.
func createLocked(dir, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, err
	}
	var st syscall.Stat_t
	if err = syscall.Lstat(dir, &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || uint32(st.Mode)&syscall.S_IFMT != syscall.S_IFDIR) {
		err = fmt.Errorf("%q must be a directory of yours that nobody else can write", dir)
	}
	if err == nil {
		err = lockNew(file)
	}
	if err != nil {
		_ = os.Remove(path)
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// lockNew locks a lease that was just made. A sweep may be looking at it: it lets go at
// once, as there is nothing in it.
func lockNew(file *os.File) (err error) {
	for range 200 {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

// openDead opens a lease whose owner is gone, locked: no other sweep has it.
func openDead(path string) (*os.File, bool) {
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	var st, now syscall.Stat_t
	ok := syscall.Fstat(int(file.Fd()), &st) == nil && uint32(st.Mode)&syscall.S_IFMT == syscall.S_IFREG && int(st.Uid) == os.Geteuid() &&
		syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil &&
		// A lease is made and locked in two steps: one without a line may be
		// a living process' that has not come to the second.
		(st.Size > 0 || time.Since(modified(&st)) > time.Minute) &&
		// Or it was its owner's a moment ago, who has removed it.
		syscall.Lstat(path, &now) == nil && now.Ino == st.Ino && now.Dev == st.Dev
	if !ok {
		_ = file.Close()
		return nil, false
	}
	return file, true
}
