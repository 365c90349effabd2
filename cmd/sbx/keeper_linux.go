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
// where no cgroup can be had, whoever is killed with SIGKILL leaves its worker's
// orphans to its parent. It is not done if this process should do it itself, with
// what it found out of cgroups, if it did.
func keep(dieWithParent bool) (_ *cgroup.Host, done bool, err error) {
	if keeper != nil {
		return nil, false, nil
	}
	groups := cgroup.Probe()
	if groups.Kill.Can() {
		return &groups, false, nil // a guard is cheaper: see guarding
	}
	return nil, true, errors.Join(groups.Close(), keepFor(dieWithParent))
}

func keepFor(dieWithParent bool) error {
	r, w, err := os.Pipe()
	if err != nil {
		return keepError(err)
	}
	signals := make(chan os.Signal, 16)
	for _, sig := range append([]os.Signal{unix.SIGTSTP}, forwarded...) {
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
	continued := make(chan os.Signal, 4)
	signal.Notify(continued, unix.SIGCONT)
	status, survivors, err := k.Wait(func() {
		// It stops as the launcher has, so that the shell sees it. Package signal
		// gives a signal that it has caught once never back to its default.
		for len(continued) > 0 {
			<-continued // of an earlier stop
		}
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP) // which may come after the call has returned
		<-continued
		k.Signal(unix.SIGCONT)
	})
	switch {
	case err != nil:
		return keepError(err)
	case status.Exited():
		return &exitError{status: status.ExitStatus()}
	}
	_ = sweepLeft()
	line := fmt.Sprintf("the launcher was killed by signal %d; its command was ended, and there is no report", status.Signal())
	if len(survivors) > 0 {
		line = fmt.Sprintf("the launcher was killed by signal %d, and processes of its command survived: %v", status.Signal(), survivors)
	}
	return &exitError{status: 128 + int(status.Signal()), line: line}
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
