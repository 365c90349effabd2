//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
)

// namespaces measures launches with namespaces of the worker's own, with a root of
// its own of all that is granted, beside bwrap with the same namespaces and a root
// of one mount.
func (b *bench) namespaces() error {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		fmt.Println("SKIP namespaces: no bwrap to compare with")
		return nil
	}
	ws := b.dir("namespaces")
	p, err := b.policy(ws)
	if err != nil {
		return err
	}
	dir, err := os.Open(ws)
	if err != nil {
		return err
	}
	defer dir.Close()
	var launches []func() error
	for _, o := range []landlock.Options{{Namespaces: true}, {}} {
		plan, err := landlock.New(o).Plan(p)
		var prepared backend.Prepared
		if err == nil {
			prepared, err = plan.Prepare()
		}
		if err != nil {
			return err
		}
		defer prepared.Close()
		launches = append(launches, func() error { return b.launch(prepared, dir) })
	}
	args := []string{"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/true"}
	budget := 0.6
	if os.Geteuid() != 0 {
		args = append([]string{"--unshare-user"}, args...)
		budget = 1.0
	}
	if os.Getenv("ONE") != "" {
		for range b.n {
			if err := launches[0](); err != nil {
				return err
			}
		}
		return nil
	}
	launches = append(launches, func() error {
		c := exec.Command(bwrap, args...)
		c.Dir, c.Env, c.Stdin, c.Stdout, c.Stderr = ws, []string{}, b.null, b.null, b.null
		return c.Run()
	})
	med, err := rounds(b.n, launches...)
	if err != nil {
		return err
	}
	say("library launch, native", med[0], med[2], "bwrap with the same namespaces", budget)
	say("library launch, landlock", med[1], med[2], "bwrap with the same namespaces", budget)
	return nil
}
