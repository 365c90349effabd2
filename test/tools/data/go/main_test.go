package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestGreeting(t *testing.T) {
	if got, want := greeting("you"), "hello, you"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTempDir(t *testing.T) {
	if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), nil, 0o600); err != nil {
		t.Error(err)
	}
}
