package profiles

import (
	"fmt"

	"sandboxd/policy"
)

// Request is everything that [Resolve] may look at beside the file system.
type Request struct {
	// Mode is the caller's choice; the zero value leaves it to the profiles,
	// and then to [DefaultMode].
	Mode policy.Mode
	// Net is the caller's choice; the zero value leaves it to the profiles, and
	// then to none (host in danger-full-access).
	Net policy.Net
	// Workspace is the tree that the work is about; empty means Dir.
	Workspace string
	// Cwd is where the command starts; empty means Dir.
	Cwd string
	// Dir is the caller's current directory (os.Getwd). Relative paths are
	// relative to it. Empty if it no longer exists.
	Dir string
	// NetAllow are the hosts that may be reached, HOST[:PORTS] (package internal/proxy).
	// They stand for [policy.NetProxy], where Net is not set.
	NetAllow []string
	// Readable and Writable are paths that the caller grants by name.
	Readable, Writable []string
	// Deny are paths or patterns that stay unreachable although granted.
	Deny []string
	// AllowExec are the only files that may be executed, if there are any.
	AllowExec []string
	// Env are variables for the worker: "K" passes the caller's value, "K=V"
	// sets one. Of several for one name the last wins.
	Env []string
	// Profiles are names, or paths of files, in the order in which they apply.
	Profiles []string
	// Require, RequireFull and AllowGap are as in [policy.Spec].
	Require     policy.EffectSet
	RequireFull bool
	AllowGap    policy.EffectSet
	// HostEnv is the caller's whole environment.
	HostEnv []string
	// Home is the home directory of the user that the worker runs as. Empty or
	// relative: none.
	Home string
	// UID and GID are those the worker runs as.
	UID, GID int
	// Cache says where caches of tools live: [CacheWorkspace] (the default) or
	// [CachePrivate].
	Cache string
	// PrivateTemp points TMPDIR and its like to the private temp in
	// danger-full-access as well, where a limit on it is asked for.
	PrivateTemp bool
	// OwnTerminal tells that the worker gets a terminal of its own and is to reach
	// no other: the presets' grant of all terminals is left out, unless AllowGap has
	// tty.inject.
	OwnTerminal bool
	// NoProjectProfile skips the project's own file.
	NoProjectProfile bool
	// AdminDir is where the administrator's profiles are; empty means
	// [AdminDir].
	AdminDir string
	// Unguarded tells that no backend is asked that holds protected paths, so that
	// nobody needs to know where they are.
	Unguarded bool
}

// DefaultMode applies when neither the caller nor a profile names a mode.
const DefaultMode = policy.WorkspaceWrite

// The places for tools' caches.
const (
	// CacheWorkspace keeps them from run to run, for sandboxed runs in this
	// workspace only: a poisoned build cache cannot reach the user's own builds.
	CacheWorkspace = "workspace"
	// CachePrivate puts them in the private temp, so that each run starts cold.
	CachePrivate = "private"
)

// AdminDir is where an administrator's profiles are.
const AdminDir = "/etc/sbx/profiles"

// ProjectFile is the name of a project's own file in its workspace.
const ProjectFile = ".sbx.toml"

// Marker is set to "1" in every worker's environment, so that tools and tests
// can tell that they run under sbx. It is a courtesy, not a proof.
const Marker = "SBX"

// Level is how urgent a notice is.
type Level string

// The levels of notices.
const (
	Warning Level = "warning"
	Info    Level = "info"
)

// Notice is something that the caller should know and that stops nothing.
type Notice struct {
	Level Level `json:"level"`
	// Text is one printable line.
	Text string `json:"text"`
}

// RefusalError says that a request is refused, and what to do about it.
type RefusalError struct {
	// Msg is one printable line that names the path, key or flag.
	Msg string
	// Hint is the exact next step.
	Hint string
	// Err is the system's error below it, if any.
	Err error
}

func (e *RefusalError) Error() string { return e.Msg }

func (e *RefusalError) Unwrap() error { return e.Err }

func refuse(hint, format string, args ...any) *RefusalError {
	return &RefusalError{Msg: fmt.Sprintf(format, args...), Hint: hint}
}
