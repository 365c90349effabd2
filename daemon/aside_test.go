package daemon

import (
	"testing"
	"time"
)

// TestAside: what takes long aside has nobody else wait, and few goroutines are kept.
func TestAside(t *testing.T) {
	hold, done := make(chan bool), make(chan bool)
	const n = 3 * idleAsides
	for range n {
		go func() {
			aside(func() { <-hold })
			done <- true
		}()
	}
	did := make(chan bool)
	go func() {
		ran := false
		aside(func() { ran = true })
		did <- ran
	}()
	select {
	case ran := <-did:
		if !ran {
			t.Error("it was not waited for")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("one waits for the others")
	}
	close(hold)
	for range n {
		<-done
	}
	for end := time.Now().Add(10 * time.Second); waiting.Load() > idleAsides; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d are kept", waiting.Load())
		}
	}
}
