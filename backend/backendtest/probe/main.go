// Probe performs attempts to touch something and tells, as JSON, what came of
// each. The conformance suite runs it once confined and once unconfined: what
// is refused to the one and given to the other is the sandbox's doing.
//
//	probe OP ARGS...         one attempt, its result on stdout
//	probe -fd N OP ARGS...   one attempt, its result on descriptor N
//	probe -batch             attempts as JSON lines on stdin, one result a line
//	                         on stdout, each in a process of its own if it needs one
//	probe -serve             what -batch runs for the attempts that share a process
//	probe -pause [FILE]      holds FILE open until stdin ends
//	probe -become WHAT PROGRAM [ARG...]
//	                         becomes PROGRAM, after one change of itself
//	probe -ops               lists the attempts that this system has
//
// Attempts are single system calls as far as possible, made without a library
// that might fall back to another call in silence.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"

	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// op is one kind of attempt.
type op struct {
	args int // how many operands it takes
	run  func(args []string) (detail string, err error)
	in   place
}

// place is the process that -batch makes an attempt in.
type place uint8

const (
	// alone: in one of its own, as the attempt changes its process or thread, may
	// end it, waits for others, starts programs, or looks at what it inherited.
	alone place = iota
	// shared: in one with others. Whatever comes of it, the attempt leaves nothing
	// there but descriptors and mappings.
	shared
)

// ops is filled by the files of each system and architecture.
var ops = map[string]op{}

func register(more map[string]op) {
	for name, o := range more {
		if _, twice := ops[name]; twice {
			panic("probe: two attempts are named " + name)
		}
		ops[name] = o
	}
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "probe: %v\n", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: probe OP ARGS... | probe -batch | probe -pause [FILE] | probe -become WHAT PROGRAM [ARG...] | probe -ops")
	}
	switch args[0] {
	case "-batch":
		return batch(os.Stdin, os.Stdout)
	case "-serve":
		return serve(os.NewFile(3, "requests"), os.NewFile(4, "results"))
	case "-pause":
		return pause(args[1:])
	case "-become":
		return become(args[1:])
	case "-ops":
		return list()
	case "-fd":
		if len(args) < 3 {
			return errors.New("usage: probe -fd N OP [ARG]")
		}
		fd, err := strconv.Atoi(args[1])
		if err != nil {
			return fmt.Errorf("descriptor %q: %w", args[1], err)
		}
		return single(os.NewFile(uintptr(fd), "result"), args[2:])
	}
	return single(os.Stdout, args)
}

func list() error {
	names := make([]string, 0, len(ops))
	for name := range ops {
		names = append(names, name)
	}
	slices.Sort(names)
	return json.NewEncoder(os.Stdout).Encode(names)
}

// single performs one attempt in this process.
func single(out io.Writer, args []string) error {
	return json.NewEncoder(out).Encode(perform(args[0], args[1:]))
}

func perform(name string, args []string) attempt.Result {
	r := attempt.Result{Op: name}
	o, ok := ops[name]
	if !ok || len(args) != o.args {
		r.Errno, r.Detail = "unknown", policy.Raw(fmt.Sprintf("no attempt %q with %d operands", name, len(args)))
		return r
	}
	detail, err := o.run(args)
	if err != nil {
		r.Errno, r.Detail = errnoName(err), policy.Raw(err.Error())
		return r
	}
	r.OK, r.Detail = true, policy.Raw(detail)
	return r
}

func errnoName(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return "error"
	}
	return symbol(errno)
}
