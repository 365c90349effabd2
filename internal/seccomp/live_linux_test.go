package seccomp

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The live tests start this test binary again, as an installed filter cannot be
// taken off. childEnv tells the child what to do.
const childEnv = "SECCOMP_TEST_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		os.Exit(child(job))
	}
	os.Exit(m.Run())
}

// attempt is one raw call, made on one thread with and without the filter.
type attempt struct {
	name string
	nr   uintptr
	args [6]uintptr
	want syscall.Errno // under the filter; 0 is success
}

func attempts() []attempt {
	const high = 1 << 32
	limits := unix.Rlimit{}
	a := func(want syscall.Errno, name string, nr uintptr, args ...uintptr) attempt {
		at := attempt{name: name, nr: nr, want: want}
		copy(at.args[:], args)
		return at
	}
	return []attempt{
		a(unix.EACCES, "tcp socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
		a(unix.EACCES, "udp socket, high bits", unix.SYS_SOCKET, high|unix.AF_INET, unix.SOCK_DGRAM, 0),
		a(unix.EACCES, "tcp6 socket", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0),
		a(unix.EPROTONOSUPPORT, "netlink uevent", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT),
		a(unix.EAFNOSUPPORT, "inet socketpair", unix.SYS_SOCKETPAIR, unix.AF_INET, unix.SOCK_STREAM, 0, 0),
		a(unix.EPERM, "unshare user namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_THREAD),
		a(unix.EPERM, "clone with user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS),
		a(unix.EPERM, "setns", unix.SYS_SETNS, ^uintptr(0), 0),
		a(unix.EPERM, "TIOCSTI", unix.SYS_IOCTL, ^uintptr(0), unix.TIOCSTI, 0),
		a(unix.EPERM, "TIOCSTI, high bits", unix.SYS_IOCTL, ^uintptr(0), high|unix.TIOCSTI, 0),
		a(unix.EPERM, "limits of the parent", unix.SYS_PRLIMIT64, uintptr(os.Getppid()), unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&limits))),
		a(unix.EPERM, "personality", unix.SYS_PERSONALITY, 0x0100000),
		a(unix.EPERM, "add_key", unix.SYS_ADD_KEY, 0, 0, 0, 0, 0),
		a(unix.EPERM, "keyctl", unix.SYS_KEYCTL, 0xffff),
		a(unix.EPERM, "chroot", unix.SYS_CHROOT, 1),
		a(unix.EPERM, "umount2", unix.SYS_UMOUNT2, 1, 0x40000000),
		a(unix.EPERM, "clock_settime", unix.SYS_CLOCK_SETTIME, 99, 0),
		a(unix.EPERM, "no parent death signal", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0),
		a(unix.EPERM, "SIGTERM at parent death", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM)),
		a(unix.EPERM, "priority of nobody's processes", unix.SYS_SETPRIORITY, unix.PRIO_USER, 1<<31-2, 0),
		a(unix.EPERM, "I/O priority of no group", unix.SYS_IOPRIO_SET, 2, 1<<31-2, 0),
		a(unix.EPERM, "set-user-ID", unix.SYS_FCHMOD, ^uintptr(0), 0o4755),
		a(unix.EPERM, "set-user-ID by path", unix.SYS_FCHMODAT, 0, 1, 0o6755),
		a(unix.ENOSYS, "clone3", unix.SYS_CLONE3, 0, 0),
		a(unix.ENOSYS, "io_uring_setup", unix.SYS_IO_URING_SETUP, 0, 0),
		a(unix.ENOSYS, "shmget", unix.SYS_SHMGET, 0, 0, 0),
		a(unix.ENOSYS, "mq_unlink", unix.SYS_MQ_UNLINK, 1),

		a(0, "SIGKILL at parent death", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)),
		a(unix.EBADF, "set-group-ID", unix.SYS_FCHMOD, ^uintptr(0), 0o2755),

		a(0, "unix socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM, 0),
		a(0, "netlink route", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		a(0, "own limits", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&limits))),
		a(0, "personality asked", unix.SYS_PERSONALITY, 0xffffffff),
		a(0, "own priority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, high, 0),
		a(0, "signal 0 to itself", unix.SYS_KILL, uintptr(os.Getpid()), 0),
		a(unix.EBADF, "another ioctl", unix.SYS_IOCTL, ^uintptr(0), unix.TIOCGWINSZ, 0),
	}
}

// result is what one attempt gave without and with the filter.
type result struct{ Bare, Filtered syscall.Errno }

func child(job string) int {
	runtime.LockOSThread()
	var err error
	switch {
	case job == "attempts":
		err = childAttempts()
	case job == "x32":
		err = childX32()
	case strings.HasPrefix(job, "exec:"):
		err = childExec(strings.TrimPrefix(job, "exec:"))
	default:
		err = fmt.Errorf("unknown job %q", job)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func childAttempts() error {
	list := attempts()
	results := make([]result, len(list))
	for i, a := range list {
		results[i].Bare = a.do()
	}
	if err := install(Variant{Net: NetNone, Unix: UnixKernel}); err != nil {
		return err
	}
	for i, a := range list {
		results[i].Filtered = a.do()
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

func (a attempt) do() syscall.Errno {
	_, _, e := unix.RawSyscall6(a.nr, a.args[0], a.args[1], a.args[2], a.args[3], a.args[4], a.args[5])
	return e
}

// childX32 makes x32's getpid, which must not return.
func childX32() error {
	if err := install(Variant{Net: NetNone, Unix: UnixKernel}); err != nil {
		return err
	}
	_, _, e := unix.RawSyscall(0x40000000+39, 0, 0, 0)
	return fmt.Errorf("the x32 call returned: %w", e)
}

func childExec(path string) error {
	if err := install(Variant{Net: NetNone, Unix: UnixKernel}); err != nil {
		return err
	}
	return unix.Exec(path, []string{path}, os.Environ())
}

// install puts a filter on the calling thread, which the caller has locked.
func install(v Variant) error {
	p, err := Load(runtime.GOARCH, v)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return attach(p)
}

func attach(p []Insn) error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: (*unix.SockFilter)(unsafe.Pointer(&p[0]))}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}

// childCommand runs this test binary again for one job.
func childCommand(t *testing.T, job string) *exec.Cmd {
	t.Helper()
	if !slices.Contains(Arches(), runtime.GOARCH) {
		t.Skipf("no filter for %s", runtime.GOARCH)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+job)
	return cmd
}

// TestLive attempts closed calls for real. Each must fail as the filter says,
// and must end differently without the filter: else the filter proves nothing.
func TestLive(t *testing.T) {
	cmd := childCommand(t, "attempts")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	list := attempts()
	results := make([]result, 0, len(list))
	if err := json.Unmarshal(out, &results); err != nil || len(results) != len(list) {
		t.Fatalf("child answered %q: %v", out, err)
	}
	for i, a := range list {
		got := results[i]
		if got.Filtered != a.want {
			t.Errorf("%s: %v under the filter, want %v", a.name, got.Filtered, a.want)
		}
		closed := a.want != 0 && a.want != unix.EBADF
		switch {
		case closed && got.Bare == a.want:
			// An outer sandbox or an ordinary user's lack of rights says the
			// same; the verdict above stands but proves nothing about us.
			if os.Getuid() == 0 {
				t.Errorf("%s: %v without the filter too", a.name, got.Bare)
			} else {
				t.Logf("%s: %v without the filter too", a.name, got.Bare)
			}
		case !closed && got.Bare != a.want:
			t.Errorf("%s: %v without the filter, want %v", a.name, got.Bare, a.want)
		}
	}
}

// killed reports whether a command died of the filter.
func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == unix.SIGSYS
}

func TestLiveX32(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("x32 is amd64's")
	}
	if out, err := childCommand(t, "x32").CombinedOutput(); !killed(err) {
		t.Errorf("got %v, want death by SIGSYS: %s", err, out)
	}
}

// int80 asks for a socket by the i386 ABI and exits with 0 if it gets none.
const int80 = `
int main(void) {
	long fd = -1;
	__asm__ volatile("int $0x80" : "=a"(fd) : "a"(359), "b"(2), "c"(1), "d"(0) : "r8", "r9", "r10", "r11", "memory");
	return fd >= 0 ? 7 : 0;
}
`

func TestLiveInt80(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("int 0x80 is amd64's")
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "int80.c"), filepath.Join(dir, "int80")
	if err := os.WriteFile(src, []byte(int80), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", bin, src).CombinedOutput(); err != nil {
		t.Skipf("no gcc: %v: %s", err, out)
	}
	var exit *exec.ExitError
	if err := exec.Command(bin).Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Skipf("this kernel has no i386 ABI: %v", err)
	}
	if out, err := childCommand(t, "exec:"+bin).CombinedOutput(); !killed(err) {
		t.Errorf("got %v, want death by SIGSYS: %s", err, out)
	}
}

// BenchmarkAttach measures seccomp(2) alone: each time on a fresh thread that
// ends afterwards, as filters add up.
func BenchmarkAttach(b *testing.B) {
	for _, v := range []Variant{Variants()[0], Variants()[3]} {
		p, err := Load(runtime.GOARCH, v)
		if err != nil {
			b.Skip(err)
		}
		b.Run(v.String(), func(b *testing.B) { benchmarkAttach(b, p) })
	}
}

func benchmarkAttach(b *testing.B, p []Insn) {
	times := make([]time.Duration, 0, b.N)
	for range b.N {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
			err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
			start := time.Now()
			err = errors.Join(err, attach(p))
			times = append(times, time.Since(start))
			done <- err
		}()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "median-µs")
	b.ReportMetric(float64(len(p)), "insns")
}
