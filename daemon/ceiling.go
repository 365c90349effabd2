package daemon

import (
	"path/filepath"
	"slices"
	"strings"

	"sandboxd/internal/proxy"
	"sandboxd/policy"
	"sandboxd/protocol"
)

// Ceiling is what a user's workers may have at most. The zero value of a member
// is no bound.
type Ceiling struct {
	// Mode and Net are the widest.
	Mode policy.Mode
	Net  policy.Net
	// NetAllow are the hosts that launches may be allowed to reach, at most, as
	// internal/proxy has them. With them no network may be the host's.
	NetAllow proxy.Rules
	// Roots are the trees in one of which the workspace, and all that the caller
	// grants for writing, must lie.
	Roots []string
	// Backends are the only ones.
	Backends []string
	// Memory (bytes), Pids, CPUs (cores) and Time are the largest limits; a launch
	// that names none gets none, and is refused if there is one here.
	Limits policy.Limits
	// Workers is how many may be under way, Connections how many open; never more
	// than protocol.MaxConnections.
	Workers, Connections int
}

// Ceilings are those of all users. Exactly one of them holds for a user: it does not
// add to another.
type Ceilings struct {
	// Default is that of everybody who has no other.
	Default Ceiling
	// Users have ceilings of their own, by uid.
	Users map[int]Ceiling
	// Groups are those of a group's members who have none of their own; of several
	// the first. The groups are those of the peer as it connected (SO_PEERCRED,
	// SO_PEERGROUPS of socket(7)).
	Groups []GroupCeiling
}

// GroupCeiling is the ceiling of a group.
type GroupCeiling struct {
	GID int
	Ceiling
}

// For is a user's ceiling.
func (c Ceilings) For(who identity) Ceiling {
	if own, ok := c.Users[who.uid]; ok {
		return own
	}
	for _, g := range c.Groups {
		if g.GID == who.gid || slices.Contains(who.groups, g.GID) {
			return g.Ceiling
		}
	}
	return c.Default
}

// ceiling is what holds for a user now.
func (m *Monitor) ceiling(who identity) Ceiling { return m.ceilings.Load().For(who) }

// check refuses a policy that is above the ceiling.
func (c Ceiling) check(p policy.Policy, m *protocol.Launch) error {
	s := p.Spec()
	if c.Mode != 0 && s.Mode.Stricter(c.Mode) != s.Mode {
		return above("mode", "mode %s; at most %s", s.Mode, c.Mode)
	}
	if c.Net != 0 && s.Net > c.Net {
		return above("net", "network %s; at most %s", s.Net, c.Net)
	}
	if c.NetAllow.Len() > 0 {
		if s.Net == policy.NetHost {
			return above("net", "network %s; at most proxy, for %s", s.Net, strings.Join(c.NetAllow.Strings(), ", "))
		}
		asked, err := proxy.ParseRules(s.NetAllow)
		if err != nil {
			return wrong("net_allow", err)
		}
		if more, found := c.NetAllow.Beyond(asked); found {
			return above("net_allow", "%s; at most %s", more, strings.Join(c.NetAllow.Strings(), ", "))
		}
	}
	if len(c.Roots) > 0 {
		if s.Mode == policy.FullAccess {
			return above("mode", "%s reaches beyond %s", s.Mode, strings.Join(c.Roots, ", "))
		}
		if !c.within(s.Workspace) {
			return above("workspace", "%q is not in %s", s.Workspace, strings.Join(c.Roots, ", "))
		}
		for _, g := range s.Grants {
			// What profiles of the system's own add are devices and caches; the user's own
			// profiles are the user's word.
			own := strings.HasPrefix(g.Source, "preset:") || g.Source == "cache"
			if !own && g.Access&policy.Write != 0 && !c.within(string(g.Path)) {
				return above("writable", "%q is not in %s", g.Path, strings.Join(c.Roots, ", "))
			}
		}
	}
	if len(c.Backends) > 0 && m.Backend != "" && m.Backend != "auto" && !slices.Contains(c.Backends, m.Backend) {
		return above("backend", "backend %s; one of %s", m.Backend, strings.Join(c.Backends, ", "))
	}
	for _, l := range []struct {
		field     string
		asked, at float64
	}{
		{"limits.memory_bytes", float64(s.Limits.Memory), float64(c.Limits.Memory)},
		{"limits.pids", float64(s.Limits.Pids), float64(c.Limits.Pids)},
		{"limits.cpu_millis", s.Limits.CPUs * 1000, c.Limits.CPUs * 1000},
		{"limits.disk_bytes", float64(s.Limits.Disk), float64(c.Limits.Disk)},
		{"limits.timeout_ms", float64(s.Limits.Time.Milliseconds()), float64(c.Limits.Time.Milliseconds())},
	} {
		switch {
		case l.at == 0:
		case l.asked == 0:
			return above(l.field, "no limit; at most %.0f", l.at)
		case l.asked > l.at:
			return above(l.field, "%.0f; at most %.0f", l.asked, l.at)
		}
	}
	return nil
}

func (c Ceiling) within(path string) bool {
	return slices.ContainsFunc(c.Roots, func(root string) bool {
		rel, err := filepath.Rel(root, path)
		return err == nil && filepath.IsLocal(rel)
	})
}

func above(field, format string, args ...any) error {
	e := protocol.Errorf(protocol.Ceiling, format, args...)
	e.Field = field
	return e
}
