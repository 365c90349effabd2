package landlock

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// TestWatchdogIsOutOfTheGroup: when the worker runs, its watchdog is in a session of its
// own already: what is sent to its launcher's group or session does not reach it.
func TestWatchdogIsOutOfTheGroup(t *testing.T) {
	needScope(t)
	b := New(Options{Watch: true})
	for range 20 {
		ws := realTemp(t)
		plan, err := b.Plan(testPolicy(t, ws, nil))
		if err != nil {
			t.Fatal(err)
		}
		noGroups(plan.(*Plan))
		pr, err := plan.Prepare()
		if err != nil {
			t.Fatal(err)
		}
		w := launchIn(t, pr, ws, backend.Command{OwnTree: true}, "sleep", "100")
		watchdogs := 0
		for _, pid := range childrenNamed(t, "sbx-watchdog") {
			watchdogs++
			if session, err := unix.Getsid(pid); err != nil || session != pid {
				t.Errorf("watchdog %d is in session %d, %v", pid, session, err)
			}
		}
		if watchdogs == 0 {
			t.Error("there is no watchdog")
		}
		w.Stop(0)
		w.Wait()
		if err := pr.Close(); err != nil {
			t.Error(err)
		}
	}
}

// childrenNamed lists the living children of this process with a name (proc(5), comm).
func childrenNamed(t *testing.T, name string) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that has ended
		for _, field := range strings.Fields(string(text)) {
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%s/comm", field))
			if pid, nerr := strconv.Atoi(field); err == nil && nerr == nil && string(bytes.TrimSpace(comm)) == name {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
