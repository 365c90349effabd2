package backend

import (
	"fmt"
	"syscall"
)

// OutcomeKind is how a launch ended. The zero value is invalid.
type OutcomeKind string

// The kinds. Each comes from a channel that the worker cannot write to (wait
// status, exec's own errno, the launcher's own steps), never from text.
const (
	// Exited: the worker ended by itself with Code.
	Exited OutcomeKind = "exited"
	// Signaled: a signal ended the worker.
	Signaled OutcomeKind = "signaled"
	// TimedOut: the launcher ended it because its time was up.
	TimedOut OutcomeKind = "timed-out"
	// LimitHit: a limit (Which) ended it.
	LimitHit OutcomeKind = "limit"
	// Canceled: the caller ended it.
	Canceled OutcomeKind = "canceled"
	// SetupFailed: a launch step (Step) failed; the command never ran.
	SetupFailed OutcomeKind = "setup-failed"
	// ExecFailed: the kernel refused to execute the command; it never ran.
	ExecFailed OutcomeKind = "exec-failed"
	// Refused: the launcher refused before anything was started.
	Refused OutcomeKind = "refused"
)

// Outcome is how a launch ended. Which fields are set depends on Kind.
type Outcome struct {
	Kind OutcomeKind `json:"kind"`
	// Code is the exit status of Exited.
	Code *int `json:"code,omitempty"`
	// Signal is the number of Signaled's signal, SignalName its name.
	Signal     int    `json:"signal,omitempty"`
	SignalName string `json:"signal_name,omitempty"`
	// CoreDumped tells that Signaled wrote a core.
	CoreDumped bool `json:"core_dumped,omitempty"`
	// Which names LimitHit's limit.
	Which string `json:"which,omitempty"`
	// Step names SetupFailed's step as docs/launch-order.md does.
	Step string `json:"step,omitempty"`
	// Errno is the symbolic errno of SetupFailed and ExecFailed: "EACCES".
	Errno string `json:"errno,omitempty"`
	// Reason is a sentence for Refused, SetupFailed and ExecFailed.
	Reason string `json:"reason,omitempty"`
}

// The exit statuses of `sbx run` beside the command's own.
const (
	StatusTimedOut      = 124
	StatusRefused       = 125
	StatusCannotExecute = 126
	StatusNotFound      = 127
)

// ExitedWith is the outcome of a command that ended by itself.
func ExitedWith(code int) Outcome { return Outcome{Kind: Exited, Code: &code} }

// ExitStatus is what a shell-like caller exits with for the outcome.
func (o Outcome) ExitStatus() int {
	switch o.Kind {
	case Exited:
		if o.Code != nil {
			return *o.Code
		}
	case Signaled:
		return 128 + o.Signal
	case TimedOut:
		return StatusTimedOut
	case LimitHit, Canceled:
		return 128 + int(syscall.SIGKILL)
	case ExecFailed:
		if o.Errno == "ENOENT" {
			return StatusNotFound
		}
		return StatusCannotExecute
	}
	return StatusRefused
}

// SetupError is a launch step that failed. Nothing ran.
type SetupError struct {
	// Step is the step's name in docs/launch-order.md.
	Step string
	Err  error
	Hint string
}

func (e *SetupError) Error() string {
	return fmt.Sprintf("setting up the worker (%s): %v", e.Step, e.Err)
}

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.Err }

// ExecError is the kernel's refusal to execute the command. Nothing ran.
type ExecError struct {
	Path  string
	Errno syscall.Errno
}

func (e *ExecError) Error() string { return fmt.Sprintf("executing %q: %v", e.Path, e.Errno) }

// Unwrap returns the errno.
func (e *ExecError) Unwrap() error { return e.Errno }
