package cgroup

import (
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/internal/mounts"
)

// testdata is in the binary, which also runs where its sources are not.
//
//go:embed testdata
var testdata embed.FS

var update = flag.Bool("update", false, "write testdata/*/want")

// TestFind: where the kernel's own files of many hosts say that this process'
// cgroups are. A name that Go would quote is quoted.
func TestFind(t *testing.T) {
	dirs, err := fs.Glob(testdata, "testdata/*")
	if err != nil || len(dirs) < 9 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		file := func(name string) []byte {
			text, err := testdata.ReadFile(dir + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		var got strings.Builder
		shown := cgroupMounts(t, string(file("mountinfo")))
		for _, m := range parseSelf(file("cgroup")) {
			if !m.useful() {
				continue
			}
			places, cause := find(m, m.path, shown)
			for _, p := range places {
				mode := map[bool]string{true: "ro", false: "rw"}[p.readOnly]
				dir := fmt.Sprintf("%q", p.point+p.rel)
				if strings.Trim(dir, `"`) == p.point+p.rel {
					dir = p.point + p.rel
				}
				fmt.Fprintf(&got, "%s %s: %s %s %s\n", m.name(), m.path, dir, mode, p.dev)
			}
			if len(places) == 0 {
				fmt.Fprintf(&got, "%s %s: %s\n", m.name(), m.path, cause)
			}
		}
		if *update { // and run the test again
			if err := os.WriteFile(filepath.Join(dir, "want"), []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want := string(file("want")); got.String() != want {
			t.Errorf("%s:\n%s\nwant:\n%s", dir, got.String(), want)
		}
	}
}

func cgroupMounts(t *testing.T, table string) (list []mount) {
	t.Helper()
	if err := mounts.Each(strings.NewReader(table), func(m mounts.Mount) bool {
		if c, ok := mountOf(m); ok {
			list = append(list, c)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
	return list
}

func TestBelow(t *testing.T) {
	for _, test := range []struct {
		root, cgroup, want string
		ok                 bool
	}{
		{"/", "/", "/", true},
		{"/", "/a/b", "/a/b", true},
		{"/a", "/a", "", true},
		{"/a", "/a/b", "/b", true},
		{"/a", "/ab", "", false},
		{"/a", "/", "", false},
		{"/..", "/", "", false},
		{"/..", "/../b", "/b", true},
		{"/", "/../b", "", false},
		{"/a", "/a/../b", "", false},
	} {
		got, ok := below(test.root, test.cgroup)
		if got != test.want || ok != test.ok {
			t.Errorf("below(%q, %q) is %q, %t", test.root, test.cgroup, got, ok)
		}
	}
}

func TestValue(t *testing.T) {
	events := "low 0\nhigh 0\nmax 18\noom 1\noom_kill 2\noom_group_kill 0\n"
	for _, test := range []struct {
		text, key string
		want      int64
		ok        bool
	}{
		{events, "oom_kill", 2, true},
		{events, "oom", 1, true},
		{events, "kill", 0, false},
		{events, "", 0, false},
		{"4096\n", "", 4096, true},
		{"max\n", "", 0, false},
		{"", "", 0, false},
		{"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill", 3, true},
		{"max 7\n", "max", 7, true},
		{"max 99999999999999999999999\n", "max", 0, false},
	} {
		if n, ok := value([]byte(test.text), test.key); n != test.want || ok != test.ok {
			t.Errorf("value(%q, %q) is %d, %t", test.text, test.key, n, ok)
		}
	}
}

// FuzzParse: whatever the files say, nothing panics, and no place is outside
// its mount.
func FuzzParse(f *testing.F) {
	f.Add("0::/a\n1:cpu:/", `30 23 0:26 / /mnt/a\040b rw - cgroup2 none rw`+"\n")
	f.Add("0::/../a", `30 23 0:26 /.. /m rw - cgroup2 none rw`+"\n")
	f.Fuzz(func(t *testing.T, self, table string) {
		shown := cgroupMounts(t, table)
		for _, m := range parseSelf([]byte(self)) {
			places, cause := find(m, m.path, shown)
			for _, p := range places {
				if p.rel != "" && p.rel[0] != '/' || strings.Contains(p.rel+"/", "/../") {
					t.Errorf("%+v", p)
				}
			}
			if len(places) == 0 && cause == "" {
				t.Error("no place and no cause")
			}
		}
	})
}
