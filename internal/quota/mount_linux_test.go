package quota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/scratch"
)

func requireMounts(t *testing.T) {
	t.Helper()
	if h := Probe(); !h.Mounts {
		t.Skip(h.Why)
	}
}

func mountIn(t *testing.T, base string, size int64) *FS {
	t.Helper()
	f, err := Mount(base, size, os.Geteuid(), os.Getegid())
	must(t, err)
	t.Cleanup(func() {
		if err := f.Remove(); err != nil && !errors.Is(err, ErrDetached) {
			t.Error(err)
		}
	})
	return f
}

// mounted are the lines of mountinfo that name a path.
func mounted(t *testing.T, path string) (lines []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, path) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestProbeTells(t *testing.T) {
	before := mounted(t, "/")
	h := Probe()
	if !h.Measures || h.Memory < 16<<20 || h.Mounts == (h.Why != "") || h.Mounts == (h.Fix != "") {
		t.Errorf("%+v", h)
	}
	if after := mounted(t, "/"); len(after) != len(before) {
		t.Errorf("asking left mounts:\n%s", after)
	}
}

func TestMount(t *testing.T) {
	requireMounts(t)
	base := t.TempDir()
	const size = 4 * mib
	f := mountIn(t, base, size)
	if lines := mounted(t, f.Dir()); len(lines) != 1 || !strings.Contains(lines[0], "nosuid,nodev") || !strings.Contains(lines[0], " - tmpfs "+filepath.Base(f.Dir())+" ") || strings.Contains(lines[0], "shared:") {
		t.Errorf("mounted: %q", lines)
	}
	path, handle, err := f.Mkdir("tmp", 1234, 1235)
	must(t, err)
	defer handle.Close()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	if st.Uid != 1234 || st.Gid != 1235 || st.Mode != unix.S_IFDIR|0o700 {
		t.Errorf("the directory is %+v", st)
	}
	if st, err := os.Stat(f.Dir()); err != nil || st.Mode() != os.ModeDir|0o700 {
		t.Error("its root:", st.Mode(), err)
	}
	if l := f.Look(); l.Bytes != 0 || l.Full || l.Over(size) {
		t.Errorf("new: %+v", l)
	}
	// Too much, and the control beside it.
	too := make([]byte, size+1)
	must(t, os.WriteFile(base+"/control", too, 0o600))
	if err := os.WriteFile(path+"/big", too, 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing too much: %v", err)
	}
	if l := f.Look(); l.Bytes != size || !l.Full || l.Over(size) {
		t.Errorf("full: %+v", l)
	}
	must(t, os.Remove(path+"/big"))
	if l := f.Look(); l.Bytes != 0 || l.Full {
		t.Errorf("emptied: %+v", l)
	}
	// Empty files are not for nothing.
	made := int64(0)
	for err = nil; err == nil && made <= MaxFiles(size); made++ {
		err = os.WriteFile(fmt.Sprintf("%s/%d", path, made), nil, 0o600)
	}
	if l := f.Look(); !errors.Is(err, unix.ENOSPC) || made < size>>12 || !l.Full || l.Over(size) {
		t.Errorf("%d empty files: %v, %+v", made, err, l)
	}
	_ = handle.Close()
	must(t, f.Remove())
	if lines := mounted(t, f.Dir()); len(lines) > 0 {
		t.Errorf("left: %q", lines)
	}
	if names, err := os.ReadDir(base); err != nil || len(names) != 1 {
		t.Errorf("left in the base: %v, %v", names, err)
	}
	must(t, f.Remove())
}

// TestMountInUse: what is still in use at the end is taken out of sight, and
// that is told; one that a dead launcher left stays until it is not.
func TestMountInUse(t *testing.T) {
	requireMounts(t)
	f := mountIn(t, t.TempDir(), 4*mib)
	file, err := os.Create(f.Dir() + "/used")
	must(t, err)
	defer file.Close()
	mark := scratch.Mark{Kind: KindMount, Path: markPath(f.Dir())}
	if err := RemoveLeft(mark); !errors.Is(err, unix.EBUSY) || len(mounted(t, f.Dir())) != 1 {
		t.Errorf("one in use: %v", err)
	}
	if err := f.Remove(); !errors.Is(err, ErrDetached) {
		t.Errorf("at the end: %v", err)
	}
	if _, err := os.Lstat(f.Dir()); len(mounted(t, f.Dir())) > 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is left: %q, %v", mounted(t, f.Dir()), err)
	}
	if _, err := file.WriteString("x"); err != nil {
		t.Error("its user lost it:", err)
	}
}

func TestRemoveLeft(t *testing.T) {
	requireMounts(t)
	base := filepath.Join(t.TempDir(), `a b\c`)
	must(t, os.Mkdir(base, 0o700))
	f := mountIn(t, base, 4*mib)
	write(t, f.Dir()+"/file", 10)
	must(t, unix.Close(f.root)) // as the death of its launcher does
	f.root = -1
	mark := scratch.Mark{Kind: KindMount, Path: markPath(f.Dir())}
	must(t, RemoveLeft(mark))
	if lines := mounted(t, filepath.Base(f.Dir())); len(lines) > 0 {
		t.Errorf("left: %q", lines)
	}
	must(t, RemoveLeft(mark)) // what is gone is no error
	must(t, os.Remove(f.Dir()))
	must(t, RemoveLeft(mark))
	must(t, os.RemoveAll(base))
	must(t, RemoveLeft(mark))
}

// TestRemoveLeftOthers: what a lease names and is not what it says stays.
func TestRemoveLeftOthers(t *testing.T) {
	requireMounts(t)
	base := t.TempDir()
	here := func(name string) string {
		dir := filepath.Join(base, name)
		must(t, os.Mkdir(dir, 0o700))
		return dir
	}
	umount := func(dir string) {
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	f := mountIn(t, base, 4*mib)
	_, handle, err := f.Mkdir("sub", 0, 0)
	must(t, err)
	must(t, handle.Close())

	stranger := here(scratch.NewName())
	must(t, unix.Mount("stranger", stranger, "tmpfs", 0, "size=1m"))
	umount(stranger)
	bound := here(scratch.NewName())
	must(t, unix.Mount(f.Dir(), bound, "", unix.MS_BIND, ""))
	umount(bound)
	same := here(scratch.NewName())
	must(t, unix.Mount(filepath.Base(same), same, "ramfs", 0, ""))
	umount(same)
	plain := here("plain")
	must(t, unix.Mount("plain", plain, "tmpfs", 0, "size=1m"))
	umount(plain)
	link := filepath.Join(base, scratch.NewName())
	must(t, os.Symlink(f.Dir(), link))

	for _, path := range []string{
		markPath(stranger), markPath(bound), markPath(same), // not ours
		markPath(plain), markPath(base + "/x/../plain"), f.Dir(), "/", markPath(""), markPath("relative/" + scratch.NewName()), // not names
	} {
		if err := RemoveLeft(scratch.Mark{Kind: KindMount, Path: path}); err == nil {
			t.Errorf("%s counts as removed", path)
		}
	}
	if err := RemoveLeft(scratch.Mark{Kind: KindMount, Path: markPath(link)}); err != nil {
		t.Errorf("a link is nothing mounted: %v", err)
	}
	for _, dir := range []string{f.Dir(), stranger, bound, same, plain} {
		if len(mounted(t, " "+dir+" ")) != 1 {
			t.Errorf("%s is not mounted any more", dir)
		}
	}
}

// TestSweepKeepsWhatIsMounted: a directory that a lease lists is not emptied
// while something is mounted there.
func TestSweepKeepsWhatIsMounted(t *testing.T) {
	requireMounts(t)
	state, base := t.TempDir(), t.TempDir()
	dir := filepath.Join(base, scratch.NewName())
	must(t, os.Mkdir(dir, 0o700))
	must(t, unix.Mount("stranger", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	write(t, dir+"/precious", 1)
	lease := filepath.Join(state, scratch.NewName())
	text := fmt.Sprintf("{\"kind\":\"dir\",\"path\":%q}\n{\"kind\":%q,\"path\":%q}\n", dir, KindMount, markPath(dir))
	must(t, os.WriteFile(lease, []byte(text), 0o600))
	swept, err := scratch.New(state).Sweep(RemoveLeft)
	if err != nil || len(swept) != 2 || swept[0].Mark.Kind != KindMount || !errors.Is(swept[0].Err, ErrNotOurs) || swept[1].Err == nil {
		t.Errorf("%+v, %v", swept, err)
	}
	if _, err := os.Stat(dir + "/precious"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lease); err != nil {
		t.Error("the lease went, though what it lists is left:", err)
	}
}
