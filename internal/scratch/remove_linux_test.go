package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

const nobody = 65534

// asUser makes the rest of a test one of a user whom permissions bind: root acts
// on files as another, in this thread (setfsuid(2)).
func asUser(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread()
	if _, err := unix.SetfsuidRetUid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Setfsuid(0)
		runtime.UnlockOSThread()
	})
}

// TestRemoveWithoutPermissionsOnOlderKernels: through /proc.
func TestRemoveWithoutPermissionsOnOlderKernels(t *testing.T) {
	real := fchmodat2
	fchmodat2 = func(int, string, uint32, int) error { return unix.EOPNOTSUPP }
	t.Cleanup(func() { fchmodat2 = real })
	asUser(t)
	removeClosed(t, true)
}

func TestRemoveDoesNotEnterMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	bothWays(t, func(t *testing.T, _ bool) {
		dir, outside := tree(t)
		within := map[string]string{"a/b/tmpfs": "", "a/bound": outside, "bound": outside, "tmpfs": ""}
		private(t)
		for at, of := range within {
			at = filepath.Join(dir, at)
			write(t, filepath.Join(filepath.Dir(at), "file"))
			err := os.Mkdir(at, 0o700)
			if of == "" {
				err = errors.Join(err, unix.Mount("tmpfs", at, "tmpfs", 0, ""), os.WriteFile(filepath.Join(at, "precious"), nil, 0o600), os.Mkdir(filepath.Join(at, "empty"), 0))
			} else {
				err = errors.Join(err, unix.Mount(of, at, "", unix.MS_BIND, ""))
			}
			if err != nil {
				t.Fatal(err)
			}
			handle, err := os.Open(at)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				defer handle.Close()
				if n := len(entries(t, dir)); n > 4 {
					t.Errorf("%d entries are left", n)
				}
				if names, err := handle.Readdirnames(-1); err != nil || of == "" && len(names) != 2 || of != "" && len(names) != 1 {
					t.Errorf("what is mounted on %s holds %q, %v", at, names, err)
				}
			})
		}
		if err := RemoveTree(dir); err == nil {
			t.Error("it went though something is mounted in it")
		}
		kept(t, outside)
		if mounted, err := isMountPoint(filepath.Join(dir, "bound")); err != nil || !mounted {
			t.Errorf("a directory of the same file system that is mounted: %v, %v", mounted, err)
		}
		if err := RemoveTree(filepath.Join(dir, "bound")); !errors.Is(err, unix.EBUSY) {
			t.Error(err)
		}
		kept(t, outside)
	})
}

// private gives this test a mount namespace, which ends with its thread; what
// was mounted is out of sight before the test cleans up.
func private(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // for good
	back, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setns(int(back.Fd()), unix.CLONE_NEWNS); err != nil {
			t.Error(err)
		}
		_ = back.Close()
	})
}
