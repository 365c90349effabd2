// Command abicap runs a program with Landlock looking like an older ABI, like
// one that is off, or like none: for the kernels that no distribution serves
// any more, and for tests that need no machine.
//
// A seccomp user notification hands the three Landlock calls to this process.
// It refuses what a kernel of that ABI would have refused, with the same errno,
// and lets the kernel carry out the rest. It is for tests: between the look at
// an argument and the kernel's own look a thread could change it.
//
// What it does not imitate: old kernels' bugs, their audit records, and
// /sys/kernel/security/lsm. The kernel allows one listener in a process tree,
// so a program below that installs one itself gets EBUSY. Without CAP_SYS_ADMIN
// seccomp needs no_new_privs, which the program then inherits.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

const usage = `usage: abicap N COMMAND [ARG...]

Runs COMMAND with Landlock looking like ABI N:
  1 ... 10  that ABI, or the kernel's own if it is older
  off       built in, but disabled at boot (EOPNOTSUPP)
  none      not built in (ENOSYS)

The exit status is COMMAND's, 128+n if signal n ended it, or 125 if abicap itself failed.
`

// ownFailure is the exit status of what is not the command's fault.
const ownFailure = 125

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "-h" || os.Args[1] == "--help") {
		fmt.Print(usage)
		return
	}
	if len(os.Args) < 3 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(ownFailure)
	}
	fake, err := parseFake(os.Args[1])
	if err != nil {
		fail(err)
	}
	status, err := run(fake, os.Args[2:])
	if err != nil {
		fail(err)
	}
	os.Exit(status)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "abicap:", err)
	os.Exit(ownFailure)
}

func parseFake(arg string) (fake, error) {
	switch arg {
	case "none":
		return fake{errno: unix.ENOSYS}, nil
	case "off":
		return fake{errno: unix.EOPNOTSUPP}, nil
	}
	n, err := strconv.Atoi(arg)
	if err != nil || n < 1 || n >= len(kernels) {
		return fake{}, fmt.Errorf("%q is not an ABI: 1 to %d, off or none", arg, len(kernels)-1)
	}
	return fake{abi: n, kernel: kernels[n]}, nil
}

// run starts the command, answers for it until it has ended, and returns its
// exit status.
func run(f fake, args []string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		// A signal that our caller ignores stays so in the command, too.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	listener, err := startBehindFilter(cmd)
	if err != nil {
		return 0, err
	}
	s := server{fake: f, listener: listener}
	go s.serve()
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig) // it may have ended just now
		}
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if s.failed.Load() {
		return ownFailure, nil // said when it happened
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// startBehindFilter starts the command from a thread that carries the filter,
// which a child inherits. No other thread of ours has it: they answer, and must
// not wait for themselves.
func startBehindFilter(cmd *exec.Cmd) (listener int, err error) {
	done := make(chan struct{})
	sys.OnOwnThread(func() {
		defer close(done)
		listener, err = sys.InstallFilter(filter, true)
		if errors.Is(err, unix.EACCES) { // neither CAP_SYS_ADMIN nor no_new_privs
			if err = sys.SetNoNewPrivs(); err == nil {
				listener, err = sys.InstallFilter(filter, true)
			}
		}
		if err == nil {
			err = cmd.Start()
		}
	})
	<-done
	return listener, err
}
