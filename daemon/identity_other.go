//go:build !linux

package daemon

import (
	"os"
	"runtime"
	"syscall"

	"sandboxd/protocol"
)

func (id identity) as(f func()) error {
	if id.uid != os.Geteuid() {
		return protocol.Errorf(protocol.Unsupported, "workers cannot run as another user on %s: %d", runtime.GOOS, id.uid)
	}
	f()
	return nil
}

func frontSysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func closeInherited() error { return nil }
