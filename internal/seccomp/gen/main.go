//go:build seccompgen && cgo && linux

// Command gen compiles the policy of package seccomp with libseccomp and writes
// one file per architecture and variant. Run it through "go generate" in
// internal/seccomp, or with the directory to write to as its argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"sandboxd/internal/seccomp"
)

func main() {
	dir := "programs"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := run(dir); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run compiles everything before it touches a file, so that an error leaves the
// committed programs as they were.
func run(dir string) error {
	files := map[string][]byte{}
	for _, arch := range seccomp.Arches() {
		for _, v := range seccomp.Variants() {
			name, program, err := seccomp.Compile(arch, v)
			if err != nil {
				return err
			}
			files[name] = program
		}
	}
	if err := removeOld(dir); err != nil {
		return err
	}
	for name, program := range files {
		if err := os.WriteFile(filepath.Join(dir, name), program, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeOld keeps files of variants that no longer exist from being shipped.
func removeOld(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.bpf"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}
