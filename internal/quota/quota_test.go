package quota

import (
	"strings"
	"testing"
)

func TestLacks(t *testing.T) {
	const g = 1 << 30
	able := Host{Mounts: true, Measures: true, Memory: 16 * g}
	for name, c := range map[string]struct {
		host         Host
		size, memory int64
		want         string
	}{
		"fits":                       {able, 2 * g, 0, ""},
		"half of the memory":         {able, 8 * g, 0, ""},
		"more than half":             {able, 8*g + 1, 0, "half of this machine's"},
		"half of its own memory":     {able, g, 2 * g, ""},
		"more than half of its own":  {able, g + 1, 2 * g, "half of the limit"},
		"may not mount":              {Host{Why: "it may not", Fix: "be root", Memory: g}, 1, 0, "it may not (be root)"},
		"nothing helps":              {Host{Why: "it may not"}, 1, 0, "it may not"},
		"the machine is not to know": {Host{Mounts: true}, 1 << 20, 0, "half of this machine's"},
	} {
		if got := c.host.Lacks(c.size, c.memory); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOverAndFar(t *testing.T) {
	const size = 1 << 20
	files := MaxFiles(size)
	for _, c := range []struct {
		look      Look
		over, far bool
	}{
		{Look{Bytes: size, Files: files}, false, false},
		{Look{Bytes: size + 1}, true, false},
		{Look{Files: files + 1}, true, false},
		{Look{Bytes: 2 * size}, true, false},
		{Look{Bytes: 2*size + 2}, true, true},
		{Look{Files: 2*files + 2}, true, true},
	} {
		if c.look.Over(size) != c.over || c.look.Far(size) != c.far {
			t.Errorf("%+v: over %v, far %v", c.look, c.look.Over(size), c.look.Far(size))
		}
	}
}
