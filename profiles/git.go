package profiles

import (
	"path"
	"strings"
	"syscall"

	"sandboxd/policy"
)

// noteGit tells how to make git work where the repository's own directory
// lies outside the workspace. It is not granted by itself: whoever may write
// hooks or config there runs code outside the sandbox later.
func (r *resolver) noteGit() error {
	if !r.confined() || !r.allowedToolchain("git") {
		return nil
	}
	file := join(r.spec.Workspace, ".git")
	switch n := r.v.lstat(file); {
	case n.isFile():
		r.noteGitDir(file)
	case n.errno != 0:
		r.noteParentRepo()
	}
	return nil
}

// noteGitDir handles a linked worktree or a submodule, whose .git is a file
// that says where the directory is. Who wrote that file is not known, so a flag
// is suggested only if the directory says that it belongs to this workspace.
func (r *resolver) noteGitDir(file string) {
	dir := r.pointer(file, "gitdir: ", r.spec.Workspace)
	if dir == "" {
		return
	}
	grant := r.worktreeOwner(dir)
	if grant == "" && r.isSubmodule(dir) {
		grant = dir
	}
	if grant == "" {
		return
	}
	flag, want := "--writable ", policy.Read|policy.Write
	if r.spec.Mode == policy.ReadOnly {
		flag, want = "--readable ", policy.Read
	}
	if r.allows(dir, want) && r.allows(grant, want) || r.guard.tooWide(grant) != "" {
		return
	}
	r.note(Info, "this git worktree keeps its data outside the workspace: for git to work, pass %s%s", flag, shellQuote(grant))
}

// worktreeOwner returns the repository of linked worktree dir; "" unless dir
// lies in it and names this workspace.
func (r *resolver) worktreeOwner(dir string) string {
	common := r.pointer(join(dir, "commondir"), "", dir)
	if common == "" || path.Dir(dir) != join(common, "worktrees") {
		return ""
	}
	back, err := readRegular(join(dir, "gitdir"), syscall.O_NOFOLLOW)
	if err != nil {
		return ""
	}
	file := strings.TrimRight(string(back), "\r\n")
	if path.Base(file) != ".git" || !r.isWorkspace(path.Dir(file), dir) {
		return ""
	}
	return common
}

// isSubmodule tells whether dir is where a superproject keeps this workspace's
// repository.
func (r *resolver) isSubmodule(dir string) bool {
	if !strings.Contains(dir, "/.git/modules/") {
		return false
	}
	config, err := readRegular(join(dir, "config"), syscall.O_NOFOLLOW)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(config)) {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) == "worktree" {
			return r.isWorkspace(strings.TrimSpace(value), dir)
		}
	}
	return false
}

// isWorkspace tells whether p, relative to base, is the workspace.
func (r *resolver) isWorkspace(p, base string) bool {
	if !path.IsAbs(p) {
		p = join(base, p)
	}
	real, _, err := r.v.eval(p)
	return err == nil && real == r.spec.Workspace
}

// pointer reads a small file that names a directory, and resolves it.
func (r *resolver) pointer(file, prefix, base string) string {
	data, err := readRegular(file, syscall.O_NOFOLLOW)
	if err != nil || len(data) > 8192 {
		return ""
	}
	dir, ok := strings.CutPrefix(strings.TrimRight(string(data), "\r\n"), prefix)
	if !ok || dir == "" {
		return ""
	}
	if !path.IsAbs(dir) {
		dir = join(base, dir)
	}
	real, n, err := r.v.eval(dir)
	if err != nil || !n.isDir() {
		return ""
	}
	return real
}

func (r *resolver) allows(p string, a policy.Access) bool {
	var got policy.Access
	for _, g := range r.spec.Grants {
		if g.Covers(p) {
			got |= g.Access
		}
	}
	return got.Has(a)
}

// noteParentRepo tells that the workspace is a part of a repository.
func (r *resolver) noteParentRepo() {
	for dir := path.Dir(r.spec.Workspace); dir != "/" && !r.guard.holdsHome(dir); dir = path.Dir(dir) {
		at := join(dir, ".git")
		if n := r.v.lstat(at); !n.isDir() && !n.isFile() {
			continue
		}
		if r.guard.workspaceRefusal(dir) == "" && !r.allows(at, policy.Read) {
			r.note(Info, "the workspace is part of the git repository %s: for git to work, pass --workspace %s", show(dir), shellQuote(dir))
		}
		return
	}
}
