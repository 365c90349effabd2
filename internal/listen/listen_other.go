//go:build !linux && !darwin

package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

func unsupported() error {
	return fmt.Errorf("unix sockets of a daemon on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Listener is of Linux and macOS.
type Listener struct{}

// Open is not supported here.
func Open(Options) (*Listener, error) { return nil, unsupported() }

// Path is not supported here.
func (l *Listener) Path() string { return "" }

// Accept is not supported here.
func (l *Listener) Accept() (*net.UnixConn, error) { return nil, unsupported() }

// Serve is not supported here.
func (l *Listener) Serve(context.Context, func(*net.UnixConn)) error { return unsupported() }

// Stats is not supported here.
func (l *Listener) Stats() Stats { return Stats{} }

// Check is not supported here.
func (l *Listener) Check() error { return unsupported() }

// Close is not supported here.
func (l *Listener) Close() error { return unsupported() }

// DefaultPath is not supported here.
func DefaultPath(Mode) (string, error) { return "", unsupported() }

// Candidates has none here.
func Candidates() []string { return nil }

// Dial is not supported here.
func Dial(context.Context, string) (*net.UnixConn, error) { return nil, unsupported() }

// DialAuto is not supported here.
func DialAuto(context.Context) (*net.UnixConn, string, error) { return nil, "", unsupported() }

// Peer is of Linux and macOS.
type Peer struct {
	UID, GID uint32
	PID      int
	Groups   []uint32
	Exact    bool
}

// PeerOf is not supported here.
func PeerOf(*net.UnixConn) (*Peer, error) { return nil, unsupported() }

// MemberOf is not supported here.
func (p *Peer) MemberOf(uint32) bool { return false }

// PIDFD is not supported here.
func (p *Peer) PIDFD() int { return -1 }

// Alive is not supported here.
func (p *Peer) Alive() (bool, error) { return false, unsupported() }

// Exe is not supported here.
func (p *Peer) Exe() (string, error) { return "", unsupported() }

// Close is not supported here.
func (p *Peer) Close() error { return nil }

// Send is not supported here.
func Send(*net.UnixConn, []byte, []int) error { return unsupported() }

// Recv is not supported here.
func Recv(*net.UnixConn, []byte, int) (int, []int, error) { return 0, nil, unsupported() }

// CloseAll is not supported here.
func CloseAll([]int) {}

// Inherited is a socket that a service manager made.
type Inherited struct {
	Name     string
	Listener *Listener
}

// FromManager finds no sockets here.
func FromManager() ([]Inherited, error) { return nil, nil }

// Notify tells nobody here.
func Notify(string) (bool, error) { return false, nil }

// NotifyReloading tells nobody here.
func NotifyReloading() (bool, error) { return false, nil }

// WatchdogTimeout is none here.
func WatchdogTimeout() (time.Duration, error) { return 0, nil }
