package main

import (
	"bytes"
	"io/fs"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cpioEntry is what a reader of newc sees.
type cpioEntry struct {
	name           string
	mode, uid, gid uint64
	mtime          uint64
	maj, min       uint64
	content        string
}

// readCPIO reads archives as the kernel does: zeros may stand between two, and
// a header begins at a multiple of 4.
func readCPIO(t *testing.T, b []byte) (list []cpioEntry) {
	t.Helper()
	align := func(n int) int { return (n + 3) &^ 3 }
	for at := 0; at < len(b); {
		if b[at] == 0 {
			at++
			continue
		}
		if at%4 != 0 || len(b)-at < 110 || string(b[at:at+6]) != "070701" {
			t.Fatalf("at byte %d there is no header", at)
		}
		var field [13]uint64
		for i := range field {
			n, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatalf("field %d at byte %d: %v", i, at, err)
			}
			field[i] = n
		}
		size, nameSize := int(field[6]), int(field[11])
		name := string(b[at+110 : at+110+nameSize-1])
		at = align(at + 110 + nameSize)
		list = append(list, cpioEntry{name, field[1], field[2], field[3], field[5], field[9], field[10], string(b[at : at+size])})
		at = align(at + size)
	}
	return list
}

func archive(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	c := newCPIO(&b)
	c.Dir("home/user", attributes{perm: 0o700, uid: 1000})
	c.Text("home/user/a", 0o644, "12345")
	c.Dir("tmp", attributes{perm: 0o777 | fs.ModeSticky})
	c.File("/usr/bin/tool", attributes{perm: 0o755 | fs.ModeSetuid, mtime: time.Unix(7, 0)}, strings.NewReader("x"), 1)
	c.Link("bin", "usr/bin")
	c.Device("dev/console", 0o600, 5, 1)
	c.Text("empty", 0o400, "")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCPIO(t *testing.T) {
	b := archive(t)
	if len(b)%512 != 0 {
		t.Errorf("the archive has %d bytes, no whole blocks", len(b))
	}
	want := []cpioEntry{
		{name: "home", mode: 0o040755},
		{name: "home/user", mode: 0o040700, uid: 1000, gid: 1000},
		{name: "home/user/a", mode: 0o100644, content: "12345"},
		{name: "tmp", mode: 0o041777},
		{name: "usr", mode: 0o040755},
		{name: "usr/bin", mode: 0o040755},
		{name: "usr/bin/tool", mode: 0o104755, mtime: 7, content: "x"},
		{name: "bin", mode: 0o120777, content: "usr/bin"},
		{name: "dev", mode: 0o040755},
		{name: "dev/console", mode: 0o020600, maj: 5, min: 1},
		{name: "empty", mode: 0o100400},
		{name: "TRAILER!!!"},
	}
	// Twice, as a machine's own archive follows the shared one.
	if got := readCPIO(t, slices.Concat(b, b)); !slices.Equal(got, slices.Concat(want, want)) {
		t.Errorf("got\n%v\nwant twice\n%v", got, want)
	}
}

func TestCPIOIsReadByOthers(t *testing.T) {
	args := []string{"cpio", "-t"}
	if _, err := exec.LookPath("cpio"); err != nil {
		args = []string{"busybox", "cpio", "-t"}
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skip("neither cpio nor busybox is installed")
	}
	c := exec.Command(args[0], args[1:]...)
	c.Stdin = bytes.NewReader(archive(t))
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	const want = "home home/user home/user/a tmp usr usr/bin usr/bin/tool bin dev dev/console empty"
	if got := strings.Join(strings.Fields(string(out)), " "); got != want {
		t.Errorf("%v lists %s, want %s", args, got, want)
	}
}

func TestCPIORefuses(t *testing.T) {
	for name, add := range map[string]func(*cpio){
		"a name that leads out":   func(c *cpio) { c.Text("../x", 0o644, "") },
		"a name with two slashes": func(c *cpio) { c.Text("a//x", 0o644, "") },
		"a file that shrank":      func(c *cpio) { c.File("x", attributes{}, strings.NewReader("1"), 2) },
		"a file that grew":        func(c *cpio) { c.File("x", attributes{}, strings.NewReader("123"), 2) },
		"a file beyond 4 GB":      func(c *cpio) { c.File("x", attributes{}, strings.NewReader(""), 1<<32) },
	} {
		c := newCPIO(new(bytes.Buffer))
		add(c)
		c.Text("after", 0o644, "") // an error sticks
		if err := c.Close(); err == nil {
			t.Errorf("%s: no error", name)
		} else if !strings.HasPrefix(err.Error(), "cpio: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
