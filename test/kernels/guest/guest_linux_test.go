package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/test/kernels/wire"
)

// The test binary is also the init of a pid namespace, see TestRun.
func TestMain(m *testing.M) {
	if os.Getenv("GUEST_TEST") == "init" {
		initOfNamespace()
		return
	}
	os.Exit(m.Run())
}

// runs are jobs, and what is to become of them.
var runs = []struct {
	job                     wire.Job
	want                    wire.Result // Millis is not compared
	stdout, stderr, trouble string      // trouble is what Trouble contains
}{
	{job: wire.Job{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}},
		want: wire.Result{Exit: 3}, stdout: "out\n", stderr: "err\n"},
	{job: wire.Job{Args: []string{"true"}, UID: 7},
		want: wire.Result{UID: 7, Exit: notRun}, trouble: "there is no user 7"},
	{job: wire.Job{Args: []string{"sh", "-c", "id -u; id -G; cat; echo $HOME $USER $X"}, UID: 1000, Dir: "/", Env: []string{"X=1", "USER=me"}},
		want: wire.Result{UID: 1000}, stdout: "1000\n1000\n/home/user me 1\n"},
	{job: wire.Job{Args: []string{"sh", "-c", "kill -TERM $$"}},
		want: wire.Result{Exit: 128 + 15}},
	{job: wire.Job{Args: []string{"/nonexistent"}},
		want: wire.Result{Exit: notRun}, trouble: "no such file"},
	{job: wire.Job{Args: []string{"no-such-command"}},
		want: wire.Result{Exit: notRun}, trouble: "executable file not found"},
	{job: wire.Job{},
		want: wire.Result{Exit: notRun}, trouble: "there is no command"},
	{job: wire.Job{Args: []string{"true"}, Sysctls: map[string]string{"no.such": "1"}},
		want: wire.Result{Exit: notRun}, trouble: "sysctl no.such: open /proc/sys/no/such"},
	{job: wire.Job{Args: []string{"sh", "-c", "sleep 99 & echo begun; sleep 99"}, Seconds: 1},
		want: wire.Result{Exit: 128 + 9, TimedOut: true}, stdout: "begun\n"},
	// What leaves the group, and holds the pipes.
	{job: wire.Job{Args: []string{"sh", "-c", "setsid sleep 99 & sleep 98 & exit 4"}},
		want: wire.Result{Exit: 4}, trouble: "left behind: "},
	// What is about to end is not left behind.
	{job: wire.Job{Args: []string{"sh", "-c", "sleep 0.1 & exit 5"}},
		want: wire.Result{Exit: 5}},
	// An orphan is reaped while the job runs.
	{job: wire.Job{Args: []string{"sh", "-c", "pid=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); sleep 0.5; kill -0 $pid 2>/dev/null || echo reaped"}},
		want: wire.Result{}, stdout: "reaped\n"},
}

type ran struct {
	Result         wire.Result
	Stdout, Stderr string
}

// TestRun runs jobs as process 1 of a pid namespace.
func TestRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: jobs change their user")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "GUEST_TEST=init")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, unix.EPERM) {
		t.Skip("this root may make no namespaces")
	}
	var all []ran
	if err := errors.Join(err, json.Unmarshal(out, &all)); err != nil || len(all) != len(runs) {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	for i, got := range all {
		want, trouble := runs[i].want, got.Result.Trouble
		want.Name = fmt.Sprint(i)
		got.Result.Millis, got.Result.Trouble = 0, ""
		if got.Result != want || got.Stdout != runs[i].stdout || got.Stderr != runs[i].stderr ||
			!strings.Contains(trouble, runs[i].trouble) || runs[i].trouble == "" && trouble != "" {
			t.Errorf("%q: %+v, trouble %q", runs[i].job.Args, got, trouble)
		}
	}
}

func initOfNamespace() {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var all []ran
	for i, r := range runs {
		r.job.Name = fmt.Sprint(i)
		var stdout, stderr bytes.Buffer
		result := run(r.job, &stdout, &stderr)
		all = append(all, ran{result, stdout.String(), stderr.String()})
	}
	_ = json.NewEncoder(os.Stdout).Encode(all)
}

func TestParseStat(t *testing.T) {
	for stat, want := range map[string]process{
		"7 (sh) S 1 7 7 0 -1 4194304 1 2":         {"sh", false},
		"8 (a) b (c) R 1 7 7 0 -1 4194304 1 2":    {"a) b (c", false},
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0": {"kthreadd", true},
	} {
		if got, err := parseStat(stat); got != want || err != nil {
			t.Errorf("%q: %+v, %v", stat, got, err)
		}
	}
	for _, bad := range []string{"", "7", "7 (sh", "7 (sh) S 1 7", "7 (sh) S 1 7 7 0 -1 x"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q was taken for %+v", bad, got)
		}
	}
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseStat(string(self)); err != nil || got.kernel || !strings.HasPrefix("guest.test", got.name) {
		t.Errorf("this process is %+v, %v", got, err)
	}
}

func TestSweepIsForAnInit(t *testing.T) {
	if os.Getpid() != 1 && sweep() == nil {
		t.Error("it was made outside of one")
	}
}

func TestList(t *testing.T) {
	if got := list([]string{"a", "b"}); got != "a, b" {
		t.Error(got)
	}
	if got := list(strings.Split("abcdefghijkl", "")); got != "a, b, c, d, e, f, g, h, i, j and 2 more" {
		t.Error(got)
	}
}

func TestTimeLimit(t *testing.T) {
	for seconds, want := range map[int]time.Duration{-1: defaultLimit, 0: defaultLimit, 1: time.Second, 600: 10 * time.Minute} {
		if got := timeLimit(wire.Job{Seconds: seconds}); got != want {
			t.Errorf("%d: %v", seconds, got)
		}
	}
}

func TestJobDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: directories change their owner")
	}
	dir := t.TempDir()
	for _, c := range []struct {
		dir  string
		want int
	}{{dir + "/a/b", 1000}, {dir + "/a", 0}} { // the second is there already
		cmd, err := command(wire.Job{Args: []string{"true"}, Dir: c.dir, UID: 1000})
		if err != nil || cmd.Dir != c.dir || owner(t, c.dir) != c.want {
			t.Errorf("%s has owner %d, %v", c.dir, owner(t, c.dir), err)
		}
	}
}

func owner(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

func TestCapture(t *testing.T) {
	var c capture
	var stream io.Writer
	if err := c.open(&stream, failing{}); err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds: the writer must not hang for a line that is broken.
	if _, err := stream.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	c.started()
	if err := c.finish(); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestModules(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"20-b.ko", "10-a.ko", "9-c.ko", "30-d.ko.xz", "modules.dep"} {
		write(t, filepath.Join(dir, name), "")
	}
	var trouble troubles
	if got, want := modules(dir, &trouble), []string{dir + "/10-a.ko", dir + "/20-b.ko", dir + "/9-c.ko"}; !slices.Equal(got, want) || trouble != nil {
		t.Errorf("%q, %q", got, trouble)
	}
	if got := modules(dir+"/none", &trouble); got != nil || trouble != nil {
		t.Errorf("%q, %q", got, trouble)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestLinkCommands(t *testing.T) {
	root := t.TempDir()
	bin, usr, local := root+"/bin", root+"/usr/bin", root+"/usr/local/bin"
	write(t, bin+"/busybox", "")
	write(t, bin+"/bash", "")
	write(t, usr+"/ls", "")
	write(t, local+"/ps", "")
	if err := linkCommands([]string{"sh", "bash", "ls", "ps"}, bin+"/busybox", []string{local, usr, bin}, bin, usr); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		bin + "/sh": bin + "/busybox", usr + "/sh": bin + "/busybox",
		usr + "/bash": bin + "/bash", bin + "/ls": usr + "/ls",
		bin + "/ps": local + "/ps", usr + "/ps": local + "/ps",
	}
	if got := symlinks(t, root); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}

	// A merged /usr.
	merged := t.TempDir()
	write(t, merged+"/bin/busybox", "")
	if err := errors.Join(os.Mkdir(merged+"/usr", 0o755), os.Symlink("../bin", merged+"/usr/bin")); err != nil {
		t.Fatal(err)
	}
	if err := linkCommands([]string{"sh"}, merged+"/bin/busybox", []string{merged + "/usr/bin", merged + "/bin"}, merged+"/bin", merged+"/usr/bin"); err != nil {
		t.Error(err)
	}
}

func symlinks(t *testing.T, root string) map[string]string {
	t.Helper()
	links := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSymlink {
			links[path], err = os.Readlink(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return links
}

func TestMoveTree(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	write(t, from+"/bin/tool", "tool")
	write(t, from+"/etc/secret", "secret")
	if err := errors.Join(unix.Chmod(from+"/bin/tool", 0o4755), os.Chmod(from+"/etc/secret", 0o600), os.Chmod(from+"/etc", 0o700),
		os.Symlink("bin/tool", from+"/link"), unix.Mkfifo(from+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := moveTree(from, to); err != nil {
		t.Fatal(err)
	}
	if got, want := tree(t, to), []string{"drwx------ etc", "-rw------- etc/secret", "drwxr-xr-x bin", "urwxr-xr-x bin/tool", "Lrwxrwxrwx link"}; !sameElements(got, want) {
		t.Errorf("moved: %q", got)
	}
	if got, want := tree(t, from), []string{"drwx------ etc", "drwxr-xr-x bin", "prw------- fifo"}; !sameElements(got, want) {
		t.Errorf("left: %q", got)
	}
	if text, err := os.ReadFile(to + "/link"); string(text) != "tool" {
		t.Errorf("%q, %v", text, err)
	}
}

func tree(t *testing.T, root string) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		lines = append(lines, fmt.Sprint(info.Mode(), " ", path[len(root)+1:]))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func sameElements(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestTakeKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write(t, path, "00ff\n")
	if key, err := takeKey(path); !bytes.Equal(key, []byte{0, 0xff}) || err != nil || exists(path) {
		t.Errorf("%x, %v, still there: %v", key, err, exists(path))
	}
	if _, err := takeKey(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, bad := range []string{"", "secret"} {
		write(t, path, bad)
		if key, err := takeKey(path); err == nil || strings.Contains(err.Error(), "secret") || exists(path) {
			t.Errorf("%q: %x, %v", bad, key, err)
		}
	}
}

func TestSysctlFile(t *testing.T) {
	for name, want := range map[string]string{
		"kernel/panic":             "/proc/sys/kernel/panic",
		"kernel.panic":             "/proc/sys/kernel/panic",
		"net/ipv4/conf/eth0.1/tag": "/proc/sys/net/ipv4/conf/eth0.1/tag",
		"user.max_user_namespaces": "/proc/sys/user/max_user_namespaces",
	} {
		if got := sysctlFile(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestDelegatedFiles(t *testing.T) {
	want := []string{"/c", "/c/cgroup.procs", "/c/cgroup.subtree_control", "/c/cgroup.threads"}
	if got := delegatedFiles("/c"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestHasParameter(t *testing.T) {
	for line, want := range map[string]bool{"a sbx.shell b": true, "sbx.shell": true, "": false, "sbx.shell=0": false, "xsbx.shell": false} {
		if got := hasParameter(line, "sbx.shell"); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}

func TestErrnoName(t *testing.T) {
	for want, err := range map[string]error{
		"ok": nil, "EOPNOTSUPP": unix.EOPNOTSUPP, "ENOSYS": unix.ENOSYS, "no errno": errors.New("no errno"),
		"ENOSPC": &os.PathError{Op: "fork/exec", Path: "/init", Err: unix.ENOSPC},
	} {
		if got := errnoName(err); got != want {
			t.Errorf("%v: %s", err, got)
		}
	}
}
