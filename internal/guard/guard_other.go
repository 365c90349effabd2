//go:build !linux

package guard

// Guard: this system has no cgroups, and nothing else that would outlive a
// launcher by name.
type Guard struct{ gone chan struct{} }

// Start starts nothing here.
func Start(string) (*Guard, error) { return &Guard{gone: make(chan struct{})}, nil }

// PID is 0.
func (g *Guard) PID() int { return 0 }

// Gone is never closed before End.
func (g *Guard) Gone() <-chan struct{} { return g.gone }

// End dismisses it.
func (g *Guard) End() { close(g.gone) }

// Main does nothing here.
func Main() int { return 0 }
