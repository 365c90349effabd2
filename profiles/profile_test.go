package profiles

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandboxd/policy"
)

func TestUserProfile(t *testing.T) {
	w := newWorld(t)
	data := w.mkdir("data")
	w.write("home/u/.config/sbx/profiles/mine.toml", `
description = "mine"
mode = "read-only"
net = "loopback"
deny = ["~/x", "inside"]
require = ["fs.protected"]
toolchains = ["git", "go"]

[[grant]]
path = "`+data+`"
access = "rw"
reason = "numbers"

[[env]]
pass = ["FOO", "LD_PRELOAD"]
set = { BAR = "b" }
reason = "needed"

[[cache]]
env = "ZCACHE"
dir = "z"
reason = "z's cache"
`)
	w.env("FOO=f", "LD_PRELOAD=l")
	w.req.Profiles, w.req.Mode = []string{"mine"}, 0
	s, _ := w.ok()
	if s.Mode != policy.ReadOnly || s.Net != policy.NetLoopback || !s.Require.Has(policy.FSProtected) {
		t.Errorf("%s %s %s", s.Mode, s.Net, s.Require)
	}
	wantGrant(t, s, data, "r", policy.Tree) // the mode is a ceiling
	if !slices.Equal(s.Deny, []string{w.home + "/x", w.ws + "/inside"}) {
		t.Errorf("deny %q", s.Deny)
	}
	for k, want := range map[string]string{"FOO": "f", "BAR": "b", "LD_PRELOAD": "l"} {
		if v, _ := value(s, k); v != want {
			t.Errorf("%s is %q", k, v)
		}
	}
	if !hasWeakening(s, "profile mine") {
		t.Errorf("%v", s.Weakened)
	}
	for _, g := range s.Grants {
		if g.Source == "preset:rust" || g.Source == "preset:java" {
			t.Errorf("toolchains do not limit: %+v", g)
		}
	}
	// A flag wins over a profile.
	w.req.Mode, w.req.Net = policy.WorkspaceWrite, policy.NetNone
	s, _ = w.ok()
	wantGrant(t, s, data, "rw", policy.Tree)
	if s.Net != policy.NetNone {
		t.Errorf("net %s", s.Net)
	}
	if v, _ := value(s, "ZCACHE"); v != s.Create[0]+"/z" {
		t.Errorf("ZCACHE %q", v)
	}
}

func TestExtendsAndLayers(t *testing.T) {
	w := newWorld(t)
	a, b := w.mkdir("a"), w.mkdir("b")
	grant := func(p string) string { return "[[grant]]\npath = \"" + p + "\"\naccess = \"r\"\nreason = \"r\"\n" }
	w.write("home/u/.config/sbx/profiles/base.toml", grant(a))
	w.write("home/u/.config/sbx/profiles/top.toml", "extends = [\"base\"]\n"+grant(b))
	w.write("home/u/.config/sbx/profiles/git.toml", grant(a))
	w.req.Profiles = []string{"top"}
	s, _ := w.ok()
	wantGrant(t, s, a, "r", policy.Tree)
	wantGrant(t, s, b, "r", policy.Tree)
	for _, g := range s.Grants {
		if g.Source == "preset:git" {
			t.Error("the preset is not overridden")
		}
	}
	// The administrator's file wins over the user's.
	w.write("admin/base.toml", "description = \"nothing\"\n")
	w.write("admin/git.toml", "description = \"nothing\"\n")
	if s, _ = w.ok(); grantAt(s, a) != nil {
		t.Error("the user's file wins")
	}
	w.write("home/u/.config/sbx/profiles/x.toml", "extends = [\"y\"]\n")
	w.write("home/u/.config/sbx/profiles/y.toml", "extends = [\"x\"]\n")
	w.req.Profiles = []string{"x"}
	w.refused("circle: x -> y -> x", "extends")
	w.req.Profiles = []string{"../x"}
	w.refused("does not exist", "")
	w.req.Profiles = []string{"bse"}
	w.refused(`"bse"`, `did you mean "base"?`)
	w.req.Profiles = []string{""}
	w.refused("not a name", "")
	w.req.Profiles = []string{w.write("own.toml", grant(b))}
	s, _ = w.ok()
	wantGrant(t, s, b, "r", policy.Tree)
}

func TestProfileProblems(t *testing.T) {
	for _, c := range []struct{ text, msg, hint string }{
		{"moed = \"read-only\"", `p.toml:1:1: unknown key "moed"`, `did you mean "mode"?`},
		{"\n[[grant]]\npath = \"/x\"\nacces = \"r\"\nreason = \"r\"", `p.toml:4:1: unknown key "grant.acces"`, `did you mean "access"?`},
		{"mode = \"rw\"", `p.toml:1:1: unknown mode "rw"`, ""},
		{"net = \"hots\"", `p.toml:1:1: unknown network`, `"host"`},
		{"require = [\"fs.raed\"]", `p.toml:1:1: unknown effect "fs.raed"`, `"fs.read"`},
		{"mode = 3", "p.toml:1:", ""},
		{"mode = ", "p.toml:1:", ""},
		{"[[grant]]\npath = \"/x\"\naccess = \"r\"", "p.toml:1:3: the grant of /x has no reason", "reason"},
		{"[[grant]]\npath = \"/x\"\naccess = \"q\"\nreason = \"r\"", "p.toml:3:1: access", "rwxi"},
		{"[[grant]]\npath = \"/x\"\nreason = \"r\"", "p.toml:1:3: access", "rwxi"},
		{"[[grant]]\naccess = \"r\"\nreason = \"r\"", "names no path", "path"},
		{"[[grant]]\npath = \"x\"\naccess = \"r\"\nreason = \"r\"", "p.toml:2:1:", "start it with /"},
		{"[[grant]]\npath = \"~bob/x\"\naccess = \"r\"\nreason = \"r\"", "~bob", "written out"},
		{"[[grant]]\npath = \"/a*/b\"\naccess = \"r\"\nreason = \"r\"", "/a*/b", "last component"},
		{"[[grant]]\npath = \"/x\"\naccess = \"r\"\nreason = \"r\"\nos = \"plan9\"", "p.toml:5:1: unknown system", "linux"},
		{"[[env]]\npass = [\"A=B\"]\nreason = \"r\"", "A=B", ""},
		{"[[env]]\npass = [\"A\"]", "no reason", ""},
		{"[[cache]]\nenv = \"A\"\ndir = \"../x\"\nreason = \"r\"", "p.toml:3:1: the cache's directory", ""},
		{"[[grant]]\npath = \"/\"\naccess = \"rw\"\nreason = \"r\"", "writable, but it is the whole file system", "below"},
		{"[[grant]]\npath = \"~\"\naccess = \"rw\"\nreason = \"r\"", "home directory", "below"},
		{"[[grant]]\npath = \"/no/such\"\naccess = \"r\"\noptional = false\nreason = \"r\"", "requires /no/such", "optional"},
		{"toolchains = [\"og\"]", "unknown toolchain", `"go"`},
		{"deny = [\"\"]", "empty word", ""},
		{strings.Repeat("# long\n", maxFile), "bigger than 256 KiB", ""},
		{"\xff\xfe = 1", "p.toml:1:", ""},
	} {
		w := newWorld(t)
		w.req.Profiles = []string{w.write("p.toml", c.text)}
		_, _, err := Resolve(w.req)
		var ref *RefusalError
		if !errors.As(err, &ref) || !strings.Contains(ref.Msg, c.msg) || !strings.Contains(ref.Hint, c.hint) {
			t.Errorf("%.40q: %v\n want %q, %q", c.text, err, c.msg, c.hint)
			if ref != nil {
				t.Errorf("hint %q", ref.Hint)
			}
		}
	}
}

func TestProfileIsNoFile(t *testing.T) {
	w := newWorld(t)
	fifo := w.root + "/fifo.toml"
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{fifo, w.mkdir("dir.toml"), "/dev/zero"} {
		w.req.Profiles = []string{p}
		w.refused("is not a regular file", "")
	}
}

func TestProjectTightens(t *testing.T) {
	w := newWorld(t)
	w.write("src/project/.sbx.toml", `
mode = "read-only"
net = "none"
deny = ["secrets", "keys/*.pem"]
require = ["proc.see"]
toolchains = ["git"]
[[env]]
drop = ["CI", "LC_*", "HOME", "MINE"]
`)
	w.write("src/project/keys/a.pem", "")
	w.env("CI=1", "LC_ALL=C")
	w.req.Net, w.req.Env = policy.NetHost, []string{"MINE=1"}
	s, notices := w.ok()
	if s.Mode != policy.ReadOnly || s.Net != policy.NetNone || !s.Require.Has(policy.ProcSee) {
		t.Errorf("%s %s %s", s.Mode, s.Net, s.Require)
	}
	if !slices.Equal(s.Deny, []string{w.ws + "/keys/a.pem", w.ws + "/secrets"}) {
		t.Errorf("deny %q", s.Deny)
	}
	for _, k := range []string{"CI", "LC_ALL", "MINE"} {
		if _, ok := value(s, k); ok {
			t.Errorf("%s passes", k)
		}
	}
	if _, ok := value(s, "HOME"); !ok || !hasNotice(notices, Warning, "MINE") {
		t.Errorf("HOME %v, %v", ok, notices)
	}
	w.req.Writable = []string{w.mkdir("x")}
	w.refused("set by the project's .sbx.toml", "")
	w.req.Writable, w.req.NoProjectProfile = nil, true
	s, _ = w.ok()
	if s.Mode != policy.WorkspaceWrite || !hasWeakening(s, "--no-project-profile") {
		t.Errorf("%s %v", s.Mode, s.Weakened)
	}
}

func TestProjectNeverWidens(t *testing.T) {
	w := newWorld(t)
	w.write("src/project/.sbx.toml", "mode = \"danger-full-access\"\nnet = \"host\"\n")
	w.req.Mode = policy.ReadOnly
	if s, _ := w.ok(); s.Mode != policy.ReadOnly || s.Net != policy.NetNone {
		t.Errorf("%s %s", s.Mode, s.Net)
	}
	w.write("src/project/.sbx.toml", "mode = \"read-only\"\n")
	w.req.Mode = policy.FullAccess
	if s, _ := w.ok(); s.Mode != policy.ReadOnly || s.Net != policy.NetNone {
		t.Errorf("%s %s", s.Mode, s.Net)
	}
	grant := "path = \"/\"\naccess = \"rw\"\nreason = \"r\"\n"
	for _, c := range []struct{ text, msg string }{
		{"\n[[grant]]\n" + grant, ".sbx.toml:2:3: a project must not set grant"},
		{"allow_gap = [\"net.udp\"]", ".sbx.toml:1:1: a project must not set allow_gap"},
		{"extends = [\"go\"]", "must not set extends"},
		{"[[env]]\npass = [\"A\"]\nreason = \"r\"", ".sbx.toml:2:1: a project must not set env.pass"},
		{"[[env]]\nset = {A = \"b\"}\nreason = \"r\"", "must not set env.set"},
		{"[[cache]]\nenv = \"A\"\ndir = \"a\"\nreason = \"r\"", "must not set cache"},
		{"[detect]\ncommands = [\"x\"]", "must not set detect"},
		{"deny = [\"**/*.pem\"]", "last component only"},
		{"nonsense = 1", "unknown key"},
	} {
		w.write("src/project/.sbx.toml", c.text)
		w.req.Mode = policy.WorkspaceWrite
		w.refused(c.msg, "")
	}
}

func TestProjectFileIsPlain(t *testing.T) {
	file := "src/project/.sbx.toml"
	for name, make := range map[string]func(*world){
		"is a symbolic link":    func(w *world) { w.link(w.write("elsewhere.toml", ""), file) },
		"is not a regular file": func(w *world) { _ = syscall.Mkfifo(w.root+"/"+file, 0o644) },
		"not a regular":         func(w *world) { w.mkdir(file) },
	} {
		w := newWorld(t)
		make(w)
		w.refused(name, "--no-project-profile")
	}
}

// secrets are what no preset may ever open.
var secretFiles = append(slices.Clone(credentials), ".", ".config", ".local", ".local/share", ".cache", ".cargo", ".m2", ".gradle", "..")

func TestPresetsOpenNoSecret(t *testing.T) {
	w := newWorld(t)
	for i := range builtins {
		for _, g := range builtins[i].grants {
			if strings.TrimSpace(g.reason) == "" || len(g.paths) == 0 || g.access == 0 {
				t.Errorf("%s: %+v", builtins[i].name, g)
			}
			for _, p := range g.paths { // make the home have everything that presets name
				p = strings.NewReplacer("${XDG_CONFIG_HOME:-~/.config}", "~/.config", "*", "1").Replace(p)
				if i := strings.Index(p, ":-~/"); i > 0 {
					p = "~/" + strings.Replace(p[i+4:], "}", "", 1)
				}
				if rest, ok := strings.CutPrefix(p, "~/"); ok {
					if strings.HasSuffix(rest, ".toml") || strings.Contains(filepath.Base(rest), ".") && !strings.HasPrefix(filepath.Base(rest), ".") {
						w.write("home/u/"+rest, "")
					} else {
						w.mkdir("home/u/" + rest)
					}
				}
			}
		}
		w.req.Profiles = append(w.req.Profiles, builtins[i].name)
	}
	for _, c := range credentials {
		if _, err := os.Lstat(w.home + "/" + c); err != nil {
			w.write("home/u/"+c+"/secret", "")
		}
	}
	dotfiles := w.mkdir("home/u/dotfiles/ssh")
	os.RemoveAll(w.home + "/.ssh")
	w.link(dotfiles, "home/u/.ssh")
	bin := w.write("home/u/bin/go", "#!/bin/sh\n")
	_ = os.Chmod(bin, 0o755)
	w.write("home/u/dotfiles/bin/x", "")
	w.env("PATH="+w.home+"/bin:"+w.home+"/dotfiles:"+w.home+"/.cargo:/usr/bin", "GOROOT="+w.home, "JAVA_HOME=/", "VIRTUAL_ENV="+w.home+"/.config", "PYENV_ROOT="+w.home+"/.aws", "CONDA_PREFIX=/etc", "GOPATH=relative:"+w.home+"/go")
	s, notices := w.ok()
	for _, c := range secretFiles {
		p := filepath.Clean(w.home + "/" + c)
		for _, probe := range []string{p, p + "/secret"} {
			if allows(t, s, probe, policy.Read) {
				t.Errorf("%s is readable", probe)
			}
		}
	}
	for _, p := range append(slices.Clone(systemSecrets), dotfiles, "/etc", "/root", "/home", "/dev/shm", "/dev", "/sys", "/run", "/var", "/") {
		if allows(t, s, p, policy.Read) {
			t.Errorf("%s is readable", p)
		}
	}
	for _, p := range []string{".cargo/bin", ".cargo/registry", ".nvm", ".pyenv"} {
		if p != ".pyenv" && !allows(t, s, w.home+"/"+p, policy.Read) {
			t.Errorf("%s is not readable: %v", p, notices)
		}
	}
	if !hasNotice(notices, Warning, "skipped") {
		t.Errorf("guards are silent: %v", notices)
	}
}

func TestToolchainTrees(t *testing.T) {
	w := newWorld(t)
	real := w.write("sdks/go1.99/bin/go", "")
	_ = os.Chmod(real, 0o755)
	w.mkdir("sdks/go1.99/lib")
	w.link(real, "tools/bin/go")
	shim := w.write("home/u/.pyenv/shims/python3", "#!/bin/bash\n")
	_ = os.Chmod(shim, 0o755)
	w.env("PATH=" + w.root + "/tools/bin:" + w.home + "/.pyenv/shims:/usr/bin")
	s, _ := w.ok()
	wantGrant(t, s, w.root+"/sdks/go1.99", "rx", policy.Tree)
	wantGrant(t, s, w.home+"/.pyenv", "rx", policy.Tree)
	// What does not look like an installation opens its directory only.
	lone := w.write("home/u/work/bin/node", "")
	_ = os.Chmod(lone, 0o755)
	w.env("PATH=" + w.home + "/work/bin")
	s, _ = w.ok()
	wantGrant(t, s, w.home+"/work/bin", "rx", policy.Tree)
	if allows(t, s, w.home+"/work/other", policy.Read) {
		t.Error("a bin directory opens its parent")
	}
}

func TestListShowLint(t *testing.T) {
	w := newWorld(t)
	file := w.write("home/u/.config/sbx/profiles/go.toml", "name = \"goo\"\n[[grant]]\npath = \"~/nowhere\"\naccess = \"r\"\nreason = \"r\"\n[[grant]]\npath = \"~/nowhere\"\naccess = \"r\"\nreason = \"r\"\n[[grant]]\npath = \"/\"\naccess = \"rw\"\nreason = \"r\"\n[[grant]]\npath = \"~/.ssh\"\naccess = \"r\"\nreason = \"r\"\n")
	w.write("home/u/.config/sbx/profiles/broken.toml", "x = 1\n")
	places := PlacesFor(w.home, w.req.HostEnv)
	places.Admin = w.root + "/admin"
	found := map[string]Entry{}
	for _, e := range List(places) {
		found[e.Name] = e
	}
	if e := found["go"]; !e.Overrides || e.File != file || e.Origin != "user" {
		t.Errorf("%+v", e)
	}
	if found["broken"].Error == "" || found["rust"].Origin != "built in" || found["rust"].Description == "" {
		t.Errorf("%+v", found)
	}
	doc, err := Show(places, "go")
	if err != nil || doc.File != file || !strings.Contains(doc.Text, "goo") {
		t.Errorf("%+v, %v", doc, err)
	}
	if doc, err = Show(places, "rust"); err != nil || doc.File != "" || !strings.Contains(doc.Text, "rustup") {
		t.Errorf("%+v, %v", doc, err)
	}
	if _, err = Show(places, "rusty"); err == nil || !strings.Contains(err.(*RefusalError).Hint, "rust") {
		t.Errorf("%v", err)
	}
	ctx := LintContext{places, w.home, w.req.HostEnv}
	problems, err := Lint(ctx, "go")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{":1:1: the file answers to", "granted twice", "does not exist here", "must not be writable", "would expose"} {
		if !slices.ContainsFunc(problems, func(p Problem) bool { return strings.Contains(p.String(), want) }) {
			t.Errorf("no problem %q in %v", want, problems)
		}
	}
	if problems, _ = Lint(ctx, "broken"); len(problems) != 1 || problems[0].Line != 1 || problems[0].Severity != SeverityError {
		t.Errorf("%v", problems)
	}
	if problems, _ = Lint(ctx, w.write("src/project/.sbx.toml", "allow_gap = [\"net.udp\"]")); firstError(problems) == nil {
		t.Error("a project's file is linted as a user's")
	}
	for i := range builtins { // the presets are clean on this host
		if builtins[i].name == "go" {
			continue
		}
		if problems, err := Lint(ctx, builtins[i].name); err != nil || firstError(problems) != nil {
			t.Errorf("%s: %v %v", builtins[i].name, problems, err)
		}
	}
}

func TestDiff(t *testing.T) {
	w := newWorld(t)
	a, _ := w.ok()
	if d := Diff(a, a); !d.Empty() || d.String() != "" {
		t.Errorf("%v", d)
	}
	w.req.Mode, w.req.Net, w.req.Env, w.req.Deny = policy.ReadOnly, policy.NetHost, []string{"USER=sesame", "NEW=sesame"}, []string{"/d"}
	b, _ := w.ok()
	text := Diff(a, b).String()
	for _, want := range []string{"~ mode workspace-write -> read-only\n", "~ net none -> host\n", "~ grant " + w.ws + " rwx tree -> rx tree\n", "+ deny /d\n", "+ env NEW\n", "~ env USER one value -> another\n", "- create ", "+ weakening --net host\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "sesame") {
		t.Error("a value is shown")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range presetOrder {
		text, _ := presetText(name)
		f.Add(text)
	}
	f.Add([]byte("[[env]]\nset = {A = \"b\"}\n[detect]\n\"a.b\".c = 1"))
	f.Add([]byte("grant = [{path = '/x', access = 'r'}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, problems := parseProject(data, "f.toml")
		for _, pr := range problems {
			if strings.ContainsAny(pr.String(), "\n\x1b") {
				t.Errorf("problem %q is not one printable line", pr)
			}
		}
		if firstError(problems) == nil && (len(p.grants)+len(p.caches)+len(p.extends) > 0 || p.allowGap != 0) {
			t.Error("a project loosens")
		}
	})
}

func FuzzEval(f *testing.F) {
	f.Add("/usr/../etc//./passwd/")
	f.Add("/bin/../..")
	f.Fuzz(func(t *testing.T, p string) {
		if !strings.HasPrefix(p, "/") || strings.HasPrefix(p, "/proc") {
			return
		}
		got, _, err := newView().eval(p)
		want, wantErr := filepath.EvalSymlinks(p)
		// EvalSymlinks cleans "x/.." away before it looks, so it may accept more.
		if err == nil && wantErr == nil && got != want && !strings.Contains(p, "..") {
			t.Errorf("%q is %q, want %q", p, got, want)
		}
		if err == nil && (filepath.Clean(got) != got || !filepath.IsAbs(got)) {
			t.Errorf("%q is %q", p, got)
		}
	})
}
