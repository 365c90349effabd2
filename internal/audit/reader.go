package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"time"
)

func newHash() hash.Hash { return sha256.New() }

// Entry is one whole record, as it was read.
type Entry struct {
	Seq  uint64
	Time time.Time
	Kind string
	// Body is the record's own; its fields depend on Kind.
	Body json.RawMessage
	Prev string
	Hash string
	// Raw is the line, without its newline. It is valid until the next one is read.
	Raw  []byte
	File string // the segment's name
	Line int    // from 1
}

// Reader reads a log, line by line, and looks at its chain while it does. It
// takes no lock: a writer may write.
type Reader struct {
	path string
	dir  *dir
	from int // the first segment to read; 0 is the oldest

	number   int // of the segment that is open; 0 before the first
	file     *os.File
	lines    *lineReader
	line     int
	wholeEnd int64 // where the last whole record of this segment ends

	chain chain
}

// NewReader opens a log for reading. An error is an [*Error] with a hint.
func NewReader(path string) (*Reader, error) {
	d, err := openDir(path, false)
	if err != nil {
		return nil, err
	}
	r := &Reader{path: path, dir: d}
	numbers, err := d.segments()
	if err == nil && len(numbers) == 0 {
		err = errors.New("no segment of a log is there")
	}
	if err != nil {
		d.close()
		return nil, &Error{Msg: fmt.Sprintf("there is no audit log in %q", path), Hint: "name its directory with --dir", Err: err}
	}
	return r, nil
}

// Close closes what is open.
func (r *Reader) Close() {
	r.stop()
	r.dir.close()
}

// stop closes the segment alone.
func (r *Reader) stop() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

// Read gives each whole record that is there and was not given before, the
// oldest first, and can be called again for what has come meanwhile. Records are
// given even if the chain is broken around them: see [Reader.Result].
func (r *Reader) Read(each func(Entry) error) error {
	for {
		next, err := r.nextSegment()
		if err != nil {
			return err
		}
		if r.file != nil {
			// A writer is done with a segment when the next is there. It was looked
			// for before, so that if it is there this reads all of this one.
			partial, err := r.readSegment(each)
			if err != nil {
				return err
			}
			if next == 0 {
				r.chain.partial = partial
				return nil
			}
			if partial > 0 {
				r.chain.problem(segmentName(r.number), r.line+1, "the line is not whole, and no record says so")
			}
			r.chain.endRegion()
		}
		if next == 0 {
			return nil
		}
		if err := r.openSegment(next); err != nil {
			return err
		}
	}
}

// nextSegment is the number of the segment after this one; 0 if there is none.
func (r *Reader) nextSegment() (int, error) {
	numbers, err := r.dir.segments()
	if err != nil {
		return 0, &Error{Msg: fmt.Sprintf("listing the audit log in %q", r.path), Hint: "read it as the user whose log it is", Err: err}
	}
	for _, n := range numbers {
		if n > r.number && n >= r.from {
			return n, nil
		}
	}
	return 0, nil
}

func (r *Reader) openSegment(n int) error {
	r.stop()
	f, err := r.dir.openRead(segmentName(n))
	if errors.Is(err, fs.ErrNotExist) {
		r.number = n // pruned in this moment; if it was taken away the chain tells
		return nil
	}
	if err != nil {
		return &Error{Msg: fmt.Sprintf("reading the audit log in %q", r.path), Hint: "read it as the user whose log it is; its files are no links", Err: err}
	}
	r.file, r.number, r.line, r.wholeEnd = f, n, 0, 0
	r.lines = &lineReader{file: f}
	r.chain.segments++
	return nil
}

// readSegment reads to the end of the segment. It returns how many bytes there
// are after the last newline; they are read again the next time.
func (r *Reader) readSegment(each func(Entry) error) (partial int64, err error) {
	name := segmentName(r.number)
	r.lines.restart()
	for {
		start := r.lines.offset
		l, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			return l.size, nil
		}
		if err != nil {
			return 0, &Error{Msg: fmt.Sprintf("reading the audit log in %q", r.path), Hint: "look at the system's log for errors of the disk", Err: err}
		}
		r.line++
		if l.torn() {
			r.chain.tornLine(name, r.line, start)
			continue
		}
		e, why := parse(l)
		if why != "" {
			r.chain.problem(name, r.line, why)
			continue
		}
		e.File, e.Line = name, r.line
		if e.Kind == KindTorn {
			if err := r.checkTorn(e, start); err != nil {
				return 0, err
			}
		}
		r.chain.record(e)
		r.wholeEnd = r.lines.offset
		if err := each(e); err != nil {
			return 0, err
		}
	}
}

// checkTorn compares what a record says of the bytes before it with them.
func (r *Reader) checkTorn(e Entry, start int64) error {
	var t torn
	region := r.chain.region
	r.chain.region = nil
	if json.Unmarshal(e.Body, &t) != nil || region == nil || t.Offset != region.offset || t.Offset+t.Bytes != start {
		r.chain.problem(e.File, e.Line, "what it says was torn is not what is before it")
		return nil
	}
	h := newHash()
	if _, err := io.Copy(h, io.NewSectionReader(r.file, t.Offset, t.Bytes)); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != t.SHA256 {
		r.chain.problem(region.at.file, region.at.line, "the torn line was changed after "+segmentName(r.number)+" said what it is")
		return nil
	}
	r.chain.note(region.at.file, region.at.line, fmt.Sprintf("%d bytes are what a crash left of a record", t.Bytes))
	return nil
}

// parse reads one line; why says what is wrong with it.
func parse(l line) (e Entry, why string) {
	if l.size > MaxRecord {
		return e, fmt.Sprintf("a line of %d bytes is longer than a record can be", l.size)
	}
	var v envelope
	if json.Unmarshal(l.text, &v) != nil || v.Seq == 0 || v.Kind == "" || !bytes.HasPrefix(v.Body, []byte("{")) {
		return e, "the line is no record"
	}
	if v.V != Version {
		return e, fmt.Sprintf("version %d of the format is not known to this program", v.V)
	}
	return Entry{Seq: v.Seq, Time: v.Time, Kind: v.Kind, Body: v.Body, Prev: v.Prev, Hash: hashOf(l.text), Raw: l.text}, ""
}

// firstRecord is the first record of a segment.
func firstRecord(d *dir, path string, number int) (Entry, error) {
	r := &Reader{path: path, dir: d, from: number}
	defer r.stop()
	if err := r.openSegment(number); err != nil {
		return Entry{}, err
	}
	if r.file == nil {
		return Entry{}, fs.ErrNotExist
	}
	var first Entry
	_, err := r.readSegment(func(e Entry) error {
		first = e
		return io.EOF
	})
	if !errors.Is(err, io.EOF) {
		return Entry{}, fmt.Errorf("%s has no record: %w", segmentName(number), errors.Join(err, io.ErrUnexpectedEOF))
	}
	if len(r.chain.problems) > 0 {
		return Entry{}, fmt.Errorf("%s does not begin with a record", segmentName(number))
	}
	return first, nil
}

// line is one line without its newline.
type line struct {
	text []byte // no more than MaxRecord bytes of it
	end  []byte // its last bytes
	size int64
}

// torn tells whether it is what a crash left, and a later writer ended.
func (l line) torn() bool { return bytes.Equal(l.end, []byte(tornMark[:len(tornMark)-1])) }

// lineReader reads lines of any length and keeps a bounded part of each.
type lineReader struct {
	file   *os.File
	offset int64 // of the next line
	buf    *bufio.Reader
	text   []byte
}

// restart begins at the next line, with what the file has now.
func (r *lineReader) restart() {
	src := io.NewSectionReader(r.file, r.offset, 1<<62)
	if r.buf == nil {
		r.buf = bufio.NewReaderSize(src, 32<<10)
		return
	}
	r.buf.Reset(src)
}

// next returns a line; with io.EOF what has no newline yet.
func (r *lineReader) next() (line, error) {
	l := line{end: make([]byte, 0, len(tornMark)-1)}
	r.text = r.text[:0]
	for {
		part, err := r.buf.ReadSlice('\n')
		whole := err == nil
		if whole {
			part = part[:len(part)-1]
		}
		l.size += int64(len(part))
		r.text = append(r.text, part[:min(len(part), MaxRecord-len(r.text))]...)
		l.end = lastBytes(l.end, part)
		switch {
		case whole:
			r.offset += l.size + 1
			l.text = r.text
			return l, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			l.text = r.text
			return l, err
		}
	}
}

// lastBytes appends, and keeps as many of the last bytes as end can hold.
func lastBytes(end, part []byte) []byte {
	n := cap(end)
	if len(part) >= n {
		return append(end[:0], part[len(part)-n:]...)
	}
	if drop := len(end) + len(part) - n; drop > 0 {
		end = end[:copy(end, end[drop:])]
	}
	return append(end, part...)
}
