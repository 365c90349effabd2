package policy

import (
	"fmt"
	"path"
	"strings"
)

// Guard is how a place in a writable tree is held against the worker.
type Guard string

// The ways to hold a place. A backend with a mount namespace carries all of them out.
const (
	// GuardPinned is a directory that stays where it is, under its name: what is in it
	// can be changed.
	GuardPinned Guard = "pinned"
	// GuardMade is the same, and made if nothing stands there.
	GuardMade Guard = "made"
	// GuardShut is a file or directory that can be read only, and stays.
	GuardShut Guard = "read-only"
	// GuardLink is a symbolic link that stays and leads where it does.
	GuardLink Guard = "link"
	// GuardMissing is a name at which nothing stands, and nothing can be made.
	GuardMissing Guard = "missing"
	// GuardFile is the same where a directory in its place would disturb: what stands
	// for it meanwhile is a file with Text in it.
	GuardFile Guard = "missing-file"
	// GuardDenied is what can be neither read nor changed, and stays; where nothing
	// stands, nothing can be made.
	GuardDenied Guard = "denied"
	// GuardHidden is the same in a tree that the worker cannot write to: where nothing
	// stands, nothing is held.
	GuardHidden Guard = "hidden"
)

// Denies tells whether what is held so cannot be read.
func (g Guard) Denies() bool { return g == GuardDenied || g == GuardHidden }

// Guarded is one place in a writable tree that is held against the worker. What leads
// to it in that tree stands before it in a list.
type Guarded struct {
	// Path is real but for its last component, which may be a link.
	Path  Raw    `json:"path"`
	Guard Guard  `json:"guard"`
	Text  string `json:"text,omitempty"`
	// File tells of what is denied that it was no directory.
	File bool `json:"file,omitempty"`
}

func (g Guarded) validate() error {
	p := string(g.Path)
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0) {
		return fmt.Errorf("%q cannot be guarded: it is not a clean absolute path", p)
	}
	switch g.Guard {
	case GuardPinned, GuardMade, GuardShut, GuardLink, GuardMissing, GuardFile, GuardDenied, GuardHidden:
		return nil
	}
	return fmt.Errorf("%q is guarded in an unknown way: %q", p, g.Guard)
}
