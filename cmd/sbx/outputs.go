package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/policy"
)

// sbx itself is not confined, so a file that it writes on the caller's word is
// opened with care: below the workspace, whose content nobody trusts, no link
// may lead out of it, and the file itself may be no link anywhere.

// openOutput opens the file for a command's output. A FIFO without a reader is
// an error (ENXIO) and not a wait.
func openOutput(path, workspace string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	f, err := inWorkspace(path, workspace, func(root *os.Root, name string) (*os.File, error) {
		if root == nil {
			return os.OpenFile(name, flags, 0o666)
		}
		return root.OpenFile(name, flags, 0o666)
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, backend.Refuse("name the file that it leads to", "opening the command's output: %q is a symbolic link", path)
	case errors.Is(err, unix.ENXIO):
		return nil, backend.Refuse("start its reader first", "opening the command's output: nobody reads the FIFO %q", path)
	case err != nil:
		return nil, backend.Refuse("name a file that you can write", "opening the command's output: %v", err)
	}
	// The flag belongs to the open file, which the command will share.
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
		_ = f.Close()
		return nil, backend.Refuse("", "opening the command's output: %v", err)
	}
	return f, nil
}

// openDirOf opens the directory that holds path.
func openDirOf(path, workspace string) (*os.Root, error) {
	return inWorkspace(filepath.Dir(path), workspace, func(root *os.Root, name string) (*os.Root, error) {
		if root == nil {
			return os.OpenRoot(name)
		}
		return root.OpenRoot(name)
	})
}

// inWorkspace calls open with a root and a name below it where path lies in the
// workspace, so that links cannot lead out; elsewhere with nil and the path.
func inWorkspace[T any](path, workspace string, open func(root *os.Root, name string) (T, error)) (T, error) {
	var none T
	abs, err := filepath.Abs(path)
	if err != nil {
		return none, err
	}
	if workspace == "" || !policy.Within(abs, workspace) {
		return open(nil, path)
	}
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return none, err
	}
	defer root.Close()
	name, err := filepath.Rel(workspace, abs)
	if err != nil {
		return none, err
	}
	got, err := open(root, name)
	var pe *os.PathError
	if errors.As(err, &pe) && !errors.Is(err, unix.ELOOP) && pe.Err != nil {
		var errno syscall.Errno
		if !errors.As(pe.Err, &errno) { // os.Root's own "path escapes from parent"
			err = fmt.Errorf("%q leads out of the workspace: %w", path, pe.Err)
		}
	}
	return got, err
}
