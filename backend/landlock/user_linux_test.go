package landlock

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestDirectoriesAreTheUsers: what a launch as another user makes is made with that
// user's rights, so that a link leads root nowhere. The control is the user's own tree.
func TestDirectoriesAreTheUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to take the rights of another user")
	}
	const uid = 12345
	dir, err := os.MkdirTemp("/tmp", "sbx-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	own, roots := filepath.Join(dir, "own"), filepath.Join(dir, "roots")
	for _, d := range []string{own, roots} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(own, uid, uid); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(roots, filepath.Join(own, "link")); err != nil {
		t.Fatal(err)
	}
	u := &User{UID: uid, GID: uid}
	if err := u.makeDirs([]string{filepath.Join(own, "link", "made")}); err == nil {
		t.Error("made beyond the link")
	}
	if _, err := os.Lstat(filepath.Join(roots, "made")); err == nil {
		t.Error("it is there")
	}
	if err := u.makeDirs([]string{filepath.Join(own, "a", "b")}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(own, "a", "b"))
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != uid {
		t.Errorf("%v %v", st, err)
	}
}
