// Package quota limits what a worker's private temporary directories hold.
//
// Where this process may mount, they lie in a file system of their own that has
// just that size ([Mount]), and the kernel refuses what does not fit. Elsewhere
// they lie where they lie without a limit, and are looked at again and again
// ([Measure], [Watch]): what is written between two looks is there.
package quota

import "fmt"

// KindMount is the kind of a mounted file system's mark in a lease.
const KindMount = "tmpfs"

// Host is what a host can hold such a limit with.
type Host struct {
	// Mounts tells that a file system can be mounted; Why and Fix say why not,
	// and what helps.
	Mounts bool   `json:"mounts"`
	Why    string `json:"why,omitempty"`
	Fix    string `json:"fix,omitempty"`
	// Measures tells that directories can be looked at instead.
	Measures bool `json:"measures"`
	// Memory is the machine's, in bytes.
	Memory int64 `json:"memory_bytes,omitempty"`
}

// Lacks says why no file system can hold a limit of so many bytes, and what
// helps; "" if one can. Its files are memory: memory is the worker's own limit
// on that, 0 for none.
//
// Half of the machine's memory is what a tmpfs may have by default, "if you
// oversize your tmpfs instances the machine will deadlock since the OOM handler
// will not be able to free that memory" (Documentation/filesystems/tmpfs.rst).
// Of the worker's own memory it is half, too: with more, a worker that fills it
// would be killed for memory, and not told that it is full.
func (h Host) Lacks(size, memory int64) string {
	switch {
	case !h.Mounts && h.Fix != "":
		return h.Why + " (" + h.Fix + ")"
	case !h.Mounts:
		return h.Why
	case size > h.Memory/2:
		return fmt.Sprintf("it would be in memory, and may have half of this machine's, %d bytes", h.Memory/2)
	case memory > 0 && size > memory/2:
		return fmt.Sprintf("it would be in memory, and may have half of the limit on that, %d bytes", memory/2)
	}
	return ""
}

// MaxFiles is how many files and directories go with a size. Empty ones take
// some of the kernel's memory, too; a tmpfs has one for each page by default.
func MaxFiles(size int64) int64 { return size>>12 + 1024 }

// Meter looks at the directories.
type Meter interface{ Look() Look }

// Look is what was seen.
type Look struct {
	// Bytes and Files are what the directories held; the directories themselves
	// are not counted.
	Bytes, Files int64
	// Full tells that a file system has no room for more.
	Full bool
	// Cut tells that something could not be looked at, so that there is more.
	Cut bool
}

// Over tells whether that is more than a size allows.
func (l Look) Over(size int64) bool { return l.Bytes > size || l.Files > MaxFiles(size) }

// Far tells whether it is twice as much.
func (l Look) Far(size int64) bool { return l.Bytes/2 > size || l.Files/2 > MaxFiles(size) }

// Seen is what came of all looks.
type Seen struct {
	Last Look
	// Peak is the most bytes that a look saw, Full and Cut whether one was.
	Peak      int64
	Full, Cut bool
}
