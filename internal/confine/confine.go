// Package confine takes away from the process that calls it what the front of the
// daemon does not need: everything but computing, speaking over sockets that were
// handed to it, and the files of its store. The front calls [Self] first thing; the
// monitor reads the result back from outside with [Threads].
//
// All threads are confined, those that exist and those that come. docs/front.md says
// what the front may do then, in which order it is confined, and what that does not
// hold.
package confine

import (
	"errors"
	"fmt"
	"slices"
)

// IDs are a user and a group.
type IDs struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Options say what stays.
type Options struct {
	// Store is the directory whose files stay usable: an absolute path without
	// symbolic links. Empty: none, and no file can be opened at all.
	Store string
	// User is who to become, without supplementary groups. Needs root. Nil: stay,
	// which for root is a gap.
	User *IDs
	// Files is the limit of open descriptors, soft and hard (RLIMIT_NOFILE). 0: as
	// it is.
	Files uint64
	// FileSize is the largest size in bytes of a file that can be written
	// (RLIMIT_FSIZE). 0: as it is. What exceeds it fails with EFBIG: the signal
	// (SIGXFSZ), of which Go would die, is ignored.
	FileSize uint64
	// Keep are the descriptors that the process was given beside 0, 1 and 2. Any
	// other that is open is a gap: its file would stay usable.
	Keep []int
	// Require makes a gap an error.
	Require bool
	// MaxABI is the newest Landlock ABI to use. 0: the kernel's. Below 0: none, as on
	// a kernel without Landlock. For tests.
	MaxABI int
}

// Gap is something that could not be taken away.
type Gap struct {
	// What is one of the Gap constants.
	What string `json:"what"`
	// Why is for people.
	Why string `json:"why"`
}

// What a [Gap] can be about.
const (
	GapSystem       = "system"       // not Linux: nothing is confined
	GapFiles        = "files"        // no Landlock: files by path
	GapCalls        = "calls"        // no seccomp filter
	GapRoot         = "root"         // the process is still root
	GapCapabilities = "capabilities" // some may be left
	GapDescriptor   = "descriptor"   // something is open that nobody named
)

// Landlock tells how files are confined.
type Landlock struct {
	// ABI is the version used; 0 if none is.
	ABI int `json:"abi"`
	// Threads is "shared" if all threads are in one domain, "each" if each has its
	// own with the same rules, and empty without Landlock.
	Threads string `json:"threads,omitempty"`
	// Signals tells whether the domain scopes signals too. The filter refuses to
	// signal other processes in any case.
	Signals bool `json:"signals"`
}

// Filter is the installed seccomp filter.
type Filter struct {
	Name         string `json:"name"` // a variant of package seccomp
	Instructions int    `json:"instructions"`
}

// Thread is what /proc/PID/task/TID/status tells of one thread.
type Thread struct {
	TID        int  `json:"tid"`
	NoNewPrivs bool `json:"no_new_privs"`
	// Seccomp is 2 under a filter; Filters is how many there are (Linux 5.9; 0 below).
	Seccomp int `json:"seccomp"`
	Filters int `json:"filters"`
	// UID and GID are real, effective, saved and that for files.
	UID    [4]int `json:"uid"`
	GID    [4]int `json:"gid"`
	Groups []int  `json:"groups"`
	// The sets of capabilities, as bits.
	CapInh uint64 `json:"cap_inh"`
	CapPrm uint64 `json:"cap_prm"`
	CapEff uint64 `json:"cap_eff"`
	CapBnd uint64 `json:"cap_bnd"`
	CapAmb uint64 `json:"cap_amb"`
}

// Descriptor is one that was open when the process was confined.
type Descriptor struct {
	FD     int    `json:"fd"`
	Target string `json:"target"`
}

// Canary is one attempt, made for real.
type Canary struct {
	// After is the step that it followed: "landlock" or "filter".
	After string `json:"after"`
	// Thread is "calling", or "fresh" for one that was made after that step.
	Thread  string `json:"thread"`
	Attempt string `json:"attempt"`
	Refused bool   `json:"refused"`
	// Answer is the kernel's: an error, or "allowed".
	Answer string `json:"answer"`
}

// Posture is what [Self] did and read back.
type Posture struct {
	PID      int      `json:"pid"`
	Store    string   `json:"store,omitempty"`
	Landlock Landlock `json:"landlock"`
	Filter   Filter   `json:"filter"`
	Dumpable bool     `json:"dumpable"`
	// Threads are those that existed before the process was confined, read after.
	Threads []Thread `json:"threads"`
	// Later are the numbers of the threads that were made meanwhile. Their status
	// can be read from outside only (see [Threads]); they inherit (clone(2)).
	Later       []int        `json:"later,omitempty"`
	Descriptors []Descriptor `json:"descriptors"`
	Canaries    []Canary     `json:"canaries"`
	Gaps        []Gap        `json:"gaps,omitempty"`
}

// Expect is what the threads of a confined process must show.
type Expect struct {
	// User is who they must be, without supplementary groups. Nil: anybody, but all
	// the same.
	User *IDs
	// Filter: each runs under a seccomp filter. All have the same number of them in
	// any case.
	Filter bool
	// Bounding: the bounding set is empty, as it is if the process came from root.
	Bounding bool
	// Capabilities: all other sets are empty.
	Capabilities bool
}

// CheckThreads compares what [Threads] read with what is expected. The error names
// each thread and what is wrong with it; no thread at all is an error, too.
func CheckThreads(threads []Thread, want Expect) error {
	if len(threads) == 0 {
		return errors.New("no thread could be read")
	}
	const filtered = 2 // SECCOMP_MODE_FILTER
	first := threads[0]
	var errs []error
	for _, t := range threads {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("thread %d: "+format, append([]any{t.TID}, args...)...))
		}
		if !t.NoNewPrivs {
			wrong("no_new_privs is not set")
		}
		if want.Filter && t.Seccomp != filtered {
			wrong("seccomp mode %d", t.Seccomp)
		}
		if t.Filters != first.Filters {
			wrong("%d filters, thread %d has %d", t.Filters, first.TID, first.Filters)
		}
		uid, gid, groups := first.UID, first.GID, first.Groups
		if u := want.User; u != nil {
			uid, gid, groups = [4]int{u.UID, u.UID, u.UID, u.UID}, [4]int{u.GID, u.GID, u.GID, u.GID}, nil
		}
		if t.UID != uid || t.GID != gid || !slices.Equal(t.Groups, groups) {
			wrong("user %v, group %v, groups %v", t.UID, t.GID, t.Groups)
		}
		if want.Bounding && t.CapBnd != 0 {
			wrong("bounding set %#x", t.CapBnd)
		}
		if want.Capabilities && t.capable() {
			wrong("capabilities: inheritable %#x, permitted %#x, effective %#x, ambient %#x", t.CapInh, t.CapPrm, t.CapEff, t.CapAmb)
		}
	}
	return errors.Join(errs...)
}

func (t Thread) capable() bool { return t.CapInh|t.CapPrm|t.CapEff|t.CapAmb != 0 }
