//go:build !linux

// Command bench measures launches; it needs Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: the launches that it measures exist on Linux only")
	os.Exit(1)
}
