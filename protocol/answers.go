package protocol

// Capability is something that a daemon can do beyond what its version says.
type Capability struct {
	// Its name.
	Name string `json:"name" is:"some,max=64"`
	// The month in which a daemon could do it first: `2026-12`.
	Since string `json:"since" is:"max=32"`
}

// DaemonHello answers a client's hello. The connection is open after it.
type DaemonHello struct {
	// The version that is spoken from now on: the greatest that both sides know.
	Version int64 `json:"version" is:"min=1"`
	// The daemon, for logs.
	Daemon Peer `json:"daemon"`
	// What it can do, with the month since which it could.
	Capabilities []Capability `json:"capabilities"`
	// Its limits.
	Limits Limits `json:"limits"`
	// `user`: it serves its own user. `system`: it serves all, each as themselves.
	Mode string `json:"mode"`
	// Who the peer is, by the kernel's word: workers run as this user.
	UID int64 `json:"uid"`
}

// Started tells that the command runs. After it come outputs and the exit.
type Started struct {
	// The launch's.
	ID int64 `json:"id" is:"min=1"`
	// Names the worker, for any connection of the same user: 32 hexadecimal digits, the `id` of the report.
	Worker string `json:"worker" is:"some,max=64"`
	// The command's process.
	PID int64 `json:"pid" is:"min=1"`
	// Equal for launches whose policy and plan are equal.
	PlanHash string `json:"plan_hash,omitempty" is:"max=128"`
	// Who confines it. Absent in `danger-full-access`.
	Backend string `json:"backend,omitempty"`
	// `full`, `partial` or `none`, as in reports.
	Level string `json:"level"`
	// How many bytes of `stdin` may be sent before there is `credit`. Absent if stdin is no stream.
	StdinWindow int64 `json:"stdin_window,omitempty"`
	// Sentences for a person.
	Warnings []string `json:"warnings,omitempty"`
}

// Output brings what the worker wrote.
type Output struct {
	// The launch's.
	ID int64 `json:"id" is:"min=1"`
	// `stdout` or `stderr`.
	Stream string `json:"stream" is:"some"`
	// How many bytes of the stream came before.
	Offset int64 `json:"offset"`
	// At most 32 KiB of them.
	Data Data `json:"data"`
	// Whether the stream ends after them.
	EOF bool `json:"eof,omitempty"`
}

func (m *Output) check() *Error { return chunk(m.Offset, m.Data, m.EOF) }

// Exit is the final answer to a launch: how it ended, and what was enforced.
type Exit struct {
	// The launch's.
	ID int64 `json:"id" is:"min=1"`
	// The worker.
	Worker string `json:"worker" is:"some,max=64"`
	// What went wrong if nothing ran (`ran` is false in the report), for a person.
	Message string `json:"message,omitempty"`
	// What to do then.
	Hint string `json:"hint,omitempty"`
	// The report, as docs/report.md describes it.
	Report Object `json:"report"`
}

// Planned is the final answer to a launch with dry_run.
type Planned struct {
	// The launch's.
	ID int64 `json:"id" is:"min=1"`
	// What `sbx run --dry-run --json` prints: `dryRun` in report.schema.json.
	Plan Object `json:"plan"`
}

// CancelResult answers cancel, when the end was set going. The launch has its
// own final answer.
type CancelResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
}

// SignalResult answers signal, when the signal was sent.
type SignalResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
}

// ResizeResult answers resize.
type ResizeResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
}

// WorkerInfo is a worker in a list.
type WorkerInfo struct {
	// Its name.
	Worker string `json:"worker" is:"some,max=64"`
	// `starting`, `running`, `ending` or `ended`.
	State string `json:"state"`
	// The command's process. Absent before it starts.
	PID int64 `json:"pid,omitempty" is:"min=1"`
	// The user that it runs as.
	UID int64 `json:"uid"`
	// What the launch called it.
	Label string `json:"label,omitempty"`
	// The beginning of the command line, escaped and cut for a person.
	Command string `json:"command"`
	// As in the launch, resolved.
	Mode string `json:"mode"`
	// As in the launch, resolved.
	Net string `json:"net"`
	// Who confines it. Absent in `danger-full-access`.
	Backend string `json:"backend,omitempty"`
	// `full`, `partial` or `none`. Absent if nothing ran.
	Level string `json:"level,omitempty"`
	// When it started, in milliseconds since 1970 (UTC).
	Started int64 `json:"started_ms,omitempty"`
	// When it ended.
	Ended int64 `json:"ended_ms,omitempty"`
	// Whether it lives on when its connection ends.
	Kept bool `json:"kept,omitempty"`
}

// ListResult answers list.
type ListResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
	// The latest first.
	Workers []WorkerInfo `json:"workers"`
	// How many more there are that did not fit.
	More int64 `json:"more,omitempty"`
}

// InspectResult answers inspect.
type InspectResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
	// The worker, as in a list.
	Info WorkerInfo `json:"info"`
	// Its policy, while it runs: `policy` in report.schema.json. The report of one that has ended says what it was.
	Policy Object `json:"policy,omitempty"`
	// Its report, if it has ended.
	Report Object `json:"report,omitempty"`
}

// HealthCheck is one thing that a daemon looked at.
type HealthCheck struct {
	// What was looked at.
	Name string `json:"name" is:"some,max=64"`
	// Whether it is as it should be.
	OK bool `json:"ok"`
	// What is wrong, for a person.
	Message string `json:"message,omitempty"`
	// What to do.
	Hint string `json:"hint,omitempty"`
}

// HealthResult answers health.
type HealthResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
	// `ok`, `degraded` (a check failed) or `stopping`.
	Status string `json:"status" is:"some"`
	// How long the daemon runs.
	Uptime int64 `json:"uptime_ms"`
	// Workers that run, of the peer's user.
	Workers int64 `json:"workers"`
	// Connections of the peer's user.
	Connections int64 `json:"connections"`
	// What was looked at.
	Checks []HealthCheck `json:"checks,omitempty"`
}

// FeaturesResult answers features.
type FeaturesResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
	// What `sbx features --json` prints: `features` in report.schema.json.
	Features Object `json:"features"`
}

// Subscribed tells that events come from now on.
type Subscribed struct {
	// The subscription's.
	ID int64 `json:"id" is:"min=1"`
	// The kinds that will come: those that were asked for and that the daemon knows.
	Events []string `json:"events"`
}

// Event tells what happened to a worker of the peer's user, or to the daemon.
type Event struct {
	// The subscription's.
	ID int64 `json:"id" is:"min=1"`
	// Counts the subscription's events from 1, those that were lost included.
	Seq int64 `json:"seq" is:"min=1"`
	// How many events right before this one were lost, because they were not read in time.
	Lost int64 `json:"lost,omitempty"`
	// What happened.
	Kind string `json:"kind" is:"some,max=64"`
	// When, in milliseconds since 1970 (UTC).
	At int64 `json:"at_ms"`
	// The worker: with `worker-started` and `worker-ended`.
	Info *WorkerInfo `json:"info,omitempty"`
	// How it ended, as `outcome` in reports: with `worker-ended`.
	Outcome Object `json:"outcome,omitempty"`
}

// SubscribeResult is the final answer to subscribe: no event comes after it.
type SubscribeResult struct {
	// The subscription's.
	ID int64 `json:"id" is:"min=1"`
	// How many events after the last one were lost.
	Lost int64 `json:"lost,omitempty"`
}

// UnsubscribeResult answers unsubscribe. The subscription's own final answer
// came before it.
type UnsubscribeResult struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
}

// Pong answers ping.
type Pong struct {
	// The request's.
	ID int64 `json:"id" is:"min=1"`
}
