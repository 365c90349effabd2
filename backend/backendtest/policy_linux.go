package backendtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sandboxd/policy"
)

// Place is where a worker works, as real paths.
type Place struct {
	Workspace string
	// Probe is the probe's own path, in a directory of its own.
	Probe string
	// Readable is a directory that may be read only; empty for none.
	Readable string
}

// given is a variable that the policy gives, with what shells would split.
const given = "one two 'three'"

// Policy grants what any program needs, the probe, and the workspace as far as
// the mode says. It is made directly, so that the suite depends on no profile.
func Policy(mode policy.Mode, at Place) (policy.Policy, error) {
	grants, err := systemGrants()
	if err != nil {
		return policy.Policy{}, err
	}
	access := policy.Read | policy.Exec
	if mode == policy.WorkspaceWrite {
		access |= policy.Write
	}
	grants = append(grants,
		policy.Grant{Path: policy.Raw(filepath.Dir(at.Probe)), Kind: policy.Tree, Access: policy.Read | policy.Exec, Reason: "the probe", Source: "test"},
		policy.Grant{Path: policy.Raw(at.Workspace), Kind: policy.Tree, Access: access, Reason: "the workspace", Source: "test"})
	if at.Readable != "" {
		grants = append(grants, policy.Grant{Path: policy.Raw(at.Readable), Kind: policy.Tree, Access: policy.Read, Reason: "data", Source: "test"})
	}
	return policy.New(policy.Spec{
		Mode: mode, Net: policy.NetNone, Workspace: at.Workspace, Cwd: at.Workspace, Grants: grants, Links: systemLinks(),
		Env:     []string{"PATH=/usr/bin:/bin", "HOME=" + at.Workspace, "LANG=C.UTF-8", "SBX_TEST_GIVEN=" + given},
		TempEnv: []policy.TempVar{{Name: "TMPDIR", Sub: "."}},
	})
}

// systemPaths are what programs need of the system. The first of equal real
// paths counts: /bin is /usr/bin on most systems.
var systemPaths = []struct {
	path   string
	access policy.Access
}{
	{"/usr", policy.Read | policy.Exec},
	{"/bin", policy.Read | policy.Exec},
	{"/sbin", policy.Read | policy.Exec},
	{"/lib", policy.Read | policy.Exec},
	{"/lib32", policy.Read | policy.Exec},
	{"/lib64", policy.Read | policy.Exec},
	{"/etc", policy.Read},
	{"/proc", policy.Read},
	{"/dev/null", policy.Read | policy.Write},
	{"/dev/zero", policy.Read},
	{"/dev/full", policy.Read | policy.Write},
	{"/dev/random", policy.Read},
	{"/dev/urandom", policy.Read},
	{"/dev/ptmx", policy.Read | policy.Write | policy.Ioctl},
	{"/dev/pts", policy.Read | policy.Write | policy.Ioctl},
}

func systemGrants() ([]policy.Grant, error) {
	var grants []policy.Grant
	for _, s := range systemPaths {
		real, err := filepath.EvalSymlinks(s.path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("resolving a system path: %w", err)
		}
		info, err := os.Stat(real)
		if err != nil {
			return nil, fmt.Errorf("resolving a system path: %w", err)
		}
		covered := slices.ContainsFunc(grants, func(g policy.Grant) bool {
			return g.Covers(real) && g.Access.Has(s.access)
		})
		if covered {
			continue
		}
		kind := policy.File
		if info.IsDir() {
			kind = policy.Tree
		}
		grants = append(grants, policy.Grant{Path: policy.Raw(real), Kind: kind, Access: s.access, Reason: "the system", Source: "test"})
	}
	return grants, nil
}

// systemLinks are those of the system's paths that are links.
func systemLinks() (links []policy.Link) {
	for _, s := range systemPaths {
		if target, err := os.Readlink(s.path); err == nil {
			links = append(links, policy.Link{Path: policy.Raw(s.path), Target: policy.Raw(target)})
		}
	}
	return links
}
