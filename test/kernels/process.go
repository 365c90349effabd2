//go:build unix

package main

import (
	"context"
	"os/exec"
	"syscall"
	"time"
)

// command is a program that ends with the context, and all that it started
// with it: go and nice have children that a signal to them alone would leave.
// It is in a process group of its own, so Ctrl-C reaches it through the context
// only.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = ownGroup()
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	// A grandchild that left the group may still hold the pipes.
	c.WaitDelay = 3 * time.Second
	return c
}
