package profiles

import (
	"fmt"
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

func BenchmarkResolveGuarded(b *testing.B) {
	for name, dirs := range map[string]int{"small": 1, "large": 1000} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			w.mkdir("src/project/.git/hooks")
			for i := range dirs {
				w.mkdir(fmt.Sprintf("src/project/d%d/e", i))
			}
			for _, mode := range []policy.Mode{policy.ReadOnly, policy.WorkspaceWrite} {
				b.Run(mode.String(), func(b *testing.B) {
					w.req.Mode = mode
					for b.Loop() {
						if _, _, err := Resolve(w.req); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}
