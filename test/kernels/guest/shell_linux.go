package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// shell runs an interactive shell on the console until it ends.
func shell() error {
	// Not /dev/console, which cannot be a controlling terminal, without which
	// there is no job control.
	tty, err := os.OpenFile(consoleLine, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-i")
	cmd.Dir = homes[0]
	cmd.Env = environment(0, []string{"TERM=vt100"})
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the shell: %w", err)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // reapUntil waits for it
	_, err = reapUntil(pid)
	return err
}
