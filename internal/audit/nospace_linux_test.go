package audit

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoSpaceLeft: a full disk refuses; with room again the log goes on, and is
// whole.
func TestNoSpaceLeft(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0700"); err != nil {
		t.Skipf("needs root, to mount: %v", err)
	}
	defer func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	}()
	dir := filepath.Join(disk, "log")
	l, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	said := refusesAfterFailure(l)
	if !strings.HasPrefix(said, "refused: ") || !strings.Contains(said, "no space left") && !strings.Contains(said, "short write") {
		t.Error(said)
	}
	head := l.Head()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if l, err := Open(dir, Options{}); err == nil {
		_ = l.Close()
		t.Error("a log on a full disk is opened")
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=256k"); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	launch(t, l, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if res := wantWhole(t, dir, head); res.Records < 20 {
		t.Errorf("%+v", res)
	}
}
