package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup starts a process group that ends even when this program is killed
// outright. The signal comes when the starting thread ends; the Go runtime ends
// none of its own accord, and nothing here locks a goroutine to one.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// endWithGoRun ends this program when `go run`, which started it, is killed: go
// passes Ctrl-C on, as the terminal sends it to both, but not SIGTERM.
func endWithGoRun() {
	parent := os.Getppid()
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil || string(bytes.TrimSpace(name)) != "go" {
		return
	}
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	if os.Getppid() != parent { // it ended before the call
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
}
