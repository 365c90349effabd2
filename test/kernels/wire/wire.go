// Package wire is what the kernel tool and its guests say to each other: jobs
// go in with the initramfs, records come out on a serial line.
//
// The line carries console noise now and then (firmware, a panic), and a job
// that runs as root can write to it as well. So a record counts only if it is
// authenticated with the machine's key, which the guest's init reads and removes
// before it runs anything, and if none before it is missing.
package wire

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Paths in the initramfs.
const (
	KeyFile  = "/key"       // hex, removed by init
	JobsFile = "/jobs.json" // []Job
)

// Job is one command that a guest runs.
type Job struct {
	// Name is unique within a machine.
	Name string
	Args []string
	// Dir is made if it is missing, owned by UID; "" is the home directory.
	Dir string
	// UID is 0 or 1000, whose group is the same number.
	UID int
	// Env is added to PATH, HOME, USER, LOGNAME, LANG and TMPDIR.
	Env []string
	// Seconds is the time limit: the job's whole process group is killed then.
	Seconds int
	// Delegate runs the job in a cgroup of its own with all controllers, owned by
	// UID; the job is in the leaf "job" of it.
	Delegate bool
	// Limits are written to files of Delegate's cgroup, whose owner may not
	// change them: by their names, as in memory.max.
	Limits map[string]string
	// Sysctls are written before the job and restored after it, by their names
	// below /proc/sys.
	Sysctls map[string]string
}

// Facts are what the guest's init finds out by itself, beside any product.
type Facts struct {
	Release     string // uname -r
	CommandLine string
	LSMs        string
	ABI         int    // Landlock ABI version; 0 for none
	ABIErrno    string // why there is none: ENOSYS, EOPNOTSUPP
	Errata      int
	// UserNamespaces tells what unshare(CLONE_NEWUSER) said to uid 1000: "ok" or an errno.
	UserNamespaces string
	SeccompNotify  string   // for uid 1000: "ok" or an errno
	Controllers    []string // of cgroup2
	CgroupKill     bool
	Audit          bool // the kernel answers on the audit netlink
	Trouble        []string
}

// Result is how a job ended.
type Result struct {
	Name     string
	UID      int
	Exit     int    // 128+n for signal n, as in a shell
	TimedOut bool   // killed at its time limit
	Trouble  string // it could not be started, or something was left behind
	Millis   int64
}

// Record is one message of a guest. Exactly one field is set.
type Record struct {
	Facts  *Facts  `json:",omitempty"`
	Begin  string  `json:",omitempty"` // a job's name
	Output *Output `json:",omitempty"`
	Result *Result `json:",omitempty"`
	End    *End    `json:",omitempty"`
}

// Output is a piece of what a job printed.
type Output struct {
	Job  string
	Err  bool // standard error
	Data []byte
}

// End is a guest's last record.
type End struct{ Millis int64 }

// MaxOutput is how much of each of a job's two streams is kept, in bytes.
const MaxOutput = 8 << 20

// chunk is the size of one Output.
const chunk = 8 << 10

// maxLine bounds what a reader holds of a line that never ends.
const maxLine = 64 << 10

// Writer sends records. It may be used by several goroutines.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	key []byte
	seq uint64
}

// NewWriter sends to w with the machine's key.
func NewWriter(w io.Writer, key []byte) *Writer { return &Writer{w: w, key: key} }

// Send sends one record.
func (w *Writer) Send(r Record) error {
	payload, err := json.Marshal(r)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	text := base64.StdEncoding.EncodeToString(payload)
	// A line break first ends whatever noise stands on the line.
	_, err = fmt.Fprintf(w.w, "\n@%d %s %s\n", w.seq, mac(w.key, w.seq, text), text)
	w.seq++
	return err
}

// Stream returns a writer that sends one stream of a job in pieces, and drops
// what is over [MaxOutput].
func (w *Writer) Stream(job string, stderr bool) io.Writer { return &stream{w, job, stderr, MaxOutput} }

type stream struct {
	w    *Writer
	job  string
	err  bool
	left int
}

func (s *stream) Write(p []byte) (int, error) {
	for piece := p[:min(len(p), s.left)]; len(piece) > 0; {
		n := min(len(piece), chunk)
		if err := s.w.Send(Record{Output: &Output{s.job, s.err, piece[:n]}}); err != nil {
			return 0, err
		}
		piece, s.left = piece[n:], s.left-n
	}
	return len(p), nil
}

func mac(key []byte, seq uint64, text string) string {
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%d %s", seq, text)
	return hex.EncodeToString(h.Sum(nil))
}

// Read returns all records of a machine that has ended, and how many bytes were
// not part of one. It fails if a record is missing, or the last one.
func Read(r io.Reader, key []byte) (records []Record, noise int, err error) {
	in := bufio.NewReaderSize(r, maxLine)
	var seq uint64
	for {
		line, rerr := in.ReadSlice('\n')
		rec, n, ok := decode(bytes.TrimRight(line, "\r\n"), key)
		switch {
		case !ok:
			noise += len(bytes.TrimRight(line, "\r\n"))
		case n != seq:
			return records, noise, fmt.Errorf("record %d is missing", seq)
		default:
			records = append(records, rec)
			seq++
		}
		if errors.Is(rerr, bufio.ErrBufferFull) {
			continue // noise, in parts
		}
		if rerr != nil {
			break
		}
	}
	if len(records) == 0 || records[len(records)-1].End == nil {
		return records, noise, errors.New("the machine ended before its last record")
	}
	return records, noise, nil
}

func decode(line, key []byte) (r Record, seq uint64, ok bool) {
	var sum, text string
	if n, err := fmt.Sscanf(string(line), "@%d %64s %s", &seq, &sum, &text); n != 3 || err != nil {
		return r, 0, false
	}
	if !hmac.Equal([]byte(sum), []byte(mac(key, seq, text))) {
		return r, 0, false
	}
	payload, err := base64.StdEncoding.DecodeString(text)
	return r, seq, err == nil && json.Unmarshal(payload, &r) == nil
}
