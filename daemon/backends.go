package daemon

import (
	"fmt"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
)

// Backends are those of this build, as a daemon needs them: workers are ended even if
// it is killed, and what launches share is looked at again before each.
func Backends(u *User) []backend.Backend {
	o := landlock.Options{User: u, Watch: true, Recheck: true}
	native := o
	native.Namespaces, native.Try = true, true
	return []backend.Backend{landlock.New(o), landlock.New(native)}
}

// guards tells whether protected places of a user's may be held. Placeholders are made
// with the rights of this process: where those are more than the user's, in directories
// that are the user's to exchange, none is made, and the report says that these are not
// protected.
func (m *Monitor) guards(who identity) bool { return m.asUser(who) == nil }

// backendsOf probes the host once for each user: what the kernel can do does not
// change while it runs, and is the same for all, but their groups may change.
func (m *Monitor) backendsOf(u *User) []backend.Backend {
	key := ""
	if u != nil {
		key = fmt.Sprint(u.UID, u.GID, u.Groups)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, ok := m.candidates[key]
	if !ok {
		known = m.o.Backends(u)
		if len(m.candidates) >= mostCandidates {
			clear(m.candidates)
		}
		m.candidates[key] = known
	}
	return known
}

// mostCandidates bounds for how many users the answer is kept.
const mostCandidates = 256
