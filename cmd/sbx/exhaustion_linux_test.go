package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// withFewProcesses returns a command line of a user of its own, who may have 100
// processes and threads.
func withFewProcesses(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	needProgram(t, "bash") // for ulimit -u
	if os.Geteuid() != 0 {
		t.Skip("needs a user of its own")
	}
	c := withoutCgroup(t, args...)
	c.Args = append([]string{"bash", "-c", `ulimit -u 100; exec "$@"`, "sh", c.Path}, args...)
	c.Path = "/bin/bash"
	return c
}

// withoutCgroup returns a command line of an ordinary user: if that is not who runs
// this, one of its own, who has no cgroup.
func withoutCgroup(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := sbx(t, args...)
	if os.Geteuid() != 0 {
		return c
	}
	uid := freeUser(t)
	dir, err := os.MkdirTemp("", "sbx-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, d := range []string{"", "bin", "ws", "home", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, d), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	// By another process: one that a test beside this one forks would hold the file
	// open for writing for a moment, and its execution would fail (ETXTBSY).
	from := c.Path
	c.Path, c.Dir = filepath.Join(dir, "bin/sbx"), filepath.Join(dir, "ws")
	if out, err := exec.Command("install", "-m", "755", from, c.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.Env = []string{"HOME=" + dir + "/home", "PATH=" + dir + "/bin:/usr/bin:/bin", "TMPDIR=" + dir + "/tmp", "LANG=C.UTF-8", "GORACE=" + raceOptions}
	c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	t.Cleanup(func() { // whatever is left of the user's
		_ = exec.Command("setpriv", "--reuid", strconv.Itoa(uid), "--clear-groups", "sh", "-c", "kill -9 -1").Run()
	})
	return c
}

// ownUsers counts those of this process: another's begin elsewhere, mostly.
var ownUsers atomic.Int32

// freeUser returns a uid of which there is no process, nor a zombie that nobody has
// reaped yet, which counts towards RLIMIT_NPROC too: an earlier test's may be there
// for minutes where process 1 is slow.
func freeUser(t *testing.T) int {
	t.Helper()
	taken := map[uint32]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			taken[st.Uid] = true
		}
	}
	for range 1000 {
		if uid := 62000 + (os.Getpid()+int(ownUsers.Add(1)))%1000; !taken[uint32(uid)] {
			return uid
		}
	}
	t.Fatal("each of 1000 users has processes")
	return 0
}

// TestExhaustedProcesses: a command that leaves its user no process does not take
// its launcher, or the launcher's keeper, with it.
func TestExhaustedProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs a user of its own")
	}
	for _, mode := range []string{"workspace-write", "danger-full-access"} {
		t.Run(mode, func(t *testing.T) {
			if mode != "danger-full-access" {
				needLandlock(t)
			}
			for range 3 { // Go's runtime does not always want a thread
				c := withFewProcesses(t, "run", "-q", "--mode", mode, "--timeout", "1s", "--grace", "0s", "--", "sh", "-c",
					"trap '' USR1; (while :; do sleep 300 & done) 2>/dev/null; echo exhausted.; exec sleep 300")
				out := start(t, c)
				out.waitFor(t, "exhausted.")
				for range 50 {
					_ = c.Process.Signal(unix.SIGUSR1)
					time.Sleep(5 * time.Millisecond)
				}
				if got := exitStatus(c.Wait()); got != backend.StatusTimedOut {
					t.Errorf("status %d", got)
				}
				if left := processesOf(c.SysProcAttr.Credential.Uid); len(left) > 0 {
					t.Errorf("processes %v are left", left)
				}
			}
		})
	}
}

// processesOf lists a user's processes that live.
func processesOf(uid uint32) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var st unix.Stat_t
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && unix.Stat(dir, &st) == nil && st.Uid == uid && !gone(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestTooLittleRoom: limits that Go's runtime would run into are refused before
// anything is made.
func TestTooLittleRoom(t *testing.T) {
	needProgram(t, "bash")
	for _, descriptors := range []string{"8", "16", "20", "47"} {
		c := sbx(t, "run", "--", "true")
		c.Args = append([]string{"bash", "-c", `ulimit -n "$0"; exec sbx "$@"`, descriptors}, c.Args[1:]...)
		c.Path = "/bin/bash"
		if got := exitStatus(c.Run()); got != backend.StatusRefused {
			t.Errorf("with %s descriptors: status %d", descriptors, got)
		}
		if left, err := os.ReadDir(temp(c)); err != nil || len(left) > 0 {
			t.Errorf("with %s descriptors: %v is left, %v", descriptors, left, err)
		}
	}
}
