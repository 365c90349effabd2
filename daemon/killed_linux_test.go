package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

// mortalName is the argv[0] of a daemon that is a process of its own, to be killed.
const mortalName = "sandboxd-mortal"

func mortal() int {
	watch := os.Getenv("WATCH") != "no"
	m, err := New(Options{
		Socket: listen.Options{Path: os.Getenv("SOCKET"), Mode: listen.User}, Version: "test", NoAudit: true,
		Backends: func(u *User) []backend.Backend {
			if os.Getenv("NATIVE") != "" {
				return Backends(u)
			}
			return []backend.Backend{landlock.New(landlock.Options{User: u, Watch: watch, Recheck: true})}
		},
		Features: func() any { return nil },
	})
	if err == nil {
		err = m.Run(context.Background(), 0)
	}
	fmt.Fprintln(os.Stderr, "mortal:", err)
	return 1
}

// startMortal starts one, as a user. What it leaves is in state and temp.
func startMortal(t *testing.T, uid int, env ...string) (cmd *exec.Cmd, socket, state string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sandboxd-mortal-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	state = filepath.Join(dir, "state")
	for _, sub := range []string{state, filepath.Join(dir, "tmp"), filepath.Join(dir, "home"), filepath.Join(dir, "ws")} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(sub, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "run", "s")
	cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{mortalName}, Dir: "/", Stderr: os.Stderr,
		Env:         append([]string{"PATH=/usr/bin:/bin", "HOME=" + filepath.Join(dir, "home"), "TMPDIR=" + filepath.Join(dir, "tmp"), "XDG_RUNTIME_DIR=" + state, "SOCKET=" + socket}, env...),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	waitUntil(t, "the socket", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return cmd, socket, state
}

// dialDirectly does without listen.Dial, which trusts no directory of another user.
func dialDirectly(t *testing.T, socket, ws string) *client {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, conn.(*net.UnixConn), ws)
}

// marked are the processes with a word among their arguments.
func marked(word string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(line, []byte("\x00"+word+"\x00")) && alive(int64(pid)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// childrenOf are a process' children with a name, in argv[0].
func childrenOf(parent int, name string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) < 2 || f[1] != strconv.Itoa(parent) {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if pid, err := strconv.Atoi(e.Name()); err == nil && strings.HasPrefix(string(line), name) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// guardsOf waits for a daemon's guard: its socket is there before.
func guardsOf(t *testing.T, pid int) (guards []int) {
	t.Helper()
	waitUntil(t, "the guard", func() bool {
		guards = childrenOf(pid, GuardName)
		return len(guards) == 1
	})
	return guards
}

// isEmpty tells whether nothing of a worker's is below dir.
func isEmpty(t *testing.T, dir string) bool {
	t.Helper()
	empty := true
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir || !strings.HasPrefix(d.Name(), "sbx-") {
			return nil
		}
		// A lease in which nothing is written yet is left for a while: its maker may
		// be about to lock it.
		if st, err := d.Info(); err != nil || st.IsDir() || st.Size() > 0 {
			empty = false
		}
		return nil
	})
	return empty
}

// users are root and an ordinary one, as far as this process may be them.
func users() map[string]int {
	if os.Geteuid() == 0 {
		return map[string]int{"root": 0, "user": 1001}
	}
	return map[string]int{"user": os.Geteuid()}
}

// TestKilled: whatever of the daemon is killed with SIGKILL, at any moment, no
// worker lives on, and nothing that was made for one stays.
func TestKilled(t *testing.T) {
	needLandlock(t)
	type user struct {
		uid int
		env []string
	}
	all := map[string]user{}
	for name, uid := range users() {
		all[name] = user{uid, nil}
		if auto() == landlock.NativeName {
			all[name+", with namespaces"] = user{uid, []string{"NATIVE=1"}}
		}
	}
	for name, u := range all {
		t.Run(name, func(t *testing.T) {
			for i := range 8 {
				cmd, socket, state := startMortal(t, u.uid, u.env...)
				ws := filepath.Join(filepath.Dir(state), "ws")
				c := dialDirectly(t, socket, ws)
				placeholders := func() int {
					list, err := os.ReadDir(ws)
					if err != nil {
						t.Fatal(err)
					}
					return len(list)
				}
				word := fmt.Sprintf("10000.%d%d", os.Getpid(), i)
				// One that leaves its session, one that ignores signals, many at once.
				for range 6 {
					c.launch(nil, "sh", "-c", "trap '' TERM HUP; setsid sleep "+word+" & setsid sh -c 'sleep "+word+" & sleep "+word+"' & exec sleep "+word)
				}
				if i%2 == 0 { // else in the middle of the launches
					waitUntil(t, "the workers", func() bool { return len(marked(word)) >= 6*4 })
					if u.env != nil && placeholders() == 0 {
						t.Error("nothing is protected")
					}
				} else {
					time.Sleep(time.Duration(i) * 3 * time.Millisecond) // any moment will do
				}
				pid := cmd.Process.Pid
				switch i % 3 {
				case 0:
					_ = unix.Kill(pid, unix.SIGKILL)
				case 1: // with the front
					for _, f := range childrenOf(pid, FrontName) {
						_ = unix.Kill(f, unix.SIGKILL)
					}
					_ = unix.Kill(pid, unix.SIGKILL)
				case 2:
					_ = unix.Kill(-pid, unix.SIGKILL)
				}
				_ = cmd.Wait()
				waitUntil(t, "the end of all workers", func() bool { return len(marked(word)) == 0 })
				waitUntil(t, "that all was removed", func() bool { return isEmpty(t, filepath.Dir(state)) && placeholders() == 0 })
			}
		})
	}
}

// TestKilledUnguarded is the control: with the guard stopped and no watchdogs,
// workers do live on; when the guard goes on, they end.
func TestKilledUnguarded(t *testing.T) {
	needLandlock(t)
	for name, uid := range users() {
		t.Run(name, func(t *testing.T) {
			cmd, socket, state := startMortal(t, uid, "WATCH=no")
			c := dialDirectly(t, socket, filepath.Join(filepath.Dir(state), "ws"))
			word := fmt.Sprintf("20000.%d", os.Getpid())
			c.launch(nil, "sh", "-c", "setsid sleep "+word+" & exec sleep "+word)
			waitUntil(t, "the worker", func() bool { return len(marked(word)) == 2 })
			guards := guardsOf(t, cmd.Process.Pid)
			_ = unix.Kill(guards[0], unix.SIGSTOP)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			// Root's leases are all in one place, where another launch may sweep.
			waitUntil(t, "the end of the worker's root", func() bool {
				n := len(marked(word))
				return n == 1 || n == 0 && uid == 0
			})
			if uid != 0 && isEmpty(t, filepath.Dir(state)) {
				t.Error("there is nothing to remove")
			}
			_ = unix.Kill(guards[0], unix.SIGCONT)
			waitUntil(t, "that all was removed", func() bool { return isEmpty(t, filepath.Dir(state)) })
			left := marked(word)
			for _, pid := range left {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			t.Logf("left with a guard and no watchdog: %d", len(left))
		})
	}
}

// TestGuardIsStartedAgain: a guard that was killed has a successor.
func TestGuardIsStartedAgain(t *testing.T) {
	needLandlock(t)
	cmd, socket, state := startMortal(t, os.Geteuid())
	first := guardsOf(t, cmd.Process.Pid)
	c := dialDirectly(t, socket, filepath.Join(filepath.Dir(state), "ws"))
	guarded := func() bool {
		c.say(&protocol.Health{ID: c.id()})
		h := until[*protocol.HealthResult](c)
		ok := slices.ContainsFunc(h.Checks, func(c protocol.HealthCheck) bool { return c.Name == "guard" && c.OK })
		if ok != (h.Status == "ok") {
			t.Fatalf("%+v", h)
		}
		return ok
	}
	waitUntil(t, "health with a guard", guarded)
	_ = unix.Kill(first[0], unix.SIGKILL)
	waitUntil(t, "health without one", func() bool { return !guarded() })
	waitUntil(t, "another guard", func() bool {
		now := childrenOf(cmd.Process.Pid, GuardName)
		return len(now) == 1 && now[0] != first[0]
	})
	waitUntil(t, "health with another", guarded)
	waitUntil(t, "a launch", func() bool {
		r := c.run("true")
		if r.failure != nil && r.failure.Code != protocol.Overloaded {
			t.Fatalf("%+v", r.failure)
		}
		return r.failure == nil
	})
}
