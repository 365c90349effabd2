package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"sandboxd/daemon"
	"sandboxd/internal/proxy"
	"sandboxd/policy"
)

func TestConfig(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseConfig("c.toml", []byte(`
[ceiling]
mode = "workspace-write"
net = "none"
net_allow = ["*.example.com:443", "10.1.0.0/16"]
roots = ["`+dir+`"]
backends = ["landlock"]
memory = "2G"
disk = 4096
pids = 100
cpus = 1.5
timeout = "10m"
workers = 8
connections = 4

[[group]]
name = "0"
workers = 3

[[user]]
name = "12345"
mode = "read-only"
timeout = 90
`))
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := proxy.ParseRules([]string{"*.example.com:443", "10.1.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	want := daemon.Ceilings{
		Default: daemon.Ceiling{
			Mode: policy.WorkspaceWrite, Net: policy.NetNone, NetAllow: hosts, Roots: []string{dir}, Backends: []string{"landlock"},
			Limits:  policy.Limits{Memory: 2 << 30, Disk: 4096, Pids: 100, CPUs: 1.5, Time: 10 * time.Minute},
			Workers: 8, Connections: 4,
		},
		Users:  map[int]daemon.Ceiling{12345: {Mode: policy.ReadOnly, Limits: policy.Limits{Time: 90 * time.Second}}},
		Groups: []daemon.GroupCeiling{{GID: 0, Ceiling: daemon.Ceiling{Workers: 3}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// TestConfigRefused: whatever is wrong is said with its place, and nothing of such a
// file holds.
func TestConfigRefused(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/usr", link); err != nil {
		t.Fatal(err)
	}
	for text, say := range map[string]string{
		`mood = 1`:                            "c.toml:3:1: unknown key",
		`pids = 0`:                            "c.toml:3:8: 0 is",
		`pids = -3`:                           "c.toml:3:8: -3 is",
		`pids = true`:                         "c.toml:3:8: true",
		`pids = 1.5`:                          "c.toml:3:8: 1.5",
		`cpus = 0.0`:                          "c.toml:3:8: 0.0",
		`cpus = nan`:                          "c.toml:3:8: nan",
		`cpus = inf`:                          "c.toml:3:8: inf",
		`timeout = 0`:                         "c.toml:3:11: ",
		`timeout = "-1s"`:                     "c.toml:3:11: ",
		`memory = -1`:                         "c.toml:3:10: ",
		`memory = "lots"`:                     "c.toml:3:10: ",
		`mode = "rw"`:                         "c.toml:3:8: unknown mode",
		`mode = 1`:                            "c.toml:3:8: ",
		`mode = ""`:                           "c.toml:3:8: ",
		`net = "all"`:                         "c.toml:3:7: ",
		`net_allow = []`:                      "empty list",
		`net_allow = ["http://example.com/"]`: "c.toml:3:14: ",
		`roots = []`:                          "empty list",
		`backends = []`:                       "empty list",
		`roots = "/usr"`:                      "c.toml:3:9: ",
		`roots = ["usr"]`:                     "c.toml:3:10: ",
		`roots = ["/usr/"]`:                   "c.toml:3:10: ",
		`roots = ["` + link + `"]`:            "which is what to write",
		`roots = ["/no/such"]`:                "c.toml:3:10: ",
		`backends = ["no-such"]`:              "c.toml:3:13: ",
		"workers = 1\nworkers = 2":            "c.toml:4:",
		"[[user]]\nworkers = 1":               "number 1 has no name",
		"[[group]]\nworkers = 1":              "number 1 has no name",
		"[[user]]\nname = \"no such user\"":   "c.toml:4:8: there is no user",
		"[[group]]\nname = \"no such group\"": "c.toml:4:8: there is no group",
		"[[user]]\nname = \"7\"\n[[user]]\nname = \"7\"":   "user 7 is there twice",
		"[[group]]\nname = \"7\"\n[[group]]\nname = \"7\"": "group 7 is there twice",
		"\"": "c.toml:3:",
	} {
		got, err := parseConfig("c.toml", []byte("# a comment\n[ceiling]\n"+text+"\n"))
		var p *problem
		if !errors.As(err, &p) || !strings.Contains(p.line, say) || p.hint == "" || p.status != statusRefused {
			t.Errorf("%s: %+v", text, err)
		}
		if !reflect.DeepEqual(got, daemon.Ceilings{}) {
			t.Errorf("%s: %+v holds", text, got)
		}
	}
}

// TestConfigOfOthers: a file that another could have written is none.
func TestConfigOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.toml")
	if err := os.WriteFile(path, []byte("[ceiling]\npids = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := readConfig(path); err != nil || c.Default.Limits.Pids != 3 {
		t.Fatalf("the control: %+v, %v", c, err)
	}
	if err := os.Symlink(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path + ".link", dir, "/dev/null", path + ".none"} {
		if _, err := readConfig(p); err == nil {
			t.Errorf("%s is read", p)
		}
	}
	for _, mode := range []os.FileMode{0o620, 0o602} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfig(path); err == nil {
			t.Errorf("with mode %v it is read", mode)
		}
	}
	if err := os.WriteFile(path+".big", make([]byte, maxConfig+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readConfig(path + ".big"); err == nil {
		t.Error("a large one is read")
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 12345, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfig(path); err == nil {
			t.Error("another user's is read")
		}
	}
}

// TestPage holds docs/daemon.md to the flags, and its example to what is read.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	part := func(name string) string {
		_, rest, _ := strings.Cut(string(text), "<!-- "+name+" -->\n")
		got, _, ok := strings.Cut(rest, "<!-- end -->")
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		return got
	}
	want := "| flag | meaning |\n|---|---|\n"
	newRoot(io.Discard, io.Discard).Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Name == "version" {
			return
		}
		word, usage := pflag.UnquoteUsage(f)
		if word != "" {
			word = " " + word
		}
		want += "| `--" + f.Name + word + "` | " + usage + " |\n"
	})
	if got := part("flags"); got != want {
		t.Errorf("the page has\n%s\nwant\n%s", got, want)
	}
	example := strings.Trim(part("example"), "`toml\n")
	for old, now := range map[string]string{`"/srv/build"`: `"/usr"`, `"builders"`: `"0"`, `"alice"`: `"0"`} { // names of this host
		if !strings.Contains(example, old) {
			t.Fatalf("the example has no %s", old)
		}
		example = strings.Replace(example, old, now, 1)
	}
	c, err := parseConfig("example", []byte(example))
	if err != nil || c.Users[0].Mode != policy.FullAccess || c.Groups[0].Workers != 64 || c.Default.Connections != 8 {
		t.Errorf("%+v, %v", c, err)
	}
}
