package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"sandboxd/policy"
)

// hinted is an error with the next step, which is shown on a line of its own.
type hinted struct {
	error
	hint string
}

func (e hinted) Unwrap() error { return e.error }

func withHint(err error, hint string) error { return hinted{err, hint} }

// complain writes an error and its hint.
func complain(w io.Writer, err error) {
	fmt.Fprintf(w, "kernels: %v\n", err)
	var h hinted
	if errors.As(err, &h) {
		fmt.Fprintf(w, "kernels: hint: %s\n", h.hint)
	}
}

// tail is the last n lines of a text that are not blank, each escaped: what a
// guest or a tool printed must not steer the terminal.
func tail(text string, n int) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \t\r\n"); line != "" {
			lines = append(lines, printable(line))
		}
	}
	return lines[max(0, len(lines)-n):]
}

// printable escapes one line, and leaves tabs as blanks: test output is full
// of them.
func printable(s string) string {
	return policy.Printable(strings.ReplaceAll(s, "\t", "    "))
}
