package proxy

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// tool is a program that has to go through the proxy by its environment alone.
// The names that it asks for exist for the proxy only, so that what arrives at the
// server came through it.
type tool struct {
	name  string
	needs func(t *testing.T) string // the program's path; it skips
	args  func(bin, dir, http, https string) []string
	env   []string
	want  string // in its output
	// tunnel is set where it asks by CONNECT or SOCKS.
	tunnel bool
}

func program(name string) func(*testing.T) string {
	return func(t *testing.T) string {
		bin, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("no %s here", name)
		}
		return bin
	}
}

// python is the program behind whatever shim is in PATH.
func python(t *testing.T) string {
	out, err := exec.Command(program("python3")(t), "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skipf("python3 does not run: %v", err)
	}
	return strings.TrimSpace(string(out))
}

func pip(t *testing.T) string {
	bin := python(t)
	if err := exec.Command(bin, "-m", "pip", "--version").Run(); err != nil {
		t.Skip("no pip here")
	}
	return bin
}

// node is one that can be told to use a proxy.
func node(t *testing.T) string {
	bin := program("node")(t)
	out, _ := exec.Command(bin, "--help").Output()
	if !strings.Contains(string(out), "--use-env-proxy") {
		t.Skip("this Node has no --use-env-proxy, which came with 24 and 22.21")
	}
	return bin
}

func cargo(t *testing.T) string {
	bin := program("cargo")(t)
	if err := exec.Command(bin, "--version").Run(); err != nil {
		t.Skipf("cargo does not run: %v", err)
	}
	return bin
}

var tools = []tool{
	{name: "curl", needs: program("curl"), want: "hello from",
		args: func(bin, dir, http, https string) []string { return []string{bin, "-sS", http + "/x"} }},
	{name: "curl-https", needs: program("curl"), want: "hello from", tunnel: true,
		args: func(bin, dir, http, https string) []string { return []string{bin, "-sSk", https + "/x"} }},
	{name: "curl-upload", needs: program("curl"), want: "hello from",
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "-sS", "-T", os.Args[0], http + "/x"} // large enough for Expect
		}},
	{name: "curl-socks", needs: program("curl"), want: "hello from", tunnel: true,
		args: func(bin, dir, http, https string) []string {
			return []string{"sh", "-c", `exec "$0" -sS --proxy "socks5h://${HTTP_PROXY#http://}" "$1"`, bin, http + "/x"}
		}},
	{name: "wget", needs: program("wget"), want: "hello from",
		args: func(bin, dir, http, https string) []string { return []string{bin, "-qO-", http + "/x"} }},
	{name: "git", needs: program("git"), want: "it is here",
		args: func(bin, dir, http, https string) []string {
			return []string{"sh", "-c", `"$0" clone -q "$1" "$2" && cat "$2/file"`, bin, http + "/repo.git", filepath.Join(dir, "clone")}
		}},
	{name: "python-urllib", needs: python, want: "hello from",
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())", http + "/x"}
		}},
	{name: "python-urllib-https", needs: python, want: "hello from", tunnel: true,
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "-c", "import sys, ssl, urllib.request as u; print(u.urlopen(sys.argv[1], context=ssl._create_unverified_context()).read().decode())", https + "/x"}
		}},
	{name: "pip", needs: pip, want: "Successfully downloaded",
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "-m", "pip", "--isolated", "--disable-pip-version-check", "download", "--no-cache-dir", "--no-deps", "-d", dir,
				"--index-url", http + "/simple", "--trusted-host", "web.test", "thing==1.0"}
		}},
	{name: "node-fetch", needs: node, want: "hello from",
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "-e", "fetch(process.argv[1]).then(r => r.text()).then(console.log)", http + "/x"}
		}},
	{name: "npm", needs: program("npm"), want: "7.7.7",
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "view", "thing", "version", "--registry", http + "/npm/", "--no-update-notifier"}
		}},
	{name: "go", needs: program("go"), want: "example.test/mod v1.0.0",
		env: []string{"GOSUMDB=off", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local", "GO111MODULE=on"},
		args: func(bin, dir, http, https string) []string {
			return []string{"sh", "-c", `GOPROXY="$1/mod" exec "$0" list -m example.test/mod@v1.0.0`, bin, http}
		}},
	{name: "cargo", needs: cargo, want: "thing",
		args: func(bin, dir, http, https string) []string {
			return []string{bin, "search", "thing", "--index", "sparse+" + http + "/crates/"}
		}},
}

func TestTools(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("for systems with a shell")
	}
	repo := repository(t)
	var plain netip.AddrPort
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		self := "http://" + r.Host
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/repo.git/") && repo != "":
			http.StripPrefix("/repo.git/", http.FileServer(http.Dir(repo))).ServeHTTP(w, r)
		case path == "/simple/thing/":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<a href="%s/wheels/thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>`, self)
		case strings.HasPrefix(path, "/wheels/"):
			_, _ = w.Write(wheel(t))
		case strings.HasPrefix(path, "/npm/"):
			fmt.Fprintf(w, `{"name":"thing","dist-tags":{"latest":"7.7.7"},"versions":{"7.7.7":{"name":"thing","version":"7.7.7","dist":{"tarball":"%s/t.tgz"}}}}`, self)
		case strings.HasPrefix(path, "/mod/") && strings.HasSuffix(path, "v1.0.0.info"):
			fmt.Fprint(w, `{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`)
		case strings.HasPrefix(path, "/mod/") && strings.HasSuffix(path, "v1.0.0.mod"):
			fmt.Fprint(w, "module example.test/mod\n")
		case path == "/crates/config.json":
			fmt.Fprintf(w, `{"dl":"%s/dl","api":"%s"}`, self, self)
		case strings.HasPrefix(path, "/api/v1/crates"):
			fmt.Fprint(w, `{"crates":[{"name":"thing","max_version":"1.0.0","description":"x"}],"meta":{"total":1}}`)
		default:
			hello(w, r)
		}
	}
	plain = web(t, handler)
	secure := &httptest.Server{Listener: listenLoopback(t), Config: &http.Server{Handler: http.HandlerFunc(handler)}}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	httpURL := fmt.Sprintf("http://web.test:%d", plain.Port())
	httpsURL := fmt.Sprintf("https://web.test:%d", netip.MustParseAddrPort(secure.Listener.Addr().String()).Port())

	for _, tool := range tools {
		t.Run(tool.name, func(t *testing.T) {
			bin := tool.needs(t)
			r := start(t, Options{}, []string{"web.test:*", "127.0.0.1:*"}, "web.test", "127.0.0.1")
			out, err := run(t, r, tool, bin, httpURL, httpsURL)
			if err != nil || !strings.Contains(out, tool.want) {
				t.Fatalf("%v, no %q in %q", err, tool.want, out)
			}
			// What was written counts a moment after it was read.
			eventually(t, "it did not go through the proxy", func() bool {
				s := r.Stats()
				return s.Requests > 0 && s.ToWorker > 0 && (!tool.tunnel || s.FromWorker > 0)
			})
			if len(r.names.questions()) == 0 || len(r.events()) != 0 {
				t.Errorf("asked for %v, refused %v", r.names.questions(), r.events())
			}
			// Another host is not allowed, and the tool fails.
			r = start(t, Options{}, []string{"other.test:*"}, "web.test", "127.0.0.1")
			if out, err := run(t, r, tool, bin, httpURL, httpsURL); strings.Contains(out, tool.want) {
				t.Errorf("denied, it gives %q, %v", out, err)
			}
			all := r.events()
			if len(all) == 0 || all[0].Host != "web.test" || all[0].Reason != HostNotAllowed {
				t.Errorf("told is %v", all)
			}
		})
	}
}

func run(t *testing.T, r *rig, tool tool, bin, http, https string) (string, error) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	args := tool.args(bin, dir, http, https)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GOCACHE=" + dir, "GOPATH=" + dir, "CARGO_HOME=" + dir, "CARGO_NET_RETRY=0", "npm_config_fetch_retries=0",
		"RUSTUP_HOME=" + rustup(), "RUSTUP_TOOLCHAIN=" + os.Getenv("RUSTUP_TOOLCHAIN"), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C"}, tool.env...)
	cmd.Env = append(cmd.Env, Environment(netip.MustParseAddrPort(r.addr))...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// rustup is where the toolchains are that cargo's shim runs.
func rustup() string {
	if dir := os.Getenv("RUSTUP_HOME"); dir != "" {
		return dir
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, ".rustup")
}

// repository is a bare one that any web server can serve; "" without git.
func repository(t *testing.T) string {
	git, err := exec.LookPath("git")
	if err != nil {
		return ""
	}
	dir := t.TempDir()
	script := `set -e; g="$0 -c user.name=x -c user.email=x@example.test -c init.defaultBranch=main -c commit.gpgsign=false"
mkdir work; cd work; $g init -q; echo it is here >file; $g add file; $g commit -qm x; cd ..
$g clone -q --bare work repo.git; cd repo.git; $g update-server-info`
	cmd := exec.Command("sh", "-c", script, git)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making a repository: %v\n%s", err, out)
	}
	return filepath.Join(dir, "repo.git")
}

// wheel is a package for pip with nothing in it.
func wheel(t *testing.T) []byte {
	var b, record bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name, text string) {
		w, err := z.Create("thing-1.0.dist-info/" + name)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(w, text)
		sum := sha256.Sum256([]byte(text))
		fmt.Fprintf(&record, "thing-1.0.dist-info/%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(text))
	}
	add("METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
	add("WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
	add("RECORD", record.String()+"thing-1.0.dist-info/RECORD,,\n")
	_ = z.Close()
	return b.Bytes()
}

// TestLoopbackIsDirect: a tool reaches its own namespace's servers without the proxy.
func TestLoopbackIsDirect(t *testing.T) {
	bin := program("curl")(t)
	at := web(t, hello)
	r := start(t, Options{}, nil)
	for _, host := range []string{"127.0.0.1", "localhost"} {
		out, err := run(t, r, tool{args: func(_, _, url, _ string) []string { return []string{bin, "-sS", url} }}, bin, fmt.Sprintf("http://%s:%d/", host, at.Port()), "")
		if err != nil || !strings.Contains(out, "hello from") {
			t.Errorf("%s: %q, %v", host, out, err)
		}
	}
	if s := r.Stats(); s.Connections != 0 {
		t.Errorf("%+v", s)
	}
}

// TestEnvironment: each variable has a reason, a well-formed value, and no secret of
// the host's in it.
func TestEnvironment(t *testing.T) {
	addr := netip.MustParseAddrPort("[fd00::1]:3128")
	seen := map[string]bool{}
	for _, v := range variables(addr) {
		if v.reason == "" || seen[v.name] {
			t.Errorf("%+v has no reason, or is there twice", v)
		}
		seen[v.name] = true
	}
	env := strings.Join(Environment(addr), "\n") + "\n"
	want(t, env, "HTTP_PROXY=http://[fd00::1]:3128\n", "https_proxy=http://[fd00::1]:3128\n", "NO_PROXY=localhost,127.0.0.1,::1\n", "NODE_USE_ENV_PROXY=1\n")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		if !seen[name] || !seen[strings.ToLower(name)] {
			t.Errorf("%s is not there in both cases", name)
		}
	}
}
