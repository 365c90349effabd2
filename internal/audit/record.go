package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"sandboxd/policy"
)

// Cut is what a field had before it was cut to what a record may hold.
type Cut struct {
	Bytes int `json:"bytes"`
	Items int `json:"items,omitempty"` // of a list
}

// Request is who asked for what. What it can hold is bounded; of the environment
// it holds names alone, whatever is put in.
type Request struct {
	// Worker names the launch, in all records of it.
	Worker string `json:"worker,omitempty"`
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	PID    int    `json:"pid"`
	// Exe is the program of the one who asked, if it is known by a handle.
	Exe policy.Raw `json:"exe,omitempty"`
	// Conn names the connection.
	Conn string `json:"conn,omitempty"`
	// Argv is the command: 4 KiB of it, or its first word alone if the log hashes
	// arguments.
	Argv []policy.Raw `json:"argv,omitempty"`
	// ArgvSHA256 is of all arguments, each ended by a zero byte; ArgvItems is how
	// many there are. The log sets both, and Cut.
	ArgvSHA256 string             `json:"argv_sha256"`
	ArgvItems  int                `json:"argv_items"`
	Cwd        policy.Raw         `json:"cwd,omitempty"`
	Workspace  policy.Raw         `json:"workspace,omitempty"`
	Mode       string             `json:"mode,omitempty"`
	Net        string             `json:"net,omitempty"`
	EnvNames   []policy.Raw       `json:"env_names,omitempty"`
	Profiles   []string           `json:"profiles,omitempty"`
	Label      policy.Raw         `json:"label,omitempty"`
	Weakened   []policy.Weakening `json:"weakened,omitempty"`
	// DryRun tells that it was only asked what a launch would be: nothing runs, and no
	// end follows.
	DryRun bool           `json:"dry_run,omitempty"`
	Cut    map[string]Cut `json:"cut,omitempty"`
}

// The words of [Decision].
const (
	Allow  = "allow"
	Refuse = "refuse"
)

// Decision is what was decided, by whom and with what plan. It is appended
// before anything is done.
type Decision struct {
	Worker   string `json:"worker,omitempty"`
	UID      int    `json:"uid"`
	Decision string `json:"decision"` // Allow or Refuse
	// Reason must not quote arguments: they may be secret.
	Reason policy.Raw `json:"reason,omitempty"`
	// Source is what decided: a rule, a ceiling, an approval.
	Source   policy.Raw `json:"source,omitempty"`
	PlanHash string     `json:"plan_sha256,omitempty"` // see [Hash]
	Backend  string     `json:"backend,omitempty"`
	Level    string     `json:"level,omitempty"`
	// Effects has the status of each effect that was asked for.
	Effects map[string]string `json:"effects,omitempty"`
	Cut     map[string]Cut    `json:"cut,omitempty"`
}

// Outcome is how a launch ended; its fields are those of backend.Outcome.
type Outcome struct {
	Kind   string     `json:"kind"`
	Code   *int       `json:"code,omitempty"`
	Signal int        `json:"signal,omitempty"`
	Which  string     `json:"which,omitempty"`
	Step   string     `json:"step,omitempty"`
	Errno  string     `json:"errno,omitempty"`
	Reason policy.Raw `json:"reason,omitempty"`
}

// Usage is what a worker's tree used; what is not known is absent.
type Usage struct {
	User       *float64 `json:"user_seconds,omitempty"`
	System     *float64 `json:"system_seconds,omitempty"`
	PeakMemory *int64   `json:"peak_memory_bytes,omitempty"`
	PeakPids   *int     `json:"peak_pids,omitempty"`
}

// End is what came of a launch.
type End struct {
	Worker  string  `json:"worker,omitempty"`
	UID     int     `json:"uid"`
	Outcome Outcome `json:"outcome"`
	// ExitStatus is what the report's reader is told, as of `sbx run`.
	ExitStatus int `json:"exit_status"`
	// PlanHash is of the plan that was carried out: see [Hash].
	PlanHash string `json:"plan_sha256,omitempty"`
	Level    string `json:"level,omitempty"`
	// Effects has those whose status is another than the decision's.
	Effects     map[string]string `json:"effects,omitempty"`
	Usage       *Usage            `json:"usage,omitempty"`
	Denials     int               `json:"denials"`
	DenialsLost int               `json:"denials_lost,omitempty"`
	Cut         map[string]Cut    `json:"cut,omitempty"`
}

// opened is the body of [KindOpen].
type opened struct {
	Program string `json:"program,omitempty"`
	Host    string `json:"host,omitempty"`
	// Boot is the kernel's name of this run of the machine.
	Boot string `json:"boot_id,omitempty"`
	PID  int    `json:"pid"`
	UID  int    `json:"uid"`
	// Nonce is random, and in a log's first record alone: its hash is that
	// record's prev.
	Nonce string `json:"nonce,omitempty"`
	// Unclosed tells that the record before is no [KindClose].
	Unclosed bool `json:"unclosed,omitempty"`
}

// torn is the body of [KindTorn]: the bytes from Offset to its own line.
type torn struct {
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Nonce  string `json:"nonce,omitempty"` // as in opened
}

// pruned is the body of [KindPruned]: the segment, and its last record.
type pruned struct {
	Segment int    `json:"segment"`
	Seq     uint64 `json:"through_seq"`
	Hash    string `json:"through_hash"`
}

const (
	// fieldBytes is what one field may hold, in bytes before they are encoded.
	fieldBytes = 4 << 10
	fieldItems = 256
)

// bounded is a body that can be cut.
type bounded interface {
	// bound returns a copy, cut.
	bound(c *cutter) any
}

// encodeBounded encodes a body in at most max bytes. Escapes and base64 make
// text up to six times as long, so the limit is lowered until it fits.
func encodeBounded(b bounded, hashArgv bool, max int) ([]byte, error) {
	for limit := fieldBytes; ; limit /= 2 {
		raw, err := encode(b.bound(&cutter{limit: limit, hashArgv: hashArgv}))
		if err != nil || len(raw) <= max {
			return raw, err
		}
		if limit == 0 {
			return nil, fmt.Errorf("a record of %d bytes cannot be cut to %d", len(raw), max)
		}
	}
}

// cutter cuts fields and notes which.
type cutter struct {
	limit    int
	hashArgv bool
	cut      map[string]Cut
}

func (c *cutter) note(field string, was Cut) {
	if c.cut == nil {
		c.cut = map[string]Cut{}
	}
	c.cut[field] = was
}

func text[T ~string](c *cutter, field string, s T) T {
	if len(s) <= c.limit {
		return s
	}
	c.note(field, Cut{Bytes: len(s)})
	return head(s, c.limit)
}

// head is the first n bytes, and no half of a character.
func head[T ~string](s T, n int) T {
	if len(s) <= n {
		return s
	}
	for i := n; i > n-utf8.UTFMax && i > 0; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
	return s[:n]
}

// list keeps the head of a list; the limit is of all its items together.
func list[T ~string](c *cutter, field string, all []T) []T {
	room, size := c.limit, 0
	var out []T
	for i, s := range all {
		size += len(s)
		if i < fieldItems && room >= 0 {
			out = append(out, head(s, room))
		}
		// An item costs a little, so that a million empty ones are not free.
		room -= len(s) + 1
	}
	if len(out) < len(all) || size > c.limit {
		c.note(field, Cut{size, len(all)})
	}
	return out
}

func table(c *cutter, field string, all map[string]string) map[string]string {
	keys := slices.Sorted(maps.Keys(all))
	room, size := c.limit, 0
	out := map[string]string{}
	for i, k := range keys {
		n := len(k) + len(all[k])
		if size += n; i < fieldItems && n <= room {
			out[k] = all[k]
		}
		room -= n
	}
	if len(out) < len(all) {
		c.note(field, Cut{size, len(all)})
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (r Request) bound(c *cutter) any {
	sum := sha256.New()
	for _, a := range r.Argv {
		sum.Write([]byte(a))
		sum.Write([]byte{0})
	}
	r.ArgvSHA256, r.ArgvItems = hex.EncodeToString(sum.Sum(nil)), len(r.Argv)
	if c.hashArgv && len(r.Argv) > 1 {
		r.Argv = r.Argv[:1]
	}
	names := make([]policy.Raw, len(r.EnvNames))
	for i, kv := range r.EnvNames {
		names[i] = envName(kv)
	}
	// A caller's list of flags could hold --env NAME=VALUE as it was typed.
	var flags, meanings []string
	for _, w := range r.Weakened {
		flags, meanings = append(flags, withoutValue(w.Flag)), append(meanings, w.Meaning)
	}
	flags, meanings = list(c, "weakened.flag", flags), list(c, "weakened.meaning", meanings)
	r.Weakened = nil
	for i := range min(len(flags), len(meanings)) {
		r.Weakened = append(r.Weakened, policy.Weakening{Flag: flags[i], Meaning: meanings[i]})
	}
	r.Worker, r.Exe, r.Conn = text(c, "worker", r.Worker), text(c, "exe", r.Exe), text(c, "conn", r.Conn)
	r.Argv = list(c, "argv", r.Argv)
	r.Cwd, r.Workspace = text(c, "cwd", r.Cwd), text(c, "workspace", r.Workspace)
	r.Mode, r.Net, r.Label = text(c, "mode", r.Mode), text(c, "net", r.Net), text(c, "label", r.Label)
	r.EnvNames, r.Profiles = list(c, "env_names", names), list(c, "profiles", r.Profiles)
	r.Cut = c.cut
	return r
}

func envName(kv policy.Raw) policy.Raw {
	name, _, _ := strings.Cut(string(kv), "=")
	return policy.Raw(name)
}

// withoutValue takes the value from --env NAME=VALUE and --env=NAME=VALUE.
func withoutValue(flag string) string {
	for _, prefix := range []string{"--env ", "--env="} {
		if kv, ok := strings.CutPrefix(flag, prefix); ok {
			return prefix + string(envName(policy.Raw(kv)))
		}
	}
	return flag
}

func (d Decision) bound(c *cutter) any {
	d.Worker, d.Reason, d.Source = text(c, "worker", d.Worker), text(c, "reason", d.Reason), text(c, "source", d.Source)
	d.PlanHash, d.Backend, d.Level = text(c, "plan_sha256", d.PlanHash), text(c, "backend", d.Backend), text(c, "level", d.Level)
	d.Effects = table(c, "effects", d.Effects)
	d.Cut = c.cut
	return d
}

func (e End) bound(c *cutter) any {
	o := &e.Outcome
	e.Worker, e.Level, e.PlanHash = text(c, "worker", e.Worker), text(c, "level", e.Level), text(c, "plan_sha256", e.PlanHash)
	o.Kind, o.Which, o.Step = text(c, "outcome.kind", o.Kind), text(c, "outcome.which", o.Which), text(c, "outcome.step", o.Step)
	o.Errno, o.Reason = text(c, "outcome.errno", o.Errno), text(c, "outcome.reason", o.Reason)
	e.Effects = table(c, "effects", e.Effects)
	e.Cut = c.cut
	return e
}

// isStruct tells whether a body has fields that somebody chose. A map would take
// whatever comes, and one day a secret.
func isStruct(body any) bool {
	t := reflect.TypeOf(body)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t != nil && t.Kind() == reflect.Struct
}
