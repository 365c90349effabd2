package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// hierarchy is one hierarchy at this process' own cgroup: what was seen of it.
type hierarchy struct {
	member
	dir   int // a handle to the cgroup's directory (O_PATH), or -1
	tasks int // cgroup1: its tasks file, for a thread's way back, or -1

	cause Cause // why the directory was not found
	open  error // of opening it
	make  error // of making a directory there
	enter error // of having processes there and below

	flat bool // cgroup1: memory.use_hierarchy is 0

	// Of cgroup2:
	divide  error    // of writing cgroup.subtree_control
	top     bool     // it is the root, which may hold processes beside its children
	kind    string   // cgroup.type
	offered []string // cgroup.controllers
	enabled []string // cgroup.subtree_control
	others  []int    // processes there, beside this one
}

// caller is what was seen of this process.
type caller struct {
	root    bool
	systemd bool
	clone   error // of clone3(2)
}

// judge says what can be held. It looks at nothing but its arguments.
func judge(all []*hierarchy, c caller) Host {
	h := Host{Layout: None}
	for _, o := range all {
		h.Own = append(h.Own, Own{o.name(), o.path})
		switch is := map[bool]Layout{true: Unified, false: V1}[o.id == 0]; {
		case o.cause != "":
		case h.Layout == None:
			h.Layout = is
		case h.Layout != is:
			h.Layout = Hybrid
		}
	}
	nothing := c.no(NotMounted, "there are no cgroups", nil, "")
	for name, a := range map[string]*Ability{memory: &h.Memory, pids: &h.Pids, cpu: &h.CPU} {
		*a = nothing
		if o := holder(all, name); o != nil {
			*a = o.limit(name, c)
			h.Moves = h.Moves || a.By == two && !o.top && !slices.Contains(o.enabled, name)
		}
	}
	h.Kill = nothing
	for _, o := range trees(all) {
		a := o.child(c)
		if a.Can() {
			h.Kill, h.tree = a, o
			break
		}
		if h.Kill.Cause == NotMounted { // of those that are there, the best one's reason
			h.Kill = a
		}
	}
	return h
}

// holder is the hierarchy of a controller: the cgroup1 one that has it, which
// the kernel then keeps from cgroup2, else cgroup2. What a directory is called,
// or whether it is there, says nothing.
func holder(all []*hierarchy, controller string) *hierarchy {
	var found *hierarchy
	for _, o := range all {
		if o.has(controller) {
			return o
		}
		if o.id == 0 {
			found = o
		}
	}
	return found
}

// trees are the hierarchies by which a tree can be ended, best first: cgroup2
// has cgroup.kill or cgroup.freeze, cgroup1 may have a freezer, and with any
// other the processes can still be told.
func trees(all []*hierarchy) []*hierarchy {
	rank := func(o *hierarchy) int {
		if o.id == 0 {
			return -1
		}
		return slices.IndexFunc([]string{"freezer", pids, memory, cpu, "cpuacct"}, o.has)
	}
	return slices.SortedStableFunc(slices.Values(all), func(a, b *hierarchy) int { return rank(a) - rank(b) })
}

// child tells whether a group can be made in this hierarchy.
func (o *hierarchy) child(c caller) Ability {
	where := o.version() + " " + o.path
	for _, step := range []struct {
		err error
		why string
	}{
		{o.open, "%s cannot be opened: %v"},
		{o.make, "no cgroup can be made in %s: %v"},
		{o.enter, "no process can be put below %s: %v"},
	} {
		if step.err != nil && o.cause == "" {
			return c.no(causeOf(step.err), fmt.Sprintf(step.why, where, step.err), o, "")
		}
	}
	switch {
	case o.cause != "":
		return c.no(o.cause, "no mounted file system shows "+where+", where this process is", o, "")
	case o.id == 0 && o.kind != "" && o.kind != "domain":
		return c.no(Threaded, fmt.Sprintf("%s is of the type %q, and no process can start below it", where, o.kind), o, "")
	case o.id == 0 && c.clone != nil:
		return c.no(NoClone, fmt.Sprintf("no process can start in a cgroup2: clone3: %v", c.clone), o, "")
	}
	return Ability{By: o.version()}
}

// limit tells whether a group in this hierarchy can have a controller's limit.
func (o *hierarchy) limit(name string, c caller) Ability {
	a := o.child(c)
	where := o.version() + " " + o.path
	switch {
	case !a.Can():
		return a
	case o.id != 0 && name == memory && o.flat:
		return c.no(NotHierarchical, where+" does not count the memory of cgroups below it (memory.use_hierarchy is 0)", o, name)
	case o.id != 0 || slices.Contains(o.enabled, name):
		return a
	case !slices.Contains(o.offered, name) && o.top:
		return c.no(NoController, "neither cgroup2 nor a cgroup1 has the controller "+name, o, name)
	case !slices.Contains(o.offered, name):
		return c.no(NotEnabled, "the cgroup above "+where+" does not hand the controller "+name+" on to it", o, name)
	case o.divide != nil:
		return c.no(causeOf(o.divide), fmt.Sprintf("%s cannot hand controllers on: %v", where, o.divide), o, name)
	case !o.top && len(o.others) > 0:
		return c.no(InternalProcesses, fmt.Sprintf("%s holds other processes than this one (%s), and a cgroup2 with processes cannot limit those below it", where, pidList(o.others)), o, name)
	}
	return a
}

func pidList(pids []int) string {
	if len(pids) > 3 {
		return fmt.Sprintf("%v and more", pids[:3])
	}
	return fmt.Sprint(pids)
}

func causeOf(err error) Cause {
	switch {
	case errors.Is(err, syscall.EROFS):
		return ReadOnly
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return NotDelegated
	}
	return Unusable
}

// fixes are what helps most people. A "/systemd" one is for hosts that run it.
var fixes = map[Cause]string{
	NotMounted:                     "mount a cgroup2 file system at /sys/fs/cgroup",
	OtherNamespace:                 "mount the cgroup file system inside this cgroup namespace, or start the container with the host's",
	ReadOnly:                       "give the container a writable cgroup mount, or set the limit on the container itself",
	NotDelegated:                   "as root, make a cgroup for it, give this user the directory and its cgroup.procs, cgroup.threads and cgroup.subtree_control, and start it there",
	NotDelegated + "/cgroup1":      "as root, make a cgroup for it in each hierarchy, give this user the directory and its tasks and cgroup.procs, and start it there",
	NotDelegated + "/systemd":      "start it as SCOPE",
	InternalProcesses:              "start it as the only process of a cgroup",
	InternalProcesses + "/systemd": "start it as the only process of a scope: SCOPE",
	NotEnabled:                     "as root, write +NAME to cgroup.subtree_control of every cgroup above",
	NotEnabled + "/systemd":        "as root, run systemctl edit user@.service, add the lines [Service] and Delegate=cpu memory pids, and log in again; then start it as SCOPE",
	NoController:                   "boot a kernel with the controller, and without cgroup_disable=NAME",
	Threaded:                       "start it outside of the threaded cgroup",
	NotHierarchical:                "as root, write 1 to memory.use_hierarchy there",
	NoClone:                        "use a container engine whose seccomp profile allows clone3",
}

// no is an ability that is not there.
func (c caller) no(cause Cause, why string, o *hierarchy, name string) Ability {
	fix := fixes[cause]
	if s, ok := fixes[cause+"/cgroup1"]; ok && o != nil && o.id != 0 {
		fix = s
	}
	if s, ok := fixes[cause+"/systemd"]; ok && c.systemd {
		fix = s
	}
	scope := "systemd-run --user --scope -p Delegate=yes -- COMMAND"
	if c.root {
		scope = "systemd-run --scope -p Delegate=yes -- COMMAND"
	}
	return Ability{Cause: cause, Why: why, Fix: strings.NewReplacer("SCOPE", scope, "NAME", name).Replace(fix)}
}
