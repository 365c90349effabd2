package daemon

import (
	"os"
	"syscall"

	"sandboxd/internal/sys"
)

// as runs f with the rights of the user.
func (id identity) as(f func()) error {
	if id.uid == os.Geteuid() {
		f()
		return nil
	}
	return sys.AsUser(id.uid, id.gid, id.groups, f)
}

// frontSysProcAttr starts the front in a session of its own, out of the reach of a
// terminal's signals. It ends when it finds its link to the monitor closed. No
// signal is asked for at the monitor's death (PR_SET_PDEATHSIG): that comes when the
// thread ends which has started it, and threads of a launcher do end.
func frontSysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// closeInherited marks what this process was given by its own caller, so that the
// front, which holds what it holds for good, gets none of it.
func closeInherited() error { return sys.CloseOnExecFrom(3) }
