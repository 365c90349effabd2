package profiles

import (
	"os"
	"syscall"
	"testing"

	"sandboxd/policy"
)

func hostRequest(tb testing.TB) Request {
	tb.Helper()
	dir := tb.TempDir()
	return Request{Mode: policy.WorkspaceWrite, Workspace: dir, Dir: dir, HostEnv: os.Environ(), Home: os.Getenv("HOME"), UID: os.Getuid(), GID: os.Getgid()}
}

func cpuTime(tb testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkResolve is what `sbx run` pays on this host, all presets included.
func BenchmarkResolve(b *testing.B) {
	req := hostRequest(b)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		if _, _, err := Resolve(req); err != nil {
			b.Fatal(err)
		}
	}
	// On a busy machine the clock tells how busy it is; this tells the cost.
	b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
}
