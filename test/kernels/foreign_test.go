package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWantedFile(t *testing.T) {
	for name, want := range map[string]bool{
		"usr/bin/busybox": true, "usr/bin/test": true, "usr/bin/python3": true, "usr/sbin/x": true, "usr/lib/ld-linux-aarch64.so.1": true,
		"usr/lib/aarch64-linux-gnu/libc.so.6": true, "usr/lib/python3.13/socket.py": true,
		"usr/share/doc/x": false, "etc/passwd": false, "usr/lib/aarch64-linux-gnu/gconv/A.so": false, "usr/lib/python3.13/test/x.py": false,
		"usr/lib/python3.13/idlelib/x.py": false, "usr/lib/systemd/system/x": false,
	} {
		if got := wantedFile(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestFetchedDeb(t *testing.T) {
	const uris = "'http://mirror/pool/b_1%3a2_arm64.deb' b_1%3a2_arm64.deb 847552 SHA256:00\nReading lists...\n'http://mirror/x' a_1_all.deb 1 \n"
	var got []string
	for _, m := range fetchedDeb.FindAllStringSubmatch(uris, -1) {
		got = append(got, m[1])
	}
	if len(got) != 2 || got[0] != "b_1%3a2_arm64.deb" || got[1] != "a_1_all.deb" {
		t.Errorf("%q", got)
	}
}

// Without a mirror the programs that were fetched last do.
func TestCachedPrograms(t *testing.T) {
	f := &fetcher{cache: t.TempDir(), arch: arches[arm64], unreachable: os.ErrNotExist, say: func(string, ...any) {}}
	if _, err := f.programs(t.Context(), false); err == nil {
		t.Error("an empty cache has some")
	}
	for name, age := range map[string]time.Duration{"basic-ff": time.Hour, "basic-00": time.Minute, "userland-11": 0} {
		dir := filepath.Join(f.cache, "programs", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".deb"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(dir, when, when); err != nil {
			t.Fatal(err)
		}
	}
	debs, err := f.programs(t.Context(), false)
	if err != nil || len(debs) != 1 || filepath.Base(debs[0]) != "basic-00.deb" {
		t.Errorf("%q, %v", debs, err)
	}
}
