package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// limitThreads keeps the number of threads that this process may want small
// enough to have them all before a worker runs (sys.SpareThreads): a worker
// that exhausts the limit on processes must not end its launcher.
func limitThreads() {
	if runtime.GOMAXPROCS(0) > sys.MaxProcs {
		runtime.GOMAXPROCS(sys.MaxProcs)
	}
}

// enoughRoom refuses limits with which this process would run into them half way:
// Go's runtime ends it then, and nobody removes what it had made.
func enoughRoom() error {
	for _, l := range []struct {
		resource int
		name     string
		least    uint64
		rootToo  bool
	}{
		{unix.RLIMIT_NOFILE, "open files (ulimit -n)", 48, true},
		{unix.RLIMIT_NPROC, "processes and threads (ulimit -u)", 32, false}, // root has no such limit
		{unix.RLIMIT_AS, "bytes of address space (ulimit -v)", 2 << 30, true},
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(l.resource, &now); err == nil && now.Cur < l.least && (l.rootToo || os.Geteuid() != 0) {
			return refuse(fmt.Sprintf("allow %d, and limit the command with sbx's own flags", l.least), "this process may have %d %s, which is too little for a launch", now.Cur, l.name)
		}
	}
	return nil
}

// hideFromWorker keeps same-user processes, a worker's among them, from
// reading this process' memory and environment. Landlock does so already; this
// holds where Landlock is not (danger-full-access).
func hideFromWorker() {
	// It cannot fail with these arguments, and nothing rests on it alone.
	_ = sys.SetUndumpable()
}
