//go:build !linux

package main

import (
	"os"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
)

// Other systems have no subreaper, and so no use for a keeper.
var keeper *os.File

func findKeeper() bool                            { return false }
func keep(bool, bool) (*cgroup.Host, bool, error) { return nil, false, nil }
func keepUnconfined([]backend.Backend, *cgroup.Host, bool) (bool, error) {
	return false, nil
}
func endWithKeeper(backend.Worker) {}
