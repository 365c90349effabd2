package cgroup

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// workerArg makes the test binary a worker: the next argument says what it does.
const workerArg = "@worker"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == workerArg {
		debug.SetGCPercent(-1) // raw forks have one thread and no collector
		work(os.Args[2], os.Args[3:])
		return
	}
	flag.Parse()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	h := Probe()
	status := m.Run()
	if left := leftovers(h); len(left) > 0 {
		fmt.Println("cgroups are left:", left)
		status = 1
	}
	os.Exit(status)
}

// leftovers are groups and leaves of these tests below the host's own cgroups.
// Others may have theirs there.
func leftovers(h Host) []string {
	var list []string
	for _, o := range h.state.all {
		if o.dir < 0 {
			continue
		}
		names, _ := children(o.dir)
		for _, name := range names {
			id := strings.TrimPrefix(strings.TrimPrefix(name, groupPrefix), "self-")
			if _, ours := ids.Load(id); ours {
				list = append(list, o.name()+" "+name)
			}
		}
	}
	return list
}

// work is the worker's half.
func work(what string, args []string) {
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch what {
	case "true":
	case "sleep":
		fmt.Println("ready")
		wait()
	case "linger": // ends after so many milliseconds
		fmt.Println("ready")
		time.Sleep(time.Duration(number(0)) * time.Millisecond)
	case "memory": // in MiB
		block := make([]byte, number(0)<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		fmt.Println("allocated", number(0))
		wait()
	case "child-memory":
		c := exec.Command("/proc/self/exe", workerArg, "memory", args[0])
		c.Stdin = strings.NewReader("")
		err := c.Run()
		fmt.Println("child:", err)
		wait()
	case "forks":
		runtime.LockOSThread()
		self := uintptr(os.Getpid())
		made, failed := 0, 0
		for range number(0) {
			switch pid, errno := fork(); {
			case errno == unix.EAGAIN:
				failed++
			case errno != 0:
				panic(errno)
			case pid == 0: // they end with their parent, also where no group does it
				unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
				if parent, _, _ := unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); parent != self {
					unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) // it has ended before
				}
				pause()
			default:
				made++
			}
		}
		fmt.Println("forks", made, failed)
		wait()
	case "tree": // each in a session of its own
		for range number(0) {
			if pid, errno := fork(); errno != 0 {
				panic(errno)
			} else if pid == 0 {
				unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
				pause()
			}
		}
		fmt.Println("ready")
		pause()
	case "stopped":
		for range number(0) {
			if pid, errno := fork(); errno != 0 {
				panic(errno)
			} else if pid == 0 {
				self, _, _ := unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
				unix.RawSyscall(unix.SYS_KILL, self, uintptr(unix.SIGSTOP), 0)
				pause()
			}
		}
		fmt.Println("ready")
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	case "bomb": // only under a limit; it ends by itself, should the test not come to end it
		fmt.Println("ready")
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			fork()
		}
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	case "chains": // so many processes that each live only to make the next one
		fmt.Println("ready")
		for range number(0) {
			if pid, errno := fork(); errno == 0 && pid == 0 {
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
					if pid, errno := fork(); errno == 0 && pid != 0 {
						unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
					}
				}
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
		pause()
	case "use": // so many milliseconds of CPU time
		for used() < time.Duration(number(0))*time.Millisecond {
		}
		fmt.Println("used")
		wait()
	case "spin": // for so many milliseconds of the clock
		begin, before := time.Now(), used()
		for time.Since(begin) < time.Duration(number(0))*time.Millisecond {
		}
		fmt.Println("cpu", ((used() - before) * 1000 / time.Since(begin)).Nanoseconds())
	case "probe": // after changes to a mount namespace of its own
		for _, point := range args {
			how, point, _ := strings.Cut(point, ":")
			var err error
			switch how {
			case "private":
				err = unix.Mount("", point, "", unix.MS_REC|unix.MS_PRIVATE, "")
			case "ro":
				err = unix.Mount("", point, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
			case "hide":
				err = unix.Mount("hide", point, "tmpfs", 0, "")
			case "umount":
				err = unix.Unmount(point, unix.MNT_DETACH)
			}
			if err != nil {
				panic(fmt.Sprint(how, point, err))
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(Probe())
	default:
		panic(what)
	}
}

// used is this process' CPU time.
func used() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// wait waits for the parent to close the worker's input.
func wait() { _, _ = io.Copy(io.Discard, os.Stdin) }

// fork forks this thread alone. The child may make raw calls and nothing else.
func fork() (int, syscall.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	return int(pid), errno
}

func pause() {
	for {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

var (
	knownMu sync.Mutex
	known   = map[int]bool{} // children that their test waits for
)

// reap collects orphans. Where nobody does, they count as tasks, and are in the
// way of who reads all of /proc.
func reap() {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, pid := range numbers(text) {
			knownMu.Lock()
			if !known[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
			knownMu.Unlock()
		}
	}
}

// worker is a started one.
type worker struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// start starts a worker, in the group unless that is nil.
func start(t *testing.T, g *Group, args ...string) *worker {
	t.Helper()
	w := command(t, args...)
	if err := w.startIn(g); err != nil {
		t.Fatalf("starting %q: %v", args, err)
	}
	t.Cleanup(func() {
		w.in.Close()
		_ = w.Process.Kill()
		_ = w.Wait()
	})
	return w
}

func command(t *testing.T, args ...string) *worker {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{Cmd: exec.Command(exe, append([]string{workerArg}, args...)...)}
	in, err := w.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.in, w.out, w.Stderr = in, bufio.NewReader(out), os.Stderr
	w.SysProcAttr = &syscall.SysProcAttr{}
	return w
}

// startIn does what a launcher does.
func (w *worker) startIn(g *Group) error {
	knownMu.Lock()
	defer knownMu.Unlock()
	err := w.startInside(g)
	if err == nil {
		known[w.Process.Pid] = true
	}
	return err
}

func (w *worker) startInside(g *Group) error {
	if g == nil {
		return w.Start()
	}
	if fd := g.FD(); fd >= 0 {
		w.SysProcAttr.UseCgroupFD, w.SysProcAttr.CgroupFD = true, fd
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := g.Enter()
		if err == nil {
			err = w.Start()
			if left := g.Leave(); left != nil {
				result <- left
				return // and the thread ends, still locked
			}
		}
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}

// line is what the worker says next, "" at its end.
func (w *worker) line(t *testing.T) string {
	t.Helper()
	said := make(chan string, 1)
	go func() {
		s, _ := w.out.ReadString('\n')
		said <- strings.TrimSpace(s)
	}()
	select {
	case s := <-said:
		return s
	case <-time.After(60 * time.Second):
		t.Fatal("the worker says nothing")
		return ""
	}
}

func (w *worker) ready(t *testing.T) {
	t.Helper()
	if s := w.line(t); s != "ready" {
		t.Fatalf("the worker says %q", s)
	}
}

// signal is what ended the worker, or 0.
func (w *worker) signal() syscall.Signal {
	_ = w.Wait()
	if s := w.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return s.Signal()
	}
	return 0
}

func probe(t *testing.T) Host {
	t.Helper()
	h := Probe()
	// As a delegated user, processes of the test before may still be leaving.
	for end := time.Now().Add(5 * time.Second); os.Getenv(delegatedVariable) != "" && h.Memory.Cause == InternalProcesses && time.Now().Before(end); {
		h.Close()
		time.Sleep(10 * time.Millisecond)
		reap()
		h = Probe()
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error("closing the host:", err)
		}
	})
	if h.Moves { // before there are controls beside this process
		if err := h.Prepare(newID(), everything(h)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// need skips where the host cannot hold something.
func need(t *testing.T, what string, a Ability) {
	t.Helper()
	if !a.Can() {
		t.Skipf("%s: %s (%s)", what, a.Why, a.Cause)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can do this")
	}
}

var ids sync.Map // of groups that were made here

func newID() string {
	id := strings.ToLower(rand.Text())
	ids.Store(id, true)
	return id
}

func group(t *testing.T, h Host, l Limits) *Group {
	t.Helper()
	g, err := New(h, newID(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, g) })
	return g
}

// end removes the group, whatever is in it.
func end(t *testing.T, g *Group) {
	t.Helper()
	if len(g.dirs) == 0 {
		return
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	reap()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// only is the host as if it had no other hierarchies.
func only(t *testing.T, h Host, keep func(*hierarchy) bool) Host {
	t.Helper()
	s := &state{mounts: h.state.mounts}
	for _, o := range h.state.all {
		if keep(o) {
			s.all = append(s.all, o)
		}
	}
	less := judge(s.all, caller{root: os.Geteuid() == 0})
	less.state = s
	return less
}

// alive are the processes whose arguments have the token.
func alive(t *testing.T, token string) []int {
	t.Helper()
	reap()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var list []int
	for _, f := range files {
		text, _ := os.ReadFile(f) // a zombie has none
		if strings.Contains(string(text), token) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			list = append(list, pid)
		}
	}
	return list
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// read is a file of the group's directory that has it.
func read(t *testing.T, g *Group, file string) string {
	t.Helper()
	for _, d := range g.dirs {
		if text, err := readBounded(d.fd, file, 4096); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("the group has no %q", file)
	return ""
}
