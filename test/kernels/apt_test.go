package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// available is what `apt-cache dumpavail` prints, cut down to what matters and
// to one example of each kind.
const available = `Package: linux-image-6.12.94+deb13-cloud-amd64
Version: 6.12.94-1
Architecture: amd64
Description: an older one
Size: 34000000

Package: linux-image-6.12.118+deb13-cloud-amd64
Version: 6.12.118-1
Size: 34700000

Package: linux-image-6.12.118+deb12-cloud-amd64
Version: 6.12.118-1~deb12u1
Size: 34300000

Package: linux-image-6.12.118+deb13-cloud-amd64
Version: 6.12.118-1
Size: 34700000

Package: linux-image-6.12.118+deb13-cloud-amd64-unsigned
Version: 6.12.118-1
Size: 34700000

Package: linux-image-6.12.118+deb13-cloud-amd64-dbg
Version: 6.12.118-1
Size: 300000000

Package: linux-image-6.12.118+deb13-amd64
Version: 6.12.118-1
Size: 100000000

Package: linux-image-6.12.118+deb13-cloud-arm64
Version: 6.12.118-1
Size: 34700000

Package: linux-image-6.1.0-57-cloud-amd64
Version: 6.1.192-3
Size: 26700000

Package: linux-image-6.1.0-0.deb11.52-cloud-amd64
Version: 6.1.180-1~deb11u1
Size: 28000000

Package: linux-image-6.1.0-99-cloud-amd64
Version: 6.1.999-1/../../x
Size: 28000000

Package: linux-image-7.3.4+deb13-cloud-amd64
Version: 7.3.4-1~bpo13+1
Description: depends on linux-binary
Size: 1500

Package: linux-binary-7.3.4+deb13-cloud-amd64
Version: 7.3.4-1~bpo13+1
Size: 13600000

Package: linux-modules-7.3.4+deb13-cloud-amd64
Version: 7.3.4-1~bpo13+1
Size: 22900000

Package: linux-binary-7.3-cloud-amd64
Version: 7.3~rc7-1~exp1
Size: 13900000`

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		series string
		want   []candidate
	}{
		{"6.12", []candidate{
			{"linux-image-6.12.118+deb13-cloud-amd64", "6.12.118-1"},
			{"linux-image-6.12.118+deb12-cloud-amd64", "6.12.118-1~deb12u1"},
			{"linux-image-6.12.94+deb13-cloud-amd64", "6.12.94-1"},
		}},
		{"6.1", []candidate{
			{"linux-image-6.1.0-57-cloud-amd64", "6.1.192-3"},
			{"linux-image-6.1.0-0.deb11.52-cloud-amd64", "6.1.180-1~deb11u1"},
		}},
		{"7.3", []candidate{
			{"linux-binary-7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1"},
			{"linux-binary-7.3-cloud-amd64", "7.3~rc7-1~exp1"},
		}},
		{"7.4", nil},
	} {
		got, err := candidates(strings.NewReader(available), c.series, amd64)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v (%v), want %v", c.series, got, err, c.want)
		}
	}
}

func TestPackages(t *testing.T) {
	for name, want := range map[string][]string{
		"linux-image-6.1.0-57-cloud-amd64":     {"linux-image-6.1.0-57-cloud-amd64"},
		"linux-binary-7.3.4+deb13-cloud-amd64": {"linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64"},
		"linux-binary-7.3-cloud-amd64":         {"linux-binary-7.3-cloud-amd64"},
	} {
		if got := (candidate{Package: name}).packages([]byte(available)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	// Ascending, as deb-version(7) orders.
	ascending := []string{
		"5.10.99-1", "5.10.262-1", "6.1.180-1~deb11u1", "6.1.180-1", "6.1.192-3", "6.1.192-10", "6.12.9-1", "6.12.9-1+b1", "6.12.95-1~bpo12+1",
		"6.12.95-1", "7.3~rc7-1~exp1", "7.3-1", "7.3a-1", "7.3+dfsg-1", "7.3.4-1",
	}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := compareVersions(a, b), sign(i-j); got != want {
				t.Errorf("%s and %s: got %d, want %d", a, b, got, want)
			}
		}
	}
	if compareVersions("1.02-1", "1.2-1") != 0 {
		t.Error("leading zeros count")
	}
}

func TestCachedKernels(t *testing.T) {
	f := &fetcher{cache: t.TempDir(), say: t.Logf, unreachable: errors.New("no mirror")}
	for _, v := range []string{"6.1.99-1", "6.1.192-3", ".new-1"} {
		if err := os.MkdirAll(filepath.Join(f.cache, "kernels", "6.1", v), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	k, err := f.kernel(context.Background(), []string{"6.2", "6.1"})
	if err != nil || k.Version != "6.1.192-3" || k.Series != "6.1" || k.Stale != "no mirror" {
		t.Errorf("got %+v, %v", k, err)
	}
	if _, err := f.kernel(context.Background(), []string{"6.2"}); !errors.Is(err, errNotToBeHad) {
		t.Errorf("got %v, want errNotToBeHad", err)
	}
}

// The newest candidate is gone from the pool: the next one is in the cache.
func TestNextCandidate(t *testing.T) {
	f := &fetcher{cache: t.TempDir(), say: t.Logf, lists: []byte(available), apt: &apt{filepath.Join(t.TempDir(), "none")}}
	dir := filepath.Join(f.cache, "kernels", "6.1", "6.1.180-1~deb11u1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vmlinuz"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // no apt
	k, err := f.kernel(context.Background(), []string{"6.1"})
	if err != nil || k.Dir != dir {
		t.Errorf("got %+v, %v, want %s", k, err, dir)
	}
	if left, _ := filepath.Glob(filepath.Join(f.cache, "kernels", "6.1", ".new-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestExtract(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{
		"./boot/vmlinuz-6.1": "kernel", "./boot/config-6.1": "no",
		"./lib/modules/6.1/kernel/fs/overlayfs/overlay.ko": "module", "./lib/modules/6.1/kernel/fs/fuse/fuse.ko": "no",
	} {
		w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		w.Write([]byte(text))
	}
	w.WriteHeader(&tar.Header{Name: "./vmlinuz", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	w.Close()
	dir := t.TempDir()
	if err := extract(context.Background(), tar.NewReader(&b), dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"vmlinuz": "kernel", "overlay.ko": "module"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want {
			t.Errorf("%s: got %q (%v), want %q", name, got, err, want)
		}
	}
	if all, _ := os.ReadDir(dir); len(all) != 2 {
		t.Errorf("got %d files", len(all))
	}
}

func TestLockWaits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	release, err := lock(ctx, file, func() { t.Error("it waited for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	waited := 0
	if _, err := lock(ctx, file, func() { waited++ }); !errors.Is(err, context.DeadlineExceeded) || waited != 1 {
		t.Errorf("a lock that is held: %v, waited %d times", err, waited)
	}
	release()
	release, err = lock(context.Background(), file, func() { t.Error("it waited for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	release()
}
