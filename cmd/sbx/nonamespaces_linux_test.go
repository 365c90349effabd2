package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

func init() { programs["nonamespaces"] = noNamespaces }

// noNamespaces PROGRAM ARGS... runs a program where mount_setattr(2) is refused, as by
// a container's seccomp profile: what this system says of itself allows namespaces, and
// they are of no use.
func noNamespaces() {
	path, err := exec.LookPath(os.Args[1])
	if err == nil {
		runtime.LockOSThread()
		err = sys.SetNoNewPrivs()
	}
	if err == nil {
		_, err = sys.InstallFilter([]sys.SockFilter{
			{Code: 0x20, K: 0}, // load the call's number
			{Code: 0x15, Jf: 1, K: unix.SYS_MOUNT_SETATTR},
			{Code: 0x06, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: 0x06, K: unix.SECCOMP_RET_ALLOW},
		}, false)
	}
	if err == nil {
		err = syscall.Exec(path, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "nonamespaces:", err)
	os.Exit(99)
}
