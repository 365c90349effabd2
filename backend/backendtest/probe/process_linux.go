package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/backend/backendtest/attempt"
)

func init() {
	register(map[string]op{
		// Signals to a pid of the host. SIGUSR1 does nothing to a Go program,
		// should it come to this one as well.
		"kill":         {1, onPid(func(pid int) error { return unix.Kill(pid, unix.SIGUSR1) }), shared},
		"tgkill":       {1, onPid(func(pid int) error { return unix.Tgkill(pid, pid, unix.SIGUSR1) }), shared},
		"tkill":        {1, onPid(tkill), shared},
		"sigqueue":     {1, onPid(sigqueue), shared},
		"pidfd-signal": {1, onPid(pidfdSignal), shared},
		"kill-nothing": {1, onPid(func(pid int) error { return unix.Kill(pid, 0) }), shared},
		"kill-group":   {1, onPid(func(pid int) error { return unix.Kill(-pid, unix.SIGUSR1) }), shared},
		"sigio":        {1, onPid(sigio), shared},
		// Its memory, descriptors and limits.
		"ptrace-attach":   {1, onPid(ptraceAttach), alone},
		"ptrace-seize":    {1, onPid(ptraceSeize), alone},
		"process-read":    {2, processRead, shared},
		"process-write":   {2, processWrite, shared},
		"pidfd-getfd":     {2, pidfdGetfd, shared},
		"kcmp":            {1, onPid(kcmp), shared},
		"prlimit-other":   {1, onPid(func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, new(unix.Rlimit)) }), shared},
		"process-madvise": {2, processMadvise, shared},

		// The same on processes of its own, which must work.
		"kill-child":         {0, killChild, alone},
		"ptrace-child":       {0, ptraceChild, alone},
		"process-read-child": {0, processReadChild, alone},
		"prlimit-self":       {0, func([]string) (string, error) { return "", unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, new(unix.Rlimit)) }, shared},

		// Privileges and what is inherited.
		"gains-privileges": {0, gainsPrivileges, alone},
		"capabilities":     {0, capabilities, alone},
		"suid-exec":        {1, suidExec, alone},
		"descriptor":       {1, descriptor, alone},
		"environment":      {1, environment, alone},
		"environ-equals":   {2, environEquals, alone},
		"create-in":        {1, createIn, alone},
	})
}

func onPid(call func(int) error) func([]string) (string, error) {
	return func(a []string) (string, error) {
		pid, err := strconv.Atoi(a[0])
		if err != nil {
			return "", err
		}
		return "", call(pid)
	}
}

func tkill(pid int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_TKILL, uintptr(pid), uintptr(unix.SIGUSR1), 0)
	return orNil(errno)
}

func sigqueue(pid int) error {
	const siQueue = -1
	info := struct {
		signo, errno, code, _ int32
		pid, uid              int32
		_                     [104]byte
	}{signo: int32(unix.SIGUSR1), code: siQueue, pid: int32(os.Getpid()), uid: int32(os.Getuid())}
	_, _, errno := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(unix.SIGUSR1), uintptr(unsafe.Pointer(&info)))
	return orNil(errno)
}

func pidfdSignal(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	return unix.PidfdSendSignal(fd, unix.SIGUSR1, nil, 0)
}

// sigio has the kernel send the signal: the owner of a descriptor is told of
// input. F_SETOWN fails at once where the owner is out of reach, or later and
// in silence; the suite looks at what reached the owner.
func sigio(pid int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	fd := uintptr(pair[0])
	if _, err := unix.FcntlInt(fd, unix.F_SETSIG, int(unix.SIGUSR1)); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(fd, unix.F_SETOWN, pid); err != nil {
		return err
	}
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_ASYNC); err != nil {
		return err
	}
	_, err = unix.Write(pair[1], []byte("x"))
	return err
}

// ptraceCall locks its thread: a tracer is a thread, not a process.
func ptraceCall(request, pid int, sig unix.Signal) error {
	runtime.LockOSThread()
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, uintptr(sig), 0, 0)
	return orNil(errno)
}

func ptraceAttach(pid int) error {
	if err := ptraceCall(unix.PTRACE_ATTACH, pid, 0); err != nil {
		return err
	}
	return detachAt(pid, unix.SIGSTOP)
}

func ptraceSeize(pid int) error {
	if err := ptraceCall(unix.PTRACE_SEIZE, pid, 0); err != nil {
		return err
	}
	if err := ptraceCall(unix.PTRACE_INTERRUPT, pid, 0); err != nil {
		return err
	}
	return detachAt(pid, unix.SIGTRAP)
}

// detachAt waits for the stop that was asked for. A signal that comes before it
// is handed on: let go of at that one, the process would stop for good.
func detachAt(pid int, stop unix.Signal) error {
	for {
		var ws unix.WaitStatus
		switch _, err := unix.Wait4(pid, &ws, unix.WALL, nil); {
		case err != nil:
			return err
		case !ws.Stopped():
			return fmt.Errorf("the process is not stopped: %#x", ws)
		case ws.StopSignal() == stop:
			return ptraceCall(unix.PTRACE_DETACH, pid, 0)
		}
		if err := ptraceCall(unix.PTRACE_CONT, pid, ws.StopSignal()); err != nil {
			return err
		}
	}
}

func pidAndNumber(a []string) (int, uint64, error) {
	pid, err := strconv.Atoi(a[0])
	if err != nil {
		return 0, 0, err
	}
	n, err := strconv.ParseUint(a[1], 10, 64)
	return pid, n, err
}

func processRead(a []string) (string, error) {
	pid, addr, err := pidAndNumber(a)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 16)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	_, err = unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	return string(buf), err
}

// processWrite overwrites the first byte of the other's text.
func processWrite(a []string) (string, error) {
	pid, addr, err := pidAndNumber(a)
	if err != nil {
		return "", err
	}
	buf := []byte("x")
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(1)
	_, err = unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: 1}}, 0)
	return "", err
}

func processMadvise(a []string) (string, error) {
	pid, addr, err := pidAndNumber(a)
	if err != nil {
		return "", err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", err
	}
	page := uintptr(addr) &^ 4095
	iov := struct{ base, n uintptr }{page, 4096}
	_, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_COLD, 0, 0)
	return "", orNil(errno)
}

func pidfdGetfd(a []string) (string, error) {
	pid, n, err := pidAndNumber(a)
	if err != nil {
		return "", err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", fmt.Errorf("pidfd_open: %w", err)
	}
	got, err := unix.PidfdGetfd(fd, int(n), 0)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	k, err := unix.Pread(got, buf, 0)
	return string(buf[:max(k, 0)]), err
}

func kcmp(pid int) error {
	const files = 2
	_, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), files, 0, 0, 0)
	return orNil(errno)
}

// child starts a pausing probe that holds a text.
func child(attr *syscall.SysProcAttr) (*exec.Cmd, attempt.Ready, error) {
	var ready attempt.Ready
	self, err := os.Executable()
	if err != nil {
		return nil, ready, err
	}
	cmd := exec.Command(self, "-pause")
	cmd.SysProcAttr = attr
	if _, err = cmd.StdinPipe(); err != nil {
		return nil, ready, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, ready, err
	}
	if err := cmd.Start(); err != nil {
		return nil, ready, err
	}
	if attr != nil && attr.Ptrace {
		return cmd, ready, nil // stopped at its first instruction
	}
	return cmd, ready, json.NewDecoder(out).Decode(&ready)
}

func killChild([]string) (string, error) {
	cmd, _, err := child(nil)
	if err != nil {
		return "", err
	}
	if err := unix.Kill(cmd.Process.Pid, unix.SIGTERM); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err == nil {
		return "", errors.New("the child was not ended by the signal")
	}
	return "", nil
}

func ptraceChild([]string) (string, error) {
	runtime.LockOSThread()
	cmd, _, err := child(&syscall.SysProcAttr{Ptrace: true})
	if err != nil {
		return "", err
	}
	defer func() { _ = cmd.Process.Kill() }()
	var ws unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &ws, 0, nil); err != nil {
		return "", err
	}
	_, err = unix.PtracePeekData(cmd.Process.Pid, 0, nil)
	return "", err
}

func processReadChild([]string) (string, error) {
	cmd, ready, err := child(nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = cmd.Process.Kill() }()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", ready.PID))
	if err != nil {
		return "", err
	}
	var start uint64
	if _, err := fmt.Sscanf(string(maps), "%x-", &start); err != nil {
		return "", err
	}
	_, err = processRead([]string{strconv.Itoa(ready.PID), strconv.FormatUint(start, 10)})
	return "", err
}

// gainsPrivileges succeeds where execve could give privileges.
func gainsPrivileges([]string) (string, error) {
	on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err == nil && on != 0 {
		err = unix.EPERM
	}
	return "", err
}

// capabilities succeeds where the process has, or could take, any capability.
func capabilities([]string) (string, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return "", err
	}
	if data == [2]unix.CapUserData{} {
		return "", unix.EPERM
	}
	return fmt.Sprintf("%x", data), nil
}

// suidExec runs a set-user-ID program that has nothing to read, waits until it
// has let go of its output, and looks at its user: what has ended keeps it until
// somebody waits for it.
func suidExec(a []string) (string, error) {
	cmd := exec.Command(a[0], "-pause")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := io.ReadAll(out); err != nil {
		return "", err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return "", err
	}
	switch euid := effectiveUID(status); euid {
	case -1:
		return "", errors.New("the program's user is not told")
	case os.Geteuid():
		return "", unix.EPERM
	default:
		return fmt.Sprintf("uid %d", euid), nil
	}
}

func effectiveUID(status []byte) int {
	for line := range bytes.Lines(status) {
		if f := bytes.Fields(line); len(f) == 5 && string(f[0]) == "Uid:" {
			n, err := strconv.Atoi(string(f[2]))
			if err == nil {
				return n
			}
		}
	}
	return -1
}

// descriptor succeeds where the descriptor is open.
func descriptor(a []string) (string, error) {
	fd, err := strconv.Atoi(a[0])
	if err != nil {
		return "", err
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return "", err
	}
	target, _ := os.Readlink(descriptorPath("/proc/self/fd", fd))
	return target, nil
}

// environment succeeds where the variable is set.
func environment(a []string) (string, error) {
	v, set := os.LookupEnv(a[0])
	if !set {
		return "", unix.ENOENT
	}
	return v, nil
}

func environEquals(a []string) (string, error) {
	if v := os.Getenv(a[0]); v != a[1] {
		return v, fmt.Errorf("%s is %q, want %q", a[0], v, a[1])
	}
	return "", nil
}

// createIn makes a file in the directory that a variable names.
func createIn(a []string) (string, error) {
	dir := os.Getenv(a[0])
	if dir == "" {
		return "", unix.ENOENT
	}
	return opener(unix.O_WRONLY|unix.O_CREAT, true)([]string{dir + "/made-by-probe"})
}
