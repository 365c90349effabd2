// Command guest is the init (process 1) of a QEMU test guest. It finds out what
// the kernel offers, runs the jobs of [wire.JobsFile], sends what became of them
// over the second serial line, and ends the machine.
//
// People read its progress on the console. With sbx.shell on the kernel command
// line it runs no job, but a shell on the console.
//
// A job that runs as root could read the machine's key from this process: the
// key is against accidents and against ordinary users.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/test/kernels/wire"
)

// The guest's exit codes: QEMU exits with twice the code plus one.
const (
	exitDone   = 0 // every job has its Result
	exitFailed = 1 // the console says why
)

// initFile is this program, where its children find it.
const initFile = "/init"

func main() {
	// The arguments of process 1 are kernel parameters that the kernel does not
	// know. Its children's are ours.
	if os.Getpid() != 1 {
		os.Exit(child(os.Args[1:]))
	}
	start := time.Now()
	code := exitDone
	if err := guest(start); err != nil {
		say("FAILED: %v", err)
		code = exitFailed
	}
	say("ends with code %d after %v", code, time.Since(start).Round(time.Millisecond))
	powerOff(code)
}

// say writes a line for people.
func say(format string, args ...any) { fmt.Printf("guest: "+format+"\n", args...) }

// guest does everything between boot and power-off.
func guest(start time.Time) error {
	// Before anything else is there that could look: the key must be gone, and
	// this memory be shut.
	key, keyErr := takeKey(wire.KeyFile)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming non-dumpable: %w", err)
	}
	// Go's default for these is to end the process, and the kernel panics with it.
	// Not signal.Ignore, which the jobs would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := switchRoot(); err != nil {
		return err
	}
	var setup troubles
	prepare(&setup)
	if hasParameter(readLine("/proc/cmdline"), "sbx.shell") {
		setup.say()
		return shell()
	}
	if keyErr != nil {
		return keyErr
	}
	line, err := openLine(resultsLine)
	if err != nil {
		return fmt.Errorf("opening the results' serial line: %w", err)
	}
	results := wire.NewWriter(line, key)
	jobs, jobsErr := readJobs(wire.JobsFile)
	if jobsErr != nil {
		jobsErr = fmt.Errorf("reading the jobs: %w", jobsErr)
		setup = append(setup, jobsErr.Error())
	}
	setup.say()

	facts := findFacts(setup)
	if err := results.Send(wire.Record{Facts: &facts}); err != nil {
		return err
	}
	for _, j := range jobs {
		if err := report(results, j); err != nil {
			return err // the line's: nobody would hear of the others
		}
	}
	err = results.Send(wire.Record{End: &wire.End{Millis: time.Since(start).Milliseconds()}})
	return errors.Join(err, drain(line), jobsErr)
}

// report runs a job between its two records.
func report(results *wire.Writer, j wire.Job) error {
	say("job %s begins", j.Name)
	if err := results.Send(wire.Record{Begin: j.Name}); err != nil {
		return err
	}
	r := run(j, results.Stream(j.Name, false), results.Stream(j.Name, true))
	say("%s", summary(r))
	return results.Send(wire.Record{Result: &r})
}

func summary(r wire.Result) string {
	s := fmt.Sprintf("job %s ends: exit %d after %d ms", r.Name, r.Exit, r.Millis)
	if r.TimedOut {
		s += ", at its time limit"
	}
	if r.Trouble != "" {
		s += "; " + r.Trouble
	}
	return s
}

func readJobs(path string) ([]wire.Job, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var jobs []wire.Job
	return jobs, json.Unmarshal(b, &jobs)
}

// hasParameter tells whether a kernel command line has a parameter without a value.
func hasParameter(commandLine, name string) bool {
	return slices.Contains(strings.Fields(commandLine), name)
}

// troubles collects what went wrong without stopping the machine.
type troubles []string

func (t *troubles) add(doing string, err error) {
	if err != nil {
		*t = append(*t, fmt.Sprintf("%s: %v", doing, err))
	}
}

func (t troubles) say() {
	for _, s := range t {
		say("trouble: %s", s)
	}
}
