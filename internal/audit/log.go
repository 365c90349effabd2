package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Sync is which records are on the disk, and not in the kernel's memory alone,
// when their append returns. What the kernel has outlives the process, but not
// a power failure.
type Sync int

const (
	// SyncDecisions: decisions and events, with all that was appended before
	// them. A launch waits for the disk once, and nothing that was decided and
	// begun is lost.
	SyncDecisions Sync = iota
	// SyncAll: every record.
	SyncAll
	// SyncNone: none.
	SyncNone
)

// Options are how a log is written. The zero value is sound.
type Options struct {
	// Program is the name and version of the writer, for the record of it.
	Program string
	// SegmentBytes is the size at which the next segment begins; 0 is 16 MiB.
	SegmentBytes int64
	// Keep is how many segments are kept, the one that is written included; 0 is
	// all.
	Keep int
	Sync Sync
	// HashArgv keeps of a command its first word and a hash. Who knows what an
	// argument may be can still try which one has the hash.
	HashArgv bool

	now func() time.Time
}

const defaultSegment = 16 << 20

// Log is a log that is open for appending. It has one writer at a time.
type Log struct {
	// syncing is held by who waits for the disk, for itself and for all who wrote
	// before it began. It is taken before mu.
	syncing sync.Mutex

	mu   sync.Mutex
	path string
	dir  *dir
	o    Options

	file   *os.File
	number int
	size   int64
	head   Stamp
	synced uint64 // the last record that is known to be on the disk

	err     error // why nothing can be appended any more
	trouble error
}

// tornMark ends what a crash left of a line. No record ends so: it is no JSON.
const tornMark = " #torn\n"

// Open opens the log in a directory, which is made (mode 0700) if it is missing,
// and locks it. An existing one must be this user's, no symbolic link, and
// writable by nobody else. What a crash left of a line is declared in a record
// of its own, and kept. An error is an [*Error] with a hint.
func Open(path string, o Options) (*Log, error) {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = defaultSegment
	}
	if o.now == nil {
		o.now = time.Now
	}
	d, err := openDir(path, true)
	if err != nil {
		return nil, err
	}
	l := &Log{path: path, dir: d, o: o}
	if err := d.lock(); err != nil {
		d.close()
		return nil, err
	}
	if err := l.begin(); err != nil {
		l.release()
		var e *Error
		if !errors.As(err, &e) {
			err = &Error{Msg: fmt.Sprintf("opening the audit log in %q", path), Hint: "make room on its disk, and its files yours to write", Err: err}
		}
		return nil, err
	}
	return l, nil
}

// begin finds the chain's head and appends the record of this opening.
func (l *Log) begin() error {
	numbers, err := l.dir.segments()
	if err != nil {
		return err
	}
	tail, err := l.findHead(numbers)
	if err != nil {
		return err
	}
	nonce := ""
	if l.head.Seq == 0 {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read's contract
		nonce = hex.EncodeToString(b[:])
		l.head.Hash = hashOf([]byte(nonce))
	}
	if len(numbers) == 0 {
		err = l.create(1)
	} else {
		l.number = numbers[len(numbers)-1]
		l.file, err = l.dir.openAppend(segmentName(l.number), false)
	}
	if err != nil {
		return err
	}
	st, err := l.file.Stat()
	if err != nil {
		return err
	}
	l.size = st.Size()
	if l.size > tail.end {
		if err := l.declareTorn(tail.end, nonce); err != nil {
			return err
		}
		nonce = ""
	}
	host, _ := os.Hostname() // a record without it is better than none
	body, err := encode(opened{Program: head(l.o.Program, 256), Host: head(host, 256), Boot: bootID(), PID: os.Getpid(), UID: os.Geteuid(),
		Nonce: nonce, Unclosed: l.head.Seq > 0 && tail.kind != KindClose})
	if err != nil {
		return err
	}
	_, err = l.append(l.o.Sync != SyncNone, record{KindOpen, body})
	return err
}

// tail is where the last whole record of the last segment ends.
type tail struct {
	end  int64
	kind string // of the last record
}

// findHead reads the last segment that has a record, and what follows. The
// chain within it must be whole: a writer does not build on a broken one.
func (l *Log) findHead(numbers []int) (tail, error) {
	var t tail
	for i := len(numbers) - 1; i >= 0; i-- {
		r := &Reader{dir: l.dir, path: l.path, from: numbers[i]}
		t = tail{}
		err := r.Read(func(e Entry) error {
			t.kind = e.Kind
			return nil
		})
		r.stop()
		if err != nil {
			return t, err
		}
		r.chain.settleLast()
		if len(r.chain.problems) > 0 {
			p := r.chain.problems[0]
			return t, &Error{Msg: fmt.Sprintf("the audit log in %q is damaged at %s:%d: %s", l.path, p.File, p.Line, p.Text),
				Hint: "look at it with `sbx audit verify`, and move the directory away to begin a new log"}
		}
		t.end = r.wholeEnd // of the last segment, wherever the reader began
		if r.chain.records > 0 {
			l.head = r.chain.head
			return t, nil
		}
	}
	return t, nil
}

// declareTorn ends what a crash left at the end of the segment and says in a
// record what it is. It is not cut off: a file that is only ever appended to may
// have that attribute, and what was lost stays to be looked at.
func (l *Log) declareTorn(from int64, nonce string) error {
	h := newHash()
	if _, err := io.Copy(h, io.NewSectionReader(l.file, from, l.size-from)); err != nil {
		return err
	}
	h.Write([]byte(tornMark))
	body, err := encode(torn{Offset: from, Bytes: l.size - from + int64(len(tornMark)), SHA256: hex.EncodeToString(h.Sum(nil)), Nonce: nonce})
	if err != nil {
		return err
	}
	line, stamp, err := l.after(l.head, record{KindTorn, body})
	if err != nil {
		return err
	}
	return l.write(append([]byte(tornMark), line...), stamp, l.o.Sync != SyncNone)
}

// Request appends who asked for what.
func (l *Log) Request(r Request) (Stamp, error) {
	return l.appendBounded(KindRequest, r, l.o.Sync == SyncAll)
}

// Decision appends what was decided. The launch must not begin unless it returns
// no error.
func (l *Log) Decision(d Decision) (Stamp, error) {
	if d.Decision != Allow && d.Decision != Refuse {
		return Stamp{}, fmt.Errorf("%q is no decision", d.Decision)
	}
	return l.appendBounded(KindDecision, d, l.o.Sync != SyncNone)
}

// Decided appends who asked for what, and what was decided of it, as [Log.Request]
// and [Log.Decision] do one after the other: two records, in one write, and the disk
// is waited for once.
func (l *Log) Decided(r Request, d Decision) (Stamp, error) {
	wait, err := l.Deciding(r, d)
	if err != nil {
		return Stamp{}, err
	}
	return wait()
}

// Deciding is [Log.Decided] for who has something to do meanwhile. The records are
// written when it returns; they are on the disk, and the launch may begin, when wait
// has returned no error.
func (l *Log) Deciding(r Request, d Decision) (wait func() (Stamp, error), err error) {
	if d.Decision != Allow && d.Decision != Refuse {
		return nil, fmt.Errorf("%q is no decision", d.Decision)
	}
	request, err := encodeBounded(r, l.o.HashArgv, MaxRecord-envelopeRoom)
	if err != nil {
		return nil, err
	}
	decision, err := encodeBounded(d, l.o.HashArgv, MaxRecord-envelopeRoom)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	stamp, err := l.append(false, record{KindRequest, request}, record{KindDecision, decision})
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return func() (Stamp, error) {
		if l.o.Sync != SyncNone {
			if err := l.commit(stamp.Seq); err != nil {
				return Stamp{}, err
			}
		}
		return stamp, nil
	}, nil
}

// End appends what came of a launch.
func (l *Log) End(e End) (Stamp, error) {
	return l.appendBounded(KindEnd, e, l.o.Sync == SyncAll)
}

// isKind tells whether a word can be a kind: at most 32 of a-z, 0-9 and "-", a
// letter first.
func isKind(s string) bool {
	return len(s) <= 32 && s != "" && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Event appends a record of a kind that this package does not know. The body is
// a struct, or a pointer to one, that holds no secrets and is bounded by its
// maker: one that is too long is an error, after which the log can still be
// appended to. A field "worker" or "uid" is what readers filter by.
func (l *Log) Event(kind string, body any) (Stamp, error) {
	if !isKind(kind) || slices.Contains(Kinds(), kind) {
		return Stamp{}, fmt.Errorf("%q cannot be the kind of an event", kind)
	}
	if !isStruct(body) {
		return Stamp{}, fmt.Errorf("the body of a record is a struct, not %T", body)
	}
	raw, err := encode(body)
	if err != nil {
		return Stamp{}, err
	}
	if !bytes.HasPrefix(raw, []byte("{")) {
		return Stamp{}, fmt.Errorf("the body of a record is a JSON object, not %.20s", raw)
	}
	return l.appendLocked(kind, raw, l.o.Sync != SyncNone)
}

// envelopeRoom is what a line has beside its body.
const envelopeRoom = 512

func (l *Log) appendBounded(kind string, b bounded, sync bool) (Stamp, error) {
	raw, err := encodeBounded(b, l.o.HashArgv, MaxRecord-envelopeRoom)
	if err != nil {
		return Stamp{}, err
	}
	return l.appendLocked(kind, raw, sync)
}

func (l *Log) appendLocked(kind string, body json.RawMessage, sync bool) (Stamp, error) {
	l.mu.Lock()
	stamp, err := l.append(false, record{kind, body})
	l.mu.Unlock()
	if err == nil && sync {
		err = l.commit(stamp.Seq)
	}
	if err != nil {
		return Stamp{}, err
	}
	return stamp, nil
}

// commit returns when the record is on the disk. The disk is waited for without
// mu: what others write meanwhile goes with the next commit, all of it at once, so
// that many launches at a time do not wait for one another's.
func (l *Log) commit(seq uint64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	file, last, done, err := l.file, l.head.Seq, l.synced >= seq, l.err
	l.mu.Unlock()
	switch {
	case done:
		return nil
	case err != nil:
		return err
	}
	err = dataSync(file)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.synced >= seq: // by a rotation or Close, which closed the file as well
		return nil
	case l.err != nil:
		return l.err
	case err != nil:
		return l.fail(err)
	}
	l.synced = last
	return nil
}

// record is one that is to be appended.
type record struct {
	kind string
	body json.RawMessage
}

// append appends records, all in one write, and returns the last one's stamp.
func (l *Log) append(sync bool, records ...record) (Stamp, error) {
	if l.err != nil {
		return Stamp{}, l.err
	}
	var line []byte
	stamp := l.head
	for _, r := range records {
		next, s, err := l.after(stamp, r)
		if err != nil {
			return Stamp{}, err // nothing was written, and nothing is wrong with the log
		}
		line, stamp = append(line, next...), s
	}
	rotated := l.size > 0 && l.size+int64(len(line)) > l.o.SegmentBytes
	if rotated {
		if err := l.rotate(); err != nil {
			return Stamp{}, l.fail(err)
		}
	}
	if err := l.write(line, stamp, sync); err != nil {
		return Stamp{}, err
	}
	if rotated && l.o.Keep > 0 {
		l.trouble = l.prune()
	}
	return stamp, nil
}

// after makes the line that comes after another record's.
func (l *Log) after(last Stamp, r record) ([]byte, Stamp, error) {
	e := envelope{V: Version, Seq: last.Seq + 1, Time: l.o.now().UTC(), Kind: r.kind, Body: r.body, Prev: last.Hash}
	line, err := e.line()
	if err != nil {
		return nil, Stamp{}, err
	}
	return line, Stamp{e.Seq, hashOf(line[:len(line)-1])}, nil
}

// write writes to the end of the segment, if that is what it was left as.
func (l *Log) write(b []byte, stamp Stamp, sync bool) error {
	if err := l.dir.check(l.file, segmentName(l.number), l.size); err != nil {
		return l.fail(err)
	}
	n, err := writeOnce(l.file, b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err == nil && sync {
		err = dataSync(l.file)
	}
	if err != nil {
		// What of it is on the disk nobody knows; the next opening looks.
		return l.fail(err)
	}
	l.size += int64(len(b))
	l.head = stamp
	if sync {
		l.synced = stamp.Seq
	}
	return nil
}

func (l *Log) fail(err error) error {
	l.err = fmt.Errorf("the audit log in %q takes no records until it is opened again: %w", l.path, err)
	return l.err
}

// rotate begins the next segment. The old one is on the disk before.
func (l *Log) rotate() error {
	if err := l.dir.check(l.file, segmentName(l.number), l.size); err != nil {
		return err
	}
	if l.o.Sync != SyncNone {
		if err := dataSync(l.file); err != nil {
			return err
		}
		l.synced = l.head.Seq
	}
	old := l.file
	if err := l.create(l.number + 1); err != nil {
		return err
	}
	return old.Close()
}

// create makes a segment. Its name is on the disk before a record is in it.
func (l *Log) create(number int) error {
	f, err := l.dir.openAppend(segmentName(number), true)
	if err != nil {
		return err
	}
	if l.o.Sync != SyncNone {
		if err := l.dir.sync(); err != nil {
			_ = f.Close()
			return err
		}
	}
	l.file, l.number, l.size = f, number, 0
	return nil
}

// prune deletes the oldest segments. Each is declared first, so that a reader
// can tell it from one that somebody took away. What it cannot delete is no
// reason to refuse a launch: see [Log.Trouble].
func (l *Log) prune() error {
	numbers, err := l.dir.segments()
	if err != nil {
		return err
	}
	for i := 0; i+l.o.Keep < len(numbers); i++ {
		// What the next segment begins with says what this one ended with.
		first, err := firstRecord(l.dir, l.path, numbers[i+1])
		if err != nil {
			return fmt.Errorf("%s is kept: %w", segmentName(numbers[i]), err)
		}
		body, err := encode(pruned{numbers[i], first.Seq - 1, first.Prev})
		if err != nil {
			return err
		}
		line, stamp, err := l.after(l.head, record{KindPruned, body})
		if err == nil {
			err = l.write(line, stamp, l.o.Sync != SyncNone)
		}
		if err == nil {
			err = l.dir.remove(segmentName(numbers[i]))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Head is the last record. Kept elsewhere, it proves later that nothing up to it
// was changed: see [VerifyOptions].
func (l *Log) Head() Stamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Err says why nothing can be appended; nil if it can.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Trouble says why an old segment was not deleted although it should be.
func (l *Log) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// ErrClosed is the cause of an append's error after [Log.Close].
var ErrClosed = errors.New("it was closed")

// Close appends the record of it, if the log can still be appended to, and lets
// the next writer in.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.err, ErrClosed) {
		return nil
	}
	var err error
	if l.err == nil {
		_, err = l.append(l.o.Sync != SyncNone, record{KindClose, json.RawMessage(`{}`)})
	}
	l.release()
	_ = l.fail(ErrClosed)
	return err
}

func (l *Log) release() {
	if l.file != nil {
		_ = l.file.Close()
	}
	l.dir.close()
}
