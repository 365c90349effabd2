package backend

import (
	"fmt"
	"os"
	"time"

	"sandboxd/dialect"
	"sandboxd/policy"
)

// Backend compiles policies for one mechanism and launches workers under it.
type Backend interface {
	// Name is the backend's word in --backend and in reports.
	Name() string
	// Probe tells what this host can do, without starting a worker.
	Probe() Capability
	// Plan compiles a policy. It is pure: what it knows of the host it was
	// given by a probe. An error means that the policy cannot be expressed.
	Plan(policy.Policy) (Plan, error)
}

// Plan is a policy compiled for one backend on one host.
type Plan interface {
	// Enforcement is what the plan would enforce, effect by effect.
	Enforcement() Enforcement
	// Describe returns the plan as a value for --dry-run: JSON-able, with
	// nothing hidden.
	Describe() any
	// Prepare makes the kernel objects that launches share.
	Prepare() (Prepared, error)
}

// Prepared launches any number of workers under one policy, several at once.
type Prepared interface {
	// Start launches one worker. The errors are *SetupError and *ExecError.
	Start(Command) (Worker, error)
	// Close frees the kernel objects. Live workers are not touched.
	Close() error
}

// Command is what one launch runs.
type Command struct {
	// Path is the executable, absolute. Argv[0] may differ from it.
	Path string
	Argv []string
	// Dir is where the worker starts, as a handle.
	Dir *os.File
	// Stdin, Stdout and Stderr are passed unchanged and must not be nil: a
	// worker's descriptors are exactly these and Files.
	Stdin, Stdout, Stderr *os.File
	Files                 []File
	// UnsafeFiles lets Files hold what leads on to more than itself, such as a
	// socket or a directory. The enforcement then says what that takes.
	UnsafeFiles bool
	// Terminal tells that the three are one terminal that is the worker's own: it
	// gets a session of its own, with that as its controlling terminal.
	Terminal bool
	// OwnTree tells that this process has no other worker, so that every
	// orphan that reaches it belongs to this one and may be ended with it.
	OwnTree bool
	// Begin, if it is set, is called once all that the launch takes is made and nothing
	// is left but to start the worker, which an error keeps from being started. It is
	// for what has to be over by then and can go on meanwhile. Only a [Beginner] knows it.
	Begin func() error
}

// Beginner is a backend that calls [Command].Begin. For all others it has to be over
// before Start.
type Beginner interface{ Begins() bool }

// Worker is a launched process tree.
type Worker interface {
	// PID is the root process' pid in the caller's namespace.
	PID() int
	// Signal sends a signal to the root process.
	Signal(os.Signal) error
	// Stop asks the whole tree to end, kills it when grace is over, and returns
	// at once. It reports whether the root process was alive: if not, its end is
	// its own. grace 0 kills at once.
	Stop(grace time.Duration) bool
	// Wait blocks until the worker has ended and its tree is gone, and tells
	// the truth about it. It may be called once.
	Wait() Result
}

// Result is what is known of a worker that has ended.
type Result struct {
	Outcome     Outcome
	Enforcement Enforcement
	Denials     []Denial
	// DenialsLost counts the denials that were not kept (too many).
	DenialsLost int
	// Survivors are processes of the tree that could not be ended.
	Survivors []int
	// Warnings are sentences about what went wrong beside the outcome.
	Warnings []string
	// Usage is what the tree used, as far as it is known.
	Usage *Usage
	// Descriptors are those that the worker was given beside the standard ones.
	Descriptors []Descriptor
}

// Capability is what a probe found.
type Capability struct {
	Backend string `json:"backend"`
	Usable  bool   `json:"usable"`
	// Reason and Fix say why it is not usable and what exactly would help.
	Reason string `json:"reason,omitempty"`
	Fix    string `json:"fix,omitempty"`
	// Facts are the host's facts that a plan depends on.
	Facts any `json:"facts,omitempty"`
	// Effects is what a workspace-write policy without a network would get
	// here; [Describe] fills it in.
	Effects map[policy.Effect]State `json:"effects,omitempty"`
	Dialect *dialect.Dialect        `json:"dialect,omitempty"`
	// DenialsCover says which denials this backend can observe on this host.
	DenialsCover []string `json:"denials_cover,omitempty"`
}

// Describe probes a backend and adds what it would enforce for the usual
// policy: workspace-write without a network.
func Describe(b Backend) Capability {
	c := b.Probe()
	if !c.Usable {
		return c
	}
	p := Usual()
	plan, err := b.Plan(p)
	if err != nil {
		c.Usable, c.Reason = false, err.Error()
		return c
	}
	c.Effects = plan.Enforcement().Map()
	return c
}

// RefusalError is a launch that was refused before anything ran.
type RefusalError struct {
	Reason string
	Hint   string
}

func (e *RefusalError) Error() string { return e.Reason }

// Refuse makes a refusal.
func Refuse(hint, format string, args ...any) error {
	return &RefusalError{Reason: fmt.Sprintf(format, args...), Hint: hint}
}
