package daemon

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/internal/listen"
)

// TestFrontNeverServes: a daemon whose front cannot start says so, and ends. One that
// tried for ever would look like one that starts.
func TestFrontNeverServes(t *testing.T) {
	m, err := New(Options{
		Socket: listen.Options{Path: filepath.Join(t.TempDir(), "run", "s"), Mode: listen.User}, FrontPath: "/bin/false",
		Features: func() any { return nil }, NoAudit: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Run(t.Context(), 0) }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "the front cannot start") {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on trying")
	}
	select {
	case <-m.Begun():
		t.Error("it has begun")
	default:
	}
}
