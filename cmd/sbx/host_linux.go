package main

import (
	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// hideFromWorker keeps same-user processes, a worker's among them, from
// reading this process' memory and environment. Landlock does so already; this
// holds where Landlock is not (danger-full-access).
func hideFromWorker() {
	// It cannot fail with these arguments, and nothing rests on it alone.
	_ = sys.SetUndumpable()
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
