//go:build !linux

package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func errnoName(e syscall.Errno) string { return unix.ErrnoName(e) }

func openPath(path string) (*os.File, error) {
	return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EACCES}
}
