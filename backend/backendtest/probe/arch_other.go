//go:build linux && !amd64

package main

import "golang.org/x/sys/unix"

// linkAsLibc and unlinkAsLibc use the calls that glibc uses here.
func linkAsLibc(a, b string) error { return unix.Link(a, b) }

func unlinkAsLibc(a string) error { return unix.Unlink(a) }
