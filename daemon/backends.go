package daemon

import (
	"fmt"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
)

// Backends are those of this build, as a daemon needs them: workers are ended even if
// it is killed, and what launches share is looked at again before each.
func Backends(u *User) []backend.Backend {
	return []backend.Backend{landlock.New(landlock.Options{User: u, Watch: true, Recheck: true})}
}

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
