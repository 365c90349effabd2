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
	case n.err != nil:
		r.noteParentRepo()
	}
	return nil
}

// noteGitDir handles a linked worktree or a submodule, whose .git is a file
// that says where the directory is.
func (r *resolver) noteGitDir(file string) {
	dir := r.pointer(file, "gitdir: ", r.spec.Workspace)
	if dir == "" {
		return
	}
	grant := dir
	if common := r.pointer(join(dir, "commondir"), "", dir); common != "" {
		grant = common
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
