//go:build unix

package scratch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be a launcher that makes directories and is
// killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SCRATCH_TEST_STATE"); dir != "" {
		l := New(dir)
		for range 3 {
			made, err := l.Mkdir(os.Getenv("SCRATCH_TEST_BASE"))
			if err != nil || l.Trouble() != nil {
				fmt.Println("trouble:", err, l.Trouble())
				os.Exit(1)
			}
			_ = os.WriteFile(filepath.Join(made, "file"), []byte("x"), 0o600)
			fmt.Println(made)
		}
		fmt.Println("made")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// launcher starts one and returns what it made.
func launcher(t *testing.T, state, base string) (*exec.Cmd, []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SCRATCH_TEST_STATE="+state, "SCRATCH_TEST_BASE="+base)
	_, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var made []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "made" {
			return cmd, made
		}
		made = append(made, lines.Text())
	}
	t.Fatalf("a launcher said %q", made)
	return nil, nil
}

func present(paths ...string) (n int) {
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			n++
		}
	}
	return n
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	names, err := readDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return names
}

func TestKilledLaunchersAreSweptAndLivingOnesAreNot(t *testing.T) {
	state, base := filepath.Join(t.TempDir(), "state"), t.TempDir()
	dead, left := launcher(t, state, base)
	_, kept := launcher(t, state, base)
	_ = dead.Process.Kill()
	_ = dead.Wait()
	// Somebody's directory of the same kind of name, in no lease.
	stranger := filepath.Join(base, NewName())
	if err := os.Mkdir(stranger, 0o700); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(left[0], 0) // a worker may have made it hard to remove
	own := New(state)
	mine, err := own.Mkdir(base)
	if err != nil {
		t.Fatal(err)
	}
	swept, err := own.Sweep(nil)
	if err != nil || len(swept) != 3 || present(left...) != 0 {
		t.Errorf("swept %+v (%v); %d of the dead one's are left", swept, err, present(left...))
	}
	if present(kept...) != 3 || present(stranger, mine) != 2 {
		t.Error("something living was removed")
	}
	if n := len(entries(t, state)); n != 2 {
		t.Errorf("%d leases, want those of the living and of this process", n)
	}
	if err := own.Remove(mine); err != nil || present(mine) != 0 || len(entries(t, state)) != 1 {
		t.Errorf("after removing: %v, %d leases", err, len(entries(t, state)))
	}
}

func TestManyAtOnce(t *testing.T) {
	state, base := t.TempDir(), t.TempDir()
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for j := range 3 {
				cmd, made := launcher(t, state, base)
				if (i+j)%2 == 0 {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				} else if present(made...) != 3 {
					t.Error("a living launcher lost a directory")
				}
				if _, err := New(state).Sweep(nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
}

func TestForgedLeases(t *testing.T) {
	state, base := t.TempDir(), t.TempDir()
	precious := filepath.Join(base, "precious")
	outside := filepath.Join(base, NewName()[:10])
	link := filepath.Join(base, NewName())
	for _, d := range []string{precious, outside} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(precious, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, NewName())
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range []string{precious, outside, link, file, base + "/x/../" + filepath.Base(link), "relative/" + NewName(), "/"} {
		_ = json.NewEncoder(&b).Encode(line{Mark: Mark{Kind: KindDir, Path: p}})
	}
	b.WriteString("not JSON\n{}\n")
	lease := filepath.Join(state, NewName())
	if err := os.WriteFile(lease, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	swept, err := New(state).Sweep(nil)
	for _, s := range swept {
		if s.Err == nil {
			t.Errorf("%+v counts as removed", s.Mark)
		}
	}
	if err != nil || present(precious, outside, link, file) != 4 {
		t.Error("a forged lease removed something", err)
	}
}

func TestLeaseOfManyDirectoriesStaysSmall(t *testing.T) {
	state, base := t.TempDir(), t.TempDir()
	l := New(state)
	first, err := l.Mkdir(base)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		d, err := l.Mkdir(base)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Remove(d); err != nil {
			t.Fatal(err)
		}
	}
	names := entries(t, state)
	if len(names) != 1 {
		t.Fatalf("leases: %q", names)
	}
	st, err := os.Stat(filepath.Join(state, names[0]))
	if err != nil || st.Size() > compactAt+1000 {
		t.Errorf("a lease of %d bytes, %v", st.Size(), err)
	}
	data, _ := os.ReadFile(filepath.Join(state, names[0]))
	if marks := parseLease(data); len(marks) != 1 || marks[0].Path != first {
		t.Errorf("it lists %+v", marks)
	}
	if err := errors.Join(l.Remove(first), l.Trouble()); err != nil || len(entries(t, state)) != 0 {
		t.Error(err, entries(t, state))
	}
}

// TestLeaseOfManyLivingIsNotWrittenAnewEachTime: of more marks than compactAt has room
// for, all of them living, one more costs one line.
func TestLeaseOfManyLivingIsNotWrittenAnewEachTime(t *testing.T) {
	l := New(t.TempDir())
	defer l.end()
	files := map[string]bool{}
	const marks = 6000 // of 70 bytes and more
	for range marks {
		l.Add(Mark{Kind: "other", Path: "/other/" + NewName()})
		files[l.path] = true
	}
	if l.Trouble() != nil || len(files) < 2 || len(files) > 5 {
		t.Errorf("%d leases were written, %v", len(files), l.Trouble())
	}
	data, err := os.ReadFile(l.path)
	if got := parseLease(data); err != nil || len(data) <= 4*compactAt || len(got) != marks {
		t.Errorf("%d marks in %d bytes, %v", len(got), len(data), err)
	}
	for size := 0; size < maxLease; size += compactAt {
		if full := fullAt(size); full < size+compactAt/4 || full > maxLease && size <= maxLease-2*compactAt {
			t.Errorf("one of %d bytes is full at %d", size, full)
		}
	}
}

func TestOtherKinds(t *testing.T) {
	state := t.TempDir()
	text := `{"kind":"cgroup","path":"/one","detail":7}` + "\n" + `{"kind":"cgroup","path":"/two"}` + "\n" + `{"path":"/one","gone":true}` + "\n" + `{"kind":"dir","path":"/cut`
	lease := filepath.Join(state, NewName())
	if err := os.WriteFile(lease, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked []string
	try := func(answer error) int {
		_, err := New(state).Sweep(func(m Mark) error { asked = append(asked, m.Kind+m.Path); return answer })
		if err != nil {
			t.Error(err)
		}
		return len(entries(t, state))
	}
	if n := try(errors.New("busy")); n != 1 {
		t.Error("a lease went though what it lists is left")
	}
	if n := try(nil); n != 0 || !slices.Equal(asked, []string{"cgroup/two", "cgroup/two"}) {
		t.Errorf("%d leases, asked for %q", n, asked)
	}
}

// TestSweepOrder: what was made last goes first, and what that was in the way of
// is tried once more.
func TestSweepOrder(t *testing.T) {
	marks := []Mark{{Kind: "a", Path: "/1"}, {Kind: "a", Path: "/2"}, {Kind: "a", Path: "/3"}, {Kind: "a", Path: "/4"}}
	needs := map[string]string{"/3": "/1", "/2": "/9"} // /1 is in the way of /3, and what never goes of /2
	gone := map[string]bool{}
	var asked []string
	swept := sweepMarks(slices.Clone(marks), func(m Mark) error {
		asked = append(asked, m.Path)
		if before := needs[m.Path]; before != "" && !gone[before] {
			return errors.New("busy")
		}
		gone[m.Path] = true
		return nil
	})
	if want := []string{"/4", "/3", "/2", "/1", "/3", "/2", "/2"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
	for _, s := range swept {
		if (s.Err != nil) != (s.Mark.Path == "/2") {
			t.Errorf("%+v", s)
		}
	}
	if len(swept) != 4 || swept[0].Mark.Path != "/4" {
		t.Errorf("%+v", swept)
	}
}

func TestEmptyLeases(t *testing.T) {
	state := t.TempDir()
	young, old := filepath.Join(state, NewName()), filepath.Join(state, NewName())
	for _, f := range []string{young, old} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hour := time.Now().Add(-time.Hour)
	_ = os.Chtimes(old, hour, hour)
	if _, err := New(state).Sweep(nil); err != nil || present(young) != 1 || present(old) != 0 {
		t.Errorf("%v: young %d, old %d", err, present(young), present(old))
	}
}

func TestStateDirThatOthersWriteIsRefused(t *testing.T) {
	state, base := t.TempDir(), t.TempDir()
	if err := os.Chmod(state, 0o777); err != nil {
		t.Fatal(err)
	}
	l := New(state)
	made, err := l.Mkdir(base)
	if err != nil || present(made) != 1 || l.Trouble() == nil {
		t.Errorf("made %q, %v, trouble %v", made, err, l.Trouble())
	}
	if len(entries(t, state)) != 0 {
		t.Error("a lease was written there")
	}
	if err := l.Remove(made); err != nil || present(made) != 0 {
		t.Error(err)
	}
}

func FuzzParseLease(f *testing.F) {
	f.Add([]byte(`{"kind":"dir","path":"/a"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range parseLease(b) {
			if !filepath.IsAbs(m.Path) {
				t.Errorf("%q", m.Path)
			}
		}
	})
}

// TestLockOfANewLease: a sweep that looks at a lease that is being made does not make its
// making fail.
func TestLockOfANewLease(t *testing.T) {
	path := filepath.Join(t.TempDir(), NewName())
	made, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	sweep, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(sweep.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = sweep.Close() })
	if err := lockNew(made); err != nil {
		t.Error(err)
	}
}
