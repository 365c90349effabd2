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

func init() { programs["nolandlock"] = noLandlock }

// noLandlock ERRNO PROGRAM ARGS... runs a program where
// landlock_create_ruleset(2) fails as it does on a kernel that has no Landlock
// (ENOSYS), has it disabled (EOPNOTSUPP), or in a container whose seccomp
// profile refuses it (EPERM).
func noLandlock() {
	errno := map[string]syscall.Errno{"ENOSYS": unix.ENOSYS, "EOPNOTSUPP": unix.EOPNOTSUPP, "EPERM": unix.EPERM}[os.Args[1]]
	path, err := exec.LookPath(os.Args[2])
	if err == nil {
		runtime.LockOSThread()
		err = sys.SetNoNewPrivs()
	}
	if err == nil {
		_, err = sys.InstallFilter([]sys.SockFilter{
			{Code: 0x20, K: 0}, // load the call's number
			{Code: 0x15, Jf: 1, K: unix.SYS_LANDLOCK_CREATE_RULESET},
			{Code: 0x06, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
			{Code: 0x06, K: unix.SECCOMP_RET_ALLOW},
		}, false)
	}
	if err == nil {
		err = syscall.Exec(path, os.Args[2:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "nolandlock:", err)
	os.Exit(99)
}
