// Package attempt is what the conformance suite and its probe program say to
// each other: one attempt to touch something, and what came of it. Both travel
// as JSON lines, so that nothing is read out of a program's text.
package attempt

import (
	"sandboxd/policy"
)

// Request is one attempt.
type Request struct {
	// ID is the suite's own, returned unchanged.
	ID string `json:"id"`
	// Op names the attempt, Args its operands; see the probe's table.
	Op   string       `json:"op"`
	Args []policy.Raw `json:"args,omitempty"`
}

// Result is what came of an attempt. OK means that the touch succeeded.
type Result struct {
	ID string `json:"id,omitempty"`
	Op string `json:"op"`
	OK bool   `json:"ok"`
	// Errno is symbolic ("EACCES"); "error" for a failure that has none.
	Errno string `json:"errno,omitempty"`
	// Signal is the name of the signal that ended the attempt.
	Signal string `json:"signal,omitempty"`
	// Detail is what the attempt got hold of, or a failure's text.
	Detail policy.Raw `json:"detail,omitempty"`
}

// Ready is what a pausing probe prints when it is ready to be looked at.
type Ready struct {
	PID int `json:"pid"`
	// FD is the probe's descriptor of the file that it was given.
	FD int `json:"fd"`
	// Addr is where its copy of the file's text lies in memory.
	Addr uint64 `json:"addr"`
}

// Received is what a pausing probe prints when a signal reaches it.
type Received struct {
	Signal string `json:"signal"`
}
