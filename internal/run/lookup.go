// Package run carries one launch from a policy to its report: find the
// command, choose a backend, launch, wait, tell. sbx and sandboxd share it.
package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sandboxd/backend"
)

// LookPath finds the command as execvp(3) would in the worker's PATH: a name
// with a slash is taken relative to dir, any other is searched. Of several
// failures EACCES outlives ENOENT, as in a shell. The result is absolute.
func LookPath(name, pathEnv, dir string) (string, error) {
	if name == "" {
		return "", &backend.ExecError{Path: name, Errno: syscall.ENOENT}
	}
	if strings.ContainsRune(name, 0) {
		return "", &backend.ExecError{Path: name, Errno: syscall.EINVAL}
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			// Not filepath.Join: it would clean "..", which walks links.
			name = dir + "/" + name
		}
		if errno := executable(name); errno != 0 {
			return "", &backend.ExecError{Path: name, Errno: errno}
		}
		return name, nil
	}
	failure := syscall.ENOENT
	for _, entry := range filepath.SplitList(pathEnv) {
		if !filepath.IsAbs(entry) {
			continue // "." in PATH would run what an untrusted tree holds
		}
		candidate := filepath.Join(entry, name)
		if _, err := os.Stat(candidate); err != nil {
			continue // a directory that may not be searched is not "found" either
		}
		switch errno := executable(candidate); errno {
		case 0:
			return candidate, nil
		case syscall.EACCES:
			failure = errno
		}
	}
	return "", &backend.ExecError{Path: name, Errno: failure}
}

// executable checks what stat(2) can tell; the kernel has the last word.
func executable(path string) syscall.Errno {
	st, err := os.Stat(path)
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, fs.ErrNotExist):
		return syscall.ENOENT
	case err != nil:
		return syscall.EIO
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return syscall.EACCES
	}
	return 0
}
