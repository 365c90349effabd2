//go:build !linux

// Command abicap makes Landlock look older than it is. It works on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "abicap: Landlock and seccomp are Linux's")
	os.Exit(125)
}
