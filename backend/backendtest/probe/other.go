//go:build !linux

package main

import (
	"fmt"
	"runtime"
	"syscall"
)

func symbol(errno syscall.Errno) string { return errno.Error() }

func signalName(sig syscall.Signal) string { return sig.String() }

func pause([]string) error { return fmt.Errorf("not written for %s", runtime.GOOS) }

func become([]string) error { return fmt.Errorf("not written for %s", runtime.GOOS) }

func gaps() ([][2]uint, error) { return nil, fmt.Errorf("not written for %s", runtime.GOOS) }

func closeAll([][2]uint) error { return nil }
