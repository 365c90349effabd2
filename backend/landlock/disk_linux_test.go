package landlock

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/quota"
	"sandboxd/policy"
)

const diskLimit = 8 << 20

// limited prepares launches under a limit on temporary directories, mounted or
// measured, and returns where these are made. What is left there when all is
// closed fails the test.
func limited(t *testing.T, ws string, mounted bool, user *User) backend.Prepared {
	t.Helper()
	b := requireLandlock(t)
	facts := b.Facts()
	facts.Disk = &quota.Host{Mounts: mounted, Measures: true, Memory: 1 << 40, Why: "it is not tried"}
	plan, err := Compile(diskPolicy(t, ws, diskLimit), facts)
	if err != nil {
		t.Fatal(err)
	}
	base := realTemp(t)
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	plan.tempBase, plan.user = base, user
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prepared.Close(); err != nil {
			t.Error(err)
		}
		if n := countDir(t, base); n > 0 {
			t.Errorf("%d temps are left", n)
		}
		table, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(table), base) {
			t.Errorf("a mount is left: %s, %v", table, err)
		}
	})
	return prepared
}

func requireMounts(t *testing.T) {
	t.Helper()
	if h := quota.Probe(); !h.Mounts {
		t.Skip(h.Why)
	}
}

// diskPolicy is testPolicy's with something to write.
func diskPolicy(t *testing.T, ws string, disk int64) policy.Policy {
	return testPolicy(t, ws, func(s *policy.Spec) {
		s.Limits.Disk = disk
		s.Grants = append(s.Grants, policy.Grant{Path: "/dev/zero", Kind: policy.File, Access: policy.Read, Reason: "zeros"})
	})
}

// fill writes 6 MiB to a temp that must be as new, and 6 MiB to shared memory:
// as shm_open(3) does, it follows no link.
const fill = `ls -A $TMPDIR $XDG_CACHE_HOME; head -c 6291456 /dev/zero >$TMPDIR/f;
	dd if=/dev/zero of=/dev/shm/sbx-test-$$ oflag=nofollow bs=64k count=96 2>&1; echo status $?; `

// asNew is what fill prints of the directories.
func asNew(out, temp string) bool {
	return strings.HasPrefix(out, temp+":\ncache\n\n"+temp+"/cache:\n")
}

func TestDiskWithoutLimit(t *testing.T) {
	requireShm(t)
	ws := realTemp(t)
	out, res := runIn(t, prepare(t, diskPolicy(t, ws, 0)), ws, "sh", "-c", fill)
	if !strings.Contains(out, "\n96+0 records out\n") || !strings.HasSuffix(out, "status 0\n") || res.Usage.PeakTemp != nil || len(res.Warnings) > 0 {
		t.Errorf("%s, %+v, %q", out, res.Usage, res.Warnings)
	}
	if s := res.Enforcement.State(policy.LimitsDisk); s.Status != backend.NotRequested {
		t.Errorf("%+v", s)
	}
}

func requireShm(t *testing.T) {
	t.Helper()
	if b := requireLandlock(t); !b.Facts().Notify {
		t.Skip("no stand-in for /dev/shm without a notification listener")
	}
}

// TestDiskMounted: each worker has all of it, for both places together, and no
// more; nobody is killed.
func TestDiskMounted(t *testing.T) {
	requireMounts(t)
	requireShm(t)
	ws := realTemp(t)
	prepared := limited(t, ws, true, nil)
	for range 4 {
		out, res := runIn(t, prepared, ws, "sh", "-c", "echo $TMPDIR; "+fill+"echo end")
		temp, out, _ := strings.Cut(out, "\n")
		if !asNew(out, temp) || !strings.Contains(out, "No space left") || !strings.Contains(out, "\n32+0 records out\n") || !strings.HasSuffix(out, "status 1\nend\n") {
			t.Errorf("%s", out)
		}
		if res.Outcome.ExitStatus() != 0 || res.Usage.PeakTemp == nil || *res.Usage.PeakTemp != diskLimit {
			t.Errorf("%+v, %+v", res.Outcome, res.Usage)
		}
		if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], temp) || !strings.Contains(res.Warnings[0], "(8M limit) is full") {
			t.Errorf("warnings %q", res.Warnings)
		}
		if s := res.Enforcement.State(policy.LimitsDisk); s.Status != backend.Enforced {
			t.Errorf("%+v", s)
		}
	}
}

// TestDiskMeasured: who writes too much is ended, each worker for its own.
func TestDiskMeasured(t *testing.T) {
	requireShm(t)
	ws := realTemp(t)
	prepared := limited(t, ws, false, nil)
	for i := range 4 {
		if i%2 == 1 { // the same limit as if nothing had been
			out, res := runIn(t, prepared, ws, "sh", "-c", "echo $TMPDIR; ls -A $TMPDIR; head -c 6291456 /dev/zero >$TMPDIR/f; sleep 0.2; exit 3")
			if res.Outcome.ExitStatus() != 3 || !strings.HasSuffix(out, "\ncache\n") || len(res.Warnings) > 0 {
				t.Errorf("%s, %+v, %q", out, res.Outcome, res.Warnings)
			}
			continue
		}
		out, res := runIn(t, prepared, ws, "sh", "-c", "echo $TMPDIR; "+fill+"sleep 60; echo survives")
		temp, out, _ := strings.Cut(out, "\n")
		if !asNew(out, temp) || strings.Contains(out, "survives") {
			t.Errorf("%s", out)
		}
		if res.Outcome.Kind != backend.LimitHit || res.Outcome.Which != "disk" || res.Usage.PeakTemp == nil || *res.Usage.PeakTemp <= diskLimit {
			t.Errorf("%+v, %+v", res.Outcome, res.Usage)
		}
		if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], temp) || !strings.Contains(res.Warnings[0], "(8M limit) is full") {
			t.Errorf("warnings %q", res.Warnings)
		}
		if s := res.Enforcement.State(policy.LimitsDisk); s.Status != backend.Partial {
			t.Errorf("%+v", s)
		}
	}
}

// TestDiskOfAnotherUser: the file system is the worker's.
func TestDiskOfAnotherUser(t *testing.T) {
	requireMounts(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a worker as another user")
	}
	ws := realTemp(t)
	for dir := ws; dir != "/tmp" && dir != "/"; dir = dir[:strings.LastIndexByte(dir, '/')] {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, res := runIn(t, limited(t, ws, true, &User{UID: 65534, GID: 65534}), ws, "sh", "-c",
		"id -u; echo x >$TMPDIR/f && echo x >$XDG_CACHE_HOME/f && dd if=/dev/zero of=/dev/shm/sbx-test-$$ oflag=nofollow count=1 status=none && cat $TMPDIR/f; ls -A $TMPDIR/..; echo y >$TMPDIR/../f")
	if !strings.HasPrefix(out, "65534\nx\n") || strings.Count(out, "Permission denied") < 2 || strings.Contains(out, "\ntmp\n") {
		t.Errorf("%s, %+v", out, res.Outcome)
	}
}

// TestDiskOfFailedLaunch: what was made for a worker that never ran is gone.
func TestDiskOfFailedLaunch(t *testing.T) {
	for _, mounted := range []bool{true, false} {
		if mounted && !quota.Probe().Mounts {
			continue
		}
		ws := realTemp(t)
		dir, err := os.Open(ws)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		_, err = limited(t, ws, mounted, nil).Start(backend.Command{
			Path: ws + "/none", Argv: []string{"none"}, Dir: dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, OwnTree: true,
		})
		var exec *backend.ExecError
		if !errors.As(err, &exec) || exec.Errno != unix.ENOENT {
			t.Errorf("the error is %v", err)
		}
	}
}
