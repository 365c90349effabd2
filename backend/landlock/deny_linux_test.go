package landlock

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/profiles"
)

// token is what only a denied place knows.
const token = "sesame"

// denyFixture makes a workspace with what is denied in it.
const denyFixture = `umask 022; mkdir -p vault/sub deep/a/b open real; echo ` + token + ` >secret; echo ` + token + ` >vault/sub/key; : >vault/name-` + token + `
echo ` + token + ` >deep/a/b/cfg; printf '#!/bin/sh\necho ` + token + `\n' >run; chmod 755 run; echo ` + token + ` >real/target; ln -s real/target link; ln -s deep/a through; echo other >f`

var deniedNames = []string{"secret", "vault", "deep/a/b/cfg", "run", "link", "new.env", "later/x/y", "socket"}

const python = `python3 -c '
import ctypes, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
`

// reads are attempts to have what is denied. Each prints the token outside.
var reads = map[string]string{
	"a file":                  `cat secret`,
	"by an absolute path":     `cat $PWD/secret`,
	"by another spelling":     `cat open/../././/secret`,
	"in a directory":          `cat vault/sub/key`,
	"list":                    `ls vault; ls -a vault/`,
	"glob":                    `echo vault/*`,
	"enter":                   `cd vault && ls`,
	"deeper":                  `cat deep/a/b/cfg`,
	"through a link":          `cat link`,
	"where the link leads":    `cat real/target`,
	"through a link above":    `cat through/b/cfg`,
	"by a link of one's own":  `ln -s secret l; cat l; ln -s ../vault open/v; cat open/v/sub/key`,
	"by the working one":      `cat /proc/self/cwd/secret; cd deep; cat ../vault/sub/key`,
	"by a descriptor":         `exec 3<.; cat /proc/self/fd/3/secret /dev/fd/3/vault/sub/key`,
	"by the first process":    `cat /proc/1/root$PWD/secret /proc/self/root$PWD/secret`,
	"by a hard link":          `ln secret h; cat h; ln deep/a/b/cfg open/h; cat open/h`,
	"rename":                  `mv secret s; cat s; mv vault v; cat v/sub/key`,
	"rename what is above":    `mv deep d; cat d/a/b/cfg`,
	"rename two above":        `mv deep/a deep/c; cat deep/c/b/cfg`,
	"rename all above":        `mv deep/a/b deep/a/c; mv deep/a deep/x; mv deep d; cat d/x/c/cfg`,
	"rename above and back":   `mv deep/a deep/c; cat deep/c/b/cfg; mv deep/c deep/a; cat deep/a/b/cfg`,
	"exchange":                exchange + `secret f; cat f`,
	"exchange what is above":  `mkdir e; ` + exchange + `deep e; cat e/a/b/cfg`,
	"copy":                    `cp -a deep copy; cat copy/a/b/cfg; cp -a vault v; cat v/sub/key`,
	"copy all":                `tar cf - . 2>/dev/null | grep -ao ` + "ses''ame",
	"search":                  `grep -r ses'ame' . ; find . -name '*ses?me*'`,
	"map":                     python + `f = open("secret", "rb"); print(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:6].decode())'`,
	"open to write and read":  `cat <>secret`,
	"a handle and then open":  python + `p = os.open("secret", os.O_PATH); print(open("/proc/self/fd/%d" % p).read())'`,
	"a directory's handle":    python + `p = os.open("vault", os.O_PATH); print(os.listdir("/proc/self/fd/%d" % p))'`,
	"execute":                 `./run`,
	"interpret":               `sh run`,
	"source":                  `. ./run`,
	"load":                    `/lib64/ld-linux-x86-64.so.2 ./run; cat run`,
	"change the mode":         `chmod 755 secret vault; cat secret; ls vault`,
	"change the owner":        `chown $(id -u) secret; chmod u+r secret; cat secret`,
	"remove what is over it":  `rm -f new.env; cat secret vault/sub/key`,
	"unmount":                 `umount -l secret 2>/dev/null; umount vault 2>/dev/null; cat secret vault/sub/key`,
	"mount elsewhere":         `mount --bind . open 2>/dev/null; cat open/secret secret; umount open 2>/dev/null`,
	"a namespace of its own":  `unshare -rm sh -c "umount -l secret vault; cat secret vault/sub/key"; cat secret`,
	"connect":                 python + `s = socket.socket(socket.AF_UNIX); s.connect("socket"); print(s.recv(9).decode())'`,
	"connect by a descriptor": python + `d = os.open(".", os.O_PATH); s = socket.socket(socket.AF_UNIX); s.connect("/proc/self/fd/%d/socket" % d); print(s.recv(9).decode())'`,
	"connect by a link":       `ln -s socket k; ` + python + `s = socket.socket(socket.AF_UNIX); s.connect("k"); print(s.recv(9).decode())'`,
}

// changes are attempts to change what is denied or have it come into being. Each does
// outside.
var changes = map[string]string{
	"write":                       `echo x >secret`,
	"append":                      `echo x >>vault/sub/key`,
	"truncate":                    python + `os.truncate("secret", 0)'`,
	"remove":                      `rm -f secret`,
	"remove a tree":               `rm -rf vault`,
	"make in it":                  `echo x >vault/new`,
	"make a directory in it":      `mkdir vault/sub/new`,
	"rename over":                 `mv -f f secret`,
	"rename into":                 `mv f vault/f`,
	"link into":                   `ln f vault/f`,
	"link over":                   `ln -f f secret`,
	"symlink over":                `ln -sfn f secret`,
	"exchange":                    exchange + `f secret`,
	"edit in place":               `sed -i s/a/b/ secret`,
	"replace what is above":       `mv deep d; mkdir -p deep/a/b; echo x >deep/a/b/cfg`,
	"replace a link":              `ln -sfn f link`,
	"write where a link leads":    `echo x >link`,
	"mode":                        `chmod 600 run`,
	"make a missing one":          `echo x >new.env`,
	"a directory there":           `rmdir new.env 2>/dev/null; mkdir new.env && echo x >new.env/x`,
	"in it, if it is there":       `mkdir -p new.env; echo x >new.env/x`,
	"rename to a missing one":     `rmdir new.env 2>/dev/null; mv -T f new.env`,
	"link to a missing one":       `rmdir new.env 2>/dev/null; ln -T f new.env`,
	"symlink to a missing one":    `rmdir new.env 2>/dev/null; ln -sT f new.env`,
	"exchange with a missing one": `mkdir -p new.env; ` + exchange + `f new.env`,
	"a missing one deeper":        `mkdir -p later/x; echo x >later/x/y`,
	"replace what leads there":    `mv later l; mkdir -p later/x; echo x >later/x/y`,
	"replace it one deeper":       `mkdir -p later/x; mv later/x later/z; mkdir later/x; echo x >later/x/y`,
	"a tree with it":              `mkdir -p n/x; echo x >n/x/y; rmdir later/x/y later/x later; mv -T n later`,
	"bind a missing one":          `rmdir new.env 2>/dev/null; ` + bindSocket + `new.env`,
}

// denied prepares workers for a workspace with the fixture's denied names.
func denied(t *testing.T, ws string, change func(*profiles.Request)) backend.Prepared {
	t.Helper()
	return resolved(t, ws, func(r *profiles.Request) {
		r.Deny = deniedNames
		if change != nil {
			change(r)
		}
	})
}

// deniedPlaces are what stands at the denied names, by their names.
func deniedPlaces(t *testing.T, ws string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range append([]string{"real/target"}, deniedNames...) {
		for p, text := range tree(t, filepath.Join(ws, name)) {
			all[name+p] = text
		}
	}
	return all
}

// TestDeny: what is denied in a writable tree is neither read nor changed nor comes
// into being, whatever the worker tries. Each attempt has its control outside, which
// succeeds.
func TestDeny(t *testing.T) {
	for _, tool := range []string{"python3", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if raceEnabled {
		t.Skip("a hundred launches, which find no race that a few of the others do not")
	}
	base := realTemp(t)
	ws := filepath.Join(base, "ws")
	serve := func() net.Listener {
		l, err := net.Listen("unix", ws+"/socket")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(ws+"/socket", 0o777); err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(token))
				_ = c.Close()
			}
		}()
		return l
	}
	attempt := func(t *testing.T, attack string, inside bool) (said string, before, after map[string]string, res backend.Result) {
		t.Helper()
		if err := os.RemoveAll(ws); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(ws, 0o755); err != nil {
			t.Fatal(err)
		}
		if out := sh(t, ws, denyFixture); out != "" {
			t.Fatal(out)
		}
		l := serve()
		defer l.Close()
		before = deniedPlaces(t, ws)
		if inside {
			said, res = runIn(t, denied(t, ws, nil), ws, "sh", "-c", attack)
		} else {
			said = sh(t, ws, attack)
		}
		return said, before, deniedPlaces(t, ws), res
	}
	check := func(t *testing.T, name, said string, before, after map[string]string, res backend.Result) {
		t.Helper()
		if changed := differ(before, after); len(changed) > 0 {
			t.Errorf("it changed %q: %s", changed, said)
		}
		for _, e := range denyEffects {
			if st := res.Enforcement.State(e); st.Status != backend.Enforced || !slices.Contains(st.By, "mount namespace") {
				t.Errorf("%s: %+v", e, st)
			}
		}
		if len(res.Warnings) > 0 {
			t.Errorf("warnings: %q", res.Warnings)
		}
		if left := sh(t, ws, `find . -perm -1000 2>/dev/null`); left != "" { // it may have made what it cannot open
			t.Errorf("left: %s", left)
		}
	}
	for name, attack := range reads {
		t.Run("read/"+name, func(t *testing.T) {
			if said, _, _, _ := attempt(t, attack, false); !strings.Contains(said, token) {
				t.Fatalf("it has nothing outside, and so proves nothing: %s", said)
			}
			said, before, after, res := attempt(t, attack, true)
			if strings.Contains(said, token) {
				t.Errorf("it has it: %s", said)
			}
			check(t, name, said, before, after, res)
		})
	}
	for name, attack := range changes {
		t.Run("change/"+name, func(t *testing.T) {
			if said, before, after, _ := attempt(t, attack, false); len(differ(before, after)) == 0 {
				t.Fatalf("it changes nothing outside, and so proves nothing: %s", said)
			}
			said, before, after, res := attempt(t, attack, true)
			check(t, name, said, before, after, res)
		})
	}
	// What is not denied works beside it.
	said, _, _, _ := attempt(t, `cat f; echo new >open/new; mkdir -p later/z; echo x >later/z/x; cat open/new later/z/x; mv f g; cat g; echo x >deep/a/b/other; stat -c %F secret vault`, true)
	if want := "other\nnew\nx\nother\nregular empty file\ndirectory\n"; said != want {
		t.Errorf("it says %q, want %q", said, want)
	}
	if left := sh(t, ws, "find later -printf '%P %m\\n' | sort"); left != " 755\nz 755\nz/x 644\n" {
		t.Errorf("what the worker made in a directory that leads to a denied name: %q", left)
	}
}

// TestDenyInReadable: the same in a tree that the worker may only read.
func TestDenyInReadable(t *testing.T) {
	data, ws := realTemp(t), realTemp(t)
	sh(t, data, denyFixture)
	deny := []string{data + "/secret", data + "/vault", data + "/deep/a/b/cfg", data + "/none", data + "/link"}
	p := resolved(t, ws, func(r *profiles.Request) { r.Readable, r.Deny = []string{data}, deny })
	for _, attack := range []string{"cat secret", "ls vault", "cat vault/sub/key", "cat deep/a/b/cfg", "cat link", "cat real/target", "chmod 777 secret vault; cat secret; ls vault", "mv deep d; cat d/a/b/cfg", "cp -a . $OLDPWD/c; cat $OLDPWD/c/secret"} {
		if said := sh(t, data, "cd "+ws+"; cd "+data+"; "+strings.ReplaceAll(strings.ReplaceAll(attack, "mv", "cp -a"), "deep d", "deep ../d$$")+" 2>/dev/null; rm -rf ../d$$ $OLDPWD/c"); !strings.Contains(said, token) && !strings.HasPrefix(attack, "mv") {
			t.Fatalf("%s: it has nothing outside, and so proves nothing: %s", attack, said)
		}
		before := tree(t, data) // the control has changed modes
		said, res := runIn(t, p, ws, "sh", "-c", "cd "+data+"; "+attack)
		if after := tree(t, data); !maps.Equal(before, after) {
			t.Errorf("%s: it changed %q", attack, differ(before, after))
		}
		if strings.Contains(said, token) {
			t.Errorf("%s: it has it: %s", attack, said)
		}
		st := res.Enforcement.State(policy.FSRead)
		if st.Status != backend.Enforced || !slices.ContainsFunc(st.Gaps, func(g string) bool { return strings.Contains(g, data+"/none is not there") }) {
			t.Errorf("%+v", st)
		}
	}
	before := tree(t, data)
	if out, _ := runIn(t, p, ws, "sh", "-c", "cat "+data+"/f; touch "+data+"/none; ls -A "+data+"; cat "+data+"/run"); !strings.HasPrefix(out, "other\n") || !strings.HasSuffix(out, token+"\n") || strings.Contains(out, "none\n") {
		t.Errorf("it says %s", out)
	}
	after := tree(t, data)
	if !maps.Equal(before, after) {
		t.Errorf("it changed %q", differ(before, after))
	}
}

// TestDenyNested: of what is granted and denied in each other, the innermost counts.
func TestDenyNested(t *testing.T) {
	base, ws := realTemp(t), realTemp(t)
	sh(t, base, `mkdir -p a/b/c/d/e; for x in a a/b a/b/c a/b/c/d a/b/c/d/e; do echo $x >$x/f; done`)
	for _, x := range []struct {
		name               string
		readable, writable []string
		deny               []string
		read, write        string // the levels that can be read and written
	}{
		{"granted in denied", nil, []string{"a/b"}, []string{"a"}, "a/b a/b/c a/b/c/d a/b/c/d/e", "a/b a/b/c a/b/c/d a/b/c/d/e"},
		{"three levels", []string{"a"}, []string{"a/b/c"}, []string{"a/b", "a/b/c/d"}, "a a/b/c", "a/b/c"},
		{"four, and narrower", []string{"a/b/c"}, []string{"a", "a/b/c/d/e"}, []string{"a/b", "a/b/c/d"}, "a a/b/c a/b/c/d/e", "a a/b/c/d/e"},
		{"denied in granted in denied", []string{"a/b"}, nil, []string{"a", "a/b/c"}, "a/b", ""},
		{"and that once more", []string{"a/b", "a/b/c/d"}, nil, []string{"a", "a/b/c", "a/b/c/d/e"}, "a/b a/b/c/d", ""},
		{"directories between", []string{"a", "a/b/c/d/e"}, nil, []string{"a/b"}, "a a/b/c/d/e", ""},
		{"the whole of a granted one but a part", []string{"a", "a/b/c/d"}, nil, []string{"a/b", "a/b/c"}, "a a/b/c/d a/b/c/d/e", ""},
	} {
		under := func(list []string) (all []string) {
			for _, l := range list {
				all = append(all, base+"/"+l)
			}
			return all
		}
		prepared := resolved(t, ws, func(r *profiles.Request) {
			r.Readable, r.Writable, r.Deny = under(x.readable), under(x.writable), under(x.deny)
		})
		var read, write []string
		for _, level := range []string{"a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"} {
			out, _ := runIn(t, prepared, ws, "sh", "-c", fmt.Sprintf("cat %s/%s/f && ls %[1]s/%[2]s >/dev/null && echo listed", base, level))
			if out == level+"\nlisted\n" {
				read = append(read, level)
			} else if strings.Contains(out, level+"\n") || strings.Contains(out, "listed") {
				t.Errorf("%s: %s: %s", x.name, level, out)
			}
			_, _ = runIn(t, prepared, ws, "sh", "-c", fmt.Sprintf(": >%s/%s/new", base, level))
			if exists(base + "/" + level + "/new") {
				write = append(write, level)
				_ = os.Remove(base + "/" + level + "/new")
			}
		}
		if r, w := strings.Join(read, " "), strings.Join(write, " "); r != x.read || w != x.write {
			t.Errorf("%s: it reads %q, want %q; writes %q, want %q", x.name, r, x.read, w, x.write)
		}
	}
	if left := sh(t, base, "find . ! -name f ! -type d; find . -perm -1000"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestDenyGaps pins what is not denied, and that the report says so.
func TestDenyGaps(t *testing.T) {
	ws := realTemp(t)
	sh(t, ws, `mkdir sub; echo `+token+` >secret; ln secret alias; echo `+token+` >sub/.env`)
	prepared := resolved(t, ws, func(r *profiles.Request) { r.Deny = []string{"secret", "**/.env"} })
	out, res := runIn(t, prepared, ws, "sh", "-c", `cat alias; cat sub/.env secret; echo new >.env && cat .env`)
	if strings.Count(out, token) != 1 || !strings.HasSuffix(out, "new\n") {
		t.Errorf("it says %q", out)
	}
	for _, gap := range []string{"secret has other names (2 hard links)", `--deny **/.env: what comes to match after the start is not denied`} {
		st := res.Enforcement.State(policy.FSRead)
		if st.Status != backend.Enforced || !slices.ContainsFunc(st.Gaps, func(g string) bool { return strings.Contains(g, gap) }) {
			t.Errorf("%+v, and not %q", st, gap)
		}
	}
	// Whoever replaces it from outside takes the mount off it.
	sh(t, ws, "rm -f alias .env")
	done := make(chan backend.Result)
	go func() {
		_, res := runIn(t, prepared, ws, "sh", "-c", `: >ready; while [ -e ready ]; do sleep 0.01; done`)
		done <- res
	}()
	for !exists(ws + "/ready") {
	}
	sh(t, ws, "echo new >s; mv s secret; rm ready")
	res = <-done
	for _, e := range denyEffects {
		if st := res.Enforcement.State(e); st.Status != backend.Partial || !strings.Contains(st.Gaps[0], "from outside") {
			t.Errorf("%s: %+v", e, st)
		}
	}
	if st := res.Enforcement.State(policy.FSProtected); st.Status != backend.Enforced {
		t.Errorf("%+v", st)
	}
}

// TestDenyTracked pins what git makes of a tracked file that is denied.
func TestDenyTracked(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	ws := realTemp(t)
	sh(t, ws, `git init -q . && mkdir d && echo 1 >f && echo `+token+` >secret && echo `+token+` >d/key && git add . && git commit -qm 1`)
	prepared := resolved(t, ws, func(r *profiles.Request) { r.Deny = []string{"secret", "d", "new.env"} })
	out, _ := runIn(t, prepared, ws, "sh", "-c", `git status --porcelain; echo 2 >f; git add f; git commit -qm 2 && echo committed; git commit -qam 3 || echo refused; git stash -q 2>/dev/null || echo not stashed; git log --oneline | wc -l; git clean -qfd`)
	t.Log(out)
	for _, want := range []string{" M secret\n", "committed\n", "refused\n", "not stashed\n", "\n2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it says %q, and not %q", out, want)
		}
	}
	if out := sh(t, ws, "git status --porcelain; cat secret d/key; ls -A"); out != token+"\n"+token+"\n.git\nd\nf\nsecret\n" {
		t.Errorf("outside: %s", out)
	}
}

// TestDenyCost: a launch pays for the denied places alone, and so many are refused that
// it would have to wait for.
func TestDenyCost(t *testing.T) {
	ws := realTemp(t)
	sh(t, ws, `mkdir few many && touch $(seq -f few/%g.pem 500) $(seq -f many/%g.pem 4000)`)
	prepared := resolved(t, ws, func(r *profiles.Request) { r.Deny = []string{"few/*.pem", "many/**", "**/m*/*.pem"} })
	if out, _ := runIn(t, prepared, ws, "sh", "-c", `cat few/1.pem 2>/dev/null; cat few/500.pem 2>/dev/null; ls many 2>/dev/null; echo hi`); out != "hi\n" {
		t.Errorf("it says %s", out)
	}
	_, _, err := profiles.Resolve(profiles.Request{Mode: policy.WorkspaceWrite, Dir: ws, Home: realTemp(t), UID: os.Getuid(), GID: os.Getgid(), HostEnv: []string{"PATH=/usr/bin:/bin"}, Deny: []string{"**/*.pem"}})
	if err == nil || !strings.Contains(err.Error(), "more than 512 paths") {
		t.Errorf("4500 places: %v", err)
	}
}
