package rootfs

import (
	"fmt"
	"strings"
	"testing"

	"sandboxd/policy"
)

func layout(t *testing.T, links, host []policy.Link, env []string, grants ...policy.Grant) Layout {
	t.Helper()
	p, err := policy.New(policy.Spec{Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/", Grants: grants, Links: links, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Compile(p, host)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func grant(path string, kind policy.Kind, a policy.Access) policy.Grant {
	return policy.Grant{Path: policy.Raw(path), Kind: kind, Access: a, Reason: "a test"}
}

const (
	r   = policy.Read
	rx  = policy.Read | policy.Exec
	rwx = policy.Read | policy.Write | policy.Exec
	rwi = policy.Read | policy.Write | policy.Ioctl
)

// text is a layout in lines, without what every layout has.
func text(l Layout) string {
	usual := map[policy.Raw]bool{"/dev": true, "/dev/fd": true, "/dev/stdin": true, "/dev/stdout": true, "/dev/stderr": true, "/dev/shm": true, "/proc": true, "/tmp": true}
	var b strings.Builder
	for _, e := range l.Entries {
		if usual[e.Path] {
			continue
		}
		fmt.Fprintf(&b, "%s %s", e.Kind, e.Path)
		for _, f := range []struct {
			is   bool
			word string
		}{{e.File, "file"}, {e.Device, "device"}, {e.Write, "write"}, {e.Exec, "exec"}} {
			if f.is {
				b.WriteString(" " + f.word)
			}
		}
		if e.Source != "" {
			fmt.Fprintf(&b, " -> %s", e.Source)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestCompile(t *testing.T) {
	for _, x := range []struct {
		name        string
		links, host []policy.Link
		env         []string
		grants      []policy.Grant
		want        string
	}{
		{"a tree, and what it lies in", nil, nil, nil, []policy.Grant{grant("/home/u/w", policy.Tree, rwx)}, "dir /home\ndir /home/u\nbind /home/u/w write exec\n"},
		{"a grant within one that is as wide", nil, nil, nil, []policy.Grant{grant("/usr", policy.Tree, rx), grant("/usr/lib", policy.Tree, r)}, "bind /usr exec\n"},
		{"a wider one within", nil, nil, nil, []policy.Grant{grant("/usr", policy.Tree, rx), grant("/usr/src/w", policy.Tree, rwx)}, "bind /usr exec\nbind /usr/src/w write exec\n"},
		{"the union of two", nil, nil, nil, []policy.Grant{grant("/a", policy.Tree, r), grant("/a/b", policy.Tree, policy.Write)}, "bind /a\nbind /a/b write\n"},
		{"names that begin alike", nil, nil, nil, []policy.Grant{grant("/a-b", policy.Tree, r), grant("/a/c", policy.Tree, r), grant("/a", policy.Tree, rx)}, "bind /a exec\nbind /a-b\n"},
		{"devices", nil, nil, nil, []policy.Grant{grant("/dev/null", policy.File, rwi), grant("/dev/pts", policy.Tree, rwi), grant("/dev/ptmx", policy.File, rwi)},
			"bind /dev/null file device write\nsymlink /dev/ptmx -> pts/ptmx\ndevpts /dev/pts\n"},
		{"its own places", nil, nil, nil, []policy.Grant{grant("/proc", policy.Tree, r), grant("/tmp", policy.Tree, rwx), grant("/dev/shm", policy.Tree, rwx)}, ""},
		{"links of a policy", []policy.Link{{Path: "/etc/localtime", Target: "/usr/share/zoneinfo/UTC"}, {Path: "/usr/bin/x", Target: "y"}}, nil, nil,
			[]policy.Grant{grant("/usr", policy.Tree, rx)}, "dir /etc\nsymlink /etc/localtime -> /usr/share/zoneinfo/UTC\nbind /usr exec\n"},
		{"links of the root", nil, []policy.Link{{Path: "/bin", Target: "usr/bin"}, {Path: "/secret", Target: "/home/u/.ssh"}}, nil,
			[]policy.Grant{grant("/usr", policy.Tree, rx)}, "symlink /bin -> usr/bin\nbind /usr exec\n"},
		{"a home", nil, nil, []string{"HOME=/home/u"}, nil, "dir /home\ndir /home/u\n"},
		{"a home that is granted", nil, nil, []string{"HOME=/w"}, []policy.Grant{grant("/w", policy.Tree, rwx)}, "bind /w write exec\n"},
	} {
		if got := text(layout(t, x.links, x.host, x.env, x.grants...)); got != x.want {
			t.Errorf("%s:\n%swant\n%s", x.name, got, x.want)
		}
	}
}

// TestCompileCwd: where the command starts there is a directory, also if nothing of it
// is granted.
func TestCompileCwd(t *testing.T) {
	for cwd, want := range map[string]string{
		"/": "bind /a/b write exec\n", "/a/b/c": "bind /a/b write exec\n", "/a": "bind /a/b write exec\n", "/x/y": "bind /a/b write exec\ndir /x\ndir /x/y\n",
	} {
		p, err := policy.New(policy.Spec{Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/a/b", Cwd: cwd, Grants: []policy.Grant{grant("/a/b", policy.Tree, rwx)}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := Compile(p, nil)
		if got := text(l); err != nil || got != "dir /a\n"+want || l.Shows(cwd) != (cwd == "/a/b/c") {
			t.Errorf("%s: %s, %v", cwd, got, err)
		}
	}
}

// TestCompileInTemp: a workspace below /tmp lies in the worker's own, which no other
// worker can have then.
func TestCompileInTemp(t *testing.T) {
	l := layout(t, nil, nil, nil, grant("/tmp/a/w", policy.Tree, rwx))
	if got, want := text(l), "dir /tmp/a\nbind /tmp/a/w write exec\n"; got != want || !l.Within {
		t.Errorf("%q, %t", got, l.Within)
	}
	if !l.Shows("/tmp/a/w/x") || l.Shows("/tmp/a") || l.Shows("/tmp") || l.Shows("/etc") || l.Shows("/proc/self") {
		t.Error("it shows what it does not")
	}
}

func TestCompileRefuses(t *testing.T) {
	for name, s := range map[string]policy.Spec{
		"everything": {Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w", Grants: []policy.Grant{grant("/", policy.Tree, r)}},
		"a denied path inside": {Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w", Deny: []string{"/w/secret"},
			Grants: []policy.Grant{grant("/w", policy.Tree, rwx)}},
		"no sandbox": {Mode: policy.FullAccess, Net: policy.NetHost, Cwd: "/w"},
	} {
		p, err := policy.New(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(p, nil); err == nil {
			t.Errorf("%s is compiled", name)
		}
	}
	if _, err := Compile(policy.Policy{}, nil); err == nil {
		t.Error("no policy is compiled")
	}
}

func TestWithTerminal(t *testing.T) {
	l := layout(t, nil, nil, nil)
	if got, want := text(l.WithTerminal("/dev/pts/3")), "dir /dev/pts\nbind /dev/pts/3 file device write\n"; got != want {
		t.Errorf("%q", got)
	}
	for _, odd := range []string{"/dev/pts/../sda", "/home/x", "pipe:[3]", "/dev/pts"} {
		if got := text(l.WithTerminal(odd)); got != "" {
			t.Errorf("%q: %q", odd, got)
		}
	}
	own := layout(t, nil, nil, nil, grant("/dev/pts", policy.Tree, rwi))
	if a, b := text(own), text(own.WithTerminal("/dev/pts/3")); a != b {
		t.Errorf("%q", b)
	}
}
