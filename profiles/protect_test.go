package profiles

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandboxd/policy"
)

// guards are what the guarded places below the world's root are, by their paths there.
func (w *world) guards(s policy.Spec) map[string]policy.Guard {
	w.t.Helper()
	all := map[string]policy.Guard{}
	for i, g := range s.Guarded {
		p, below := strings.CutPrefix(string(g.Path), w.root+"/")
		if !below {
			w.t.Errorf("%s is guarded, which is not the worker's to write", g.Path)
		}
		if _, twice := all[p]; twice {
			w.t.Errorf("%s is guarded twice", p)
		}
		all[p] = g.Guard
		for _, later := range s.Guarded[i+1:] {
			if policy.Within(string(g.Path), string(later.Path)) {
				w.t.Errorf("%s stands before %s, which leads to it", p, later.Path)
			}
		}
	}
	return all
}

// wantGuards compares the guards at some places; "" wants none.
func (w *world) wantGuards(s policy.Spec, want map[string]policy.Guard) {
	w.t.Helper()
	got := w.guards(s)
	for p, g := range want {
		if got[p] != g {
			w.t.Errorf("%s: guard %q, want %q", p, got[p], g)
		}
	}
	if w.t.Failed() {
		for _, g := range s.Guarded {
			w.t.Logf("%s %s", g.Guard, g.Path)
		}
	}
}

func (w *world) git(dir string, args ...string) {
	w.t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		w.t.Skip("git is not installed")
	}
	c := exec.Command("git", append([]string{"-c", "protocol.file.allow=always", "-c", "user.name=n", "-c", "user.email=e@x"}, args...)...)
	c.Dir = w.abs(dir)
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := c.CombinedOutput(); err != nil {
		w.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

func (w *world) repo(dir string) {
	w.mkdir(dir)
	w.git(dir, "init", "-q")
	w.write(dir+"/f", "1\n")
	w.git(dir, "add", ".")
	w.git(dir, "commit", "-qm", "1")
}

func TestGuardedWithoutRepository(t *testing.T) {
	w := newWorld(t)
	w.mkdir("src/project/.claude")
	w.write("src/project/.envrc", "")
	w.mkdir("src/project/.vscode")
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src/project": "", "src/project/.git": policy.GuardMissing, "src/project/.git/hooks": "", "src/project/.claude": policy.GuardPinned,
		"src/project/.claude/hooks": policy.GuardMissing, "src/project/.claude/settings.json": policy.GuardMissing,
		"src/project/.envrc": policy.GuardShut, "src/project/.vscode": policy.GuardShut, "src/project/.idea": policy.GuardMissing,
		"src/project/.sbx.toml": policy.GuardMissing,
	})
	if len(s.Unguarded) != 0 {
		t.Errorf("unguarded: %q", s.Unguarded)
	}
	w.req.Mode = policy.ReadOnly
	if s, _ := w.ok(); len(s.Guarded) != 0 {
		t.Errorf("%d places are guarded where nothing can be written", len(s.Guarded))
	}
}

func TestGuardedRepository(t *testing.T) {
	w := newWorld(t)
	w.repo("src/project")
	w.mkdir("src/project/.githooks")
	w.write("src/project/more/inc", "[core]\n\thooksPath = .githooks\n")
	w.git("src/project", "config", "include.path", "../more/inc")
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src/project/.git": policy.GuardPinned, "src/project/.git/config": policy.GuardShut, "src/project/.git/hooks": policy.GuardShut,
		"src/project/.git/info": policy.GuardPinned, "src/project/.git/info/attributes": policy.GuardFile, "src/project/.git/config.worktree": policy.GuardFile,
		"src/project/.git/commondir": policy.GuardFile, "src/project/.git/objects": "", "src/project/.git/HEAD": "",
		"src/project/.githooks": policy.GuardShut, "src/project/more": policy.GuardPinned, "src/project/more/inc": policy.GuardShut,
	})
	if i := slices.IndexFunc(s.Guarded, func(g policy.Guarded) bool { return strings.HasSuffix(string(g.Path), "/commondir") }); s.Guarded[i].Text != ".\n" {
		t.Errorf("commondir would say %q", s.Guarded[i].Text)
	}
	if err := os.RemoveAll(w.abs("src/project/.git/info")); err != nil {
		t.Fatal(err)
	}
	s, _ = w.ok()
	w.wantGuards(s, map[string]policy.Guard{"src/project/.git/info": policy.GuardMade, "src/project/.git/info/attributes": policy.GuardFile})
}

// TestGuardedWorktree: the directories of a linked worktree, which lie elsewhere, are
// guarded where the worker may write to them.
func TestGuardedWorktree(t *testing.T) {
	w := newWorld(t)
	w.repo("main")
	w.git("main", "worktree", "add", "-q", w.abs("src/project/wt"))
	w.git("main", "worktree", "add", "-q", "--detach", w.abs("other"))
	w.ws = w.abs("src/project/wt")
	w.req.Dir = w.ws
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{"src/project/wt/.git": policy.GuardShut, "main/.git/config": "", "src/project/wt/.idea": policy.GuardMissing})

	w.req.Writable = []string{w.abs("main/.git")}
	s, _ = w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src/project/wt/.git": policy.GuardShut, "main/.git": "", "main/.git/config": policy.GuardShut, "main/.git/hooks": policy.GuardShut, "main/.git/commondir": policy.GuardFile,
		"main/.git/worktrees": policy.GuardPinned, "main/.git/worktrees/wt": policy.GuardPinned, "main/.git/worktrees/wt/commondir": policy.GuardShut,
		"main/.git/worktrees/wt/gitdir": policy.GuardShut, "main/.git/worktrees/wt/config.worktree": policy.GuardFile,
		"main/.git/worktrees/other/commondir": policy.GuardShut, "main/.git/worktrees/other": policy.GuardPinned, "main/.git/.git": "", "main/.git/.idea": "",
	})
}

// TestGuardedAmongWorktrees: what is guarded does not grow with their number.
func TestGuardedAmongWorktrees(t *testing.T) {
	w := newWorld(t)
	w.repo("src/project")
	count := func(n int) int {
		for i := range n {
			at := fmt.Sprintf("src/project/.git/worktrees/w%d/", i)
			w.write(at+"gitdir", w.abs("elsewhere/.git")+"\n")
			w.write(at+"commondir", "../..\n")
			w.write(at+"HEAD", "ref: refs/heads/x\n")
		}
		s, _ := w.ok()
		if named := len(s.Unguarded) > 0; named != (n > maxOthers) {
			t.Errorf("%d worktrees: unguarded %q", n, s.Unguarded)
		}
		return len(s.Guarded)
	}
	few, many, more := count(maxOthers), count(maxOthers+1), count(300)
	if many != few || more != few {
		t.Errorf("%d, %d and %d places are guarded", few, many, more)
	}
}

func TestGuardedSubmodule(t *testing.T) {
	w := newWorld(t)
	w.repo("lib")
	w.repo("src/project")
	w.git("src/project", "submodule", "add", "-q", w.abs("lib"), "deep/lib")
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src/project/deep": policy.GuardPinned, "src/project/deep/lib": policy.GuardPinned, "src/project/deep/lib/.git": policy.GuardShut, "src/project/deep/lib/.idea": policy.GuardMissing,
		"src/project/.git/modules/deep/lib": policy.GuardPinned, "src/project/.git/modules/deep/lib/config": policy.GuardShut, "src/project/.git/modules/deep/lib/hooks": policy.GuardShut,
		"src/project/.gitmodules": policy.GuardShut,
	})
	w.git("src/project", "submodule", "deinit", "-f", "deep/lib")
	if err := os.Remove(w.abs("src/project/deep/lib")); err != nil {
		t.Fatal(err)
	}
	s, _ = w.ok()
	w.wantGuards(s, map[string]policy.Guard{"src/project/.git/modules/deep/lib/config": policy.GuardShut})
}

func TestGuardedNested(t *testing.T) {
	w := newWorld(t)
	w.repo("src/project/a/b/inner")
	w.mkdir("src/project/remotes/x.git")
	w.git("src/project/remotes/x.git", "init", "-q", "--bare")
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src/project/a": policy.GuardPinned, "src/project/a/b": policy.GuardPinned, "src/project/a/b/inner": policy.GuardPinned,
		"src/project/a/b/inner/.git/hooks": policy.GuardShut, "src/project/a/b/inner/.vscode": policy.GuardMissing,
		"src/project/remotes/x.git": policy.GuardPinned, "src/project/remotes/x.git/config": policy.GuardShut, "src/project/remotes/x.git/hooks": policy.GuardShut,
		"src/project/remotes/x.git/.vscode": "",
	})
	if len(s.Unguarded) != 0 {
		t.Errorf("unguarded: %q", s.Unguarded)
	}
}

// TestGuardedInALargeTree: the search ends, and that is said.
func TestGuardedInALargeTree(t *testing.T) {
	w := newWorld(t)
	for i := range maxLooked {
		w.mkdir(fmt.Sprintf("src/project/d%02d", i))
	}
	s, _ := w.ok()
	if len(s.Unguarded) != 1 || !strings.Contains(s.Unguarded[0], "looked for") {
		t.Errorf("unguarded: %q", s.Unguarded)
	}
	w = newWorld(t)
	for i := range 3000 {
		w.write(fmt.Sprintf("src/project/many/file-%04d", i), "")
	}
	s, _ = w.ok()
	if len(s.Unguarded) != 1 || !strings.Contains(s.Unguarded[0], "too large") {
		t.Errorf("unguarded: %q", s.Unguarded)
	}
	w = newWorld(t)
	for i := range maxRepos + 1 {
		w.mkdir(fmt.Sprintf("src/project/r%02d/.git", i))
	}
	s, _ = w.ok()
	if len(s.Unguarded) != 1 || !strings.Contains(s.Unguarded[0], "repositories") {
		t.Errorf("unguarded: %q", s.Unguarded)
	}
}

func TestGuardedLinks(t *testing.T) {
	w := newWorld(t)
	w.repo("elsewhere")
	w.link("elsewhere/.git", "src/project/.git")
	w.mkdir("src/project/real")
	w.link("src/project/real", "src/project/.vscode")
	w.link("src/project/nowhere/at", "src/project/.idea")
	w.link("src/project/.cursor", "src/project/.cursor")
	w.link("src/project/dir", "src/project/.claude")
	w.mkdir("src/project/dir")
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src/project/.git": policy.GuardLink, "elsewhere/.git": "", "elsewhere/.git/config": "",
		"src/project/.vscode": policy.GuardLink, "src/project/real": policy.GuardShut,
		"src/project/.idea": policy.GuardLink, "src/project/nowhere": policy.GuardMissing,
		"src/project/.cursor": policy.GuardLink,
		"src/project/.claude": policy.GuardLink, "src/project/dir": policy.GuardPinned, "src/project/dir/agents": policy.GuardMissing,
	})
}

// TestGuardedBesidePlaceholders: what another worker's launcher put there meanwhile
// says nothing.
func TestGuardedBesidePlaceholders(t *testing.T) {
	w := newWorld(t)
	w.repo("src/project")
	want, _ := w.ok()
	for p, mode := range map[string]os.FileMode{".vscode": 0o555, ".claude": 0o555, ProjectFile: 0o555, "refs": 0o555} {
		w.mkdir("src/project/" + p)
		if err := os.Chmod(w.abs("src/project/"+p), mode|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	}
	for p, text := range map[string]string{".git/commondir": ".\n", ".git/config.worktree": ""} {
		if err := os.Chmod(w.write("src/project/"+p, text), 0o444|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := w.ok(); !slices.Equal(got.Guarded, want.Guarded) {
		t.Errorf("got\n%v, want\n%v", got.Guarded, want.Guarded)
	}
}

// TestGuardedButNamed: exactly what is named can be written, and it is said.
func TestGuardedButNamed(t *testing.T) {
	w := newWorld(t)
	w.mkdir("src/project/.vscode")
	w.mkdir("src/project/.idea")
	w.req.Writable = []string{w.abs("src/project/.vscode")}
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{"src/project/.vscode": "", "src/project/.idea": policy.GuardShut})
	if len(s.Unguarded) != 1 || !strings.Contains(s.Unguarded[0], "--writable") {
		t.Errorf("unguarded: %q", s.Unguarded)
	}
}

// TestGuardedSecondTree: a tree within another, and one around it, change nothing.
func TestGuardedSecondTree(t *testing.T) {
	w := newWorld(t)
	w.repo("src/project")
	w.repo("src/project/sub")
	w.req.Writable = []string{w.abs("src"), w.abs("src/project/sub"), w.abs("src/project/.git")}
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{
		"src": "", "src/.idea": policy.GuardMissing, "src/project": policy.GuardPinned, "src/project/.git": policy.GuardPinned, "src/project/.git/hooks": policy.GuardShut,
		"src/project/.idea": policy.GuardMissing, "src/project/sub": policy.GuardPinned, "src/project/sub/.git/hooks": policy.GuardShut,
	})
}

// TestGuardedInAWritableParent: the workspace's own names are guarded whatever is
// writable around it, a repository or not.
func TestGuardedInAWritableParent(t *testing.T) {
	w := newWorld(t)
	w.req.Writable = []string{w.abs("src")}
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{"src/project": policy.GuardPinned, "src/project/.git": policy.GuardMissing, "src/project/.idea": policy.GuardMissing, "src/.idea": policy.GuardMissing})
}

func TestGuardedClosed(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("nothing is closed to root")
	}
	w := newWorld(t)
	w.mkdir("src/project/.claude")
	if err := os.Chmod(w.abs("src/project/.claude"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(w.abs("src/project/.claude"), 0o755)
	s, _ := w.ok()
	w.wantGuards(s, map[string]policy.Guard{"src/project/.claude": policy.GuardShut})
}

func TestParseConfig(t *testing.T) {
	const text = "[core]\n\thooksPath = a b ; comment\n[Include] path=\"x;y\\\"z\"\n[includeIf \"gitdir:~/a]b\\\"c\"]\npath = long\\\n er # no\n[submodule.X]\n\tPath = p\n[bad\nkey = lost\n[a] b\n"
	got := fmt.Sprintf("%q", parseConfig(text))
	want := fmt.Sprintf("%q", []configEntry{
		{"core", "", "hookspath", "a b"}, {"include", "", "path", `x;y"z`}, {"includeif", `gitdir:~/a]b"c`, "path", "long er"},
		{"submodule", "X", "path", "p"}, {"a", "", "b", ""},
	})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add("[a \"b\"]\nc = d \\\n e\n")
	f.Fuzz(func(_ *testing.T, text string) { parseConfig(text) })
}

// TestGuardedMakesNothing: resolving a repository makes nothing in it.
func TestGuardedMakesNothing(t *testing.T) {
	w := newWorld(t)
	w.repo("src/project")
	list := func() (all []string) {
		_ = filepath.WalkDir(w.root, func(p string, _ os.DirEntry, err error) error {
			all = append(all, p)
			return err
		})
		return all
	}
	before := list()
	w.ok()
	if after := list(); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
}
