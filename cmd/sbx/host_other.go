//go:build !linux

package main

import "golang.org/x/sys/unix"

func hideFromWorker() {}

func limitThreads() {}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
