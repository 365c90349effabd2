package run

import (
	"slices"
	"sync"
	"time"

	"sandboxd/backend"
	"sandboxd/internal/audit"
	"sandboxd/policy"
	"sandboxd/report"
)

// PlanHash is equal for equal policies and plans. A choice without a plan stands for
// danger-full-access.
func PlanHash(p policy.Policy, c backend.Choice) string {
	what := struct{ Policy, Plan any }{Policy: report.PolicyOf(p)}
	if c.Plan != nil {
		what.Plan = c.Plan.Describe()
	}
	hash, err := audit.Hash(what)
	if err != nil {
		return ""
	}
	return hash
}

// Cache keeps what launches of equal policies by the same backends can share: the
// chosen plan, and what was prepared for it. A policy is made anew for each launch,
// of the files as they are then, and only one that is equal in all meets what is
// here; and a backend takes part only if it looks at each granted path again before
// each launch ([Rechecker]). The zero value is ready.
type Cache struct {
	// Plans is how many are kept, at most and by default [MaxCachedPlans]. Set it before
	// the first use.
	Plans   int
	mu      sync.Mutex
	entries []*entry // the one used last is the last
	closed  bool
}

// Rechecker is a backend whose prepared plans may be shared.
type Rechecker interface{ Rechecks() bool }

// MaxCachedPlans is how many plans are kept, and cachedFor how long one that nobody
// uses: what is made ahead for it holds threads, directories and descriptors.
const (
	MaxCachedPlans = 16
	cachedFor      = 5 * time.Second
)

type entry struct {
	policy   policy.Policy
	from     []backend.Backend
	choice   backend.Choice
	hash     string
	prepared backend.Prepared
	users    int
	gone     bool // no longer in the cache: closed with its last user
	idle     *time.Timer
}

// use finds an entry, which is to be released.
func (c *Cache) use(p policy.Policy, from []backend.Backend) *entry {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.entries) - 1; i >= 0; i-- {
		e := c.entries[i]
		if slices.Equal(e.from, from) && e.policy.Equal(p) {
			c.entries = append(slices.Delete(c.entries, i, i+1), e)
			e.hold()
			return e
		}
	}
	return nil
}

// Same is a policy that is equal and that others hold already, if there is one, so
// that many workers of one policy do not hold as many of it.
func (c *Cache) Same(p policy.Policy) policy.Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.entries) - 1; i >= 0; i-- {
		if c.entries[i].policy.Equal(p) {
			return c.entries[i].policy
		}
	}
	return p
}

func (e *entry) hold() {
	e.users++
	if e.idle != nil {
		e.idle.Stop()
		e.idle = nil
	}
}

// add puts in what was prepared, in use. It is as it was if it cannot be shared.
func (c *Cache) add(p policy.Policy, from []backend.Backend, choice backend.Choice, hash string, prepared backend.Prepared) backend.Prepared {
	if r, ok := choice.Backend.(Rechecker); c == nil || !ok || !r.Rechecks() {
		return prepared
	}
	e := &entry{policy: p, from: slices.Clone(from), choice: choice, hash: hash, prepared: prepared}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || slices.ContainsFunc(c.entries, func(o *entry) bool { return slices.Equal(o.from, from) && o.policy.Equal(p) }) {
		return prepared // another launch was first
	}
	e.hold()
	c.entries = append(c.entries, e)
	most := MaxCachedPlans
	if c.Plans > 0 {
		most = min(most, c.Plans)
	}
	for len(c.entries) > most {
		c.drop(c.entries[0])
	}
	return use{prepared, func() error { return c.release(e) }}
}

// use is an entry in use: it is released, not closed.
type use struct {
	backend.Prepared
	release func() error
}

func (u use) Close() error { return u.release() }

func (c *Cache) release(e *entry) error {
	c.mu.Lock()
	e.users--
	last := e.users == 0 && e.gone
	if e.users == 0 && !e.gone {
		e.idle = time.AfterFunc(cachedFor, func() {
			c.mu.Lock()
			if e.users > 0 || e.gone {
				c.mu.Unlock()
				return
			}
			c.drop(e)
			c.mu.Unlock()
		})
	}
	c.mu.Unlock()
	if last {
		return e.prepared.Close()
	}
	return nil
}

func (c *Cache) forget(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.gone {
		c.drop(e)
	}
}

// drop takes an entry out, under the lock. What nobody uses is closed beside.
func (c *Cache) drop(e *entry) {
	c.entries = slices.DeleteFunc(c.entries, func(o *entry) bool { return o == e })
	e.gone = true
	if e.idle != nil {
		e.idle.Stop()
	}
	if e.users == 0 {
		go e.prepared.Close()
	}
}

// Close empties the cache, of which nobody uses anything any more, and keeps it so.
func (c *Cache) Close() {
	c.mu.Lock()
	entries := c.entries
	c.entries, c.closed = nil, true
	for _, e := range entries {
		e.gone = true
		if e.idle != nil {
			e.idle.Stop()
		}
	}
	c.mu.Unlock()
	for _, e := range entries {
		if e.users == 0 {
			_ = e.prepared.Close() // what stays is in the lease
		}
	}
}
