//go:build linux || darwin

package listen

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	appName    = "sandboxd"
	socketName = "socket"
)

// DefaultPath is where a daemon listens that was told nothing.
//
// A user's is sandboxd/socket in XDG_RUNTIME_DIR, if that is the user's
// own directory of mode 0700, else in XDG_STATE_HOME or ~/.local/state (XDG Base
// Directory Specification); on macOS in "~/Library/Application Support", or in
// TMPDIR if that path is too long for a socket: TMPDIR differs between launchd,
// ssh and sudo, and is emptied of what is old. The system's is /run/sandboxd
// (macOS: /var/run/sandboxd).
func DefaultPath(mode Mode) (string, error) {
	if mode == System {
		return filepath.Join(systemDir, appName, socketName), nil
	}
	all := userPaths()
	if len(all) == 0 {
		return "", errors.New("listen: there is no directory of this user for a socket: neither XDG_RUNTIME_DIR nor HOME is one")
	}
	return all[0], nil
}

// EnvSocket is the variable that tells a client where its daemon is.
const EnvSocket = "SANDBOXD_SOCKET"

// Candidates are the paths at which a client that was told nothing looks for a
// daemon: the one of [EnvSocket] alone, if that is set; else this user's, with
// those that a daemon of another environment may have taken, and then the
// system's. docs/protocol.md says the same to clients in other languages.
func Candidates() []string {
	if path := os.Getenv(EnvSocket); path != "" {
		return []string{path}
	}
	all := append(userPaths(), filepath.Join(systemDir, appName, socketName))
	return slices.Compact(all)
}

// ownDir tells whether path is a directory of this user and no link to one.
// closed are mode bits that it must not have.
func ownDir(path string, closed uint32) bool {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return false
	}
	st, err := lstatAt(unix.AT_FDCWD, filepath.Clean(path))
	return err == nil && st.kind() == unix.S_IFDIR && int(st.uid) == os.Geteuid() && st.mode&closed == 0
}

// stateHome is the user's directory for state, and the home directory that it
// is below; empty where there is none.
func stateHome() (dir, home string) {
	home = os.Getenv("HOME")
	if !ownDir(home, 0o002) {
		home = ""
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) && stateIsXDG {
		return filepath.Clean(dir), ""
	}
	if home == "" {
		return "", ""
	}
	home = filepath.Clean(home)
	return filepath.Join(home, stateBelowHome), home
}

// makeHomeParents makes the directories between the home directory and that of
// the default path, of mode 0700 as the XDG Base Directory Specification has
// it. A failure shows when the path is walked.
func makeHomeParents(path string) {
	dir, home := stateHome()
	if home != "" && strings.HasPrefix(path, dir+"/") {
		_ = os.MkdirAll(dir, 0o700)
	}
}
