// Package nofile remembers the limit of open files with which this process was
// started. Package syscall raises the soft limit of every Go program, and tells
// nobody what it was; programs that use select(2) or close all descriptors one
// by one depend on it (https://go.dev/issue/46279).
//
// It imports nothing, so that it is initialized before package syscall: packages
// are initialized in the order of their import paths once all that they import
// are ("Program initialization" in the Go specification).
package nofile

// Limit is a resource limit, as in getrlimit(2).
type Limit struct{ Cur, Max uint64 }

var start, ok = read()

// AtStart returns the limit that this process was started with; false where it
// is not known.
func AtStart() (Limit, bool) { return start, ok }
