package main

import (
	"errors"
	"strings"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/internal/cgroup"
	"sandboxd/profiles"
)

// known are the backends of this build, in the order in which auto tries them.
var known = []struct {
	name string
	make func() backend.Backend
}{
	{landlock.Name, func() backend.Backend { return landlock.New(landlock.Options{}) }},
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
func chooseBackends(word string) ([]backend.Backend, error) {
	var list []backend.Backend
	for _, k := range known {
		if word == "auto" || word == k.name {
			list = append(list, k.make())
		}
	}
	if len(list) == 0 {
		return nil, refuse("choose auto or one of "+strings.Join(backendNames(), ", "), "unknown backend %q", word)
	}
	return list, nil
}

// prewarm lets the likely backend begin with what does not depend on the
// policy, while the policy is resolved. It leaves no trace if nothing follows.
func prewarm(candidates []backend.Backend, groups *cgroup.Host) {
	if w, ok := candidates[0].(interface{ Prewarm(*cgroup.Host) }); ok && candidates[0].Probe().Usable {
		w.Prewarm(groups)
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
