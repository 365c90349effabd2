package profiles

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// A whole spec of a made-up developer, as far as it does not depend on the
// machine: grants outside the made-up tree are left out.
func TestGolden(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the presets for other systems differ")
	}
	w := newWorld(t)
	for _, tool := range []string{"git", "node"} {
		w.program("tools/bin/" + tool)
	}
	w.program("sdk/go/bin/go")
	w.mkdir("sdk/go/pkg")
	w.mkdir("home/u/.pyenv/libexec")
	w.link("sdk/go/bin/go", "tools/bin/go")
	w.program("home/u/.pyenv/shims/python3")
	w.program("home/u/.cargo/bin/rustup")
	w.link("home/u/.cargo/bin/rustup", "home/u/.cargo/bin/cargo")
	for _, f := range []string{".gitconfig", ".config/go/env", ".cargo/config.toml", ".cargo/credentials.toml", ".rustup/settings.toml", ".npmrc", ".ssh/id", ".m2/settings.xml"} {
		w.write("home/u/"+f, "")
	}
	for _, d := range []string{"go/pkg/mod", "go/src", ".cargo/registry", ".rustup/toolchains", ".nvm", ".m2/repository", ".gradle/caches"} {
		w.mkdir("home/u/" + d)
	}
	w.req.HostEnv = []string{
		"HOME=" + w.home, "USER=u", "LANG=C.UTF-8", "JAVA_HOME=" + w.mkdir("jdk"), "AWS_SECRET_ACCESS_KEY=x", "SSH_AUTH_SOCK=x",
		"PATH=" + strings.Join([]string{w.home + "/.cargo/bin", w.home + "/.pyenv/shims", w.root + "/tools/bin"}, ":"),
	}
	s, notices := w.ok()
	var b strings.Builder
	for _, g := range s.Grants {
		if strings.HasPrefix(string(g.Path), w.root) {
			fmt.Fprintf(&b, "grant %s %s %s [%s] %s\n", g.Access, g.Kind, g.Path, g.Source, g.Reason)
		}
	}
	for _, kv := range s.Env {
		fmt.Fprintf(&b, "env %s\n", kv)
	}
	for _, v := range s.TempEnv {
		fmt.Fprintf(&b, "temp %s %s\n", v.Name, v.Sub)
	}
	for _, n := range notices {
		fmt.Fprintf(&b, "%s %s\n", n.Level, n.Text)
	}
	fmt.Fprintf(&b, "create %q\nprotected %q\nweakened %v\n", s.Create, s.Protected, s.Weakened)
	got := strings.ReplaceAll(b.String(), w.root, "ROOT")
	got = regexp.MustCompile(`[0-9a-f]{32}`).ReplaceAllString(got, "HASH")
	const file = "testdata/developer.golden"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant (%s; -update rewrites it)\n%s", got, file, want)
	}
}

func (w *world) program(p string) {
	w.t.Helper()
	if err := os.Chmod(w.write(p, "#!/bin/sh\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
}
