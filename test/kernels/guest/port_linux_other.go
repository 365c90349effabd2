//go:build linux && !amd64

package main

import "errors"

// The serial lines: the board's own for people, and one on its bus for records.
const (
	consoleLine = "/dev/ttyAMA0"
	resultsLine = "/dev/ttyS0"
)

// writePort says that there is none: a power-off ends the machine, and its last
// record tells what it came to.
func writePort(uint16, byte) error { return errors.New("this architecture has no I/O ports") }
