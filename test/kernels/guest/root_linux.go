package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// switchRoot moves the initramfs to a tmpfs and goes on there: pivot_root(2),
// which sandboxes call, refuses to leave the initial rootfs. This process goes
// on too, without an exec that the key would have to survive; its children
// execute the copy.
func switchRoot() error {
	const root = "/newroot"
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	// Files are moved one by one, so the tmpfs may have nearly all memory.
	if err := unix.Mount("root", root, "tmpfs", 0, "mode=755,size=90%"); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	if err := moveTree("/", root); err != nil {
		return fmt.Errorf("moving the initramfs: %w", err)
	}
	err := errors.Join(os.Chdir(root), unix.Mount(root, "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/"))
	if err != nil {
		return fmt.Errorf("switching the root: %w", err)
	}
	return nil
}

// moveTree moves what is on the file system of from, and leaves only empty
// directories there. Device nodes stay behind: devtmpfs makes its own.
func moveTree(from, to string) error {
	var device uint64
	return filepath.WalkDir(from, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		if path == from {
			device = st.Dev
			return nil
		}
		if st.Dev != device { // a mount point, of the destination for one
			return filepath.SkipDir
		}
		target := filepath.Join(to, path[len(from):])
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if err := os.Mkdir(target, 0o700); err != nil {
				return err
			}
		case unix.S_IFREG:
			if err := copyFile(path, target); err != nil {
				return err
			}
		case unix.S_IFLNK:
			link, err := os.Readlink(path)
			if err == nil {
				err = os.Symlink(link, target)
			}
			if err != nil {
				return err
			}
			return errors.Join(os.Lchown(target, int(st.Uid), int(st.Gid)), os.Remove(path))
		default:
			return nil
		}
		// The mode after the owner: chown(2) takes setuid bits away.
		err = errors.Join(os.Chown(target, int(st.Uid), int(st.Gid)), unix.Chmod(target, st.Mode&0o7777))
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			err = os.Remove(path)
		}
		return err
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
