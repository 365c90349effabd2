package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

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

// cachePlace is where this workspace's caches would be.
type cachePlace struct {
	base, name     string
	full, existing string // existing is the part that is there
	links          []string
	err            error
}

func (r *resolver) findCache() {
	base := xdg(r.host, r.home, "XDG_CACHE_HOME", ".cache")
	if base == "" {
		return
	}
	sum := sha256.Sum256([]byte(r.spec.Workspace))
	c := cachePlace{base: base, name: hex.EncodeToString(sum[:16])}
	c.full, c.existing, _, c.links, c.err = r.v.tracePartial(base + "/sbx/workspaces/" + c.name)
	r.cache = c
}

// cacheDir is the directory of this workspace's caches, or why there is none.
func (r *resolver) cacheDir() (dir, why string) {
	c := &r.cache
	if c.base == "" {
		return "", "there is no home directory"
	}
	if c.err != nil {
		return "", show(c.base) + " " + explain(c.err)
	}
	n := r.v.full(c.existing)
	switch {
	case slices.ContainsFunc(c.links, r.plantable):
		return "", show(c.base) + " leads through a link that the worker can have made"
	case policy.Within(c.full, r.spec.Workspace):
		return "", show(c.base) + " lies in the workspace"
	case !n.isDir():
		return "", show(c.existing) + " is not a directory"
	// Somebody else's directory is somebody else's to change, and what is made
	// there as root would get in its owner's way.
	case int(n.uid) != r.req.UID:
		return "", show(c.existing) + " belongs to another user"
	case n.perm&0o002 != 0: // anybody could make the rest of the path first
		return "", show(c.existing) + " is writable for everybody"
	case may(c.existing, accessW|accessX) != nil:
		return "", show(c.existing) + " is not writable"
	case inSharedRoot(c.full) != "":
		return "", show(c.full) + " is no place for caches"
	}
	return c.full, ""
}
