//go:build !linux

// Command guest is the init of a Linux test guest.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "guest: this is the init of a Linux machine")
	os.Exit(1)
}
