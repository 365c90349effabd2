package profiles

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/policy"
)

// What a worker planted in one run must open nothing in the next.
func TestPlantedLinks(t *testing.T) {
	for name, plant := range map[string]func(w *world, docs string){
		"variable": func(w *world, docs string) { w.link(docs, w.ws+"/.venv"); w.env("VIRTUAL_ENV=" + w.ws + "/.venv") },
		"below a variable": func(w *world, docs string) {
			w.link(docs, w.ws+"/gp/pkg/mod")
			w.env("GOPATH="+w.ws+"/gp", "GOROOT=/nogo")
		},
		"parent": func(w *world, docs string) {
			w.link(w.home+"/docs", w.ws+"/x")
			w.mkdir("home/u/docs/deep/pkg/mod")
			w.env("GOPATH="+w.ws+"/x/deep", "GOROOT=/nogo")
		},
		"two links": func(w *world, docs string) {
			w.link(docs, "elsewhere")
			w.link(w.root+"/elsewhere", w.ws+"/.venv")
			w.env("VIRTUAL_ENV=" + w.ws + "/.venv")
		},
		"reached from outside": func(w *world, docs string) {
			w.link(docs, w.ws+"/v")
			w.link(w.ws+"/v", "alias")
			w.env("VIRTUAL_ENV=" + w.root + "/alias")
		},
		"dotdot": func(w *world, docs string) {
			w.link(docs+"/sub", w.ws+"/v")
			w.env("PATH="+w.ws+"/v/..:/usr/bin", "CONDA_PREFIX="+w.ws+"/v")
		},
		"PATH entry": func(w *world, docs string) { w.link(docs, w.ws+"/nbin"); w.env("PATH=" + w.ws + "/nbin:/usr/bin") },
		"program": func(w *world, docs string) {
			w.program("home/u/docs/bin/python3")
			w.mkdir("home/u/docs/lib")
			w.link(docs+"/bin/python3", w.ws+"/vbin/python3")
			w.env("PATH=" + w.ws + "/vbin:/usr/bin")
		},
		"lone program": func(w *world, docs string) {
			w.program("home/u/docs/run.sh")
			w.link(docs+"/run.sh", w.ws+"/vbin/node")
			w.env("PATH=" + w.ws + "/vbin:/usr/bin")
		},
		"writable tree": func(w *world, docs string) {
			w.link(docs, "data/v")
			w.req.Writable = []string{w.root + "/data"}
			w.env("VIRTUAL_ENV=" + w.root + "/data/v")
		},
		"glob in a writable tree": func(w *world, docs string) {
			w.link(docs, "home/u/sdk/go1.99")
			w.link(docs, "home/u/.local/lib/python9")
			w.req.Writable = []string{w.home + "/sdk", w.home + "/.local/lib"}
		},
		"cache": func(w *world, docs string) {
			c := w.home + "/.cache/sbx/workspaces/another/xdg/v"
			w.link(docs, c)
			w.env("VIRTUAL_ENV=" + c)
		},
		"cache in the workspace": func(w *world, docs string) {
			w.env("XDG_CACHE_HOME="+w.ws+"/c", "VIRTUAL_ENV="+w.ws+"/c/sbx/sub")
			w.link(docs, w.ws+"/c/sbx")
		},
		"workspace's own cache": func(w *world, docs string) {
			w.env("XDG_CACHE_HOME=" + w.ws + "/c")
			r := newResolver(w.req)
			r.spec.Workspace = w.ws
			r.findCache()
			w.link(docs, w.ws+"/c/sbx/workspaces/"+r.cache.name)
		},
		"profile's tree": func(w *world, docs string) {
			w.mkdir("data")
			w.req.Profiles = []string{w.write("p.toml", "[[grant]]\npath = \""+w.root+"/data\"\naccess = \"rw\"\nreason = \"r\"\n")}
			w.link(docs, "data/v")
			w.env("VIRTUAL_ENV=" + w.root + "/data/v")
		},
		"another's cache": func(w *world, docs string) {
			_ = os.RemoveAll(docs)
			w.mkdir("home/u/.cache/sbx/workspaces/another/sub")
			w.link(w.home+"/.cache/sbx/workspaces/another", docs)
			w.link(docs, w.ws+"/.venv")
			w.env("VIRTUAL_ENV=" + w.ws + "/.venv")
		},
		"user's preset": func(w *world, docs string) {
			w.write("home/u/.config/sbx/profiles/python.toml", "[[grant]]\npath = \"$VIRTUAL_ENV\"\naccess = \"rx\"\nreason = \"r\"\n")
			w.link(docs, w.ws+"/.venv")
			w.env("VIRTUAL_ENV=" + w.ws + "/.venv")
		},
	} {
		for _, mode := range []policy.Mode{policy.WorkspaceWrite, policy.ReadOnly} {
			w := newWorld(t)
			w.req.Mode = mode
			docs := w.mkdir("home/u/docs")
			w.mkdir("home/u/docs/sub")
			plant(w, docs)
			if mode == policy.ReadOnly {
				if len(w.req.Writable) > 0 {
					continue
				}
			}
			s, notices := w.ok()
			if real, err := filepath.EvalSymlinks(docs); err == nil {
				docs = real
			}
			for _, p := range []string{docs, docs + "/x", docs + "/sub", docs + "/run.sh", docs + "/bin/python3", docs + "/deep/pkg/mod"} {
				if allows(t, s, p, policy.Read) {
					t.Errorf("%s, %s: %s is readable", name, mode, p)
				}
			}
			quiet := name == "workspace's own cache" || name == "glob in a writable tree" && !hasNotice(notices, Warning, "link")
			if !quiet && (!hasNotice(notices, Warning, " is a link to "+docs) || !hasNotice(notices, Warning, "--readable "+docs)) {
				t.Errorf("%s, %s: not told: %v", name, mode, notices)
			}
		}
	}
}

// What trusted grants cover anyway goes on without noise.
func TestTrustedTargets(t *testing.T) {
	w := newWorld(t)
	w.program("home/u/.pyenv/versions/3.99/bin/python3.99")
	w.mkdir("home/u/.pyenv/versions/3.99/lib")
	w.program("home/u/.local/share/uv/python/cpython/bin/python3.99")
	w.link("/usr/bin/env", w.ws+"/.venv/bin/python3")
	w.link(w.home+"/.pyenv/versions/3.99/bin/python3.99", w.ws+"/.venv/bin/python")
	w.link(w.home+"/.local/share/uv/python/cpython/bin/python3.99", w.ws+"/.venv/bin/uv")
	w.link(w.ws+"/node_modules/x.js", w.ws+"/node_modules/.bin/x")
	w.link(w.ws, w.ws+"/self")
	w.env("VIRTUAL_ENV="+w.ws+"/.venv", "PATH="+w.ws+"/.venv/bin:"+w.ws+"/self/node_modules/.bin:/usr/bin:/bin")
	s, notices := w.ok()
	for _, n := range notices {
		if n.Level == Warning {
			t.Errorf("%s", n.Text)
		}
	}
	if !hasNotice(notices, Info, "another grant covers") {
		t.Errorf("%v", notices)
	}
	for _, p := range []string{"/usr/bin/env", w.home + "/.pyenv/versions/3.99/bin/python3.99", w.home + "/.local/share/uv/python/cpython/bin/python3.99"} {
		if !allows(t, s, p, policy.Read|policy.Exec) {
			t.Errorf("%s may not run", p)
		}
	}
	// Without a rule that grants it, the exact flag is told, and works.
	w = newWorld(t)
	w.program("opt/py/bin/python3")
	w.mkdir("opt/py/lib")
	w.link("opt/py/bin/python3", w.ws+"/.venv/bin/python3")
	w.env("VIRTUAL_ENV="+w.ws+"/.venv", "PATH="+w.ws+"/.venv/bin:/usr/bin:/bin")
	if _, notices = w.ok(); !hasNotice(notices, Warning, "--readable "+w.root+"/opt/py)") {
		t.Errorf("%v", notices)
	}
	w.req.Readable = []string{w.root + "/opt/py"}
	if _, notices = w.ok(); slices.ContainsFunc(notices, func(n Notice) bool { return n.Level == Warning }) {
		t.Errorf("%v", notices)
	}
}

// A program that only a venv has still tells that its toolchain is wanted.
func TestPlantedProgramStillDetects(t *testing.T) {
	w := newWorld(t)
	w.program("home/u/.local/share/uv/python/cpython/bin/python3")
	w.link(w.home+"/.local/share/uv/python/cpython/bin/python3", w.ws+"/.venv/bin/python3")
	w.env("PATH=" + w.ws + "/.venv/bin")
	if s, _ := w.ok(); !allows(t, s, w.home+"/.local/share/uv/python/cpython/bin/python3", policy.Exec) {
		t.Error("the interpreter may not run")
	}
}

// A worker that may write in DIR/bin must not open DIR by a program there.
func TestProgramInWorkspaceOpensNoParent(t *testing.T) {
	w := newWorld(t)
	w.req.Dir = w.mkdir("home/u/p/bin")
	w.mkdir("home/u/p/lib")
	w.program("home/u/p/bin/python3")
	w.env("PATH=" + w.home + "/p/bin:/usr/bin")
	if s, _ := w.ok(); allows(t, s, w.home+"/p/lib", policy.Read) {
		t.Error("the parent is readable")
	}
}

func TestNamedThroughPlantedLink(t *testing.T) {
	for _, flag := range []string{"--readable", "--writable", "--allow-exec", "profile", "--workspace"} {
		w := newWorld(t)
		docs := w.mkdir("home/u/docs")
		w.program("home/u/docs/tool")
		link := w.link(docs, w.ws+"/link")
		target, what := docs, flag
		switch flag {
		case "--readable":
			w.req.Readable = []string{link}
		case "--writable":
			w.req.Writable = []string{link}
		case "--allow-exec":
			w.req.AllowExec, target = []string{link + "/tool"}, docs+"/tool"
		case "profile":
			w.req.Profiles = []string{w.write("p.toml", "[[grant]]\npath = \""+link+"\"\naccess = \"r\"\nreason = \"r\"\n")}
		case "--workspace":
			w.req.Writable = []string{w.ws}
			w.req.Workspace, w.req.Dir = link, docs
		}
		s, notices := w.ok()
		if !allows(t, s, target, policy.Read) {
			t.Errorf("%s is not followed", flag)
		}
		loud := func(x policy.Weakening) bool {
			return strings.HasPrefix(x.Flag, what) && strings.Contains(x.Meaning, target+", where the link "+link)
		}
		if !hasNotice(notices, Warning, "leads to "+target) || !slices.ContainsFunc(s.Weakened, loud) {
			t.Errorf("%s is not loud: %v %v", flag, notices, s.Weakened)
		}
	}
	// What stays inside, or a link that no worker can have made, is no news.
	w := newWorld(t)
	w.mkdir("src/project/a")
	w.link(w.ws+"/a", w.ws+"/b")
	w.link(w.mkdir("data"), "alias")
	w.link(w.ws, w.ws+"/self")
	w.link(w.ws, "wsalias")
	w.req.Workspace = w.root + "/wsalias"
	w.req.Readable, w.req.Writable = []string{w.ws + "/b", w.root + "/alias", w.ws + "/self"}, []string{w.root + "/alias"}
	if _, notices := w.ok(); len(notices) > 0 {
		t.Errorf("%v", notices)
	}
	w.link(w.home, w.ws+"/out")
	w.req.Deny = []string{w.ws + "/out"}
	if _, notices := w.ok(); !hasNotice(notices, Warning, "leads to "+w.home) {
		t.Errorf("%v", notices)
	}
}

// What a script names is the worker's word if the worker can write the script.
func TestAllowExecTrustsNoWorker(t *testing.T) {
	w := newWorld(t)
	w.program("home/u/keys/secret")
	script := w.write("src/project/run", "#!"+w.home+"/keys/secret\n")
	_ = os.Chmod(script, 0o755)
	w.req.AllowExec = []string{script}
	w.refused("a worker can have written", "--readable "+w.home+"/keys/secret")
	w.req.Readable = []string{w.home + "/keys/secret"}
	w.ok()
	w.req.Readable = nil
	w.link(w.home+"/keys/secret", w.ws+"/interp")
	outside := w.write("tools/run", "#!"+w.ws+"/interp\n")
	_ = os.Chmod(outside, 0o755)
	w.req.AllowExec = []string{outside}
	w.refused("a worker can have written", "--readable")
	_ = os.WriteFile(outside, []byte("#!"+w.home+"/keys/secret\n"), 0o755)
	w.ok()
	_ = os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755)
	w.req.AllowExec = []string{script}
	w.ok()
}

func TestProfilesInReachOfWorkers(t *testing.T) {
	const text = "description = \"x\"\n"
	for name, place := range map[string]func(w *world){
		"file": func(w *world) { w.link(w.write(w.ws+"/mine.toml", text), "home/u/.config/sbx/profiles/mine.toml") },
		"directory": func(w *world) {
			w.mkdir("home/u/.config/sbx")
			w.link(w.mkdir(w.ws+"/p"), "home/u/.config/sbx/profiles")
		},
		"admin":  func(w *world) { w.link(w.mkdir(w.ws+"/p"), "admin") },
		"preset": func(w *world) { w.link(w.write(w.ws+"/go.toml", text), "home/u/.config/sbx/profiles/go.toml") },
		"through": func(w *world) {
			w.link(w.write("mine.toml", text), w.ws+"/mine.toml")
			w.link(w.ws+"/mine.toml", "home/u/.config/sbx/profiles/mine.toml")
		},
		"writable": func(w *world) {
			w.link(w.write("data/mine.toml", text), "home/u/.config/sbx/profiles/mine.toml")
			w.req.Writable = []string{w.root + "/data"}
		},
	} {
		w := newWorld(t)
		place(w)
		if name != "directory" && name != "admin" && name != "preset" {
			w.req.Profiles = []string{"mine"}
		}
		ref := w.refused("which the worker can write", "move ")
		if !strings.Contains(ref.Msg, w.root) {
			t.Errorf("%s: %s", name, ref.Msg)
		}
	}
	w := newWorld(t)
	w.req.Profiles = []string{w.write(w.ws+"/p.toml", text)}
	s, notices := w.ok()
	if !hasNotice(notices, Warning, "which") && !hasNotice(notices, Warning, "that the worker can write") || !hasWeakening(s, "profile "+w.ws+"/p.toml") {
		t.Errorf("%v %v", notices, s.Weakened)
	}
}

func TestHomeThatHomeDoesNotName(t *testing.T) {
	w := newWorld(t)
	w.write("src/project/.aws/config", "")
	w.ok() // a project may hold such a directory
	for _, home := range []string{"", "relative", "/", "/nonexistent", w.write("file", "")} {
		w.req.Home, w.req.HostEnv = home, []string{"HOME=" + home, "PATH=/usr/bin"}
		w.refused("looks like a home directory, as it holds .aws", "mkdir -p "+w.ws+"/work")
		w.req.Mode = policy.ReadOnly
		w.refused("looks like a home", "")
		w.req.Mode = policy.WorkspaceWrite
	}
	_ = os.RemoveAll(w.ws + "/.aws")
	w.ok()
	_, home := userEntry(os.Getuid())
	if st, err := os.Stat(home); err == nil && st.IsDir() && home != "/" && inSharedRoot(home) == "" {
		w.req.Workspace = home
		w.refused("", "")
	}
}

func TestWritableSaysAll(t *testing.T) {
	w := newWorld(t)
	dir, file := w.mkdir("data"), w.write("f", "")
	w.req.Writable = []string{dir, file, "/dev/null"}
	s, _ := w.ok()
	for flag, want := range map[string]string{dir: "the worker may read, run and change everything in " + dir, file: "the worker may read, run and change " + file, "/dev/null": "control the device"} {
		if !slices.ContainsFunc(s.Weakened, func(x policy.Weakening) bool {
			return x.Flag == "--writable "+flag && strings.Contains(x.Meaning, want)
		}) {
			t.Errorf("no %q in %v", want, s.Weakened)
		}
	}
}

func TestHugeProfileIsCheap(t *testing.T) {
	var keys, denies strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&keys, "k%d=1\n", i)
	}
	for range 4000 {
		denies.WriteString("'/usr/share/doc/*',")
	}
	for _, c := range []struct{ text, msg string }{
		{keys.String(), ":1001:1: the file holds more than 1000 keys"},
		{strings.Repeat("[[grant]]\n", 25_000), ":1001:3: the file holds more than 1000 keys"},
		{strings.Repeat("a.", 120_000) + "a=1", "more than 1000 keys"},
		{"env=" + strings.Repeat("{a=", 9000) + "1" + strings.Repeat("}", 9000), "more than 1000 keys"},
		{"deny=[" + strings.Repeat("'a',", 60_000) + "]", ":1:1: the file lists more than 4096 words"},
		{strings.Repeat("k", 250_000) + "=1", `unknown key "kkk`},
		{"mode='" + strings.Repeat("x", 250_000) + "'", "unknown mode"},
		{strings.Repeat("#\n", 130_000) + "mode='rw'", ".sbx.toml:130001:1: unknown mode"},
		{"\"mo\\u0064e\" = \"rw\"", ":1:1: unknown mode"},
		{"deny=[" + denies.String() + "]", ""},
	} {
		w := newWorld(t)
		w.write("src/project/.sbx.toml", c.text)
		start := time.Now()
		_, _, err := Resolve(w.req)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%.20q takes %s", c.text, took)
		}
		if c.msg == "" {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.msg) || len(err.Error()) > 1000 {
			t.Errorf("%.20q: %.300v, want %q", c.text, err, c.msg)
		}
	}
}

// Root's worker has none of root's rights over others' files.
func TestRootInAnothersWorkspace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	w := newWorld(t)
	for _, c := range []struct {
		uid, gid int
		mode     os.FileMode
		want     string
	}{{0, 0, 0o500, ""}, {12345, 12345, 0o755, "not writable"}, {12345, 12345, 0o777, ""}, {12345, 0, 0o775, ""}, {12345, 12345, 0o700, "not readable"}, {12345, 12345, 0o771, "not readable"}} {
		if err := os.Chown(w.ws, c.uid, c.gid); err != nil {
			t.Skip(err)
		}
		if err := os.Chmod(w.ws, c.mode); err != nil {
			t.Fatal(err)
		}
		_, notices := w.ok()
		if c.want == "" && len(notices) > 0 || c.want != "" && (!hasNotice(notices, Warning, c.want) || !hasNotice(notices, Warning, "sudo -u '#12345' sbx") || !hasNotice(notices, Warning, "chown root "+w.ws)) {
			t.Errorf("%+v: %v", c, notices)
		}
	}
	if _, err := os.Stat("/proc"); err == nil && runtime.GOOS == "linux" { // read-only needs no write
		_ = os.Chmod(w.ws, 0o755)
		w.req.Mode = policy.ReadOnly
		if _, notices := w.ok(); len(notices) > 0 {
			t.Errorf("%v", notices)
		}
	}
}

func TestHintsMakeNoDevice(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"/dev/sdzz9", "/etc/nosuch", "/usr/bin/nosuch"} {
		w.req.Readable = []string{p}
		if ref := w.refused("does not exist", "ls -l "); strings.Contains(ref.Hint, "mkdir") {
			t.Errorf("%s", ref.Hint)
		}
	}
}

func TestDenyBudgetIsShared(t *testing.T) {
	w := newWorld(t)
	for i := range 300 {
		w.write(fmt.Sprintf("src/project/d/%d", i), "")
	}
	w.write("src/project/.sbx.toml", "deny = ["+strings.Repeat("'d/*x',", 1000)+"]")
	w.refused("matches more than can be looked through", "")
}
