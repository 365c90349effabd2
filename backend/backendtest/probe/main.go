// Probe performs attempts to touch something and tells, as JSON, what came of
// each. The conformance suite runs it once confined and once unconfined: what
// is refused to the one and given to the other is the sandbox's doing.
//
//	probe OP ARGS...         one attempt, its result on stdout
//	probe -fd N OP ARGS...   one attempt, its result on descriptor N
//	probe -batch             attempts as JSON lines on stdin, one result a line
//	                         on stdout, each attempt in a process of its own
//	probe -pause [FILE]      holds FILE open until stdin ends
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
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// op is one kind of attempt.
type op struct {
	args int // how many operands it takes
	run  func(args []string) (detail string, err error)
}

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
		return errors.New("usage: probe OP ARGS... | probe -batch | probe -pause [FILE] | probe -ops")
	}
	switch args[0] {
	case "-batch":
		return batch(os.Stdin, os.Stdout)
	case "-pause":
		return pause(args[1:])
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

// batch performs each attempt in a process of its own: an attempt may end its
// process, enter another session or leave descriptors open.
func batch(in io.Reader, out io.Writer) error {
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for {
		var req attempt.Request
		if err := dec.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an attempt: %w", err)
		}
		if err := enc.Encode(inChild(self, req)); err != nil {
			return fmt.Errorf("writing a result: %w", err)
		}
	}
}

// attemptTime bounds one attempt, so that a call that blocks is a result too.
const attemptTime = 4 * time.Second

func inChild(self string, req attempt.Request) attempt.Result {
	r := attempt.Result{ID: req.ID, Op: req.Op}
	read, write, err := os.Pipe()
	if err != nil {
		r.Errno, r.Detail = "setup", policy.Raw(err.Error())
		return r
	}
	defer read.Close()
	args := []string{"-fd", "3", req.Op}
	for _, a := range req.Args {
		args = append(args, string(a))
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{write}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		r.Errno, r.Detail = "setup", policy.Raw(err.Error())
		return r
	}
	timer := time.AfterFunc(attemptTime, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	if !timer.Stop() {
		r.Errno, r.Detail = "timeout", "the attempt did not end"
		return r
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Signal = signalName(ws.Signal())
		return r
	}
	_ = read.SetReadDeadline(time.Now().Add(time.Second))
	var got attempt.Result
	if derr := json.NewDecoder(read).Decode(&got); derr != nil {
		r.Errno, r.Detail = "setup", policy.Raw(fmt.Sprintf("no result (%v): %v", derr, err))
		return r
	}
	got.ID = req.ID
	return got
}
