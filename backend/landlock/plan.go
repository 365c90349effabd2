package landlock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/launch"
	"sandboxd/internal/quota"
	"sandboxd/internal/rootfs"
	"sandboxd/internal/seccomp"
	"sandboxd/policy"
)

// Facts are what a plan must know of the host. A plan compiled from given
// facts is the same on every machine and operating system.
type Facts struct {
	// ABI is the Landlock ABI version of the kernel; 0 for none.
	ABI int `json:"landlock_abi"`
	// Errata is the kernel's bit mask of fixed errata; 0 before 6.15.
	Errata int `json:"landlock_errata"`
	// Notify tells that a seccomp notification listener can be had and that
	// the worker's memory can be read (ptrace access to descendants).
	Notify bool `json:"seccomp_notify"`
	// NotifyReason says why not.
	NotifyReason string `json:"seccomp_notify_reason,omitempty"`
	// Arch is the GOARCH whose filter is used.
	Arch string `json:"arch"`
	// Groups is what limits can be held and the tree can be ended with.
	Groups *cgroup.Host `json:"cgroups,omitempty"`
	// Disk is what a limit on private temporary directories can be held with;
	// nil where none is asked for.
	Disk *quota.Host `json:"disk,omitempty"`
	// UserLimit tells that workers run as a user whose processes the kernel limits
	// (RLIMIT_NPROC).
	UserLimit bool `json:"user_limit,omitempty"`
	// Namespaces tells that workers get namespaces of their own: the backend "native".
	Namespaces bool `json:"namespaces,omitempty"`
	// RootLinks are the symbolic links in the root directory, for their tree of files.
	RootLinks []policy.Link `json:"root_links,omitempty"`
}

func (f Facts) host() launch.Host {
	return launch.Host{Groups: f.Groups, Disk: f.Disk, UserLimit: f.UserLimit}
}

// The file rights of Landlock by what the policy grants.
const (
	rightsRead  = ll.AccessFSReadFile | ll.AccessFSReadDir
	rightsWrite = ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRefer |
		ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
		ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym
	// rightsFile are those that a rule on a file may hold; others are EINVAL.
	rightsFile = ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev
)

// Rule is one path rule of a plan.
type Rule struct {
	Path   policy.Raw  `json:"path"`
	Kind   policy.Kind `json:"kind"`
	Rights uint64      `json:"rights"`
}

// MarshalJSON adds the names of the rights.
func (r Rule) MarshalJSON() ([]byte, error) {
	type plain Rule // without this method
	return json.Marshal(struct {
		plain
		Names []string `json:"names"`
	}{plain(r), rightNames(r.Rights)})
}

// Plan is a policy compiled for one kernel: what landlock_create_ruleset,
// landlock_add_rule and landlock_restrict_self will be told, and which seccomp
// filter stands beside them.
type Plan struct {
	Facts         Facts           `json:"facts"`
	HandledFS     uint64          `json:"handled_access_fs"`
	HandledNet    uint64          `json:"handled_access_net"`
	Scoped        uint64          `json:"scoped"`
	AttrSize      int             `json:"ruleset_attr_size"`
	RestrictFlags uint32          `json:"restrict_self_flags"`
	Rules         []Rule          `json:"rules"`
	Filter        seccomp.Variant `json:"-"`
	FilterName    string          `json:"seccomp_filter"`
	// Tree is what the worker sees of files, if it has a mount namespace of its own.
	Tree        *rootfs.Layout `json:"tree,omitempty"`
	Supervise   bool           `json:"supervise"`
	policy      policy.Policy
	tempBase    string
	user        *User
	watch       bool
	recheck     bool
	warm        *warmThread
	enforcement backend.Enforcement
	groups      atomic.Pointer[cgroup.Host] // with handles, for the first that is prepared
}

// Compile makes a plan of a policy for a host. It is pure.
func Compile(p policy.Policy, f Facts) (*Plan, error) {
	if !p.Valid() || !p.Mode().Confined() {
		return nil, fmt.Errorf("landlock cannot express mode %s", p.Mode())
	}
	if f.ABI < 1 {
		return nil, backend.Refuse(fixNoLandlock, "this kernel has no Landlock")
	}
	f.ABI = min(f.ABI, MaxABI)
	if p.Net() != policy.NetNone && p.Net() != policy.NetHost && !f.Namespaces {
		return nil, backend.Refuse("use --net none or --net host, or another backend",
			"landlock cannot give a network of kind %q", p.Net())
	}
	if deny, by, found := p.DenyInsideGrant(); found && !f.Namespaces {
		return nil, backend.Refuse("use --backend native, or grant what lies beside it instead of the whole tree",
			"landlock cannot deny %q inside the granted tree %q", deny, by.Path)
	}
	h := handledAt(f.ABI)
	plan := &Plan{
		Facts:     f,
		HandledFS: h.FS,
		Scoped:    h.Scope,
		AttrSize:  attrSize(f.ABI),
		Filter:    filterFor(p, f),
		policy:    p,
	}
	if plan.Filter.Net == seccomp.NetNone {
		plan.HandledNet = h.Net
	}
	// TSYNC is not used: confining one thread is the launch's whole design.
	// Log flags are not used: nothing reads the records yet.
	plan.RestrictFlags = h.Flags & ll.FlagRestrictSelfNoNewPrivs
	plan.FilterName = plan.Filter.String()
	plan.Supervise = f.Notify
	plan.Rules = rulesFor(p.Grants(), h.FS)
	var err error
	if f.Namespaces {
		tree, err := rootfs.Compile(p, f.RootLinks)
		if err != nil {
			return nil, err
		}
		plan.Tree = &tree
		plan.Rules = slices.DeleteFunc(plan.Rules, func(r Rule) bool { return !tree.Shows(string(r.Path)) })
	}
	plan.enforcement, err = backend.NewEnforcement(plan.states())
	return plan, err
}

// filterFor picks the seccomp filter that closes what this Landlock cannot.
func filterFor(p policy.Policy, f Facts) seccomp.Variant {
	v := seccomp.Variant{Net: seccomp.NetNone, Unix: seccomp.UnixKernel, Truncate: f.ABI < 3, Shm: f.Notify}
	// In a network namespace of its own there is nobody but the worker, and programs
	// that talk to themselves need a loopback device whatever they were told. Where
	// nobody judges unix sockets, the filter is the one that closes these, too.
	if p.Net() != policy.NetNone || f.Namespaces && (f.Notify || f.ABI >= 9) {
		v.Net = seccomp.NetHost
	}
	switch {
	case f.ABI >= 9:
	case f.Notify:
		v.Unix = seccomp.UnixSupervised
	case v.Net == seccomp.NetNone:
		v.Unix = seccomp.UnixClosed
	}
	if v.Net == seccomp.NetHost && !f.Notify {
		v.Truncate = false // no such filter: the loss is reported
	}
	return v
}

// rulesFor merges grants into one rule a path, widest first, in a stable order.
func rulesFor(grants []policy.Grant, handledFS uint64) []Rule {
	byPath := map[policy.Raw]*Rule{}
	for _, g := range grants {
		r := byPath[g.Path]
		if r == nil {
			r = &Rule{Path: g.Path, Kind: g.Kind}
			byPath[g.Path] = r
		}
		r.Rights |= rightsOf(g) & handledFS
	}
	rules := make([]Rule, 0, len(byPath))
	for _, r := range byPath {
		if r.Rights == 0 {
			continue
		}
		rules = append(rules, *r)
	}
	slices.SortFunc(rules, func(a, b Rule) int { return cmp.Compare(a.Path, b.Path) })
	return rules
}

func rightsOf(g policy.Grant) uint64 {
	var rights uint64
	for _, m := range []struct {
		access policy.Access
		rights uint64
	}{
		{policy.Read, rightsRead},
		{policy.Write, rightsWrite},
		{policy.Exec, ll.AccessFSExecute},
		{policy.Ioctl, ll.AccessFSIoctlDev},
	} {
		if g.Access.Has(m.access) {
			rights |= m.rights
		}
	}
	switch {
	case g.Kind == policy.File:
		rights &= rightsFile
	case g.Access.Has(policy.Ioctl):
		// A tree of devices (/dev/pts): its nodes are used, none is made.
		rights &= rightsFile | ll.AccessFSReadDir
	}
	return rights
}

var fsRightNames = []string{"execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char",
	"make_dir", "make_reg", "make_sock", "make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev", "resolve_unix"}

func rightNames(rights uint64) []string {
	var names []string
	for i, n := range fsRightNames {
		if rights&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// Enforcement is what the plan would enforce.
func (p *Plan) Enforcement() backend.Enforcement { return p.enforcement }

// LacksOwnSockets says why workers cannot connect to unix sockets of their own;
// "" if they can.
func (p *Plan) LacksOwnSockets() string {
	if p.Filter.Unix == seccomp.UnixClosed {
		return "not without a seccomp notification listener: " + p.Facts.NotifyReason
	}
	return ""
}

// Describe returns the plan for --dry-run.
func (p *Plan) Describe() any { return p }

// String shows the plan as text.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "landlock ABI %d, seccomp filter %s\n", p.Facts.ABI, p.FilterName)
	for _, r := range p.Rules {
		fmt.Fprintf(&b, "  %s: %s\n", r.Path, strings.Join(rightNames(r.Rights), " "))
	}
	return b.String()
}
