package profiles

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandboxd/policy"
)

func TestWorkspaceGrant(t *testing.T) {
	for mode, access := range map[policy.Mode]string{policy.ReadOnly: "rx", policy.WorkspaceWrite: "rwx"} {
		w := newWorld(t)
		w.req.Mode = mode
		s, _ := w.ok()
		wantGrant(t, s, w.ws, access, policy.Tree)
		if s.Workspace != w.ws || s.Cwd != w.ws || s.Mode != mode || s.Net != policy.NetNone {
			t.Errorf("spec %+v", s)
		}
		if allows(t, s, w.home, policy.Read) || len(s.Weakened) > 0 {
			t.Errorf("%s grants the home or weakens: %v", mode, s.Weakened)
		}
		for _, g := range s.Grants {
			device := strings.HasPrefix(string(g.Path), "/dev/")
			if mode == policy.ReadOnly && g.Access.Has(policy.Write) && !device {
				t.Errorf("read-only writes %s", g.Path)
			}
		}
	}
}

func TestDefaultMode(t *testing.T) {
	w := newWorld(t)
	w.req.Mode = 0
	if s, _ := w.ok(); s.Mode != DefaultMode {
		t.Errorf("mode %s", s.Mode)
	}
}

func TestWorkspaceRefused(t *testing.T) {
	w := newWorld(t)
	w.link(w.home, "to-home")
	w.link("/", "to-root")
	w.mkdir("home/u/sub")
	w.mkdir("home/u/.ssh/x")
	w.mkdir("home/u/.config/sbx/profiles")
	w.mkdir("home/u/.local/state/sandboxd/audit")
	w.mkdir("home/u/.cache/sbx/workspaces/x")
	for _, c := range []struct{ workspace, msg, hint string }{
		{"/", "whole file system", "--workspace DIR"},
		{"/..//", "whole file system", "--workspace DIR"},
		{w.home, "home directory", "mkdir -p " + w.home + "/work"},
		{w.home + "/", "home directory", "mkdir -p"},
		{w.home + "/sub/..", "home directory", "mkdir -p"},
		{w.root + "/to-home", "home directory", "mkdir -p"},
		{w.root + "/to-home/.", "home directory", "mkdir -p"},
		{w.root + "/to-root", "whole file system", "--workspace DIR"},
		{w.root + "/home", "holds the home", "--workspace DIR"},
		{w.root, "holds the home", "--workspace DIR"},
		{w.home + "/.config/sbx", "sbx's own", ""},
		{w.home + "/.local/state/sandboxd/audit", "sbx's own", ""},
		{w.home + "/.config/sbx/profiles", "sbx's own", ""},
		{w.home + "/.config", "own files", ""},
		{w.home + "/.cache/sbx/workspaces/x", "caches", ""},
		{w.home + "/.cache/sbx", "caches", ""},
		{w.home + "/.ssh", "secrets", ""},
		{w.home + "/.ssh/x", "secrets", ""},
		{"/etc", "configures", ""},
		{"/usr", "system", ""},
		{"/usr/bin", "system", ""},
		{"/bin", "", ""},
		{"/dev", "devices", ""},
		{"/tmp", "other programs", ""},
		{"/var/tmp", "other programs", ""},
		{"/nonexistent/x", "does not exist", "mkdir -p /nonexistent/x"},
		{w.root + "/a b'c", "does not exist", `mkdir -p '` + w.root + `/a b'\''c'`},
		{w.root + "/bad\x1b[31m\nname", "does not exist", `mkdir -p $'` + w.root + `/bad\033[31m\012name'`},
		{w.root + "/nul\x00", "NUL", ""},
		{w.root + "/" + strings.Repeat("x", 300), "too long", ""},
		{w.write("file", ""), "not a directory", "--workspace " + w.root},
	} {
		for _, mode := range []policy.Mode{policy.ReadOnly, policy.WorkspaceWrite} {
			w.req.Workspace, w.req.Mode = c.workspace, mode
			w.refused(c.msg, c.hint)
		}
	}
	if runtime.GOOS == "linux" {
		for _, p := range []string{"/proc", "/proc/self", "/sys", "/proc/self/root", "/proc/self/cwd/../../../../.."} {
			w.req.Workspace = p
			w.refused("workspace", "")
		}
	}
}

func TestWorkspaceRefusedByDirectory(t *testing.T) {
	w := newWorld(t)
	w.req.Dir = w.home
	w.refused(w.home, "mkdir -p")
	w.req.Dir = ""
	w.refused("no longer exists", "--workspace")
	w.req.Workspace = w.ws
	s, notices := w.ok()
	if s.Cwd != w.ws || !hasNotice(notices, Warning, "no longer exists") {
		t.Errorf("cwd %q, %v", s.Cwd, notices)
	}
}

func TestOwnStateElsewhere(t *testing.T) {
	for name, want := range map[string]bool{"XDG_CONFIG_HOME": false, "XDG_STATE_HOME": false, "XDG_CACHE_HOME": true} {
		w := newWorld(t)
		w.env(name + "=" + w.ws + "/x")
		if !want {
			w.refused("sbx's own", "")
			continue
		}
		// A cache in the workspace is usual under CI: then it is just not used.
		s, notices := w.ok()
		if len(s.Create) > 0 || !hasNotice(notices, Info, "lies in the workspace") {
			t.Errorf("%v %v", s.Create, notices)
		}
	}
}

func TestOddNames(t *testing.T) {
	for _, name := range []string{"with space", "new\nline", "q'uo\"te", "\xff\xfe", "*?[x]", "-rf", "$(touch pwn)", "`x`", strings.Repeat("a", 250) + "/" + strings.Repeat("b", 250) + "/" + strings.Repeat("c", 250)} {
		w := newWorld(t)
		dir := w.ws + "/" + name
		if err := os.MkdirAll(dir, 0o755); errors.Is(err, syscall.EILSEQ) {
			continue // darwin's file systems take UTF-8 only
		} else if err != nil {
			t.Fatal(err)
		}
		w.req.Workspace, w.req.Dir, w.req.Readable = dir, dir, []string{w.write(dir+"/../f"+name[:1], "")}
		s, _ := w.ok()
		wantGrant(t, s, dir, "rwx", policy.Tree)
		if s.Cwd != dir {
			t.Errorf("cwd %q", s.Cwd)
		}
	}
}

func TestSymlinks(t *testing.T) {
	w := newWorld(t)
	alias := w.link(w.ws, "alias")
	w.req.Workspace, w.req.Dir = alias, alias
	w.env("PWD=" + alias)
	s, _ := w.ok()
	if s.Workspace != w.ws || s.Cwd != w.ws {
		t.Errorf("workspace %q, cwd %q", s.Workspace, s.Cwd)
	}
	if v, _ := value(s, "PWD"); v != alias {
		t.Errorf("PWD %q, want the logical %q", v, alias)
	}
	// ".." is where the link leads, not where it lies.
	w.mkdir("src/other")
	w.req.Readable = []string{alias + "/../other"}
	s, _ = w.ok()
	wantGrant(t, s, w.root+"/src/other", "rx", policy.Tree)
	w.link("loop2", "loop1")
	w.link("loop1", "loop2")
	w.req.Readable = []string{w.root + "/loop1"}
	if err := w.refused("too many symbolic links", "namei"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("error %v does not hold ELOOP", err)
	}
}

func TestNamedGrants(t *testing.T) {
	w := newWorld(t)
	file, dir := w.write("data/file", "x"), w.mkdir("data/dir")
	w.req.Readable, w.req.Writable = []string{file, "../../data/file"}, []string{dir}
	s, _ := w.ok()
	wantGrant(t, s, file, "rx", policy.File)
	wantGrant(t, s, dir, "rwx", policy.Tree)
	if allows(t, s, w.root+"/data/other", policy.Read) {
		t.Error("a file's grant was widened")
	}
	if g := grantAt(s, dir); g.Source != "flag:--writable" {
		t.Errorf("source %q", g.Source)
	}
	if !hasWeakening(s, "--readable "+file) || !hasWeakening(s, "--writable "+dir) {
		t.Errorf("weakened %v", s.Weakened)
	}
}

func TestNamedGrantsRefused(t *testing.T) {
	w := newWorld(t)
	sock := w.root + "/s"
	if len(sock) > 100 {
		sock = "/tmp/sbx-profiles-test-sock"
		defer os.Remove(sock)
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		flag      string
		path, msg string
		hint      string
	}{
		{"w", "/", "whole file system", "--writable DIR"},
		{"w", w.home, "home directory", "--writable DIR"},
		{"w", w.root + "/home", "holds the home", ""},
		{"w", w.home + "/.config/sbx", "does not exist", "mkdir -p"},
		{"w", "/dev", "devices", ""},
		{"w", "/etc", "configures", ""},
		{"w", "/usr", "system", ""},
		{"w", "/etc/hosts", "/etc", ""},
		{"w", "/usr/bin", "system", ""},
		{"w", w.root + "/no", w.root + "/no does not exist", "mkdir -p " + w.root + "/no"},
		{"r", w.root + "/no", "does not exist", "mkdir -p"},
		{"r", w.root + "/data\x00", "NUL", ""},
		{"r", "", "empty", ""},
		{"w", "", "empty", ""},
		{"r", sock, "socket", ""},
		{"r", "/" + strings.Repeat("y", 400), "too long", ""},
		{"r", strings.Repeat("/y", 4000), "", ""},
		{"r", w.write("f", "") + "/x", "not a directory", ""},
	} {
		w.req.Readable, w.req.Writable = nil, nil
		if c.flag == "r" {
			w.req.Readable = []string{c.path}
		} else {
			w.req.Writable = []string{w.mkdir("fine"), c.path}
		}
		w.refused(c.msg, c.hint)
	}
}

func TestReadableHomeIsLoud(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"/", w.home} {
		w.req.Readable = []string{p}
		s, _ := w.ok()
		if !allows(t, s, w.home+"/.ssh/id", policy.Read) {
			t.Errorf("%s is not readable", p)
		}
		if len(s.Weakened) != 1 || !strings.Contains(s.Weakened[0].Meaning, "every key") {
			t.Errorf("weakened %v", s.Weakened)
		}
	}
}

// TestOwnTerminal: a worker with a terminal of its own is granted none in /dev/pts,
// unless the caller accepts that by name. /dev/tty is its own.
func TestOwnTerminal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("about Linux' /dev/pts")
	}
	for _, tt := range []struct {
		own  bool
		gaps policy.EffectSet
		want bool
	}{{false, 0, true}, {true, 0, false}, {true, policy.SetOf(policy.NetUDP), false}, {true, policy.SetOf(policy.TTYInject), true}} {
		for _, mode := range []policy.Mode{policy.ReadOnly, policy.WorkspaceWrite} {
			w := newWorld(t)
			w.req.Mode, w.req.OwnTerminal, w.req.AllowGap = mode, tt.own, tt.gaps
			s, _ := w.ok()
			for _, at := range []string{"/dev/pts/5", "/dev/ptmx"} {
				if got := allows(t, s, at, policy.Read|policy.Write); got != tt.want {
					t.Errorf("%s, %+v: %s is granted: %v", mode, tt, at, got)
				}
			}
			if !allows(t, s, "/dev/tty", policy.Read|policy.Write|policy.Ioctl) {
				t.Errorf("%s, %+v: /dev/tty is not granted", mode, tt)
			}
		}
	}
}

func TestWritableScratch(t *testing.T) {
	w := newWorld(t)
	w.req.Writable = []string{"/tmp", "/dev/null"}
	if strings.HasPrefix(w.root, "/tmp/") { // then the worker could write the profiles
		w.refused("which the worker can write", "another --workspace")
	}
	w.req.Home, w.req.AdminDir, w.req.HostEnv = "/nonexistent", AdminDir, nil
	s, _ := w.ok()
	if !allows(t, s, "/dev/null", policy.Write|policy.Ioctl) || !hasWeakening(s, "--writable") {
		t.Errorf("%v", s.Weakened)
	}
}

func TestCwd(t *testing.T) {
	w := newWorld(t)
	sub, out := w.mkdir("src/project/sub"), w.mkdir("out")
	w.req.Cwd = "sub"
	if s, _ := w.ok(); s.Cwd != sub {
		t.Errorf("cwd %q", s.Cwd)
	}
	w.req.Cwd = out
	w.refused(out, "--workspace "+out)
	w.req.Cwd = out + "/no"
	w.refused("does not exist", "mkdir -p")
	w.req.Cwd = w.write("src/project/f", "")
	w.refused("not a directory", "")
	w.req.Cwd, w.req.Readable = out, []string{out}
	w.ok()
	// Where the caller merely stands gives no right, and stays.
	w.req.Cwd, w.req.Readable, w.req.Workspace, w.req.Dir = "", nil, w.ws, out
	s, notices := w.ok()
	if s.Cwd != out || allows(t, s, out, policy.Read) || !hasNotice(notices, Warning, out) {
		t.Errorf("cwd %q, %v", s.Cwd, notices)
	}
}

func TestCwdThroughDescriptor(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	w := newWorld(t)
	f, err := os.Open(w.mkdir("out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	link := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	w.req.Workspace, w.req.Cwd = w.ws, link
	w.refused(w.root+"/out", "")
	w.req.Cwd, w.req.Dir = "", link
	w.env("PWD=" + link)
	s, _ := w.ok()
	if v, _ := value(s, "PWD"); s.Cwd != w.root+"/out" || v != s.Cwd {
		t.Errorf("cwd %q, PWD %q", s.Cwd, v)
	}
}

func TestContradictions(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    func(*Request)
		msg, hint string
	}{
		{"read-only writes", func(r *Request) { r.Mode, r.Writable = policy.ReadOnly, []string{"/x"} }, "--writable /x contradicts", "workspace-write"},
		{"full reads", func(r *Request) { r.Mode, r.Readable = policy.FullAccess, []string{"/x"} }, "--readable /x contradicts", "drop --readable"},
		{"full writes", func(r *Request) { r.Mode, r.Writable = policy.FullAccess, []string{"/x"} }, "--writable", "drop"},
		{"full denies", func(r *Request) { r.Mode, r.Deny = policy.FullAccess, []string{"/x"} }, "--deny", "drop"},
		{"full exec", func(r *Request) { r.Mode, r.AllowExec = policy.FullAccess, []string{"/x"} }, "--allow-exec", "drop"},
		{"full net", func(r *Request) { r.Mode, r.Net = policy.FullAccess, policy.NetNone }, "network none contradicts", "--net host"},
		{"full require", func(r *Request) { r.Mode, r.RequireFull = policy.FullAccess, true }, "required", "drop"},
		{"both", func(r *Request) {
			r.Require, r.AllowGap = policy.SetOf(policy.NetUDP), policy.SetOf(policy.NetUDP)
		}, "net.udp is both", "drop"},
		{"full and gap", func(r *Request) { r.RequireFull, r.AllowGap = true, policy.SetOf(policy.NetUDP) }, "full enforcement", "drop"},
		{"cache", func(r *Request) { r.Cache = "elsewhere" }, "elsewhere", "private"},
		{"mode", func(r *Request) { r.Mode = 9 }, "unknown mode", ""},
		{"net", func(r *Request) { r.Net = 9 }, "unknown mode or network", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.change(&w.req)
			w.refused(c.msg, c.hint)
		})
	}
}

func TestFullAccess(t *testing.T) {
	w := newWorld(t)
	w.req.Mode, w.req.Dir = policy.FullAccess, w.home
	w.env("TMPDIR=/t", "GOCACHE=/c", "API_TOKEN=x", "LD_PRELOAD=x")
	s, _ := w.ok()
	if len(s.Grants)+len(s.TempEnv)+len(s.Create)+len(s.Protected) > 0 || s.Net != policy.NetHost || s.Cwd != w.home || !hasWeakening(s, "--mode") {
		t.Errorf("spec %+v", s)
	}
	if v, _ := value(s, "TMPDIR"); v != "/t" {
		t.Errorf("TMPDIR %q", v)
	}
	for _, k := range []string{"API_TOKEN", "LD_PRELOAD"} {
		if _, ok := value(s, k); ok {
			t.Errorf("%s passes", k)
		}
	}
	// Where the temp is limited, it is the private one, unless a caller named another.
	w.req.PrivateTemp, w.req.Env = true, []string{"TMP=/mine"}
	s, _ = w.ok()
	if want := []policy.TempVar{{Name: "TEMP", Sub: "."}, {Name: "TMPDIR", Sub: "."}}; !slices.Equal(s.TempEnv, want) {
		t.Errorf("temp %v", s.TempEnv)
	}
	if v, set := value(s, "TMPDIR"); set {
		t.Errorf("TMPDIR stays %q", v)
	}
}

func TestNetAndGapsAreLoud(t *testing.T) {
	w := newWorld(t)
	w.req.Net, w.req.AllowGap, w.req.Require = policy.NetHost, policy.SetOf(policy.NetUnixPath), policy.SetOf(policy.FSProtected)
	s, _ := w.ok()
	if !hasWeakening(s, "--net host") || !hasWeakening(s, "--allow-gap net.unix.path") || !s.Require.Has(policy.FSProtected) {
		t.Errorf("%+v", s)
	}
}

func TestDeny(t *testing.T) {
	w := newWorld(t)
	secret := w.write("src/project/secret", "")
	w.link(secret, "src/project/alias")
	for _, f := range []string{"data/a.pem", "data/b.pem", "data/c", "deep/x/y/k.pem"} {
		w.write("src/project/"+f, "")
	}
	p := w.ws + "/"
	for _, c := range []struct {
		deny []string
		want []string
	}{
		{[]string{"secret"}, []string{p + "secret"}},
		{[]string{"./x/../secret"}, []string{p + "secret"}},
		{[]string{"alias"}, []string{p + "alias", p + "secret"}},
		{[]string{"/no/such/place"}, []string{"/no/such/place"}},
		{[]string{"data/*.pem"}, []string{p + "data/a.pem", p + "data/b.pem"}},
		{[]string{"none*"}, []string{p + "none*"}},
		{[]string{"data/**"}, []string{p + "data"}},
		{[]string{"**/*.pem"}, []string{p + "data/a.pem", p + "data/b.pem", p + "deep/x/y/k.pem"}},
		{[]string{"data/**", "**/*.pem"}, []string{p + "data", p + "deep/x/y/k.pem"}},
	} {
		w.req.Deny = c.deny
		s, _ := w.ok()
		if !slices.Equal(s.Deny, c.want) {
			t.Errorf("deny %q is %q, want %q", c.deny, s.Deny, c.want)
		}
	}
	for _, d := range []string{"", "x\x00"} {
		w.req.Deny = []string{d}
		w.refused("--deny", "")
	}
}

func TestSettle(t *testing.T) {
	g := func(p string, a policy.Access, k policy.Kind) policy.Grant {
		return policy.Grant{Path: policy.Raw(p), Access: a, Kind: k, Reason: "r", Source: "s"}
	}
	rx, r, rw := policy.Read|policy.Exec, policy.Read, policy.Read|policy.Write
	got := settle([]policy.Grant{g("/a/b", rx, policy.Tree), g("/a", rx, policy.Tree), g("/a/c", rw, policy.Tree), g("/a-b", r, policy.Tree), g("/f", r, policy.File), g("/f", rx, policy.File), g("/f/x", r, policy.File)}, nil)
	var have []string
	for _, g := range got {
		have = append(have, g.Access.String()+" "+string(g.Path))
	}
	if want := []string{"rx /a", "r /a-b", "rw /a/c", "rx /f", "r /f/x"}; !slices.Equal(have, want) {
		t.Errorf("%q, want %q", have, want)
	}
}

func TestNothingIsMade(t *testing.T) {
	w := newWorld(t)
	before := tree(t, w.root)
	w.ok()
	if after := tree(t, w.root); !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, dir+"/"+e.Name())
		if e.IsDir() {
			all = append(all, tree(t, dir+"/"+e.Name())...)
		}
	}
	return all
}

func TestGitNotices(t *testing.T) {
	w := newWorld(t)
	common := w.mkdir("main/.git")
	w.write("main/.git/worktrees/wt/commondir", "../..\n")
	w.write("src/project/.git", "gitdir: "+common+"/worktrees/wt\n")
	if _, notices := w.ok(); len(notices) > 0 {
		t.Errorf("a repository that does not know this worktree is suggested: %v", notices)
	}
	w.write("main/.git/worktrees/wt/gitdir", w.ws+"/.git\n")
	_, notices := w.ok()
	if !hasNotice(notices, Info, "--writable "+common) {
		t.Errorf("%v", notices)
	}
	w.req.Writable = []string{common}
	if _, notices = w.ok(); len(notices) > 0 {
		t.Errorf("%v", notices)
	}
	w.req.Writable, w.req.Mode = nil, policy.ReadOnly
	if _, notices = w.ok(); !hasNotice(notices, Info, "--readable "+common) {
		t.Errorf("%v", notices)
	}
	w = newWorld(t)
	w.write("super/.git/modules/m/config", "[core]\n\tworktree = ../../../../src/project\n")
	w.write("src/project/.git", "gitdir: ../../super/.git/modules/m\n")
	if _, notices = w.ok(); !hasNotice(notices, Info, "--writable "+w.root+"/super/.git/modules/m") {
		t.Errorf("%v", notices)
	}
	// A forged pointer suggests nothing, wherever it leads.
	w = newWorld(t)
	victim := w.mkdir("victim")
	w.write("src/project/g/commondir", victim)
	w.write("src/project/g/gitdir", w.ws+"/.git")
	w.write("src/project/.git", "gitdir: g\n")
	if _, notices = w.ok(); len(notices) > 0 {
		t.Errorf("%v", notices)
	}
	w = newWorld(t)
	w.write("src/project/.git", "gitdir: "+w.home)
	if _, notices = w.ok(); len(notices) > 0 {
		t.Errorf("a pointer to the home is suggested: %v", notices)
	}
	w = newWorld(t)
	w.mkdir("src/.git")
	if _, notices = w.ok(); !hasNotice(notices, Info, "--workspace "+w.root+"/src") {
		t.Errorf("%v", notices)
	}
}

func TestUnprivileged(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may enter everything; run as another uid")
	}
	w := newWorld(t)
	closed := w.mkdir("closed")
	w.mkdir("closed/x")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closed, 0o755)
	w.req.Readable = []string{closed + "/x"}
	if err := w.refused("permission denied", "ls -ld "+closed); !errors.Is(err, syscall.EACCES) {
		t.Errorf("%v", err)
	}
	w.req.Readable = []string{closed}
	w.refused("not accessible", "ls -ld")
	w.req.Readable, w.req.Writable = nil, []string{"/usr/share/doc"}
	w.refused("", "")
	w.req.Writable, w.req.Workspace = nil, closed
	w.refused("cannot be read", "ls -ld")
	// A home that may not be entered costs one notice, and nothing else.
	w.req.Workspace, w.req.Home = w.ws, closed
	w.env("HOME="+closed, "PATH=/usr/bin:/bin:"+closed+"/bin")
	s, notices := w.ok()
	count := 0
	for _, n := range notices {
		if strings.Contains(n.Text, closed+" may not be entered") {
			count++
		}
	}
	if count > 1 || len(s.Create) > 0 || !allows(t, s, "/usr/bin", policy.Read|policy.Exec) {
		t.Errorf("%d notices, create %v: %v", count, s.Create, notices)
	}
}
