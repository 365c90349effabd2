package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is abicap, the command that it runs, and the tests.
func TestMain(m *testing.M) {
	switch os.Getenv("ABICAP_TEST") {
	case "abicap":
		_ = os.Setenv("ABICAP_TEST", "command")
		main()
	case "command":
		command(os.Args[1:])
	default:
		os.Exit(m.Run())
	}
}

// abicap is the command line `abicap ARG...`, as the given user, with one CPU.
func abicap(uid int, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "ABICAP_TEST=abicap", "GOMAXPROCS=1")
	cmd.Dir = "/"
	if uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return cmd
}

const nobody = 65534

// users are the test's own and, if that is root, an ordinary one.
func users() []int {
	if os.Getuid() == 0 {
		return []int{0, nobody}
	}
	return []int{os.Getuid()}
}

// since is what a call is answered with from an ABI on.
type since []struct {
	abi    int
	answer string
}

func always(answer string) since { return since{{1, answer}} }

// answers are those to the calls in attempts_linux_test.go, by hand. "ok" stands
// for a number that depends on the kernel. An attr that is too long comes before
// its content, hence E2BIG for what the ABI has no field for.
var answers = map[string]since{
	"version with an attr": always("EINVAL"), "unknown create flag": always("EINVAL"), "version and errata": always("EINVAL"),
	"no attr": always("EFAULT"), "bad attr": always("EFAULT"), "attr of 4 bytes": always("EINVAL"), "attr of a page and more": always("E2BIG"),
	"empty ruleset": always("ENOMSG"), "unknown file access": always("EINVAL"),
	"file access": always("ok"), "file access, 56 bytes": always("ok"), "file access, a page": always("ok"), "file access, 56 bytes and more set": always("E2BIG"),
	"errata":       {{1, "EINVAL"}, {7, "ok"}},
	"refer":        {{1, "EINVAL"}, {2, "ok"}},
	"truncate":     {{1, "EINVAL"}, {3, "ok"}},
	"ioctl":        {{1, "EINVAL"}, {5, "ok"}},
	"unix sockets": {{1, "EINVAL"}, {9, "ok"}},
	"tcp":          {{1, "E2BIG"}, {4, "ok"}},
	"udp":          {{1, "E2BIG"}, {4, "EINVAL"}, {10, "ok"}},
	"scopes":       {{1, "E2BIG"}, {6, "ok"}},
	"quiet":        {{1, "E2BIG"}, {10, "ok"}},

	"file rule": always("ok"), "file rule with an access that is not handled": always("EINVAL"), "file rule with an unknown flag": always("EINVAL"),
	"rule of type 0": always("EINVAL"), "rule of type 9": always("EINVAL"),
	"port rule, no descriptor": always("EBADF"), "port rule, no ruleset": always("EBADFD"), "port rule, nothing handled": always("EINVAL"),
	"port rule, no access": {{1, "EINVAL"}, {4, "ENOMSG"}},
	"tcp rule":             {{1, "EBADF"}, {4, "ok"}}, // there is no ruleset for it before
	"quiet file rule":      {{1, "EINVAL"}, {10, "ok"}},

	"restrict with no descriptor": always("EBADF"), "restrict with an unknown flag": always("EINVAL"), "restrict": always("ok"),
	"restrict, log flag alone": {{1, "EINVAL"}, {7, "ok"}},
	"restrict, log flags":      {{1, "EINVAL"}, {7, "ok"}},
	"restrict, tsync":          {{1, "EINVAL"}, {8, "ok"}},
	"open what no rule allows": always("EACCES"), "open what a rule allows": always("ok"),

	"file access of a non-dumpable process": always("ok"), "unknown file access of a non-dumpable process": always("EINVAL"),
}

// wanted are the answers of one ABI.
func wanted(abi int) map[string]string {
	want := map[string]string{"version": strconv.Itoa(abi)}
	for name, steps := range answers {
		for _, s := range steps {
			if s.abi <= abi {
				want[name] = s.answer
			}
		}
	}
	return want
}

func TestABIs(t *testing.T) {
	host, err := landlockVersion()
	for abi := 1; abi <= 10; abi++ {
		for _, uid := range users() {
			t.Run(fmt.Sprintf("%d/uid=%d", abi, uid), func(t *testing.T) {
				if err != nil || host < abi {
					t.Skipf("the kernel has Landlock ABI %d (%v)", host, err)
				}
				compare(t, attempt(t, abicap(uid, strconv.Itoa(abi), "/proc/self/exe", "attempts")), wanted(abi))
			})
		}
	}
}

// The answers are those of a kernel that has the ABI.
func TestKernelAgrees(t *testing.T) {
	host, err := landlockVersion()
	if err != nil || host >= len(kernels) {
		t.Skipf("the kernel has Landlock ABI %d (%v)", host, err)
	}
	cmd := abicap(os.Getuid(), "attempts")
	cmd.Env = append(cmd.Env, "ABICAP_TEST=command")
	got, want := attempt(t, cmd), wanted(host)
	if host < 7 { // some have the errata query from a stable release
		delete(got, "errata")
		delete(want, "errata")
	}
	compare(t, got, want)
}

func TestAbsent(t *testing.T) {
	for abi, errno := range map[string]string{"off": "EOPNOTSUPP", "none": "ENOSYS"} {
		for _, uid := range users() {
			t.Run(fmt.Sprintf("%s/uid=%d", abi, uid), func(t *testing.T) {
				want := wanted(1)
				for name := range want {
					want[name] = errno
				}
				want["open what no rule allows"], want["open what a rule allows"] = "ok", "ok"
				compare(t, attempt(t, abicap(uid, abi, "/proc/self/exe", "attempts")), want)
			})
		}
	}
}

// A kernel with less keeps what it has.
func TestOlderKernel(t *testing.T) {
	host, err := landlockVersion()
	if err != nil || host >= 10 {
		t.Skipf("the kernel has Landlock ABI %d (%v), which is not below 10", host, err)
	}
	if got := attempt(t, abicap(os.Getuid(), "10", "/proc/self/exe", "attempts"))["version"]; got != strconv.Itoa(host) {
		t.Errorf("version %s, want %d", got, host)
	}
}

// Privileges are asked before flags.
func TestRestrictWithoutPrivilege(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: an ordinary user's command has no_new_privs")
	}
	for abi, want := range map[string]string{"5": "EPERM", "off": "EOPNOTSUPP"} {
		cmd := abicap(0, abi, "/proc/self/exe", "unprivileged")
		out, err := cmd.CombinedOutput()
		if got := string(out); err != nil || got != want {
			t.Errorf("ABI %s: %q, %v, want %s", abi, got, err, want)
		}
	}
}

// attempt runs the attempts and returns what became of each.
func attempt(t *testing.T, cmd *exec.Cmd) map[string]string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%v, %s", err, stderr.String())
	}
	var got map[string]string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return got
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: %s, want %s", name, got[name], w)
		}
	}
	for name, g := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s, and nothing is wanted", name, g)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args           []string
		want           int
		stdout, stderr string // what they contain
	}{
		{[]string{"5", "/proc/self/exe", "exit", "0"}, 0, "", ""},
		{[]string{"5", "/proc/self/exe", "exit", "7"}, 7, "", ""},
		{[]string{"5", "/proc/self/exe", "signal", "9"}, 128 + 9, "", ""},
		{[]string{"5", "/proc/self/exe", "signal", "15"}, 128 + 15, "", ""},
		{[]string{"-h"}, 0, "usage: abicap N COMMAND", ""},
		{[]string{}, 125, "", "usage: abicap N COMMAND"},
		{[]string{"5"}, 125, "", "usage: abicap N COMMAND"},
		{[]string{"0", "true"}, 125, "", `"0" is not an ABI: 1 to 10, off or none`},
		{[]string{"11", "true"}, 125, "", `"11" is not an ABI`},
		{[]string{"5", "/nonexistent"}, 125, "", "/nonexistent: no such file"},
		{[]string{"5", "no-such-command"}, 125, "", "executable file not found"},
	} {
		for _, uid := range users() {
			var stdout, stderr bytes.Buffer
			cmd := abicap(uid, c.args...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != c.want {
				t.Errorf("uid %d, %q: exit status %d, want %d: %s", uid, c.args, got, c.want, stderr.String())
			}
			if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) || c.stderr == "" && stderr.Len() > 0 {
				t.Errorf("uid %d, %q: printed %q and %q", uid, c.args, stdout.String(), stderr.String())
			}
		}
	}
}

func TestStandardStreams(t *testing.T) {
	var stdout, stderr bytes.Buffer
	cmd := abicap(os.Getuid(), "5", "/proc/self/exe", "cat")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("hello"), &stdout, &stderr
	if err := cmd.Run(); err != nil || stdout.String() != "hello" || stderr.String() != "5 bytes" {
		t.Errorf("%v, %q, %q", err, stdout.String(), stderr.String())
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := abicap(os.Getuid(), "5", "/proc/self/exe", "await")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		if _, err := stdout.Read(make([]byte, 1)); err != nil { // it is ready
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		late.Stop()
		if got := cmd.ProcessState.ExitCode(); got != 40+int(sig) {
			t.Errorf("%v: exit status %d", sig, got)
		}
	}
}

func FuzzJudgeAttr(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x03"))
	f.Fuzz(func(t *testing.T, attr []byte) {
		if len(attr) < 8 {
			return
		}
		accepted := false
		for abi, k := range kernels[1:] {
			switch errno := k.judgeAttr(attr); {
			case errno == 0:
				accepted = true
			case accepted:
				t.Errorf("ABI %d refuses (%v) what an older one takes: %x", abi+1, errno, attr)
			}
		}
	})
}
