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

// Prepare fails, Close has nothing to close, and Mark marks nothing.
func (h Host) Prepare(string, Limits) error { return cannot(kill, h.Kill) }
func (h Host) Close() error                 { return nil }
func (h Host) Mark(string) Mark             { return Mark{} }

// RemoveMarked has nothing to remove.
func RemoveMarked(Host, Mark) error { return nil }

// Group cannot be had here.
type Group struct{}

// New fails.
func New(h Host, _ string, _ Limits) (*Group, error) { return nil, cannot(kill, h.Kill) }

// The methods of a group that does not exist.
func (g *Group) Name() string                    { return "" }
func (g *Group) Gaps() []string                  { return nil }
func (g *Group) FD() int                         { return -1 }
func (g *Group) NeedsEnter() bool                { return false }
func (g *Group) Enter() error                    { return errNotLinux }
func (g *Group) Leave() error                    { return errNotLinux }
func (g *Group) Add(int) error                   { return errNotLinux }
func (g *Group) Kill() error                     { return errNotLinux }
func (g *Group) Procs() []int                    { return nil }
func (g *Group) Empty() (bool, error)            { return false, errNotLinux }
func (g *Group) WaitEmpty(context.Context) error { return errNotLinux }
func (g *Group) Usage() Usage                    { return Usage{} }
func (g *Group) Mark() Mark                      { return Mark{} }
func (g *Group) Remove() error                   { return nil }
