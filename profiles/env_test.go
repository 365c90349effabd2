package profiles

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sandboxd/policy"
)

func TestEnvAllowList(t *testing.T) {
	w := newWorld(t)
	pass := []string{"LANG=C", "LC_ALL=C", "LC_X=y", "TERM=xterm", "TZ=UTC", "SHELL=/bin/sh", "XDG_DATA_HOME=/d", "NO_COLOR=1", "CI=1"}
	stop := []string{
		"LD_PRELOAD=x", "LD_LIBRARY_PATH=x", "DYLD_INSERT_LIBRARIES=x", "BASH_ENV=x", "ENV=x", "BASH_FUNC_ls%%=() { :; }", "GIT_SSH_COMMAND=x", "GIT_DIR=x", "GIT_CONFIG_COUNT=1",
		"SSH_AUTH_SOCK=x", "DBUS_SESSION_BUS_ADDRESS=x", "DISPLAY=:0", "XDG_RUNTIME_DIR=/run/user/0", "XDG_SESSION_ID=1", "GITHUB_TOKEN=x", "AWS_SECRET_ACCESS_KEY=x", "MY_PASSWORD_2=x", "NODE_OPTIONS=x",
		"PYTHONPATH=x", "PERL5LIB=x", "RUBYOPT=x", "JAVA_TOOL_OPTIONS=x", "KUBECONFIG=x", "http_proxy=x", "OLDPWD=/x", "SHLVL=3", "EDITOR=x", "ANYTHING=x", "XDG_FOO_TOKEN=x", "=C:=x", "novalue",
	}
	w.env(append(slices.Clone(pass), stop...)...)
	s, _ := w.ok()
	for _, kv := range pass {
		if !slices.Contains(s.Env, kv) {
			t.Errorf("%s does not pass", kv)
		}
	}
	for _, kv := range stop {
		k, _, _ := strings.Cut(kv, "=")
		if _, ok := value(s, k); ok && k != "" {
			t.Errorf("%s passes", kv)
		}
	}
	if !slices.IsSorted(s.Env) {
		t.Error("not sorted")
	}
	if v, _ := value(s, Marker); v != "1" {
		t.Error("no marker")
	}
}

// What a preset lists must not be on the list of hazards: it would silently
// not pass.
func TestPresetNamesPass(t *testing.T) {
	for _, p := range builtins {
		for _, e := range p.env {
			for _, n := range e.pass {
				if why := hazardOf(strings.TrimSuffix(n, "*")); why != "" {
					t.Errorf("%s passes %s, which %s", p.name, n, why)
				}
			}
		}
	}
}

func TestEnvFlags(t *testing.T) {
	w := newWorld(t)
	w.env("GITHUB_TOKEN=sesame", "OTHER=o")
	w.req.Env = []string{"A=1", "A=2", "OTHER", "MISSING", "LD_PRELOAD=/x.so", "GITHUB_TOKEN", "EMPTY=", "EQ=a=b", "GOCACHE=/mine", "TMPDIR=/t"}
	s, notices := w.ok()
	for k, want := range map[string]string{"A": "2", "OTHER": "o", "LD_PRELOAD": "/x.so", "GITHUB_TOKEN": "sesame", "EMPTY": "", "EQ": "a=b", "GOCACHE": "/mine", "TMPDIR": "/t"} {
		if v, ok := value(s, k); !ok || v != want {
			t.Errorf("%s is %q", k, v)
		}
	}
	if !hasNotice(notices, Warning, "MISSING") {
		t.Errorf("%v", notices)
	}
	if !hasWeakening(s, "--env LD_PRELOAD") || !hasWeakening(s, "--env GITHUB_TOKEN") || hasWeakening(s, "--env A") {
		t.Errorf("%v", s.Weakened)
	}
	for _, x := range s.Weakened {
		if strings.Contains(x.Flag+x.Meaning, "sesame") {
			t.Errorf("a value is told: %v", x)
		}
	}
	for _, v := range s.TempEnv {
		if v.Name == "TMPDIR" {
			t.Error("the caller's TMPDIR does not win")
		}
	}
	for _, bad := range []string{"=x", "", "A\x00=1", "A=\x00"} {
		w.req.Env = []string{bad}
		w.refused("--env", "NAME=VALUE")
	}
}

func TestEnvFilled(t *testing.T) {
	w := newWorld(t)
	w.req.HostEnv = nil
	s, _ := w.ok()
	for k, want := range map[string]string{"HOME": w.home, "PATH": defaultPath, "PWD": w.ws} {
		if v, _ := value(s, k); v != want {
			t.Errorf("%s is %q", k, v)
		}
	}
	if userName(0) != "root" {
		t.Errorf("uid 0 is %q", userName(0))
	}
	w.req.Home, w.req.UID = "", 54321
	s, _ = w.ok()
	if _, ok := value(s, "HOME"); ok {
		t.Error("a home out of nothing")
	}
	if _, ok := value(s, "USER"); ok {
		t.Error("a name out of nothing")
	}
}

func TestCaches(t *testing.T) {
	w := newWorld(t)
	s, _ := w.ok()
	if len(s.Create) != 1 || !strings.HasPrefix(s.Create[0], w.home+"/.cache/sbx/workspaces/") || len(s.Create[0]) != len(w.home+"/.cache/sbx/workspaces/")+32 {
		t.Fatalf("create %q", s.Create)
	}
	wantGrant(t, s, s.Create[0], "rwx", policy.Tree)
	if g := grantAt(s, s.Create[0]); g.Source != "cache" {
		t.Errorf("source %q", g.Source)
	}
	if v, _ := value(s, "XDG_CACHE_HOME"); v != s.Create[0]+"/xdg" {
		t.Errorf("XDG_CACHE_HOME %q", v)
	}
	if allows(t, s, w.home+"/.cache/go-build", policy.Read) {
		t.Error("the user's own cache is reachable")
	}
	// Another workspace has another cache.
	w.req.Workspace = w.mkdir("src/second")
	if s2, _ := w.ok(); s2.Create[0] == s.Create[0] {
		t.Error("two workspaces share a cache")
	}
	private := map[string]func(*world){
		"asked":     func(w *world) { w.req.Cache = CachePrivate },
		"read-only": func(w *world) { w.req.Mode = policy.ReadOnly },
		"no home":   func(w *world) { w.req.Home = "" },
		"foreign":   func(w *world) { w.req.UID = 54321 },
		"file":      func(w *world) { w.write("home/u/.cache", "") },
		"shared": func(w *world) {
			dir := w.mkdir("shared")
			_ = os.Chmod(dir, 0o777)
			w.env("XDG_CACHE_HOME=" + dir)
		},
		"system": func(w *world) { w.env("XDG_CACHE_HOME=/etc/x") },
	}
	for name, change := range private {
		w := newWorld(t)
		change(w)
		s, _ := w.ok()
		if len(s.Create) > 0 || !slices.Contains(s.TempEnv, policy.TempVar{Name: "XDG_CACHE_HOME", Sub: "cache/xdg"}) {
			t.Errorf("%s: create %q, temp %v", name, s.Create, s.TempEnv)
		}
		if _, ok := value(s, "XDG_CACHE_HOME"); ok {
			t.Errorf("%s: XDG_CACHE_HOME is set twice", name)
		}
	}
}

func TestTemp(t *testing.T) {
	w := newWorld(t)
	w.env("TMPDIR=/nonexistent", "TMP=/x")
	s, _ := w.ok()
	for _, k := range []string{"TMPDIR", "TMP", "TEMP"} {
		if !slices.Contains(s.TempEnv, policy.TempVar{Name: k, Sub: "."}) {
			t.Errorf("%s is not in temp", k)
		}
		if _, ok := value(s, k); ok {
			t.Errorf("%s passes", k)
		}
	}
}

func TestPath(t *testing.T) {
	w := newWorld(t)
	mine, open := w.mkdir("tools/bin"), w.mkdir("open/bin")
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	w.mkdir("home/u/.config")
	path := strings.Join([]string{mine, open, "relative", "", w.home, w.root + "/home", w.home + "/.config", "/", "/no/such", w.write("f", ""), "/usr/bin"}, ":")
	w.req.HostEnv = []string{"PATH=" + path, "HOME=" + w.home}
	s, notices := w.ok()
	wantGrant(t, s, mine, "rx", policy.Tree)
	for _, p := range []string{open, w.home, w.root + "/home", w.home + "/.config", "/", w.root + "/f"} {
		if grantAt(s, p) != nil {
			t.Errorf("%s on PATH is granted", p)
		}
	}
	if v, _ := value(s, "PATH"); v != path {
		t.Errorf("PATH is changed: %q", v)
	}
	if !hasNotice(notices, Warning, "writable for everybody") || !hasNotice(notices, Info, `"relative"`) || !hasNotice(notices, Warning, "home directory") {
		t.Errorf("%v", notices)
	}
}
