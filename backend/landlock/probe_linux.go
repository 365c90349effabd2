package landlock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// probe asks the kernel. ENOSYS, EOPNOTSUPP and EPERM from
// landlock_create_ruleset(2) are three different faults with three fixes.
func probe() (f Facts, reason, fix string) {
	abi, err := ll.LandlockGetABIVersion()
	switch {
	case errors.Is(err, unix.ENOSYS):
		return f, "Landlock is not available: this kernel is not built with it (ENOSYS)", fixNoLandlock
	case errors.Is(err, unix.EOPNOTSUPP):
		return f, "Landlock is not available: built into this kernel, but disabled at boot (EOPNOTSUPP)",
			"add landlock to the lsm= list on the kernel command line (" + currentLSMs() + ")"
	case errors.Is(err, unix.EPERM):
		return f, "Landlock is not available: a seccomp filter around this process refuses it (EPERM)",
			"allow landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in the container's seccomp profile"
	case err != nil:
		return f, fmt.Sprintf("Landlock is not available: %v", err), fixNoLandlock
	}
	f.ABI = abi
	if errata, err := ll.LandlockGetErrata(); err == nil {
		f.Errata = errata
	}
	f.NotifyReason = notifyUnavailable()
	f.Notify = f.NotifyReason == ""
	return f, "", ""
}

func currentLSMs() string {
	list, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		return "the present list is in /sys/kernel/security/lsm"
	}
	return "now lsm=" + string(bytes.TrimSpace(list))
}

// notifyUnavailable says why a supervisor cannot work here, or "".
func notifyUnavailable() string {
	// Yama: 0 and 1 let a process read its descendants' memory; 2 needs
	// CAP_SYS_PTRACE and 3 forbids it to all (Documentation/admin-guide/LSM/Yama.rst).
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil {
		n, _ := strconv.Atoi(string(bytes.TrimSpace(scope)))
		if n >= 3 || n == 2 && !sys.HaveCapability(unix.CAP_SYS_PTRACE) {
			return fmt.Sprintf("kernel.yama.ptrace_scope is %d, so a worker's memory cannot be read", n)
		}
	}
	if !sys.FilterActive() {
		return "" // no filter around us, so no listener either
	}
	return tryListener()
}

// tryListener installs a filter that allows everything, with a listener, on a
// thread that then ends. The kernel allows one listener in a tree of filters.
func tryListener() string {
	answer := make(chan string, 1)
	sys.OnOwnThread(func() {
		if err := sys.SetNoNewPrivs(); err != nil {
			answer <- err.Error()
			return
		}
		const retAllow = 0x06 // BPF_RET | BPF_K
		fd, err := sys.InstallFilter([]sys.SockFilter{{Code: retAllow, K: unix.SECCOMP_RET_ALLOW}}, true)
		switch {
		case errors.Is(err, unix.EBUSY):
			answer <- "this process already runs under a seccomp notification listener, and the kernel allows one"
		case err != nil:
			answer <- err.Error()
		default:
			_ = unix.Close(fd)
			answer <- ""
		}
	})
	return <-answer
}
