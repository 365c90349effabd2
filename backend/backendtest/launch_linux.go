package backendtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"

	"sandboxd/backend"
	"sandboxd/backend/backendtest/attempt"
	"sandboxd/policy"
)

// batchTime bounds one batch of attempts: some seconds where programs start
// slowly, and some attempts that block.
const batchTime = 3 * time.Minute

// starter starts the probe with the given arguments and standard descriptors.
type starter func(argv []string, stdin, stdout, stderr *os.File) (wait func() error, kill func(), err error)

// batch runs attempts in one worker and returns their results by id.
func batch(start starter, probe string, requests []attempt.Request) (map[string]attempt.Result, error) {
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, r := range requests {
		if err := enc.Encode(r); err != nil {
			return nil, err
		}
	}
	out, log, err := piped(start, []string{probe, "-batch"}, &in)
	results := map[string]attempt.Result{}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var r attempt.Result
		if derr := dec.Decode(&r); errors.Is(derr, io.EOF) {
			break
		} else if derr != nil {
			return nil, fmt.Errorf("reading results: %w (worker: %v)\n%s", derr, err, log)
		}
		results[r.ID] = r
	}
	if err != nil {
		return nil, fmt.Errorf("the probe after %d of %d results: %w\n%s", len(results), len(requests), err, log)
	}
	return results, nil
}

// piped runs a worker with pipes for all three descriptors.
func piped(start starter, argv []string, input io.Reader) (out, log []byte, err error) {
	var ends [3][2]*os.File
	for i := range ends {
		if ends[i][0], ends[i][1], err = os.Pipe(); err != nil {
			return nil, nil, err
		}
		defer ends[i][0].Close()
		defer ends[i][1].Close()
	}
	wait, kill, err := start(argv, ends[0][0], ends[1][1], ends[2][1])
	for _, f := range []*os.File{ends[0][0], ends[1][1], ends[2][1]} {
		_ = f.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	timer := time.AfterFunc(batchTime, kill)
	defer timer.Stop()
	go func() {
		_, _ = io.Copy(ends[0][1], input)
		_ = ends[0][1].Close()
	}()
	logged := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(ends[2][0])
		logged <- b
	}()
	out, rerr := io.ReadAll(ends[1][0])
	err = errors.Join(wait(), rerr)
	return out, <-logged, err
}

// unconfined starts the probe as any program starts another, with everything
// that the launcher has.
func unconfined(dir string, env []string) starter {
	return func(argv []string, stdin, stdout, stderr *os.File) (func() error, func(), error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
		if err := cmd.Start(); err != nil {
			return nil, nil, err
		}
		return cmd.Wait, func() { _ = cmd.Process.Kill() }, nil
	}
}

// confined starts the probe under a prepared plan and keeps the worker's result.
func confined(pr backend.Prepared, dir string, result *backend.Result) starter {
	return func(argv []string, stdin, stdout, stderr *os.File) (func() error, func(), error) {
		d, err := os.Open(dir)
		if err != nil {
			return nil, nil, err
		}
		defer d.Close()
		w, err := pr.Start(backend.Command{Path: argv[0], Argv: argv, Dir: d, Stdin: stdin, Stdout: stdout, Stderr: stderr})
		if err != nil {
			return nil, nil, err
		}
		wait := func() error {
			*result = w.Wait()
			if o := result.Outcome; o.Kind != backend.Exited || o.ExitStatus() != 0 {
				return fmt.Errorf("the worker's outcome is %s, status %d %s", o.Kind, o.ExitStatus(), o.Reason)
			}
			return nil
		}
		return wait, func() { _ = w.Signal(os.Kill) }, nil
	}
}

// Unconfined is a backend that claims what another enforces and confines
// nothing: the suite must refuse it, row by row.
type Unconfined struct{ backend.Backend }

// Plan plans as the other does.
func (u Unconfined) Plan(p policy.Policy) (backend.Plan, error) {
	plan, err := u.Backend.Plan(p)
	if err != nil {
		return nil, err
	}
	return unconfinedPlan{plan, p}, nil
}

type unconfinedPlan struct {
	backend.Plan
	policy policy.Policy
}

func (p unconfinedPlan) Prepare() (backend.Prepared, error) { return unconfinedPrepared{p}, nil }

type unconfinedPrepared struct{ plan unconfinedPlan }

func (unconfinedPrepared) Close() error { return nil }

func (p unconfinedPrepared) Start(c backend.Command) (backend.Worker, error) {
	temp, err := os.MkdirTemp("", "sbx-unconfined-")
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{Path: c.Path, Args: c.Argv, Dir: p.plan.policy.Cwd(), Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}
	cmd.Env = slices.Concat(os.Environ(), p.plan.policy.Env(), []string{"TMPDIR=" + temp})
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp))
	}
	return &unconfinedWorker{cmd: cmd, plan: p.plan, temp: temp}, nil
}

type unconfinedWorker struct {
	cmd  *exec.Cmd
	plan unconfinedPlan
	temp string
}

func (w *unconfinedWorker) PID() int                   { return w.cmd.Process.Pid }
func (w *unconfinedWorker) Signal(sig os.Signal) error { return w.cmd.Process.Signal(sig) }

func (w *unconfinedWorker) Wait() backend.Result {
	_ = w.cmd.Wait()
	_ = os.RemoveAll(w.temp)
	return backend.Result{Outcome: backend.ExitedWith(w.cmd.ProcessState.ExitCode()), Enforcement: w.plan.Enforcement()}
}

func (w *unconfinedWorker) Stop(time.Duration) bool { return w.cmd.Process.Kill() == nil }
