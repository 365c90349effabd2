package profiles

import (
	"crypto/sha256"
	"encoding/hex"

	"sandboxd/policy"
)

// placeCaches decides where the caches of tools live. The user's own caches
// are never writable: a build cache that the worker poisoned would run in the
// user's next build, unconfined.
func (r *resolver) placeCaches() error {
	if r.spec.Mode != policy.WorkspaceWrite || r.req.Cache == CachePrivate {
		return nil
	}
	dir, why := r.cacheDir()
	if why != "" {
		r.note(Info, "caches of tools are private to this run: %s", why)
		return nil
	}
	r.spec.Create = append(r.spec.Create, dir)
	r.grant(policy.Grant{
		Path: policy.Raw(dir), Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Exec,
		Reason: "caches of tools, kept for sandboxed runs in this workspace only", Source: "cache",
	})
	return nil
}

// cacheDir is the directory of this workspace's caches, or why there is none.
func (r *resolver) cacheDir() (dir, why string) {
	base := xdg(r.host, r.home, "XDG_CACHE_HOME", ".cache")
	if base == "" {
		return "", "there is no home directory"
	}
	sum := sha256.Sum256([]byte(r.spec.Workspace))
	full, existing, n, err := r.v.evalPartial(base + "/sbx/workspaces/" + hex.EncodeToString(sum[:16]))
	if err == nil {
		n = r.v.full(existing)
	}
	switch {
	case err != nil:
		return "", show(base) + " " + explain(err)
	case policy.Within(full, r.spec.Workspace):
		return "", show(base) + " lies in the workspace"
	case !n.isDir():
		return "", show(existing) + " is not a directory"
	// Somebody else's directory is somebody else's to change, and what is made
	// there as root would get in its owner's way.
	case int(n.uid) != r.req.UID:
		return "", show(existing) + " belongs to another user"
	case n.perm&0o002 != 0: // anybody could make the rest of the path first
		return "", show(existing) + " is writable for everybody"
	case may(existing, accessW|accessX) != nil:
		return "", show(existing) + " is not writable"
	case inSharedRoot(full) != "":
		return "", show(full) + " is no place for caches"
	}
	return full, ""
}
