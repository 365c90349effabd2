package main

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/cgroup"
	"sandboxd/profiles"
)

// known are the backends of this build. try has one make sure that it can be used,
// which may cost as much as a launch; without it the launch tells.
var known = []struct {
	name string
	make func(try bool) backend.Backend
}{
	{landlock.Name, func(bool) backend.Backend { return landlock.New(landlock.Options{}) }},
	{landlock.NativeName, func(try bool) backend.Backend { return landlock.New(landlock.Options{Namespaces: true, Try: try}) }},
}

func backendNames() []string {
	var names []string
	for _, k := range known {
		names = append(names, k.name)
	}
	return names
}

// chooseBackends returns the candidates for a --backend word. A named backend
// is the only candidate: it is never silently replaced by another.
func chooseBackends(word string, try bool) ([]backend.Backend, error) {
	var list []backend.Backend
	for _, k := range known {
		if word == "auto" || word == k.name {
			list = append(list, k.make(try))
		}
	}
	if len(list) == 0 {
		return nil, refuse("choose auto or one of "+strings.Join(backendNames(), ", "), "unknown backend %q", word)
	}
	return list, nil
}

// likely is the candidate that an ordinary policy gets on this host, or nil.
func likely(candidates []backend.Backend) warmer {
	for _, b := range backend.Order(backend.Usual(), candidates) {
		if b.Probe().Usable {
			w, _ := b.(warmer)
			return w
		}
	}
	return nil
}

// prewarm begins with what does not depend on the policy, while the policy is
// resolved, and lets the likely backend do so. It leaves no trace if nothing
// follows. What it returns gives what is found out of cgroups, which is done once,
// and not at all if the caller has: it is for one launch, which closes it.
func prewarm(candidates []backend.Backend, known *cgroup.Host) (groups func() *cgroup.Host) {
	groups = sync.OnceValue(func() *cgroup.Host {
		if known != nil {
			return known
		}
		h := cgroup.Probe()
		return &h
	})
	go groups()
	if w := likely(candidates); w != nil {
		w.Prewarm(groups, keeper == nil)
	}
	return groups
}

// warmer is a backend that can begin before the policy is known.
type warmer interface {
	Prewarm(groups func() *cgroup.Host, watch bool)
	Discard()
}

// watches tells whether each backend that may be chosen ends a worker's tree if this
// process is killed.
func watches(candidates []backend.Backend) bool {
	return !slices.ContainsFunc(candidates, func(b backend.Backend) bool {
		w, ok := b.(interface{ Watches() bool })
		return (!ok || !w.Watches()) && b.Probe().Usable
	})
}

// discard undoes prewarm for the backends.
func discard(candidates []backend.Backend) {
	for _, b := range candidates {
		if w, ok := b.(warmer); ok {
			w.Discard()
		}
	}
}

// asRefusal gives an error of the lower floors sbx's form: one line, one hint.
func asRefusal(err error) error {
	var byProfile *profiles.RefusalError
	if errors.As(err, &byProfile) {
		return refuse(byProfile.Hint, "%s", byProfile.Msg)
	}
	var byBackend *backend.RefusalError
	if errors.As(err, &byBackend) {
		return refuse(byBackend.Hint, "%s", byBackend.Reason)
	}
	return refuse("", "%v", err)
}
