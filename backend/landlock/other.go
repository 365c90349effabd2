//go:build !linux

package landlock

import (
	"fmt"
	"runtime"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
)

func probe() (f Facts, reason, fix string) {
	return f, fmt.Sprintf("Landlock is a Linux mechanism; this is %s", runtime.GOOS), "use another backend on this system"
}

type namespaceFault struct{ reason, fix string }

func (b *Backend) withNamespaces(bool) {}

func (b *Backend) refuted(*backend.SetupError) *namespaceFault { return nil }

func filterFailed(error) bool { return false }

type warmThread struct{}

func (*warmThread) takeGroups() *cgroup.Host {
	h := cgroup.Probe()
	return &h
}

// Prewarm does nothing here.
func (b *Backend) Prewarm(func() *cgroup.Host, bool) {}

// Watches is false: there is no Landlock.
func (b *Backend) Watches() bool { return false }

// Discard does nothing.
func (b *Backend) Discard() {}

// Prepare fails: this half of the backend exists on Linux only.
func (p *Plan) Prepare() (backend.Prepared, error) {
	return nil, &backend.SetupError{Step: "ruleset", Err: fmt.Errorf("landlock cannot be applied on %s", runtime.GOOS)}
}
