package mounts

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Own is [Each] of what this process sees mounted.
func Own(visit func(Mount) bool) error {
	const name = "/proc/self/mountinfo"
	for {
		// Package os itself would ask its poller about the file.
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("opening %s: %w", name, err)
		}
		table := os.NewFile(uintptr(fd), name)
		defer table.Close()
		return Each(table, visit)
	}
}
