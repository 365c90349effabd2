package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sysctlFile is a sysctl's file, by either of its names: kernel/panic or
// kernel.panic.
func sysctlFile(name string) string {
	if !strings.Contains(name, "/") {
		name = strings.ReplaceAll(name, ".", "/")
	}
	return filepath.Join("/proc/sys", name)
}

// writeSysctls writes all values and returns what undoes that, whatever the error.
func writeSysctls(values map[string]string) (restore func() error, err error) {
	before := map[string][]byte{}
	restore = func() (err error) {
		for file, old := range before {
			err = errors.Join(err, os.WriteFile(file, old, 0))
		}
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		file := sysctlFile(name)
		old, err := os.ReadFile(file)
		if err != nil {
			return restore, fmt.Errorf("sysctl %s: %w", name, err)
		}
		before[file] = bytes.TrimSpace(old)
		if err := os.WriteFile(file, []byte(values[name]), 0); err != nil {
			return restore, fmt.Errorf("sysctl %s: %w", name, err)
		}
	}
	return restore, nil
}
