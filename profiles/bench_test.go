package profiles

import (
	"os"
	"testing"

	"sandboxd/policy"
)

func hostRequest(tb testing.TB) Request {
	tb.Helper()
	dir := tb.TempDir()
	return Request{Mode: policy.WorkspaceWrite, Workspace: dir, Dir: dir, HostEnv: os.Environ(), Home: os.Getenv("HOME"), UID: os.Getuid(), GID: os.Getgid()}
}

// BenchmarkResolve is what `sbx run` pays on this host, all presets included.
func BenchmarkResolve(b *testing.B) {
	req := hostRequest(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Resolve(req); err != nil {
			b.Fatal(err)
		}
	}
}
