package sys

import (
	"runtime"
	"sync/atomic"
)

// MaxProcs is the GOMAXPROCS for which [SpareThreads] makes sure that Go's runtime
// needs no new thread. A launcher that may run with more should lower it.
const MaxProcs = 4

// SpareThreads leaves the runtime with as many idle threads as it can put to
// use: one for each processor, one for a loop when it waits in the kernel, one
// that waits for timers and files, and four more for what else a launcher waits
// for in system calls (its worker, its files), and more if the caller knows of such. A worker that exhausts
// the limit on processes would end its launcher otherwise: the runtime throws if
// clone(2) gives it no thread.
//
// Goroutines that are locked to their threads at the same time have that many
// threads, and the runtime keeps every thread that it has; where it has enough
// this costs some wake-ups. The threads are there when the channel is closed.
func SpareThreads(more int) <-chan struct{} {
	var missing atomic.Int32
	missing.Store(int32(min(runtime.GOMAXPROCS(0), MaxProcs) + 6 + more))
	all := make(chan struct{})
	for range missing.Load() {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if missing.Add(-1) == 0 {
				close(all)
			}
			<-all
		}()
	}
	return all
}
