package hold

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/scratch"
	"sandboxd/policy"
)

func realTemp(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// repo is a workspace with a few places to hold.
func repo(t *testing.T) (ws string, guarded []policy.Guarded) {
	t.Helper()
	ws = realTemp(t)
	for _, dir := range []string{".git/hooks", ".idea"} {
		if err := os.MkdirAll(filepath.Join(ws, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(ws, ".cursor")); err != nil {
		t.Fatal(err)
	}
	for _, g := range []policy.Guarded{
		{Path: ".claude", Guard: policy.GuardMissing}, {Path: ".cursor", Guard: policy.GuardLink}, {Path: ".git", Guard: policy.GuardPinned},
		{Path: ".git/commondir", Guard: policy.GuardFile, Text: ".\n"}, {Path: ".git/config.worktree", Guard: policy.GuardFile},
		{Path: ".git/hooks", Guard: policy.GuardShut}, {Path: ".git/info", Guard: policy.GuardMade}, {Path: ".git/info/attributes", Guard: policy.GuardFile},
		{Path: ".idea", Guard: policy.GuardShut}, {Path: ".vscode", Guard: policy.GuardMissing}, {Path: "nowhere", Guard: policy.GuardMissing},
	} {
		g.Path = policy.Raw(ws) + "/" + g.Path
		guarded = append(guarded, g)
	}
	return ws, guarded
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(p, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func take(t *testing.T, guarded []policy.Guarded) *Set {
	t.Helper()
	s, err := Take(guarded)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func release(t *testing.T, s *Set, want ...string) {
	t.Helper()
	changed, err := s.Release()
	if err != nil {
		t.Error(err)
	}
	if !slices.Equal(changed, want) {
		t.Errorf("changed: %q, want %q", changed, want)
	}
}

func TestPlaceholders(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	ws, guarded := repo(t)
	before := names(t, ws)
	s := take(t, guarded)
	var held []string
	for _, p := range s.Places {
		if p.Placeholder {
			held = append(held, fmt.Sprintf("%s %o", strings.TrimPrefix(p.Path, ws), p.Stat.Mode&^unix.S_ISGID))
		}
	}
	want := []string{"/.claude 41555", "/.git/commondir 101444", "/.git/config.worktree 101444", "/.git/info 41755", "/.git/info/attributes 101444", "/.vscode 41555", "/nowhere 41555"}
	if !slices.Equal(held, want) {
		t.Errorf("held %q\nwant %q", held, want)
	}
	if text, err := os.ReadFile(ws + "/.git/commondir"); err != nil || string(text) != ".\n" {
		t.Errorf("commondir: %q %v", text, err)
	}
	release(t, s)
	if after := names(t, ws); !slices.Equal(after, before) {
		t.Errorf("left %q\nwas %q", after, before)
	}
}

// TestShared: the last who holds a placeholder removes it, whoever made it.
func TestShared(t *testing.T) {
	ws, guarded := repo(t)
	before := names(t, ws)
	first := take(t, guarded)
	during := names(t, ws)
	second := take(t, guarded)
	for i, p := range second.Places {
		if q := first.Places[i]; !same(&p.Stat, &q.Stat) || p.Placeholder != q.Placeholder || p.Shut != q.Shut {
			t.Errorf("%+v and %+v", p, q)
		}
	}
	release(t, first)
	if now := names(t, ws); !slices.Equal(now, during) {
		t.Errorf("with one that holds them there are %q, want %q", now, during)
	}
	release(t, second)
	if after := names(t, ws); !slices.Equal(after, before) {
		t.Errorf("left %q\nwas %q", after, before)
	}
}

// TestOwnStays: what is not a placeholder is nobody's to remove.
func TestOwnStays(t *testing.T) {
	ws, guarded := repo(t)
	if err := os.Mkdir(ws+"/.vscode", 0o755); err != nil { // since it was resolved
		t.Fatal(err)
	}
	s := take(t, guarded)
	if os.Geteuid() != 0 {
		if err := os.Chmod(ws+"/.claude", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"/.claude/settings.json", "/.git/info/exclude"} {
		if err := os.WriteFile(ws+p, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(ws+"/.git/config.worktree", 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ws+"/.git/config.worktree", []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	release(t, s)
	for _, p := range []string{"/.vscode", "/.claude/settings.json", "/.git/info/exclude", "/.git/config.worktree"} {
		if _, err := os.Lstat(ws + p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"/nowhere", "/.git/commondir", "/.git/info/attributes"} {
		if _, err := os.Lstat(ws + p); err == nil {
			t.Errorf("%s is left", p)
		}
	}
	if st, err := os.Stat(ws + "/.claude"); err != nil || st.Mode() != os.ModeDir|0o755 {
		t.Errorf("what became somebody's own: %v %v", st.Mode(), err)
	}
}

// TestChangedOutside: who removes or replaces what is held is noticed.
func TestChangedOutside(t *testing.T) {
	ws, guarded := repo(t)
	s := take(t, guarded)
	if err := os.Remove(ws + "/.vscode"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(ws+"/.git/hooks", ws+"/hooks"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(ws+"/.git/hooks", 0o755); err != nil {
		t.Fatal(err)
	}
	release(t, s, ws+"/.git/hooks", ws+"/.vscode")
}

// TestSinceResolved: what stands there at the launch counts.
func TestSinceResolved(t *testing.T) {
	ws, guarded := repo(t)
	if err := os.RemoveAll(ws + "/.idea"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(ws + "/.git"); err != nil {
		t.Fatal(err)
	}
	s := take(t, guarded)
	var got []string
	for _, p := range s.Places {
		got = append(got, fmt.Sprint(strings.TrimPrefix(p.Path, ws), p.Placeholder, p.Shut))
	}
	want := []string{"/.claude true true", "/.cursor false true", "/.git true true", "/.idea true true", "/.vscode true true", "/nowhere true true"}
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], " ", "")
		got[i] = strings.ReplaceAll(got[i], " ", "")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	release(t, s)

	if err := os.Symlink("/etc", ws+"/.vscode"); err != nil {
		t.Fatal(err)
	}
	before := names(t, ws)
	if _, err := Take(guarded); !errors.Is(err, ErrChanged) {
		t.Errorf("a link that came: %v", err)
	}
	if after := names(t, ws); !slices.Equal(after, before) {
		t.Errorf("left %q, was %q", after, before)
	}
}

// TestClosedDirectory: its owner could open it, so that it is shut itself.
func TestClosedDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("nothing is closed to root")
	}
	ws := realTemp(t)
	if err := os.Mkdir(ws+"/.claude", 0o555); err != nil {
		t.Fatal(err)
	}
	s := take(t, []policy.Guarded{{Path: policy.Raw(ws) + "/.claude", Guard: policy.GuardPinned}, {Path: policy.Raw(ws) + "/.claude/agents", Guard: policy.GuardMissing}})
	if len(s.Places) != 1 || !s.Places[0].Shut || len(s.Gaps) != 0 {
		t.Errorf("%+v", s)
	}
	release(t, s)
	if err := os.Chmod(ws, 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(ws, 0o755)
	s = take(t, []policy.Guarded{{Path: policy.Raw(ws) + "/.vscode", Guard: policy.GuardMissing}})
	if len(s.Places) != 0 || len(s.Gaps) != 1 {
		t.Errorf("%+v", s)
	}
	release(t, s)
}

// TestManyAtOnce: however launches begin and end beside each other, what a worker
// holds is there as long as it holds it, and nothing is left.
func TestManyAtOnce(t *testing.T) {
	ws, guarded := repo(t)
	before := names(t, ws)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 30 {
				s, err := Take(guarded)
				if err != nil {
					t.Error(err)
					return
				}
				if len(s.Places) != len(guarded) {
					t.Errorf("%d places", len(s.Places))
				}
				time.Sleep(time.Duration(time.Now().UnixNano() % 1000 * 1000))
				release(t, s)
			}
		})
	}
	all.Wait()
	if after := names(t, ws); !slices.Equal(after, before) {
		t.Errorf("left %q\nwas %q", after, before)
	}
}

// TestLeft: what a launcher left that was killed is removed by its mark, unless it is
// held, and nothing else is.
func TestLeft(t *testing.T) {
	ws, guarded := repo(t)
	before := names(t, ws)
	s := take(t, guarded)
	var list []left
	for _, p := range s.Places {
		if p.Placeholder {
			list = append(list, left{p.Path, p.how, p.Text})
		}
	}
	// Forged: these are no placeholders.
	list = append(list, left{Path: ws + "/.git/hooks", How: policy.GuardMissing}, left{Path: ws + "/.idea", How: policy.GuardMissing}, left{Path: "relative", How: policy.GuardMissing})
	detail, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	mark := scratch.Mark{Kind: KindPlaces, Path: ws + "/x", Detail: detail}
	if err := RemoveLeft(mark); !errors.Is(err, ErrBusy) {
		t.Errorf("removed while it is held: %v", err)
	}
	if len(s.Changed()) > 0 {
		t.Errorf("changed: %q", s.Changed())
	}
	for i := range s.Places { // as a kill does
		if p := &s.Places[i]; p.FD >= 0 {
			_ = unix.Close(p.FD)
			p.FD = -1
		}
	}
	if err := RemoveLeft(mark); err == nil || !strings.Contains(err.Error(), "relative") {
		t.Errorf("forged: %v", err)
	}
	if after := names(t, ws); !slices.Equal(after, before) {
		t.Errorf("left %q\nwas %q", after, before)
	}
	_, _ = s.Release()
}
