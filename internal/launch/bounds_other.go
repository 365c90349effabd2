//go:build !linux

package launch

func (b *Bounds) holds() bool { return b != nil }
