package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/guard"
	"sandboxd/internal/launch"
)

// keptName is the argv[0] of a launcher that has a keeper, before the number of
// the descriptor that ends with the keeper.
const keptName = "sbx-kept-by-"

// keeper is, in a launcher that has one, what ends with its keeper; else nil.
var keeper *os.File

// findKeeper reads it from argv[0], and tells whether there is one.
func findKeeper() bool {
	number, ok := strings.CutPrefix(os.Args[0], keptName)
	if fd, err := strconv.Atoi(number); ok && keeper == nil && err == nil && fd > 2 {
		unix.CloseOnExec(fd)
		keeper = os.NewFile(uintptr(fd), "keeper")
	}
	return keeper != nil
}

// keep makes this process the keeper of another, which does what was asked for:
// where no cgroup can be had and no watchdog, whoever is killed with SIGKILL leaves
// its worker's orphans to its parent. It is not done if this process should do it
// itself, with what it found out of cgroups, if it did.
func keep(watched, dieWithParent bool) (_ *cgroup.Host, done bool, err error) {
	if keeper != nil {
		return nil, false, nil
	}
	groups := cgroup.Probe()
	if watched || groups.Kill.Can() {
		return &groups, false, nil // a guard is cheaper: see guarding
	}
	return nil, true, errors.Join(groups.Close(), keepFor(dieWithParent))
}

// keepUnconfined does the same later, for a command that no watchdog could be for.
func keepUnconfined(begun []backend.Backend, groups *cgroup.Host, dieWithParent bool) (done bool, err error) {
	if keeper != nil || groups.Kill.Can() {
		return false, nil
	}
	discard(begun)
	return true, errors.Join(groups.Close(), keepFor(dieWithParent))
}

func keepFor(dieWithParent bool) error {
	r, w, err := os.Pipe()
	if err != nil {
		return keepError(err)
	}
	signals := make(chan os.Signal, 16)
	for _, sig := range append([]os.Signal{unix.SIGTSTP, unix.SIGCONT}, forwarded...) {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	k, err := launch.Keep("/proc/self/exe", append([]string{keptName + strconv.Itoa(int(r.Fd()))}, os.Args[1:]...), os.Environ(), r)
	if err != nil {
		return keepError(err)
	}
	_ = r.Close()
	if dieWithParent {
		if err := onParentsDeath(func() { k.Signal(unix.SIGTERM) }); err != nil {
			k.Signal(unix.SIGKILL)
			return err
		}
	}
	defer w.Close() // open as long as this process is there
	go func() {
		for sig := range signals {
			if (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTSTP) && inForeground() {
				continue // it had it from the terminal
			}
			k.Signal(sig)
		}
	}()
	status, survivors, unknown, err := k.Wait(func(sig unix.Signal) {
		// A stop of job control is one of all that the shell started. Who has
		// stopped the launcher alone continues it alone. Package signal gives
		// SIGTSTP, which it has caught once, never back to its default.
		if sig != unix.SIGSTOP {
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		}
	})
	switch {
	case err != nil:
		return keepError(err)
	case status.Exited():
		return &exitError{status: status.ExitStatus()}
	}
	_ = guard.Sweep()
	line := fmt.Sprintf("the launcher was killed by signal %d", status.Signal())
	switch {
	case len(survivors) > 0:
		line += fmt.Sprintf(", and processes of its command survived: %v", survivors)
	case len(unknown) > 0:
		line += fmt.Sprintf("; whose these processes are is not known, its command's or of others that this process had started before: %v", unknown)
	default:
		line += "; its command was ended"
	}
	return &exitError{status: 128 + int(status.Signal()), line: line + "; there is no report"}
}

func keepError(err error) error {
	return refuse("", "starting the launcher: %v", err)
}

// endWithKeeper ends a worker when its launcher's keeper dies: that is the process
// that the caller has killed.
func endWithKeeper(w backend.Worker) {
	if keeper == nil {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, keeper)
		w.Stop(0)
	}()
}
