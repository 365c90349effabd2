// Package listen is what a daemon needs of its Unix socket: a place that only
// the right users reach, one daemon at a time, who is calling, descriptors that
// travel, and an accept loop that outlives a shortage.
//
// Three things stand between a stranger and the daemon, and none relies on
// another: the directory's mode, the socket's mode, and the peer's credentials
// ([PeerOf]). It works on Linux and macOS; elsewhere every function is an error
// that names the system.
//
// # launchd
//
// On macOS launchd starts the daemon, and the daemon opens its own socket with
// [Open]. A socket that launchd made ("Sockets" in launchd.plist(5)) is handed out
// only by launch_activate_socket(3) of libSystem, which a program built without
// cgo does not call. A user's is ~/Library/LaunchAgents/sandboxd.plist:
//
//	<plist version="1.0"><dict>
//	  <key>Label</key><string>sandboxd</string>
//	  <key>ProgramArguments</key><array><string>/usr/local/bin/sandboxd</string></array>
//	  <key>RunAtLoad</key><true/>
//	  <key>KeepAlive</key><true/>
//	</dict></plist>
//
// # What is trusted
//
// Root, this user, and whoever may change the groups of this system. A mode says
// all there is about POSIX ACLs on Linux, as the group's bits are the ACL's mask
// (acl(5)); the ACLs of macOS stand beside the mode and are not looked at.
package listen

import (
	"errors"
	"fmt"
)

// Mode is whom a socket is for.
type Mode int

const (
	// User is the daemon of one user: directory 0700, socket 0600.
	User Mode = iota
	// System is root's daemon for a group: directory 0710 or 0750, socket 0660,
	// all of them root's and the group's.
	System
)

// String is "user" or "system".
func (m Mode) String() string {
	switch m {
	case User:
		return "user"
	case System:
		return "system"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Options say where and for whom to listen.
type Options struct {
	// Path of the socket, absolute. Empty is [DefaultPath] of the mode, for which
	// missing directories of the user's below the home directory are made as well.
	Path string
	Mode Mode
	// Group is a group's name or number, of mode System alone and needed there.
	Group string
	// Backlog is how many connections wait to be accepted; 0 means 128. The
	// kernel has a limit of its own, net.core.somaxconn (listen(2)).
	Backlog int
}

// Kinds of errors, for errors.Is.
var (
	// ErrUntrusted: others than the right users can reach or replace the socket,
	// or own it.
	ErrUntrusted = errors.New("not trusted")
	// ErrInTheWay: something is at the path that is no stale socket of a daemon
	// of this user; it is left alone.
	ErrInTheWay = errors.New("something else is at the path")
	// ErrTooLong: the path does not fit into a socket's address.
	ErrTooLong = errors.New("path too long for a socket")
	// ErrNoDaemon: nobody listens at the path.
	ErrNoDaemon = errors.New("no daemon is listening")
	// ErrTruncated: not all of what was sent beside the bytes arrived.
	ErrTruncated = errors.New("descriptors or other data beside the bytes were cut off")
	// ErrTooManyFDs: more descriptors were sent than were asked for.
	ErrTooManyFDs = errors.New("too many descriptors")
	// ErrNoBytes: descriptors without a byte to carry them.
	ErrNoBytes = errors.New("descriptors need at least one byte of data")
)

// Error is what is wrong with a path, and what can be done.
type Error struct {
	Op   string // "listen" or "connect"
	Path string // what it is about: the socket, its directory, or one above
	Err  error
	Hint string // what to do, for a person; may be empty
}

// Error has the hint in it.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %q: %v", e.Op, e.Path, e.Err)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// AlreadyRunning is the error of [Open] while another daemon holds the lock.
type AlreadyRunning struct {
	Path string // of the socket
	// PID is what the lock file says, 0 if it says nothing. It is for people: the
	// holder may be in another PID namespace, or about to write it.
	PID int
}

// Error names the pid where it is known.
func (e *AlreadyRunning) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("a daemon already listens at %q", e.Path)
	}
	return fmt.Sprintf("a daemon already listens at %q (pid %d)", e.Path, e.PID)
}

// Stats count what became of connections since the listener was made.
type Stats struct {
	// Accepted were handed on.
	Accepted uint64
	// Refused were accepted and closed at once, for want of descriptors.
	Refused uint64
	// Failed are calls of accept(2) that failed and were tried again.
	Failed uint64
}

// Notifications of sd_notify(3), for [Notify].
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1"
)

// Reloading is the notification of a reload that begins (Type=notify-reload,
// systemd.service(5)); [Ready] ends it. now is the monotonic clock's time, in
// microseconds, by which the manager knows this from an earlier one.
func Reloading(now int64) string {
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now)
}

// Status is the notification that tells people how things are, in one line.
func Status(text string) string {
	b := []byte("STATUS=" + text)
	for i, c := range b {
		if c == '\n' || c == 0 { // the next line would be another assignment
			b[i] = ' '
		}
	}
	return string(b)
}
