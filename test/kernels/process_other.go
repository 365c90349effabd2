//go:build unix && !linux

package main

import "syscall"

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func endWithGoRun() {}
