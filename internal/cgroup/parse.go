package cgroup

import (
	"slices"
	"strconv"
	"strings"

	"sandboxd/internal/mounts"
)

// member is a line of /proc/self/cgroup: cgroups(7).
type member struct {
	id          int      // 0 for cgroup2
	controllers []string // of a cgroup1 hierarchy
	path        string
}

func (m member) version() string {
	if m.id == 0 {
		return two
	}
	return one
}

// name is that of [Own]. A cgroup1 hierarchy's number is of one boot only.
func (m member) name() string {
	if m.id == 0 {
		return two
	}
	return one + ":" + strings.Join(m.controllers, ",")
}

// wanted are the controllers that this package has a use for.
var wanted = []string{"memory", "pids", "cpu", "cpuacct", "freezer"}

func (m member) useful() bool {
	return m.id == 0 || slices.ContainsFunc(wanted, m.has)
}

func (m member) has(controller string) bool { return slices.Contains(m.controllers, controller) }

// parseSelf reads /proc/self/cgroup. Paths are not escaped there: mkdir(2)
// refuses a line break in the name of a cgroup for that reason.
func parseSelf(text []byte) []member {
	var all []member
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		id, err := strconv.Atoi(parts[0])
		if err != nil || id < 0 || (id == 0) != (parts[1] == "") {
			continue
		}
		m := member{id: id, path: parts[2]}
		if id != 0 {
			m.controllers = strings.Split(parts[1], ",")
		}
		all = append(all, m)
	}
	return all
}

// mount is a mount of a cgroup file system.
type mount struct {
	version  int    // 1 or 2
	dev      string // major:minor, of the hierarchy as this mount shows it
	root     string // the cgroup at the mount point
	point    string
	readOnly bool
	options  []string // of the file system: a cgroup1 hierarchy's controllers are among them
}

// mountOf says what a mount is to this package, if it is one of cgroups.
func mountOf(m mounts.Mount) (mount, bool) {
	version := map[string]int{"cgroup": 1, "cgroup2": 2}[m.Type]
	if version == 0 {
		return mount{}, false
	}
	return mount{version, m.Device, m.Root, m.Point, m.ReadOnly(), strings.Split(m.Super, ",")}, true
}

// shows tells whether it is a mount of the hierarchy.
func (m mount) shows(h member) bool {
	if h.id == 0 {
		return m.version == 2
	}
	return m.version == 1 && !slices.ContainsFunc(h.controllers, func(c string) bool { return !slices.Contains(m.options, c) })
}

// place is where a cgroup may be found.
type place struct {
	mount
	rel string // from the mount point: "" or /...
}

// find returns the places where a hierarchy's cgroup may be, writable ones
// first. Which of several mounts at one point is on top is for the caller to
// see, by the device. With none, the cause says why.
func find(h member, cgroup string, mounts []mount) ([]place, Cause) {
	var places []place
	cause := NotMounted
	for _, m := range mounts {
		if !m.shows(h) {
			continue
		}
		rel, ok := below(m.root, cgroup)
		if !ok {
			if cause == NotMounted {
				cause = OtherNamespace
			}
			continue
		}
		places = append(places, place{m, strings.TrimSuffix(rel, "/")})
	}
	slices.SortStableFunc(places, func(a, b place) int {
		switch {
		case a.readOnly == b.readOnly:
			return 0
		case a.readOnly:
			return 1
		}
		return -1
	})
	return places, cause
}

// below is the way from one cgroup down to another. Paths outside the cgroup
// namespace start with /.. (cgroup_namespaces(7)); what is above a root is not
// below it.
func below(root, cgroup string) (string, bool) {
	rel := cgroup
	if root != "/" {
		var ok bool
		if rel, ok = strings.CutPrefix(cgroup, root); !ok {
			return "", false
		}
	}
	if rel != "" && rel[0] != '/' || slices.Contains(strings.Split(rel, "/"), "..") {
		return "", false
	}
	return rel, true
}

// value is the number beside a key in a flat keyed file; "" is the key of a
// file that is a number. "max" is not a number.
func value(text []byte, key string) (int64, bool) {
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case key == "" && len(f) == 1, len(f) == 2 && f[0] == key:
			if n, err := strconv.ParseInt(f[len(f)-1], 10, 64); err == nil {
				return n, true
			}
			return 0, false
		}
	}
	return 0, false
}
