//go:build !linux

package main

import (
	"sandboxd/backend"
)

// Other systems have no subreaper, and so no use for a keeper.
func findKeeper() bool             { return false }
func keep() (bool, error)          { return false, nil }
func endWithKeeper(backend.Worker) {}
