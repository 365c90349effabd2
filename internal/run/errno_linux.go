package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

func errnoName(e syscall.Errno) string { return unix.ErrnoName(e) }

func openPath(path string) (*os.File, error) { return sys.OpenReal(path) }
