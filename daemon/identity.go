package daemon

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/listen"
)

// User is who a worker runs as.
type User = landlock.User

// identify says who a peer's workers run as: the peer. A daemon of one user has
// no other to offer.
func (m *Monitor) identify(p *listen.Peer) (identity, error) {
	own := os.Geteuid()
	uid, gid := int(p.UID), int(p.GID)
	if m.o.Socket.Mode != listen.System {
		if uid != own && uid != 0 {
			return identity{}, fmt.Errorf("this is the daemon of user %d", own)
		}
		uid, gid = own, os.Getegid()
	}
	id := identity{uid: uid, gid: gid}
	account, err := user.LookupId(strconv.Itoa(uid))
	if err == nil {
		id.name, id.home = account.Username, account.HomeDir
	}
	if m.o.Socket.Mode != listen.System {
		// As for sbx: what the environment of this user says comes first.
		id.home = cmp.Or(os.Getenv("HOME"), id.home)
		id.shell = os.Getenv("SHELL")
		return id, nil
	}
	for _, g := range p.Groups {
		id.groups = append(id.groups, int(g))
	}
	slices.Sort(id.groups)
	return id, nil
}

// backends are the candidates for a user's launches.
func (m *Monitor) backends(who identity, named string, allowed []string) []backend.Backend {
	var list []backend.Backend
	for _, b := range m.backendsOf(m.asUser(who)) {
		if (named == "" || named == "auto" || named == b.Name()) && (len(allowed) == 0 || slices.Contains(allowed, b.Name())) {
			list = append(list, b)
		}
	}
	return list
}

// asUser is nil for launches as this process' own user.
func (m *Monitor) asUser(who identity) *User {
	if m.o.Socket.Mode != listen.System || who.uid == os.Geteuid() {
		return nil
	}
	return &User{UID: who.uid, GID: who.gid, Groups: who.groups}
}
