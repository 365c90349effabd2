package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/test/kernels/wire"
)

// findFacts asks the kernel by its raw calls, so that the product's own probes
// can be held against the answers.
func findFacts(setup troubles) wire.Facts {
	f := wire.Facts{
		Release:        readLine("/proc/sys/kernel/osrelease"),
		CommandLine:    readLine("/proc/cmdline"),
		LSMs:           readLine("/sys/kernel/security/lsm"),
		UserNamespaces: askAsUser("user-namespace"),
		SeccompNotify:  askAsUser("seccomp-notify"),
		Controllers:    strings.Fields(readLine(cgroupRoot + "/cgroup.controllers")),
		Audit:          auditAnswers(),
	}
	var errno syscall.Errno
	if f.ABI, errno = askLandlock(unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		f.ABIErrno = errnoName(errno)
	}
	f.Errata, _ = askLandlock(unix.LANDLOCK_CREATE_RULESET_ERRATA) // 0 where it cannot be asked
	var err error
	f.CgroupKill, err = hasCgroupKill()
	setup.add("looking for cgroup.kill", err)
	f.Trouble = setup
	return f
}

// readLine is a small file of the kernel's, or "".
func readLine(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// errnoName prefers the name that Landlock's documentation has: ENOTSUP is the
// same number.
func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &errno):
		return err.Error()
	case errno == unix.EOPNOTSUPP:
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(errno)
}

func askLandlock(flag uintptr) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, flag)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// hasCgroupKill makes a cgroup, as the root has no cgroup.kill.
func hasCgroupKill() (bool, error) {
	dir := filepath.Join(cgroupRoot, "facts")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return false, err
	}
	return exists(filepath.Join(dir, "cgroup.kill")), os.Remove(dir)
}

// auditAnswers asks the audit subsystem for its status.
func auditAnswers() bool {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_AUDIT)
	if err != nil {
		return false
	}
	defer unix.Close(s)
	// struct nlmsghdr, without a body: length, type, flags, sequence number, port.
	// This runs on little-endian machines only.
	request := []byte{16, 0, 0, 0, unix.AUDIT_GET & 0xff, unix.AUDIT_GET >> 8, unix.NLM_F_REQUEST, 0, 1, 0, 0, 0, 0, 0, 0, 0}
	reply := make([]byte, 1024)
	err = errors.Join(
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}),
		unix.Sendto(s, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err != nil {
		return false
	}
	n, _, err := unix.Recvfrom(s, reply, 0)
	return err == nil && n > 16 && bytes.Equal(reply[4:6], request[4:6]) // an error would have another type
}

// askAsUser has a child with the ordinary user's credentials answer.
func askAsUser(question string) string {
	cmd := exec.Command(initFile, question)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v %q", err, out)
	}
	return string(out)
}

// child answers a question of askAsUser on standard output.
func child(args []string) (exit int) {
	switch strings.Join(args, " ") {
	case "nothing":
	case "user-namespace":
		// unshare(2) is called between fork and exec, where there is but one thread:
		// a process with more gets EINVAL.
		cmd := exec.Command(initFile, "nothing")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWUSER}
		fmt.Print(errnoName(cmd.Run()))
	case "seccomp-notify":
		fmt.Print(errnoName(installListener()))
	default:
		fmt.Fprintln(os.Stderr, "guest: is to be process 1")
		return 2
	}
	return 0
}

// installListener installs a filter that allows everything and has a listener.
func installListener() error {
	runtime.LockOSThread()
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	program := unix.SockFprog{Len: 1, Filter: &filter}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
