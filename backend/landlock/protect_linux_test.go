package landlock

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/profiles"
)

// resolved prepares workers of the backend with namespaces for a workspace.
func resolved(t *testing.T, ws string, change func(*profiles.Request)) backend.Prepared {
	t.Helper()
	return resolvedBy(t, New(Options{Namespaces: true}), ws, change)
}

func resolvedBy(t *testing.T, b *Backend, ws string, change func(*profiles.Request)) backend.Prepared {
	t.Helper()
	if c := b.Probe(); !c.Usable {
		t.Skipf("native: %s", c.Reason)
	}
	home := realTemp(t)
	req := profiles.Request{
		Mode: policy.WorkspaceWrite, Dir: ws, Home: home, UID: os.Getuid(), GID: os.Getgid(), AdminDir: home + "/admin",
		HostEnv: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home},
		Env:     []string{"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_ALLOW_PROTOCOL=file", "GIT_AUTHOR_NAME=n", "GIT_AUTHOR_EMAIL=e@x", "GIT_COMMITTER_NAME=n", "GIT_COMMITTER_EMAIL=e@x"},
	}
	if change != nil {
		change(&req)
	}
	spec, _, err := profiles.Resolve(req)
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := b.Plan(pol)
	if err != nil {
		t.Fatal(err)
	}
	prepared, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prepared.Close(); err != nil {
			t.Error(err)
		}
	})
	return prepared
}

// sh runs a script outside, in a directory.
func sh(t *testing.T, dir, script string) string {
	t.Helper()
	c := exec.Command("/bin/sh", "-c", script)
	c.Dir = dir
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "LC_ALL=C", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_ALLOW_PROTOCOL=file", "GIT_AUTHOR_NAME=n", "GIT_AUTHOR_EMAIL=e@x", "GIT_COMMITTER_NAME=n", "GIT_COMMITTER_EMAIL=e@x"}
	out, err := c.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return string(out)
}

// tree is what stands in a directory: kind, mode, link and text by the path there.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		text := st.Mode().String()
		switch st.Mode().Type() {
		case 0:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += " " + string(b)
		case fs.ModeSymlink:
			to, _ := os.Readlink(p)
			text += " " + to
		}
		all[strings.TrimPrefix(p, dir)] = text
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		t.Fatal(err)
	}
	return all
}

// found is what programs of the user would find under the protected names: in the
// workspace, and in the repositories that were in it from the beginning.
func found(t *testing.T, ws string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names := append(profiles.Protected(), ".git/commondir")
	inGitDir := []string{"config", "hooks", "commondir", "info/attributes", "config.worktree"}
	for root, names := range map[string][]string{"": names, "sub/": names, "wt/": names, "lib/": names, "bare.git/": inGitDir, ".git/modules/lib/": inGitDir, ".git/worktrees/wt/": inGitDir} {
		for _, name := range names {
			at := filepath.Join(ws, root, name)
			if real, err := filepath.EvalSymlinks(at); err == nil {
				at = real
			}
			for p, text := range tree(t, at) {
				all[root+name+p] = text
			}
		}
		if st, err := os.Lstat(filepath.Join(ws, root, ".git")); err == nil && st.Mode().IsRegular() {
			maps.Copy(all, map[string]string{root + ".git": tree(t, filepath.Join(ws, root, ".git"))[""]})
		}
		// Where git looks: each answer is of another file or directory.
		for _, ask := range []string{"--git-dir", "--git-common-dir", "--git-path hooks"} {
			if strings.HasPrefix(root, ".git/") {
				continue
			}
			if out := sh(t, ws, "cd ./"+root+" && git rev-parse "+ask+" && echo ok"); strings.HasSuffix(out, "ok\n") {
				all[root+ask] = strings.ReplaceAll(out, ws, "")
			}
		}
		if root != "" {
			st, err := os.Lstat(filepath.Join(ws, root))
			all[root+" is there"] = fmt.Sprint(err == nil && st.IsDir())
		}
	}
	return all
}

// differ tells where a and b differ. That git finds no repository any more is none.
func differ(a, b map[string]string) (paths []string) {
	for p := range a {
		if _, both := b[p]; a[p] != b[p] && (both || !strings.Contains(p, "--git-")) {
			paths = append(paths, p)
		}
	}
	for p := range b {
		if _, both := a[p]; !both {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

// fixture makes a workspace with repositories of every kind.
const fixture = `set -e
git init -q -b master . && printf '#!/bin/sh\n' >.git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
echo 1 >f && mkdir dir && echo d >dir/f && git add . && git commit -qm 1
printf '/sub\n/wt\n/bare.git\n' >>.git/info/exclude
mkdir .vscode real && echo '{}' >.vscode/settings.json && echo r >real/rules && ln -s real .cursor && echo a=1 >.envrc
ln -s later .gemini
git init -q sub && echo 1 >sub/f && git -C sub add . && git -C sub commit -qm 1
git worktree add -q wt
git init -q --bare -b master bare.git && git remote add origin "$PWD/bare.git"
git submodule --quiet add "$PWD/sub" lib
git add -A . && git commit -qm 2
`

// exchange swaps two names (renameat2(2), RENAME_EXCHANGE).
const exchange = `python3 -c 'import ctypes,platform,sys
ctypes.CDLL(None).syscall({"x86_64":316,"aarch64":276}[platform.machine()],-100,sys.argv[1].encode(),-100,sys.argv[2].encode(),2)' `

// bindSocket makes a socket at a path, which the supervisor does for a worker.
const bindSocket = `python3 -c 'import socket,sys
socket.socket(socket.AF_UNIX).bind(sys.argv[1])' `

// attacks would each change what is found under a protected name.
var attacks = map[string]string{
	"append":                     `echo x >>.git/config`,
	"truncate":                   `: >.git/config`,
	"truncate by path":           `python3 -c 'import os; os.truncate(".git/config",0)'`,
	"unlink":                     `rm -f .git/config`,
	"rename over":                `cp .git/config c; echo x >>c; mv -f c .git/config`,
	"rename over in place":       `cp .git/config .git/c; echo x >>.git/c; mv -f .git/c .git/config`,
	"rename away":                `mv .git/config .git/old`,
	"exchange":                   `cp .git/config .git/c; echo x >>.git/c; ` + exchange + `.git/c .git/config`,
	"link over":                  `echo x >c; ln -f c .git/config`,
	"symlink over":               `ln -sf ../f .git/config`,
	"new hook":                   `echo x >.git/hooks/post-commit`,
	"change a hook":              `echo x >>.git/hooks/pre-commit`,
	"mode of a hook":             `chmod 777 .git/hooks/pre-commit`,
	"link into hooks":            `echo x >c; ln c .git/hooks/post-commit`,
	"rename into hooks":          `echo x >c; mv c .git/hooks/post-commit`,
	"symlink into hooks":         `ln -s ../../f .git/hooks/post-commit`,
	"socket in hooks":            bindSocket + `.git/hooks/post-commit`,
	"fifo in hooks":              `mkfifo .git/hooks/post-commit`,
	"directory in hooks":         `mkdir .git/hooks/d`,
	"remove hooks":               `rm -rf .git/hooks`,
	"rename hooks":               `mv .git/hooks .git/h; mkdir .git/hooks`,
	"exchange hooks":             `mkdir .git/h; ` + exchange + `.git/h .git/hooks`,
	"rename .git":                `mv .git g; cp -a g .git; echo x >>.git/config`,
	"exchange .git":              `cp -a .git g; echo x >>g/config; ` + exchange + `g .git`,
	"remove .git":                `rm -rf .git; mkdir .git`,
	"a bare one in its place":    `git init -q --bare g; echo x >.git/HEAD; mv g/* .`,
	"and its parts elsewhere":    `git init -q --bare g; echo x >.git/HEAD; cp g/HEAD .; echo g >commondir`,
	"attributes":                 `mkdir -p .git/info; echo '* filter=x' >.git/info/attributes`,
	"attributes by their parent": `mv .git/info .git/i; mkdir .git/info; echo '* filter=x' >.git/info/attributes`,
	"worktree's configuration":   `echo x >.git/config.worktree`,
	"send git elsewhere":         `cp -a .git g; echo ../g >.git/commondir`,
	"through a descriptor":       `exec 3<.git/config; echo x >>/proc/self/fd/3`,
	"through a directory's":      `exec 3<.git; echo x >>/proc/self/fd/3/config`,
	"through the working one":    `cd .git; echo x >>/proc/self/cwd/config`,
	"another spelling":           `echo x >>dir/.././/.git/./config`,
	"an absolute path":           `echo x >>$PWD/.git/config`,
	"a link of one's own":        `ln -s .git g; echo x >>g/config`,
	"make a missing directory":   `mkdir .idea`,
	"make a missing file":        `rmdir .mcp.json; echo x >.mcp.json`,
	"make in a missing one":      `mkdir -p .claude/agents; echo x >.claude/agents/a`,
	"rename to a missing one":    `mv dir .idea`,
	"rename over a missing one":  `mv -fT dir .idea`,
	"exchange a missing one":     `mkdir .idea 2>/dev/null; ` + exchange + `dir .idea`,
	"link to a missing one":      `rmdir .bashrc; ln f .bashrc`,
	"symlink to a missing one":   `rmdir .idea; ln -sfn dir .idea`,
	"socket at a missing one":    `rmdir .zshrc; ` + bindSocket + `.zshrc`,
	"where a link leads":         `mkdir later && echo x >later/x`,
	"through a link":             `echo x >.cursor/rules`,
	"what a link leads to":       `echo x >real/rules`,
	"rename what it leads to":    `mv real r; mkdir real`,
	"replace a link":             `mkdir other; ln -sfn other .cursor`,
	"remove a link":              `rm .cursor; mkdir .cursor`,
	"change a file":              `echo x >.envrc`,
	"edit in place":              `sed -i s/a/b/ .envrc`,
	"replace a directory":        `rm -rf .vscode; mkdir .vscode; echo x >.vscode/tasks.json`,
	"nested hook":                `echo x >sub/.git/hooks/post-commit`,
	"nested repository moved":    `mv sub s; cp -a s sub; echo x >sub/.git/hooks/post-commit`,
	"nested editor settings":     `mkdir sub/.vscode`,
	"a worktree's pointer":       `cp -a .git g; echo "gitdir: $PWD/g" >wt/.git`,
	"a worktree moved":           `mv wt w; cp -a w wt; cp -a .git g; rm wt/.git; echo "gitdir: $PWD/g" >wt/.git`,
	"a worktree's common one":    `cp -a .git g; echo $PWD/g >.git/worktrees/wt/commondir`,
	"a worktree's directory":     `mv .git/worktrees w; cp -a w .git/worktrees; cp -a .git g; echo $PWD/g >.git/worktrees/wt/commondir`,
	"a bare repository's hook":   `echo x >bare.git/hooks/post-receive`,
	"a bare repository's config": `echo x >>bare.git/config`,
	"a submodule's pointer":      `cp -a sub/.git g; echo "gitdir: $PWD/g" >lib/.git`,
	"a submodule's hook":         `echo x >.git/modules/lib/hooks/post-commit`,
	"a submodule's directory":    `mv .git/modules m; cp -a m .git/modules; echo x >.git/modules/lib/hooks/post-commit`,
}

// TestProtected: what later, unconfined programs would run or go by is as it was,
// whatever the worker tries. Each attempt has its control outside, which succeeds.
func TestProtected(t *testing.T) {
	for _, tool := range []string{"git", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if raceEnabled {
		t.Skip("a hundred launches, which find no race that a few of the others do not")
	}
	// In memory, where there is some: the launches make and remove thousands of files.
	if dir, err := os.MkdirTemp("/dev/shm", "sbx-test-"); err == nil {
		defer os.RemoveAll(dir)
		if os.Chmod(dir, 0o755) == nil {
			t.Setenv("TMPDIR", dir)
		}
	}
	proven := map[string]bool{} // that they change something outside
	for _, grants := range []struct {
		name     string
		writable func(ws string) []string
	}{
		{"workspace", func(string) []string { return nil }},
		{"its parent and a part too", func(ws string) []string { return []string{filepath.Dir(ws), ws + "/dir", ws + "/.git", ws + "/sub"} }},
	} {
		t.Run(grants.name, func(t *testing.T) {
			base := realTemp(t)
			template := filepath.Join(base, "template")
			if err := os.Mkdir(template, 0o755); err != nil {
				t.Fatal(err)
			}
			if out := sh(t, template, fixture); out != "" {
				t.Logf("the fixture: %s", out)
			}
			for name, attack := range attacks {
				t.Run(name, func(t *testing.T) {
					dir := filepath.Join(base, "x")
					ws := filepath.Join(dir, "template") // absolute paths in it lead there
					defer os.RemoveAll(dir)
					fresh := func() map[string]string {
						if err := os.RemoveAll(dir); err != nil {
							t.Fatal(err)
						}
						if out := sh(t, base, "mkdir x && cp -a template x/ && cd x/template && grep -rl "+template+" .git/worktrees wt/.git | xargs sed -i s@"+template+"@"+ws+"@"); out != "" {
							t.Fatal(out)
						}
						return found(t, ws)
					}
					before := fresh()
					if !proven[name] {
						said := sh(t, ws, attack)
						if len(differ(before, found(t, ws))) == 0 {
							t.Fatalf("it changes nothing outside, and so proves nothing: %s", said)
						}
						proven[name] = true
						before = fresh()
					}
					prepared := resolved(t, ws, func(r *profiles.Request) { r.Writable = grants.writable(ws) })
					said, res := runIn(t, prepared, ws, "sh", "-c", attack)
					if changed := differ(before, found(t, ws)); len(changed) > 0 {
						t.Errorf("it changed %q: %s", changed, said)
					}
					if st := res.Enforcement.State(policy.FSProtected); st.Status != backend.Enforced && grants.writable(ws) == nil {
						t.Errorf("%+v", st)
					}
					if len(res.Warnings) > 0 {
						t.Errorf("warnings: %q", res.Warnings)
					}
				})
			}
		})
	}
}

// TestProtectedOfAnotherUser: a launcher of root holds what its worker's user owns.
func TestProtectedOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root launches for others")
	}
	defer syscall.Umask(syscall.Umask(0o077))
	base := realTemp(t)
	ws := filepath.Join(base, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, ws, "git init -q . && echo 1 >f && git add f && git commit -qm 1")
	const uid = 54321
	sh(t, base, fmt.Sprintf("chown -R %d:%[1]d ws; chmod -R a+rX . ..", uid))
	before := tree(t, ws)
	b := New(Options{Namespaces: true, User: &User{UID: uid, GID: uid}})
	out, _ := runIn(t, resolvedBy(t, b, ws, func(r *profiles.Request) { r.Cache = profiles.CachePrivate }), ws, "sh", "-c", `echo 2 >f && git commit -qam 2 && git log --oneline | wc -l; git status --porcelain
for d in .vscode .git/hooks/x; do mkdir $d && echo escaped; done 2>/dev/null; rmdir .vscode; ls .vscode; echo x >>.git/config; id -u`)
	if !strings.HasPrefix(out, "2\n") || strings.Contains(out, "escaped") || strings.Contains(out, "denied") || !strings.HasSuffix(out, fmt.Sprintf("\n%d\n", uid)) {
		t.Errorf("it says %s", out)
	}
	for p := range tree(t, ws) {
		if _, was := before[p]; !was && !strings.HasPrefix(p, "/.git/") {
			t.Errorf("left: %s", p)
		}
	}
}

// TestProtectedNot pins what is not protected, and that it is said.
func TestProtectedNot(t *testing.T) {
	ws := realTemp(t)
	sh(t, ws, `git init -q . && ln .git/config elsewhere`)
	prepared := resolved(t, ws, nil)
	out, res := runIn(t, prepared, ws, "sh", "-c", `git init -q own && echo x >own/.git/hooks/post-commit && echo made; echo x >>elsewhere && echo linked`)
	if out != "made\nlinked\n" {
		t.Errorf("it says %q", out)
	}
	for effect, gap := range map[policy.Effect]string{policy.FSProtected: gapOwnRepos, policy.FSHardlink: gapHardlink} {
		if st := res.Enforcement.State(effect); !slices.Contains(st.Gaps, gap) {
			t.Errorf("%s: %+v, and not %q", effect, st, gap)
		}
	}
}

// TestProtectedFromOutside: whoever replaces from outside what is held takes the mount
// off it, and that is told.
func TestProtectedFromOutside(t *testing.T) {
	ws := realTemp(t)
	sh(t, ws, `git init -q .`)
	prepared := resolved(t, ws, nil)
	for name, change := range map[string]string{"replace": "git config a.b c", "remove": "rmdir .vscode", "remove a file": "rm -f .git/config.worktree"} {
		var said string
		w := make(chan backend.Result)
		go func() {
			var res backend.Result
			said, res = runIn(t, prepared, ws, "sh", "-c", `: >ready; while [ -e ready ]; do sleep 0.01; done`)
			w <- res
		}()
		for !exists(ws + "/ready") {
		}
		if out := sh(t, ws, change+"; rm ready"); out != "" {
			t.Errorf("%s: %s", name, out)
		}
		res := <-w
		st := res.Enforcement.State(policy.FSProtected)
		if st.Status != backend.Partial || !strings.Contains(st.Gaps[0], "from outside") {
			t.Errorf("%s: %+v %s", name, st, said)
		}
	}
	if out := sh(t, ws, "ls -A"); out != ".git\n" {
		t.Errorf("left: %s", out)
	}
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

// TestProtectedSinceResolved: a plan holds what stands there at each launch.
func TestProtectedSinceResolved(t *testing.T) {
	ws := realTemp(t)
	sh(t, ws, `git init -q . && mkdir .idea`)
	prepared := resolved(t, ws, nil)
	try := func(attack string) {
		t.Helper()
		if out, _ := runIn(t, prepared, ws, "sh", "-c", attack+` && echo done`); strings.Contains(out, "done") {
			t.Errorf("%s: %s", attack, out)
		}
	}
	try(`mkdir .vscode`)
	sh(t, ws, `mkdir .vscode; rmdir .idea; mv .git/hooks .git/h; mkdir .git/hooks`)
	for _, attack := range []string{`echo x >.vscode/tasks.json`, `mkdir .idea`, `echo x >.git/hooks/post-commit`, `mv .git g`} {
		try(attack)
	}
	sh(t, ws, `rmdir .vscode; ln -s /etc .vscode`)
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, err = prepared.Start(backend.Command{Path: "/bin/true", Argv: []string{"true"}, Dir: dir, Stdin: null, Stdout: null, Stderr: null, OwnTree: true})
	var setup *backend.SetupError
	if !errors.As(err, &setup) || setup.Hint != "run again" || !strings.Contains(err.Error(), ".vscode") {
		t.Errorf("a link in its place: %v", err)
	}
	if out := sh(t, ws, "ls -A | tr '\\n' ' '"); out != ".git .vscode " {
		t.Errorf("left: %s", out)
	}
}

// TestGitKeepsWorking: what git does every day works inside, and sees no placeholder.
func TestGitKeepsWorking(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	base := realTemp(t)
	ws := filepath.Join(base, "template")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, ws, fixture)
	script := `set -e
echo s >sub/s; git -C sub add s; git -C sub commit -qm s; git -C lib pull -q; test -e lib/s; git commit -qam lib
echo 2 >f; git commit -qam two; git commit -q --amend -m second; test -z "$(git status --porcelain)"
git branch topic HEAD~1; git checkout -q topic; echo t >t; git add t; git commit -qm topic; git rebase -q master; git checkout -q master; git merge -q --no-ff -m merged topic
echo 3 >f; echo new >new; git stash -qu; test ! -e new; git stash pop -q; test -e new; git checkout -q f; rm new
git worktree add -q wt2 -b wt2; echo w >wt2/w; git -C wt2 add w; git -C wt2 commit -qm w; git worktree remove --force wt2
echo w >wt/w; git -C wt add w; git -C wt commit -qm w
git push -q origin master; git fetch -q origin; git pull -q --rebase origin master
git add -A; git tag v1; git gc -q; git fsck --no-progress; git clean -qfd
git revert --no-edit HEAD~1 -m 1 >/dev/null 2>&1 || git revert --abort 2>/dev/null || true
git cherry-pick topic >/dev/null 2>&1 || git cherry-pick --skip
git grep -q . ; git log --oneline >/dev/null; git diff HEAD~1 >/dev/null; git check-attr -a f; git archive HEAD >/dev/null; git bisect start >/dev/null; git bisect reset >/dev/null 2>&1
git status --porcelain --ignored | grep -v '^!! ' || true; git ls-files | grep '^[.]'; echo end`
	// One whose submodule is known and not there yet.
	sh(t, ws, `git clone -q . ../fresh && cd ../fresh && git submodule --quiet init`)
	fresh := filepath.Join(base, "fresh")
	out, _ := runIn(t, resolved(t, fresh, func(r *profiles.Request) { r.Readable = []string{ws} }), fresh, "sh", "-c", `git submodule --quiet update && cat lib/f && git status --porcelain`)
	if out != "1\n" {
		t.Errorf("a submodule: %s", out)
	}
	prepared := resolved(t, ws, nil)
	out, res := runIn(t, prepared, ws, "bash", "-c", script)
	if c := res.Outcome.Code; c == nil || *c != 0 || !strings.HasSuffix(out, "\nend\n") {
		t.Errorf("%+v\n%s", res.Outcome, out)
	}
	t.Log(out)
	if out := sh(t, ws, "git status --porcelain; git -C bare.git log --oneline master | grep -c merged"); out != "1\n" {
		t.Errorf("outside: %s", out)
	}
	if left := sh(t, ws, "find . -perm -1000 -o -name commondir ! -path '*/worktrees/*'"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestProtectedCost: what a launch holds does not grow with the tree.
func TestProtectedCost(t *testing.T) {
	count := func(files, worktrees int) string {
		ws := realTemp(t)
		sh(t, ws, fmt.Sprintf(`git init -q . && mkdir many .git/worktrees && cd many && for i in $(seq %d); do : >$i; done
cd ../.git/worktrees && for i in $(seq %d); do mkdir w$i; echo x >w$i/gitdir; echo ../.. >w$i/commondir; cp ../HEAD w$i; done`, files, worktrees))
		out, _ := runIn(t, resolved(t, ws, nil), ws, "sh", "-c", `wc -l </proc/self/mountinfo`)
		return out
	}
	few := count(10, 16)
	for _, n := range [][2]int{{20000, 16}, {10, 17}, {10, 300}} {
		if many := count(n[0], n[1]); many != few {
			t.Errorf("%d files and %d worktrees: %s mounts, and with few %s", n[0], n[1], many, few)
		}
	}
}

// TestProtectedWhereCaseCounts pins that other spellings are other names, where the
// file system says so: nothing there goes by them.
func TestProtectedWhereCaseCounts(t *testing.T) {
	ws := realTemp(t)
	sh(t, ws, "git init -q .")
	if exists(ws + "/.GIT") {
		t.Skip("case does not count here: the names are the same, and held")
	}
	out, _ := runIn(t, resolved(t, ws, nil), ws, "sh", "-c", `mkdir .GIT .VSCode && echo x >.git/Config && echo made`)
	if out != "made\n" {
		t.Errorf("it says %q", out)
	}
}
