package capture

import (
	"slices"
	"sync"
)

// kept is the first bytes of what is written to it, and the last ones.
type kept struct {
	mu       sync.Mutex
	bytes    int64
	headMax  int
	tailMax  int
	head     []byte
	tail     []byte // once it has tailMax bytes, a ring
	tailFrom int    // where the ring begins
}

func newKept(size int, headOnly bool) *kept {
	if headOnly {
		return &kept{headMax: size}
	}
	return &kept{headMax: size - size/2, tailMax: size / 2}
}

// Write never fails and never blocks.
func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(p)
	k.bytes += int64(n)
	k.head, p = fill(k.head, p, k.headMax)
	k.tail, p = fill(k.tail, p, k.tailMax)
	if k.tailMax == 0 {
		return n, nil
	}
	p = p[max(0, len(p)-k.tailMax):]
	for len(p) > 0 {
		c := copy(k.tail[k.tailFrom:], p)
		k.tailFrom = (k.tailFrom + c) % k.tailMax
		p = p[c:]
	}
	return n, nil
}

// fill appends of p what has room below limit, and returns the rest.
func fill(to, p []byte, limit int) (now, rest []byte) {
	n := min(len(p), limit-len(to))
	if need := len(to) + n; need > cap(to) {
		// Doubled, as append does, but never beyond the limit.
		grown := make([]byte, len(to), min(limit, max(2*cap(to), need)))
		copy(grown, to)
		to = grown
	}
	return append(to, p[:n]...), p[n:]
}

func (k *kept) output() Output {
	k.mu.Lock()
	defer k.mu.Unlock()
	tail := slices.Concat(k.tail[k.tailFrom:], k.tail[:k.tailFrom])
	o := Output{Bytes: k.bytes}
	if k.bytes == int64(len(k.head)+len(tail)) {
		o.Head = slices.Concat(k.head, tail)
		return o
	}
	o.Head, o.Tail, o.Truncated = slices.Clone(k.head), tail, true
	return o
}
