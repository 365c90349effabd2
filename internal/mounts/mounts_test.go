package mounts

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const table = `22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 98:0 /sub /point\040with\134all\011of\012them rw,noatime master:1 shared:7 - ext4 /dev/a\040b rw,errors=continue
40 22 0:30 / /tmp/x ro,nosuid,nodev shared:1 - tmpfs \043sbx rw,size=8192k
41 22 0:4 net:[4026531840] /run/n rw - nsfs nsfs rw
42 22 0:31 /a//deleted /odd rw propagate_from:2 unbindable -  - - rw
43 22 0:32 / /none rw - tmpfs  ro
44 22 0:33 / /blank rw - fuse.x y rw,a=b c,ro
`

func all(t *testing.T, table string) []Mount {
	t.Helper()
	var list []Mount
	if err := Each(strings.NewReader(table), func(m Mount) bool { list = append(list, m); return true }); err != nil {
		t.Error(err)
	}
	return list
}

func TestEach(t *testing.T) {
	want := []Mount{
		{22, 27, "0:21", "/", "/proc", "rw,relatime", "proc", "proc", "rw"},
		{36, 35, "98:0", "/sub", "/point with\\all\tof\nthem", "rw,noatime", "ext4", "/dev/a b", "rw,errors=continue"},
		{40, 22, "0:30", "/", "/tmp/x", "ro,nosuid,nodev", "tmpfs", "#sbx", "rw,size=8192k"},
		{41, 22, "0:4", "net:[4026531840]", "/run/n", "rw", "nsfs", "nsfs", "rw"},
		// 42 has no type: an empty field is one of a source alone.
		{43, 22, "0:32", "/", "/none", "rw", "tmpfs", "", "ro"},
		{44, 22, "0:33", "/", "/blank", "rw", "fuse.x", "y", "rw,a=b c,ro"},
	}
	if got := all(t, table); !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	var ids []int
	if err := Each(strings.NewReader(table), func(m Mount) bool { ids = append(ids, m.ID); return m.ID != 36 }); err != nil || !slices.Equal(ids, []int{22, 36}) {
		t.Errorf("%v, %v: it goes on", ids, err)
	}
	for _, m := range want {
		if m.ReadOnly() != (m.ID == 40 || m.ID == 43 || m.ID == 44) {
			t.Errorf("read only: %+v", m)
		}
	}
}

// TestLines: a line that is not the kernel's is left out, and those around it are
// not.
func TestLines(t *testing.T) {
	const good = "1 2 3:4 / /p rw - tmpfs s rw\n"
	if len(all(t, good)) != 1 {
		t.Fatalf("%q is no line", good)
	}
	for _, bad := range []string{
		"", "\n", " \n", "-\n", " - \n",
		strings.TrimSuffix(good, "\n"),
		"1 2 3:4 / /p rw - tmpfs s\n",
		"1 2 3:4 / /p rw - tmpfs\n",
		"1 2 3:4 / /p rw - tmpfs s \n",
		"1 2 3:4 / /p rw -\n",
		"1 2 3:4 / /p rw tmpfs s rw\n",
		"1 2 3:4 / /p rw  - tmpfs s rw\n",
		"1 2 3:4 / /p - tmpfs s rw\n",
		"1 2 3:4 /  /p rw - tmpfs s rw\n",
		" 1 2 3:4 / /p rw - tmpfs s rw\n",
		"1\t2 3:4 / /p rw - tmpfs s rw\n",
		"+1 2 3:4 / /p rw - tmpfs s rw\n",
		"-1 2 3:4 / /p rw - tmpfs s rw\n",
		"0x1 2 3:4 / /p rw - tmpfs s rw\n",
		"1 b 3:4 / /p rw - tmpfs s rw\n",
		"99999999999 2 3:4 / /p rw - tmpfs s rw\n",
		"1 2 3 / /p rw - tmpfs s rw\n",
		"1 2 3: / /p rw - tmpfs s rw\n",
		"1 2 3:4:5 / /p rw - tmpfs s rw\n",
		"1 2 a:b / /p rw - tmpfs s rw\n",
		"1 2 3:4 / p rw - tmpfs s rw\n",
		"1 2 3:4 / \\057p\\ rw - tmpfs s rw\n",
		"1 2 3:4 / /p\\04 rw - tmpfs s rw\n",
		"1 2 3:4 / /p\\089 rw - tmpfs s rw\n",
		"1 2 3:4 / /p\\+40 rw - tmpfs s rw\n",
		"1 2 3:4 / /p\\400 rw - tmpfs s rw\n",
		"1 2 3:4 / /p\\000 rw - tmpfs s rw\n",
		"1 2 3:4 / /p\x00 rw - tmpfs s rw\n",
		"1 2 3:4 / /p rw - tmpfs \\x rw\n",
		"1 2 3:4 / /" + strings.Repeat("p", maxLine) + " rw - tmpfs s rw\n",
	} {
		around, want := good+bad+good, 2
		if bad != "" && !strings.HasSuffix(bad, "\n") {
			around, want = good+bad, 1
		}
		got := all(t, around)
		for _, m := range got {
			if m != got[0] {
				t.Errorf("%.80q is a line: %+v", bad, m)
			}
		}
		if len(got) != want {
			t.Errorf("%d mounts around %.80q", len(got), bad)
		}
	}
	long := strings.Repeat(`\040`, 4000)
	if got := all(t, "1 2 3:4 /"+long+" /"+long+" rw - tmpfs "+long+" rw\n"); len(got) != 1 || len(got[0].Point) != 4001 {
		t.Error("the longest line is left out")
	}
}

func TestBounds(t *testing.T) {
	line := "1 2 3:4 / /p rw - tmpfs s rw\n"
	endless := io.MultiReader(strings.NewReader(line), repeat("x"))
	n := 0
	if err := Each(endless, func(Mount) bool { n++; return true }); !errors.Is(err, ErrTooLong) || n != 1 {
		t.Errorf("a line without end: %v, %d mounts", err, n)
	}
	n = 0
	long := strings.Replace(line, "/p", "/p"+strings.Repeat("/p", 1000), 1)
	if err := Each(repeat(long), func(Mount) bool { n++; return true }); !errors.Is(err, ErrTooLong) || n < maxTable/len(long) {
		t.Errorf("a table without end: %v, %d mounts", err, n)
	}
	broken := errors.New("broken")
	n = 0
	if err := Each(io.MultiReader(strings.NewReader(line+line[:9]), iotest.ErrReader(broken)), func(Mount) bool { n++; return true }); !errors.Is(err, broken) || n != 1 {
		t.Errorf("a table that cannot be read: %v, %d mounts", err, n)
	}
	if got := all(t, table); !slices.Equal(got, allOf(t, iotest.OneByteReader(strings.NewReader(table)))) {
		t.Error("it depends on how it is read")
	}
}

func allOf(t *testing.T, r io.Reader) (list []Mount) {
	t.Helper()
	if err := Each(r, func(m Mount) bool { list = append(list, m); return true }); err != nil {
		t.Error(err)
	}
	return list
}

// repeat is a text again and again.
type repeat string

func (r repeat) Read(p []byte) (n int, _ error) {
	for n+len(r) <= len(p) {
		n += copy(p[n:], r)
	}
	if n == 0 && len(p) > 0 {
		return 0, io.ErrShortBuffer
	}
	return n, nil
}

// FuzzEach: whatever the table says, nothing panics, and what is a mount is
// written as a line that is the same mount again.
func FuzzEach(f *testing.F) {
	f.Add(table)
	f.Add("1 2 3:4 \\ \\04 \\400 - - - -\n")
	f.Add("1 2 3:4 / /a\\134040 rw - - - - - \n")
	f.Add("1 2 3:4 / / ro master:1 - cgroup2  rw")
	f.Fuzz(func(t *testing.T, table string) {
		for _, m := range allOf(t, strings.NewReader(table)) {
			again := all(t, line(m))
			if len(again) != 1 || again[0] != m {
				t.Errorf("%+v is written as %q and read as %+v", m, line(m), again)
			}
		}
	})
}

// line writes a mount as the kernel does.
func line(m Mount) string {
	e := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace
	return fmt.Sprintf("%d %d %s %s %s %s - %s %s %s\n", m.ID, m.Parent, m.Device, e(m.Root), e(m.Point), m.Options, e(m.Type), e(m.Source), m.Super)
}
