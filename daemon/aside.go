package daemon

import "sync/atomic"

// idleAsides is how many goroutines wait for something to do aside.
const idleAsides = 4

var (
	asides  = make(chan func())
	waiting atomic.Int32
)

// aside runs f on another goroutine, and waits for it. It is for what takes a large
// stack, once, in the life of a goroutine that waits from then on: its stack would stay
// as large, for each worker.
func aside(f func()) {
	done := make(chan struct{})
	job := func() {
		defer close(done)
		f()
	}
	select {
	case asides <- job:
	default:
		go runAsides(job)
	}
	<-done
}

func runAsides(job func()) {
	for {
		job()
		if waiting.Add(1) > idleAsides {
			waiting.Add(-1)
			return
		}
		job = <-asides
		waiting.Add(-1)
	}
}
