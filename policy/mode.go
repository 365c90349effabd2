// Package policy is the vocabulary of sandboxd: modes, path grants, network,
// environment, limits and effects, and the immutable [Policy] made of them.
//
// It imports the standard library only and does no I/O: who reads a policy
// reads values. Turning names and files into a policy is package profiles'
// work; turning a policy into what a kernel understands is a backend's.
//
// The zero value of every enum here is "unset" and is refused where a decision
// depends on it: a forgotten field must never mean "allowed".
package policy

import "fmt"

// Mode is the ceiling of what a worker may do. The zero value is invalid.
type Mode uint8

// The modes, from the strictest to none at all.
const (
	// ReadOnly lets the worker read the allow-listed roots and write nowhere
	// but to sinks such as /dev/null and its own private temporary directory.
	ReadOnly Mode = iota + 1
	// WorkspaceWrite adds writing in the workspace.
	WorkspaceWrite
	// FullAccess ("danger-full-access") calls no sandbox at all: the command is
	// spawned as it is, with a scrubbed environment and clean descriptors.
	FullAccess
)

var modeNames = map[Mode]string{
	ReadOnly:       "read-only",
	WorkspaceWrite: "workspace-write",
	FullAccess:     "danger-full-access",
}

// ParseMode reads a mode's name. "full-access" is an alias of
// "danger-full-access".
func ParseMode(s string) (Mode, error) {
	if s == "full-access" {
		return FullAccess, nil
	}
	for m, name := range modeNames {
		if name == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q (one of read-only, workspace-write, danger-full-access)", s)
}

// Valid tells whether m is one of the declared modes.
func (m Mode) Valid() bool { return modeNames[m] != "" }

// Confined tells whether the mode asks for a sandbox. The zero value is
// neither confined nor unconfined; callers check [Mode.Valid] first.
func (m Mode) Confined() bool { return m == ReadOnly || m == WorkspaceWrite }

// Stricter returns the stricter of two modes; an invalid mode is stricter than
// every valid one, so that a mistake narrows.
func (m Mode) Stricter(o Mode) Mode { return min(m, o) }

func (m Mode) String() string { return nameOr(modeNames[m], "unset") }

// MarshalText writes the mode's name; an invalid mode is an error.
func (m Mode) MarshalText() ([]byte, error) { return marshalName(modeNames[m], "mode") }

// UnmarshalText reads a mode's name.
func (m *Mode) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMode(string(b))
	return err
}

// Net is how much of the network a worker has: a ladder with honest names.
// The zero value is invalid.
type Net uint8

// The rungs of the ladder.
const (
	// NetNone: no network. A backend that gives a network namespace may leave its
	// worker a loopback device of its own there, which leads to nobody else.
	NetNone Net = iota + 1
	// NetLoopback: a network namespace of its own with lo up.
	NetLoopback
	// NetProxy: allow-listed hosts through a filtering proxy.
	NetProxy
	// NetHost: the host's network, not confined.
	NetHost
)

var netNames = map[Net]string{NetNone: "none", NetLoopback: "loopback", NetProxy: "proxy", NetHost: "host"}

// ParseNet reads a rung's name.
func ParseNet(s string) (Net, error) {
	for n, name := range netNames {
		if name == s {
			return n, nil
		}
	}
	return 0, fmt.Errorf("unknown network %q (one of none, loopback, proxy, host)", s)
}

// Valid tells whether n is one of the declared rungs.
func (n Net) Valid() bool { return netNames[n] != "" }

func (n Net) String() string { return nameOr(netNames[n], "unset") }

// MarshalText writes the rung's name; an invalid one is an error.
func (n Net) MarshalText() ([]byte, error) { return marshalName(netNames[n], "network") }

// UnmarshalText reads a rung's name.
func (n *Net) UnmarshalText(b []byte) (err error) {
	*n, err = ParseNet(string(b))
	return err
}

func nameOr(name, fallback string) string {
	if name == "" {
		return fallback
	}
	return name
}

func marshalName(name, what string) ([]byte, error) {
	if name == "" {
		return nil, fmt.Errorf("%s is unset", what)
	}
	return []byte(name), nil
}
