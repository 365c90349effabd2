// Package audit is the log of who asked for what, what was decided and what
// came of it: JSON lines that are only ever appended, each with the hash of the
// line before it. docs/audit.md has the format, and what such a chain proves.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Version is the version of the record format.
const Version = 1

// MaxRecord is the size of the longest line, in bytes, without its newline.
const MaxRecord = 64 << 10

// The kinds of records that this package knows. Others come by [Log.Event].
const (
	// KindOpen: a writer opened the log.
	KindOpen = "open"
	// KindClose: it closed it. A log whose last record is another one is open,
	// or its writer was killed, or its end was cut off.
	KindClose = "close"
	// KindTorn: the bytes before this line are what a crash left of others.
	KindTorn = "torn"
	// KindPruned: a segment is about to be deleted.
	KindPruned = "pruned"
	// KindRequest: somebody asked for a launch.
	KindRequest = "request"
	// KindDecision: what was decided, before it is done.
	KindDecision = "decision"
	// KindEnd: what came of a launch.
	KindEnd = "end"
)

// Kinds are the kinds that this package knows.
func Kinds() []string {
	return []string{KindOpen, KindRequest, KindDecision, KindEnd, KindTorn, KindPruned, KindClose}
}

// Stamp names one record and fixes it and all before it: with it, kept
// elsewhere, a log can be checked by who does not trust its directory.
type Stamp struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"` // hex SHA-256 of the line without its newline
}

func (s Stamp) String() string { return fmt.Sprintf("%d:%s", s.Seq, s.Hash) }

// ParseStamp reads what [Stamp.String] writes.
func ParseStamp(s string) (Stamp, error) {
	seq, hash, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(seq, 10, 64)
	raw, herr := hex.DecodeString(hash)
	if !ok || err != nil || n == 0 || herr != nil || len(raw) != sha256.Size {
		return Stamp{}, errors.New("want SEQ:HASH, a record's number and the 64 hexadecimal digits of its hash")
	}
	return Stamp{n, strings.ToLower(hash)}, nil
}

// Error is a log that cannot be opened or read, with what would help.
type Error struct {
	Msg  string
	Hint string
	Err  error // the cause, if there is one
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Msg
	}
	return e.Msg + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// DefaultDir is where the log of this user's daemon is: /var/lib/sandboxd/audit
// for root, else sandboxd/audit below XDG_STATE_HOME or ~/.local/state.
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/sandboxd/audit", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandboxd", "audit"), nil
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "sandboxd", "audit"), nil
	}
	return "", &Error{Msg: "there is no home directory for an audit log", Hint: "set HOME or XDG_STATE_HOME, or name the directory"}
}

// lockName is the file whose lock is the right to write.
const lockName = "lock"

func segmentName(n int) string { return fmt.Sprintf("audit-%06d.jsonl", n) }

// segmentNumber is 0 for a name that is no segment's.
func segmentNumber(name string) int {
	digits, _ := strings.CutPrefix(strings.TrimSuffix(name, ".jsonl"), "audit-")
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || segmentName(int(n)) != name {
		return 0
	}
	return int(n)
}

// envelope is one line.
type envelope struct {
	V    int             `json:"v"`
	Seq  uint64          `json:"seq"`
	Time time.Time       `json:"time"`
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body"`
	Prev string          `json:"prev"`
}

func (e *envelope) line() ([]byte, error) {
	b, err := encode(e)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxRecord {
		return nil, fmt.Errorf("a record of %d bytes is longer than %d", len(b), MaxRecord)
	}
	return append(b, '\n'), nil
}

// encode is compact JSON in one line. JSON itself escapes control characters, so
// no text can begin another line.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Hash is the SHA-256 of a value's JSON, in hex: what names a plan in a record.
// Keys of maps are sorted, so that equal values have equal hashes.
func Hash(v any) (string, error) {
	b, err := encode(v)
	if err != nil {
		return "", err
	}
	return hashOf(b), nil
}
