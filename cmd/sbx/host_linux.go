package main

import (
	"runtime"

	"golang.org/x/sys/unix"

	"sandboxd/internal/supervise"
	"sandboxd/internal/sys"
)

// limitThreads keeps the number of threads that this process may want small
// enough for the supervisor to have them all before a worker runs: a worker
// that exhausts the limit on processes must not end its launcher.
func limitThreads() {
	if runtime.GOMAXPROCS(0) > supervise.MaxProcs {
		runtime.GOMAXPROCS(supervise.MaxProcs)
	}
}

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
