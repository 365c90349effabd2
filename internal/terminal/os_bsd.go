//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package terminal

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	getTermios = unix.TIOCGETA
	setTermios = unix.TIOCSETA
	disabled   = 0xff // _POSIX_VDISABLE
)

var deadlyHere []os.Signal

// raiseDefault: Go's runtime keeps its handler of SIGTSTP (see
// sys.RaiseDefault), so that another signal has to stop the process.
func raiseDefault(sig syscall.Signal) {
	if sig == unix.SIGTSTP {
		sig = unix.SIGSTOP
	}
	signal.Reset(sig)
	_ = unix.Kill(os.Getpid(), sig)
}
