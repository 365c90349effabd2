package profiles

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/policy"
)

// world is a home with a workspace in a temporary tree.
type world struct {
	t          testing.TB
	root, home string
	ws         string
	req        Request
}

func newWorld(t testing.TB) *world {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: root, home: root + "/home/u", ws: root + "/src/project"}
	w.mkdir("home/u")
	w.mkdir("src/project")
	w.req = Request{
		Mode: policy.WorkspaceWrite, Dir: w.ws, Home: w.home, UID: os.Getuid(), GID: os.Getgid(), AdminDir: root + "/admin",
		HostEnv: []string{"HOME=" + w.home, "PATH=/usr/bin:/bin", "USER=u", "LOGNAME=u"},
	}
	return w
}

func (w *world) mkdir(p string) string {
	w.t.Helper()
	p = w.abs(p)
	if err := os.MkdirAll(p, 0o755); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) abs(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return w.root + "/" + p
}

func (w *world) write(p, text string) string {
	w.t.Helper()
	p = w.abs(p)
	w.mkdir(filepath.Dir(p))
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) link(target, p string) string {
	w.t.Helper()
	p = w.abs(p)
	w.mkdir(filepath.Dir(p))
	if err := os.Symlink(w.abs(target), p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) env(kv ...string) { w.req.HostEnv = append(kv, w.req.HostEnv...) }

// ok resolves, and fails the test on a refusal or an invalid spec.
func (w *world) ok() (policy.Spec, []Notice) {
	w.t.Helper()
	s, notices, err := Resolve(w.req)
	if err != nil {
		w.t.Fatalf("refused: %v", err)
	}
	if _, err := policy.New(s); err != nil {
		w.t.Fatalf("spec is not a policy: %v", err)
	}
	return s, notices
}

// refused resolves and returns the refusal.
func (w *world) refused(inMsg, inHint string) *RefusalError {
	w.t.Helper()
	_, _, err := Resolve(w.req)
	var ref *RefusalError
	if !errors.As(err, &ref) {
		w.t.Fatalf("got %v, want a refusal with %q", err, inMsg)
	}
	if !strings.Contains(ref.Msg, inMsg) {
		w.t.Errorf("message %q lacks %q", ref.Msg, inMsg)
	}
	if ref.Hint == "" || !strings.Contains(ref.Hint, inHint) {
		w.t.Errorf("hint %q lacks %q", ref.Hint, inHint)
	}
	if strings.ContainsAny(ref.Msg+ref.Hint, "\n\x1b\x00") {
		w.t.Errorf("refusal is not one printable line: %q / %q", ref.Msg, ref.Hint)
	}
	return ref
}

func grantAt(s policy.Spec, p string) *policy.Grant {
	for i := range s.Grants {
		if string(s.Grants[i].Path) == p {
			return &s.Grants[i]
		}
	}
	return nil
}

func wantGrant(t testing.TB, s policy.Spec, p, access string, kind policy.Kind) {
	t.Helper()
	g := grantAt(s, p)
	if g == nil {
		t.Errorf("no grant for %s", p)
		return
	}
	if g.Access.String() != access || g.Kind != kind || g.Reason == "" || g.Source == "" {
		t.Errorf("grant %+v, want %s %s", g, access, kind)
	}
}

// allows is what the spec says about a path.
func allows(t testing.TB, s policy.Spec, p string, a policy.Access) bool {
	t.Helper()
	pol, err := policy.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return pol.Allows(p, a)
}

func hasNotice(notices []Notice, l Level, text string) bool {
	for _, n := range notices {
		if n.Level == l && strings.Contains(n.Text, text) {
			return true
		}
	}
	return false
}

func hasWeakening(s policy.Spec, flag string) bool {
	for _, w := range s.Weakened {
		if strings.HasPrefix(w.Flag, flag) && w.Meaning != "" {
			return true
		}
	}
	return false
}

func value(s policy.Spec, name string) (string, bool) {
	v, ok := envMap(s.Env)[name]
	return v, ok
}
