package quota

import (
	"strconv"
	"strings"
)

// mountLine is one line of /proc/PID/mountinfo, as far as it is used here:
//
//	36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/source rw
type mountLine struct{ root, point, fsType, source string }

// findMount returns the mount with an id, nil if there is none (proc(5)).
func findMount(table, id string) *mountLine {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 7 || f[0] != id {
			continue
		}
		m := &mountLine{root: unescape(f[3]), point: unescape(f[4])}
		for i, word := range f[6:] { // after the optional fields
			if rest := f[6+i:]; word == "-" && len(rest) >= 3 {
				m.fsType, m.source = rest[1], unescape(rest[2])
				return m
			}
		}
	}
	return nil
}

// unescape reads what the kernel writes for space, tab, newline and backslash:
// \040 and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
