package protocol

import "strings"

// The comments of the members below are the tables of docs/protocol.md: a test
// writes them there (go test ./protocol -update).

// Peer names a program.
type Peer struct {
	// Its name.
	Name string `json:"name" is:"some,max=64"`
	// Its version, in its own form.
	Version string `json:"version" is:"max=64"`
}

// ClientHello is a client's first message. It has the same members in all
// versions of the protocol: what is new is a version or a capability.
type ClientHello struct {
	// The versions that the client speaks. Those that the daemon does not know mean nothing to it.
	Versions []int64 `json:"versions" is:"min=1,items=64,one"`
	// The program that speaks, for logs.
	Client Peer `json:"client"`
	// What the client can do beyond the version. Names that the daemon does not know mean nothing to it.
	Capabilities []string `json:"capabilities,omitempty" is:"items=64,some,max=64"`
}

// Variable is a variable of an environment.
type Variable struct {
	// Not empty, and without `=`.
	Name Bytes `json:"name" is:"some"`
	// Its value.
	Value Bytes `json:"value"`
}

func (v *Variable) check() *Error {
	if strings.Contains(string(v.Name), "=") {
		return Errorf(BadValue, "a variable's name holds no =").under("name")
	}
	return nil
}

// LaunchLimits bound what the worker's whole tree may use.
type LaunchLimits struct {
	// Memory, swap included.
	Memory int64 `json:"memory_bytes,omitempty" is:"min=1"`
	// Processes and threads.
	Pids int64 `json:"pids,omitempty" is:"min=1"`
	// Processor time in thousandths of a core: 500 is half of one.
	CPU int64 `json:"cpu_millis,omitempty" is:"min=10"`
	// What the private temporary directories may hold.
	Disk int64 `json:"disk_bytes,omitempty" is:"min=1"`
	// Largest file that is written.
	FileSize int64 `json:"file_size_bytes,omitempty" is:"min=1"`
	// Open descriptors of each process.
	Files int64 `json:"files,omitempty" is:"min=1"`
	// Largest core dump. Without it there are none.
	Core int64 `json:"core_bytes,omitempty" is:"min=1"`
	// How long the worker may run, at most a year.
	Timeout int64 `json:"timeout_ms,omitempty" is:"min=1,max=31536000000"`
	// How long it may write nothing to its standard output and error.
	IdleTimeout int64 `json:"idle_timeout_ms,omitempty" is:"min=1,max=31536000000"`
	// How long it may take to end when it is asked to (SIGTERM), before it is killed. 0 kills at once; absent is 2000.
	Grace *int64 `json:"grace_ms,omitempty" is:"max=31536000000"`
}

// Where a worker's standard stream leads.
const (
	StdioNull       = "null"
	StdioStream     = "stream"
	StdioDescriptor = "descriptor"
)

// Stdio says where the worker's standard streams lead.
type Stdio struct {
	// `null` (also if absent): reads nothing. `stream`: reads what `stdin` messages bring. `descriptor`: it is one that comes with the frame.
	Stdin string `json:"stdin,omitempty" is:"words=null|stream|descriptor"`
	// `null` (also if absent): nobody reads it. `stream`: comes as `output` messages. `descriptor`: it is one that comes with the frame.
	Stdout string `json:"stdout,omitempty" is:"words=null|stream|descriptor"`
	// As `stdout`.
	Stderr string `json:"stderr,omitempty" is:"words=null|stream|descriptor"`
}

// Size is a terminal's.
type Size struct {
	// Lines.
	Rows int64 `json:"rows" is:"min=1,max=65535"`
	// Characters in a line.
	Cols int64 `json:"cols" is:"min=1,max=65535"`
}

// PassedDescriptor is one beside the standard ones.
type PassedDescriptor struct {
	// Its number in the worker.
	To int64 `json:"to" is:"min=3,max=255"`
}

// Launch runs a command confined.
type Launch struct {
	// Names the request, and everything that belongs to this launch.
	ID int64 `json:"id" is:"min=1"`
	// The command and its arguments. Needed unless `dry_run` is true.
	Argv []Bytes `json:"argv,omitempty"`
	// The client's current directory. Relative paths in this request begin here.
	Dir Bytes `json:"dir,omitempty"`
	// The tree that the work is about. Absent: `dir`.
	Workspace Bytes `json:"workspace,omitempty"`
	// Where the command starts. Absent: `dir`.
	Cwd Bytes `json:"cwd,omitempty"`
	// The ceiling: `read-only`, `workspace-write` or `danger-full-access`. Absent: the profiles' choice, else `workspace-write`.
	Mode string `json:"mode,omitempty" is:"max=64"`
	// The network: `none`, `loopback`, `proxy` or `host`. Absent: the profiles' choice, else `none`.
	Net string `json:"net,omitempty" is:"max=64"`
	// Hosts that may be reached through the daemon's proxy, `HOST[:PORTS]`: `net_allow` stands for the network `proxy`.
	NetAllow []string `json:"net_allow,omitempty" is:"some,max=2048"`
	// Files and trees that may also be read.
	Readable []Bytes `json:"readable,omitempty" is:"some"`
	// Files and trees that may also be written.
	Writable []Bytes `json:"writable,omitempty" is:"some"`
	// Patterns of paths that stay out of reach although a grant covers them.
	Deny []Bytes `json:"deny,omitempty" is:"some"`
	// The only files that may be executed, with what they need. Absent: what is granted may be.
	AllowExec []Bytes `json:"allow_exec,omitempty" is:"some"`
	// Profiles, by name or by a path with a slash, in the order in which they apply. The daemon reads them, with the rights of the peer.
	Profiles []Bytes `json:"profiles,omitempty" is:"some"`
	// Ignore the workspace's own `.sbx.toml`.
	NoProjectProfile bool `json:"no_project_profile,omitempty"`
	// Where tools keep caches: `workspace` (also if absent) or `private`.
	Cache string `json:"cache,omitempty" is:"max=64"`
	// Variables that the worker gets, whatever their names. Of two of one name the later wins.
	Env []Variable `json:"env,omitempty"`
	// The client's environment, or a part of it. The worker gets those of its variables that the profiles pass (`PATH`, `LANG`, ...), no others. Absent: the daemon takes those of the user's account.
	HostEnv []Variable `json:"host_env,omitempty"`
	// Effects without which nothing may run, or `full` for all that are asked for.
	Require []string `json:"require,omitempty" is:"some,max=64"`
	// Effects whose loss is accepted.
	AllowGap []string `json:"allow_gap,omitempty" is:"some,max=64"`
	// The backend. Absent or `auto`: the daemon's choice. A named one is never replaced by another.
	Backend string `json:"backend,omitempty" is:"max=64"`
	// What the worker may use. What is absent is not limited.
	Limits *LaunchLimits `json:"limits,omitempty"`
	// Where the standard streams lead. Absent: all of them `null`. Must be absent with `tty`.
	Stdio *Stdio `json:"stdio,omitempty"`
	// Give the command a terminal of its own, of this size. Its input is `stdin`, its output the stream `stdout`.
	TTY *Size `json:"tty,omitempty"`
	// How many bytes of each streamed output the daemon may send before it needs `credit`.
	OutputWindow int64 `json:"output_window,omitempty" is:"max=16777216"`
	// Descriptors beside the standard ones, in the order in which they come with the frame.
	Descriptors []PassedDescriptor `json:"descriptors,omitempty" is:"items=64"`
	// Let `descriptors` pass sockets, directories and what else leads on.
	DescriptorsUnsafe bool `json:"descriptors_unsafe,omitempty"`
	// Run nothing: answer with what would be done (`planned`).
	DryRun bool `json:"dry_run,omitempty"`
	// Shown by `list`, and of no other meaning.
	Label string `json:"label,omitempty" is:"max=256"`
	// Let the worker live on when the connection ends. Without it, the worker's tree is ended then.
	Keep bool `json:"keep,omitempty"`
}

// Streams are the three standard streams' words, with the defaults filled in.
func (m *Launch) Streams() Stdio {
	s := Stdio{StdioNull, StdioNull, StdioNull}
	if m.TTY != nil {
		return Stdio{StdioStream, StdioStream, StdioNull}
	}
	if m.Stdio != nil {
		for _, of := range []struct {
			to   *string
			from string
		}{{&s.Stdin, m.Stdio.Stdin}, {&s.Stdout, m.Stdio.Stdout}, {&s.Stderr, m.Stdio.Stderr}} {
			if of.from != "" {
				*of.to = of.from
			}
		}
	}
	return s
}

// Attached is how many descriptors must come with the launch's frame: first
// those of standard streams, in the order stdin, stdout, stderr, then those of
// Descriptors.
func (m *Launch) Attached() int {
	n := len(m.Descriptors)
	s := m.Streams()
	for _, word := range []string{s.Stdin, s.Stdout, s.Stderr} {
		if word == StdioDescriptor {
			n++
		}
	}
	return n
}

func (m *Launch) check() *Error {
	seen := map[int64]bool{}
	for i, d := range m.Descriptors {
		if seen[d.To] {
			return Errorf(BadValue, "two descriptors are to be %d", d.To).under("to").underIndex(i).under("descriptors")
		}
		seen[d.To] = true
	}
	switch {
	case len(m.Argv) == 0 && !m.DryRun:
		return Errorf(MissingField, "no command").under("argv")
	case len(m.Argv) > 0 && m.Argv[0] == "":
		return Errorf(BadValue, "the command's name is empty").underIndex(0).under("argv")
	case m.TTY != nil && m.Stdio != nil:
		return Errorf(BadValue, "a terminal of its own leaves no stream to choose").under("stdio")
	case m.Attached() > MaxDescriptors:
		return Errorf(TooManyDescriptors, "%d descriptors; at most %d may come with a frame", m.Attached(), MaxDescriptors).under("descriptors")
	}
	return nil
}

// Stdin brings data for a worker's standard input. It has no answer of its own.
type Stdin struct {
	// The launch's.
	ID int64 `json:"id" is:"min=1"`
	// How many bytes of the stream came before.
	Offset int64 `json:"offset"`
	// At most 32 KiB of them.
	Data Data `json:"data"`
	// Whether the stream ends after them.
	EOF bool `json:"eof,omitempty"`
}

func (m *Stdin) check() *Error { return chunk(m.Offset, m.Data, m.EOF) }

func chunk(offset int64, data Data, eof bool) *Error {
	switch {
	case len(data) == 0 && !eof:
		return Errorf(BadValue, "neither data nor the end").under("data")
	case offset > MaxInteger-int64(len(data)):
		return Errorf(OutOfRange, "the stream is too long").under("offset")
	}
	return nil
}

// Credit lets the other side send more of a stream. It has no answer.
type Credit struct {
	// The launch's.
	ID int64 `json:"id" is:"min=1"`
	// From a client: `stdout` or `stderr`. From the daemon: `stdin`.
	Stream string `json:"stream" is:"words=stdin|stdout|stderr"`
	// How many bytes more.
	Bytes int64 `json:"bytes" is:"min=1,max=16777216"`
}

// Target is the launch or worker that a request is about.
func target(launch int64, worker string) *Error {
	if (launch == 0) == (worker == "") {
		return Errorf(BadValue, "name either a launch or a worker").under("worker")
	}
	return nil
}

// Cancel ends a launch, also one that has not started.
type Cancel struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
	// A launch of this connection, by its id. Either this or `worker`.
	Launch int64 `json:"launch,omitempty" is:"min=1"`
	// A worker of the peer's user, of any connection.
	Worker string `json:"worker,omitempty" is:"max=64"`
	// How long the worker may take to end. Absent: the launch's own grace.
	Grace *int64 `json:"grace_ms,omitempty" is:"max=31536000000"`
}

func (m *Cancel) check() *Error { return target(m.Launch, m.Worker) }

// Signal sends a signal to a worker's command.
type Signal struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
	// A launch of this connection, by its id. Either this or `worker`.
	Launch int64 `json:"launch,omitempty" is:"min=1"`
	// A worker of the peer's user, of any connection.
	Worker string `json:"worker,omitempty" is:"max=64"`
	// By name: `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM`, `SIGKILL`, `SIGUSR1`, `SIGUSR2`, `SIGWINCH`, `SIGSTOP`, `SIGCONT`, `SIGTSTP`, `SIGABRT` or `SIGALRM`.
	Signal string `json:"signal" is:"words=SIGHUP|SIGINT|SIGQUIT|SIGTERM|SIGKILL|SIGUSR1|SIGUSR2|SIGWINCH|SIGSTOP|SIGCONT|SIGTSTP|SIGABRT|SIGALRM"`
}

func (m *Signal) check() *Error { return target(m.Launch, m.Worker) }

// Resize tells a worker's own terminal its size.
type Resize struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
	// A launch of this connection, by its id. Either this or `worker`.
	Launch int64 `json:"launch,omitempty" is:"min=1"`
	// A worker of the peer's user, of any connection.
	Worker string `json:"worker,omitempty" is:"max=64"`
	// The new size.
	Size Size `json:"size"`
}

func (m *Resize) check() *Error { return target(m.Launch, m.Worker) }

// List lists the workers of the peer's user.
type List struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
	// Also those that have ended and are still remembered.
	Ended bool `json:"ended,omitempty"`
}

// Inspect tells all about a worker.
type Inspect struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
	// The worker.
	Worker string `json:"worker" is:"some,max=64"`
}

// Health asks how the daemon is. It is answered also while workers hang.
type Health struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
}

// Features asks what this host can enforce.
type Features struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
}

// The kinds of events.
const (
	EventWorkerStarted = "worker-started"
	EventWorkerEnded   = "worker-ended"
	EventStopping      = "stopping"
)

// Subscribe asks for events from now on.
type Subscribe struct {
	// Names the request, and every event that comes of it.
	ID int64 `json:"id" is:"min=1"`
	// The kinds of events. Those that the daemon does not know mean nothing to it.
	Events []string `json:"events" is:"one,items=64,some,max=64"`
}

// Unsubscribe ends a subscription.
type Unsubscribe struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
	// The subscription: the id of its `subscribe`.
	Subscription int64 `json:"subscription" is:"min=1"`
}

// Ping asks whether the daemon still answers on this connection.
type Ping struct {
	// Names the request.
	ID int64 `json:"id" is:"min=1"`
}
