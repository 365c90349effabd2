package supervise

import (
	"bytes"
	"math"
	"path"
	"strconv"
	"strings"
)

// threadStatus is what we read in /proc/TID/status.
type threadStatus struct {
	tgid                             int
	umask                            int
	filters                          int // seccomp filters; -1 where it is not told
	pending, shared, blocked, caught uint64
}

func parseStatus(text []byte) threadStatus {
	st := threadStatus{umask: 0o777, filters: -1} // unknown: the narrowest
	number := func(v []byte, base int) uint64 {
		n, _ := strconv.ParseUint(string(v), base, 64)
		return n
	}
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "Tgid":
			st.tgid = int(number(value, 10) & 0x7fffffff)
		case "Umask":
			st.umask = int(number(value, 8) & 0o777)
		case "Seccomp_filters": // Linux 5.9
			st.filters = int(number(value, 10) & 0x7fffffff)
		case "SigPnd":
			st.pending = number(value, 16)
		case "ShdPnd":
			st.shared = number(value, 16)
		case "SigBlk":
			st.blocked = number(value, 16)
		case "SigCgt":
			st.caught = number(value, 16)
		}
	}
	return st
}

// interrupted tells whether a handler waits to run: the kernel would have ended
// a blocking call for it.
func (st threadStatus) interrupted() bool {
	return (st.pending|st.shared)&st.caught&^st.blocked != 0
}

// parseFileLimit finds the soft RLIMIT_FSIZE in /proc/TID/limits. A text without
// it limits to nothing.
func parseFileLimit(text []byte) uint64 {
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(line, []byte("Max file size"))
		fields := bytes.Fields(value)
		if !ok || len(fields) == 0 {
			continue
		}
		if string(fields[0]) == "unlimited" {
			return math.MaxUint64
		}
		n, _ := strconv.ParseUint(string(fields[0]), 10, 64)
		return n
	}
	return 0
}

// shmName returns NAME if the path is, lexically, /dev/shm/NAME. A path with
// ".." is none: what it means depends on links.
func shmName(p string) (string, bool) {
	rest, ok := strings.CutPrefix(p, "/")
	if !ok || strings.HasSuffix(p, "/") {
		return "", false
	}
	for _, part := range strings.Split(rest, "/") {
		if part == ".." {
			return "", false
		}
	}
	name, ok := strings.CutPrefix(path.Clean(p), "/dev/shm/")
	if !ok || name == "" || strings.HasSuffix(p, "/.") || strings.Contains(name, "/") {
		return "", false
	}
	return name, true
}

// splitLast cuts a path before its last component, which keeps its trailing
// slashes for the kernel to judge. An empty directory means the working one.
func splitLast(p string) (dir, name string) {
	cut := strings.LastIndexByte(strings.TrimRight(p, "/"), '/') + 1
	if cut == 0 && strings.HasPrefix(p, "/") { // only slashes
		return "/", "."
	}
	return p[:cut], p[cut:]
}
