// Package cgroup holds a worker's limits, counts what it uses and ends its
// whole tree, by control groups: cgroups(7), and in the kernel's documentation
// admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/.
//
// [Probe] finds out what this process may do here, controller by controller:
// a controller belongs either to cgroup2 or to one cgroup1 hierarchy, whatever
// is mounted where. [New] makes a [Group], always below the caller's own
// cgroup, so that the caller's own limits go on to hold for its workers.
//
// A worker gets into its group at its fork: into cgroup2 by CLONE_INTO_CGROUP
// ([Group.FD]), into cgroup1 with the thread that forks it ([Group.Enter]). One
// that is held before its first instruction can be moved ([Group.Add]).
//
// What this package does not do: it keeps no worker from writing to a cgroup
// file system that it can reach. A worker of the launcher's own uid owns the
// files of its group; the sandbox must not let it write there. The memory
// limit does not count huge pages that the host has reserved (hugetlb).
//
// github.com/containerd/cgroups/v3 is not used: the initialization of the
// packages that it links takes 1.1 ms of every start of a process, which is
// 70 % of a launch, and it takes a layout for hybrid or unified by the
// existence of paths.
package cgroup

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Layout is what cgroup file systems this process sees.
type Layout string

// The layouts.
const (
	None    Layout = "none"
	V1      Layout = "cgroup1"
	Unified Layout = "cgroup2"
	Hybrid  Layout = "hybrid" // cgroup2, and controllers in cgroup1
)

// Cause is why something cannot be held, for programs.
type Cause string

// The causes.
const (
	NotLinux          Cause = "not-linux"
	NotMounted        Cause = "not-mounted"
	OtherNamespace    Cause = "other-namespace"    // the mount does not show this process' cgroup
	ReadOnly          Cause = "read-only"          // as in containers
	NotDelegated      Cause = "not-delegated"      // no permission
	NoController      Cause = "no-controller"      // not in this kernel, or bound to a hierarchy that nobody mounted
	NotEnabled        Cause = "not-enabled"        // the cgroup above does not hand it on
	InternalProcesses Cause = "internal-processes" // cgroup-v2.rst, "No Internal Process Constraint"
	Threaded          Cause = "threaded"           // cgroup-v2.rst, "Threads"
	NotHierarchical   Cause = "not-hierarchical"   // memory.use_hierarchy is 0, before Linux 5.11
	NoClone           Cause = "no-clone3"          // a seccomp filter hides clone3(2)
	Unusable          Cause = "unusable"           // Why has the errno
)

// Ability is whether this process can hold one thing, through what, or why not.
type Ability struct {
	By    string `json:"by,omitempty"` // "cgroup2" or "cgroup1"; "" if it cannot
	Cause Cause  `json:"cause,omitempty"`
	Why   string `json:"why,omitempty"`
	Fix   string `json:"fix,omitempty"` // what a person can do about it
}

// Can tells whether it can be held.
func (a Ability) Can() bool { return a.By != "" }

// Own is this process' cgroup in one hierarchy.
type Own struct {
	Hierarchy string `json:"hierarchy"` // "cgroup2", or "cgroup1:" and its controllers
	Path      string `json:"path"`      // as /proc/self/cgroup shows it
}

// Host is what [Probe] found. It may be used by several goroutines.
type Host struct {
	Layout Layout  `json:"layout"`
	Memory Ability `json:"memory"`
	Pids   Ability `json:"pids"`
	CPU    Ability `json:"cpu"`
	// Kill is a group that can be listed, waited for and ended as a whole.
	Kill Ability `json:"kill"`
	Own  []Own   `json:"own,omitempty"`
	// Moves tells that the first limit moves this process to a leaf below its
	// own cgroup: see [Host.Prepare].
	Moves bool `json:"moves,omitempty"`

	state *state
	tree  *hierarchy // of Kill
}

func (h Host) ability(name string) Ability {
	return map[string]Ability{memory: h.Memory, pids: h.Pids, cpu: h.CPU, kill: h.Kill}[name]
}

// What can be held, as errors and abilities name it, and by what.
const (
	memory, pids, cpu, kill = "memory", "pids", "cpu", "kill"
	one, two                = "cgroup1", "cgroup2"
)

// leastID keeps two launchers' random names apart, and lets a [Mark] that was
// made before its group stand for it.
const leastID = 16

func checkID(id string) error {
	if len(id) < leastID || len(id) > 64 || strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") != "" {
		return fmt.Errorf("%q is no id of a group: %d to 64 letters, digits, - and _", id, leastID)
	}
	return nil
}

const (
	groupPrefix = "sbx-"
	leafPrefix  = "sbx-self-"
)

// Error is a step that failed. Nothing of the group is left.
type Error struct {
	// Limit is "memory", "pids", "cpu" or "kill"; "" if it concerns the group.
	Limit string
	Op    string // "mkdir", "open", "write", "read back"; "" where the host cannot hold it
	File  string // in the group's directory, or the directory
	Cause Cause  // where the host cannot hold it
	Err   error
	Fix   string
}

func (e *Error) Error() string {
	text := "cgroup"
	if e.Limit != "" {
		text += " for " + e.Limit
	}
	if e.Op != "" {
		text += fmt.Sprintf(": %s %q", e.Op, e.File)
	}
	return text + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func cannot(limit string, a Ability) error {
	return &Error{Limit: limit, Cause: a.Cause, Err: errors.New(a.Why), Fix: a.Fix}
}

// Field names a figure of [Usage].
type Field uint16

// The fields.
const (
	UserTime Field = 1 << iota
	SystemTime
	PeakMemory
	CurrentMemory
	PeakPids
	OOMKills
	OOMs
	PidsMaxHits
	Throttled
)

// Usage is what a group has used. A figure that this kernel or this group does
// not have is unknown, not zero: ask [Usage.Knows].
type Usage struct {
	User, System time.Duration
	// PeakMemory is in bytes, and may be some pages over the limit; cgroup2 has
	// it since Linux 5.19.
	PeakMemory, CurrentMemory int64
	// PeakPids counts tasks. Linux 6.1 does not have it, 6.12 does. In cgroup1 the launch thread counts
	// until [Group.Leave], so that a peak of 2 may be 1 in truth: unknown.
	PeakPids int
	// OOMKills are tasks of the group that were killed because memory ran out:
	// the group's, the caller's or the host's. OOMs are the times when it was
	// the group's; only cgroup2 counts them. In cgroup1, PeakMemory that has
	// reached the limit says the same.
	OOMKills, OOMs int
	// PidsMaxHits are forks that failed for the limit; before Linux 6.11, and
	// in cgroup1, also for a limit of a cgroup above.
	PidsMaxHits int
	// Throttled are periods in which the group had to wait for its next one.
	Throttled int
	// Source is "cgroup2", "cgroup1" or "cgroup1+cgroup2".
	Source string

	known Field
}

// Knows tells whether the figures of all these fields are known.
func (u Usage) Knows(f Field) bool { return u.known&f == f }

func (u *Usage) set(f Field, n int64) {
	u.known |= f
	switch f {
	case UserTime:
		u.User = time.Duration(n)
	case SystemTime:
		u.System = time.Duration(n)
	case PeakMemory:
		u.PeakMemory = n
	case CurrentMemory:
		u.CurrentMemory = n
	case PeakPids:
		u.PeakPids = int(n)
	case OOMKills:
		u.OOMKills = int(n)
	case OOMs:
		u.OOMs = int(n)
	case PidsMaxHits:
		u.PidsMaxHits = int(n)
	case Throttled:
		u.Throttled = int(n)
	}
}

// Mark lets a later process find what is left of a group, and be sure that it
// is that group. It may be stored.
type Mark struct {
	Boot string    `json:"boot"` // of the kernel: cgroups do not outlive it, and inode numbers start anew
	Dirs []MarkDir `json:"dirs"`
}

// MarkDir is one directory of a group. There is no time in it: cgroup
// directories have no birth time, and their ctime is that of the inode in
// memory, which changes when the kernel drops and makes it again.
type MarkDir struct {
	Hierarchy string `json:"hierarchy"` // see [Own]
	Path      string `json:"path"`      // in the hierarchy, as the caller's cgroup namespace shows it
	// Inode is the kernel's 64-bit id of the cgroup, never used again while it
	// runs (kernfs_node.id, Linux 5.5). 0 is of a mark that was made before its
	// group: then the random name alone stands for it.
	Inode uint64 `json:"inode,omitempty"`
}
