package policy

import (
	"fmt"
	"path"
	"strings"
)

// Access is what a grant allows, as a set of bits. The zero value grants
// nothing and is refused.
type Access uint8

// The kinds of access.
const (
	// Read: open files for reading, list directories.
	Read Access = 1 << iota
	// Write: write, truncate, create, rename, link and remove.
	Write
	// Exec: execve(2). A file that may be read may still be run by an
	// interpreter or a loader; see docs/enforcement.md, fs.exec.
	Exec
	// Ioctl: ioctl(2) on devices opened through the grant (terminals).
	Ioctl

	accessAll = Read | Write | Exec | Ioctl
)

// Has tells whether every bit of o is in a.
func (a Access) Has(o Access) bool { return a&o == o }

// String lists the bits, ls-style: "r", "rx", "rwx", "rwi".
func (a Access) String() string {
	var b strings.Builder
	for i, c := range "rwxi" {
		if a&(1<<i) != 0 {
			b.WriteRune(c)
		}
	}
	return nameOr(b.String(), "none")
}

// MarshalText writes the form of [Access.String]; no access is an error.
func (a Access) MarshalText() ([]byte, error) {
	if a == 0 || a&^accessAll != 0 {
		return nil, fmt.Errorf("access is unset or unknown")
	}
	return []byte(a.String()), nil
}

// UnmarshalText reads the form of [Access.String].
func (a *Access) UnmarshalText(text []byte) error {
	var got Access
	for _, c := range string(text) {
		i := strings.IndexRune("rwxi", c)
		if i < 0 {
			return fmt.Errorf("unknown access %q in %q", c, text)
		}
		got |= 1 << i
	}
	if got == 0 {
		return fmt.Errorf("access is empty")
	}
	*a = got
	return nil
}

// Kind says whether a grant is for one file or for a directory's whole tree.
// The zero value is invalid.
type Kind uint8

// The kinds of grant.
const (
	// Tree: the directory and everything below it, now and later.
	Tree Kind = iota + 1
	// File: this one file or device, not its directory.
	File
)

var kindNames = map[Kind]string{Tree: "tree", File: "file"}

func (k Kind) String() string { return nameOr(kindNames[k], "unset") }

// MarshalText writes the kind's name; an invalid one is an error.
func (k Kind) MarshalText() ([]byte, error) { return marshalName(kindNames[k], "grant kind") }

// UnmarshalText reads a kind's name.
func (k *Kind) UnmarshalText(b []byte) error {
	for v, name := range kindNames {
		if name == string(b) {
			*k = v
			return nil
		}
	}
	return fmt.Errorf("unknown grant kind %q", b)
}

// Grant is one permission on one path, with the reason why it is there.
type Grant struct {
	// Path is absolute, clean, and free of symbolic links: backends open it
	// with RESOLVE_NO_SYMLINKS and stop if that fails.
	Path Raw `json:"path"`
	// Kind is what stood at Path when it was resolved.
	Kind   Kind   `json:"kind"`
	Access Access `json:"access"`
	// Reason says who needs this, for a person.
	Reason string `json:"reason"`
	// Source says where it comes from: "preset:go", "flag:--readable", ...
	Source string `json:"source"`
}

// Covers tells whether the grant reaches p, a clean absolute path.
func (g Grant) Covers(p string) bool {
	return string(g.Path) == p || g.Kind == Tree && Within(p, string(g.Path))
}

func (g Grant) validate() error {
	p := string(g.Path)
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p:
		return fmt.Errorf("grant %q is not a clean absolute path", p)
	case strings.ContainsRune(p, 0):
		return fmt.Errorf("grant %q holds a NUL byte", p)
	case g.Access == 0 || g.Access&^accessAll != 0:
		return fmt.Errorf("grant %q has no valid access", p)
	case kindNames[g.Kind] == "":
		return fmt.Errorf("grant %q has no valid kind", p)
	case g.Reason == "":
		return fmt.Errorf("grant %q has no reason", p)
	}
	return nil
}

// Within tells whether clean absolute path p is dir or below it. It compares
// whole components: "/home/a.sshfoo" is not within "/home/a.ssh".
func Within(p, dir string) bool {
	if dir == "/" {
		return strings.HasPrefix(p, "/")
	}
	rest, ok := strings.CutPrefix(p, dir)
	return ok && (rest == "" || rest[0] == '/')
}
