package terminal

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

const (
	getTermios = unix.TCGETS
	setTermios = unix.TCSETS
	disabled   = 0 // _POSIX_VDISABLE
)

var deadlyHere = []os.Signal{unix.SIGSTKFLT}

func raiseDefault(sig syscall.Signal) { _ = sys.RaiseDefault(sig) }
