package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"time"

	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// attemptTime bounds one attempt, so that a call that blocks is a result too.
// A process start takes a loaded machine without hardware virtualization some
// tenths of a second.
var attemptTime = 10 * time.Second

// batch makes attempts one after the other.
func batch(in io.Reader, out io.Writer) error {
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	common := &server{self: self}
	defer common.close()
	for {
		var req attempt.Request
		if err := dec.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an attempt: %w", err)
		}
		try := common.attempt
		if ops[req.Op].in == alone {
			try = func(req attempt.Request) attempt.Result { return attemptAlone(self, req) }
		}
		if err := enc.Encode(try(req)); err != nil {
			return fmt.Errorf("writing a result: %w", err)
		}
	}
}

// attemptAlone makes an attempt in a process of its own.
func attemptAlone(self string, req attempt.Request) attempt.Result {
	read, write, err := os.Pipe()
	if err != nil {
		return unmade(req, err)
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
		return unmade(req, err)
	}
	timer := time.AfterFunc(attemptTime, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	if r, cut := cutShort(req, cmd, timer); cut {
		return r
	}
	_ = read.SetReadDeadline(time.Now().Add(time.Second)) // a child of it may hold the other end
	var got attempt.Result
	if derr := json.NewDecoder(read).Decode(&got); derr != nil {
		return unmade(req, fmt.Errorf("no result (%v): %v", derr, err))
	}
	got.ID = req.ID
	return got
}

// unmade is the result of an attempt that there was none of.
func unmade(req attempt.Request, err error) attempt.Result {
	return attempt.Result{ID: req.ID, Op: req.Op, Errno: "setup", Detail: policy.Raw(err.Error())}
}

// cutShort is the result of an attempt that its time limit, or a signal, has
// ended together with its process.
func cutShort(req attempt.Request, cmd *exec.Cmd, timer *time.Timer) (attempt.Result, bool) {
	r := attempt.Result{ID: req.ID, Op: req.Op}
	if !timer.Stop() {
		r.Errno, r.Detail = "timeout", "the attempt did not end"
		return r, true
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Signal = signalName(ws.Signal())
		return r, true
	}
	return r, false
}

// server is the process that attempts share. It is started with the first, and
// anew after one that has ended it.
type server struct {
	self     string
	cmd      *exec.Cmd
	requests *os.File
	results  *os.File
	decoder  *json.Decoder
}

func (s *server) attempt(req attempt.Request) attempt.Result {
	if s.cmd == nil {
		if err := s.start(); err != nil {
			return unmade(req, err)
		}
	}
	cmd := s.cmd
	timer := time.AfterFunc(attemptTime, func() { _ = cmd.Process.Kill() })
	var got attempt.Result
	err := json.NewEncoder(s.requests).Encode(req)
	if err == nil {
		err = s.decoder.Decode(&got)
	}
	if err == nil && timer.Stop() {
		return got
	}
	werr := s.close()
	if r, cut := cutShort(req, cmd, timer); cut {
		return r
	}
	return unmade(req, fmt.Errorf("no result (%v): %v", err, werr))
}

func (s *server) start() error {
	theirRequests, requests, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirRequests.Close()
	results, theirResults, err := os.Pipe()
	if err != nil {
		_ = requests.Close()
		return err
	}
	defer theirResults.Close()
	cmd := exec.Command(s.self, "-serve")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirRequests, theirResults}
	if err := cmd.Start(); err != nil {
		_, _ = requests.Close(), results.Close()
		return err
	}
	s.cmd, s.requests, s.results, s.decoder = cmd, requests, results, json.NewDecoder(results)
	return nil
}

// close ends the process, if there is one: it has nobody to serve any more.
func (s *server) close() error {
	if s.cmd == nil {
		return nil
	}
	_, _ = s.requests.Close(), s.results.Close()
	err := s.cmd.Wait()
	s.cmd = nil
	return err
}

// serve makes the attempts of others in this process, and closes what each
// leaves open.
func serve(in io.Reader, out io.Writer) error {
	debug.SetGCPercent(-1) // a finalizer could close a descriptor of a later attempt
	free, err := gaps()
	if err != nil {
		return fmt.Errorf("looking at the descriptors: %w", err)
	}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var req attempt.Request
		if err := dec.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an attempt: %w", err)
		}
		args := make([]string, len(req.Args))
		for i, a := range req.Args {
			args[i] = string(a)
		}
		r := perform(req.Op, args)
		r.ID = req.ID
		if err := closeAll(free); err != nil {
			return fmt.Errorf("closing what %q left: %w", req.Op, err)
		}
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("writing a result: %w", err)
		}
	}
}
