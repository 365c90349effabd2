//go:build !linux

package cgroup

import (
	"context"
	"errors"
	"runtime"
)

type state struct{}

// ErrNotMarked says that a directory is not the marked one.
var ErrNotMarked = errors.New("not the marked cgroup")

var errNotLinux = errors.New("there are no cgroups on " + runtime.GOOS)

// Probe finds nothing here.
func Probe() Host {
	a := Ability{Cause: NotLinux, Why: errNotLinux.Error()}
	return Host{Layout: None, Memory: a, Pids: a, CPU: a, Kill: a}
}

// Prepare fails.
func (h Host) Prepare(string, Limits) error { return cannot(kill, h.Kill) }

// Close does nothing.
func (h Host) Close() error { return nil }

// Mark marks nothing.
func (h Host) Mark(string) Mark { return Mark{} }

// RemoveMarked has nothing to remove.
func RemoveMarked(Host, Mark) error { return nil }

// Group cannot be had here.
type Group struct{}

// New fails.
func New(h Host, _ string, _ Limits) (*Group, error) { return nil, cannot(kill, h.Kill) }

// Name is empty.
func (g *Group) Name() string { return "" }

// Gaps is empty.
func (g *Group) Gaps() []string { return nil }

// FD is none.
func (g *Group) FD() int { return -1 }

// NeedsEnter is false.
func (g *Group) NeedsEnter() bool { return false }

// Enter fails.
func (g *Group) Enter() error { return errNotLinux }

// Leave fails.
func (g *Group) Leave() error { return errNotLinux }

// Add fails.
func (g *Group) Add(int) error { return errNotLinux }

// Kill fails.
func (g *Group) Kill() error { return errNotLinux }

// Procs is empty.
func (g *Group) Procs() []int { return nil }

// Empty fails.
func (g *Group) Empty() (bool, error) { return false, errNotLinux }

// WaitEmpty fails.
func (g *Group) WaitEmpty(context.Context) error { return errNotLinux }

// Usage knows nothing.
func (g *Group) Usage() Usage { return Usage{} }

// Mark marks nothing.
func (g *Group) Mark() Mark { return Mark{} }

// Remove does nothing.
func (g *Group) Remove() error { return nil }
