package audit

import (
	"encoding/json"
	"fmt"
	"time"
)

// Problem is something at a line of a segment.
type Problem struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text"`
}

func (p Problem) String() string { return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text) }

// maxProblems is how many problems, and how many notes, are kept; the others are
// counted.
const maxProblems = 100

type place struct {
	file string
	line int
}

// chain looks at records as they come.
type chain struct {
	records  int64
	segments int
	first    Stamp
	prev     string // of the first record
	firstAt  place
	declared bool // a record says that what was before the first was pruned
	head     Stamp
	headAt   place
	headTime time.Time
	// before is the head before a gap. A record that fits between tells that what
	// came after the gap is foreign, or that places were changed: then the chain
	// goes on from that record (at resumed), and aside is the head that was left.
	before  Stamp
	aside   Stamp
	resumed place
	suspect *suspect
	region  *region
	partial int64 // bytes after the last newline of all

	problems    []Problem
	lost        int
	notes       []Problem
	notesLost   int
	expected    []Stamp
	expectFound map[Stamp]bool
}

// suspect is a pair of records whose link does not hold: the next record says
// which of them was changed.
type suspect struct{ first, second place }

// region is where lines begin that a crash left.
type region struct {
	at     place
	offset int64
}

func (c *chain) problem(file string, line int, text string) {
	if len(c.problems) >= maxProblems {
		c.lost++
		return
	}
	c.problems = append(c.problems, Problem{file, line, text})
}

func (c *chain) note(file string, line int, text string) {
	if len(c.notes) >= maxProblems {
		c.notesLost++
		return
	}
	c.notes = append(c.notes, Problem{file, line, text})
}

func (c *chain) tornLine(file string, line int, offset int64) {
	if c.region == nil {
		c.region = &region{place{file, line}, offset}
	}
}

// endRegion complains of torn lines that no record speaks of.
func (c *chain) endRegion() {
	if c.region != nil {
		c.problem(c.region.at.file, c.region.at.line, "a torn line, and no record after it says what it is")
		c.region = nil
	}
}

// record takes the next record.
func (c *chain) record(e Entry) {
	c.endRegion()
	at := place{e.File, e.Line}
	c.records++
	switch {
	case c.first.Seq == 0:
		c.first, c.prev, c.firstAt = Stamp{e.Seq, e.Hash}, e.Prev, at
		if e.Seq == 1 && !begins(e) {
			c.problem(e.File, e.Line, "its prev is not the hash of the nonce that a log's first record has")
		}
	case e.Seq == c.head.Seq+1 && e.Prev == c.head.Hash:
		c.settle(true)
	case e.Seq == c.head.Seq+1:
		if !c.settle(false) {
			c.suspect = &suspect{c.headAt, at}
		}
	case e.Seq > c.head.Seq+1 && e.Seq == c.aside.Seq+1 && e.Prev == c.aside.Hash:
		c.settle(true)
		c.problem(c.resumed.file, c.resumed.line, fmt.Sprintf("record %d after record %d: its place was changed", c.head.Seq, c.aside.Seq))
	case e.Seq > c.head.Seq+1:
		c.settle(true)
		c.problem(e.File, e.Line, fmt.Sprintf("the records %d to %d are missing before it", c.head.Seq+1, e.Seq-1))
		c.before = c.head
	case c.before.Seq > 0 && e.Seq > c.before.Seq:
		if e.Seq != c.before.Seq+1 || e.Prev != c.before.Hash {
			c.misplaced(e)
		}
		c.before, c.aside, c.resumed = Stamp{}, c.head, at
	default:
		c.misplaced(e)
		return
	}
	if e.Time.Before(c.headTime) {
		c.note(e.File, e.Line, fmt.Sprintf("the clock went back by %v", c.headTime.Sub(e.Time).Round(time.Microsecond)))
	}
	c.head, c.headAt, c.headTime = Stamp{e.Seq, e.Hash}, at, e.Time
	c.expect(e)
	c.look(e)
}

func (c *chain) misplaced(e Entry) {
	c.problem(e.File, e.Line, fmt.Sprintf("record %d after record %d: it was put in, or its place was changed", e.Seq, c.head.Seq))
}

// settle tells of a suspect, if there is one, by whether the second record of it
// is what the third says. It returns whether there was one.
func (c *chain) settle(linked bool) bool {
	s := c.suspect
	if s == nil {
		return false
	}
	c.suspect = nil
	changed, other := s.first, s.second
	if !linked {
		changed, other = s.second, s.first
	}
	c.problem(changed.file, changed.line, fmt.Sprintf("the record was changed: its hash, or its prev, does not fit to %s:%d", other.file, other.line))
	return true
}

// begins tells whether a first record's prev is of the nonce in it.
func begins(e Entry) bool {
	var body struct {
		Nonce string `json:"nonce"`
	}
	return json.Unmarshal(e.Body, &body) == nil && len(body.Nonce) == 64 && hashOf([]byte(body.Nonce)) == e.Prev
}

// look reads records that speak of the log itself.
func (c *chain) look(e Entry) {
	switch e.Kind {
	case KindPruned:
		var p pruned
		if json.Unmarshal(e.Body, &p) == nil && p.Seq+1 == c.first.Seq && p.Hash == c.prev {
			c.declared = true
		}
	case KindOpen:
		var o opened
		if json.Unmarshal(e.Body, &o) == nil && o.Unclosed {
			c.note(e.File, e.Line, "the writer before was killed, or its log's last records were cut off")
		}
	}
}

// expect compares a record with what was kept of it elsewhere.
func (c *chain) expect(e Entry) {
	for _, s := range c.expected {
		if s.Seq != e.Seq || c.expectFound[s] {
			continue
		}
		c.expectFound[s] = true
		if s.Hash != e.Hash {
			c.problem(e.File, e.Line, fmt.Sprintf("record %d is not the one whose hash was expected", e.Seq))
		}
	}
}

// settleLast tells of a suspect that no record follows.
func (c *chain) settleLast() {
	if s := c.suspect; s != nil {
		c.suspect = nil
		c.problem(s.first.file, s.first.line, fmt.Sprintf("the record was changed, or %s:%d was", s.second.file, s.second.line))
	}
}

// finish says what only the end can tell.
func (c *chain) finish() {
	c.settleLast()
	if c.first.Seq > 1 && !c.declared {
		c.problem(c.firstAt.file, c.firstAt.line, fmt.Sprintf("the records 1 to %d are missing before it, and no record says that they were pruned", c.first.Seq-1))
	}
	if c.region != nil {
		c.note(c.region.at.file, c.region.at.line, "a torn line: the next writer will say what it is")
	}
	if c.partial > 0 {
		c.note(c.headAt.file, c.headAt.line+1, fmt.Sprintf("the last line is not whole (%d bytes): it is being written, or its writer was killed", c.partial))
	}
	for _, s := range c.expected {
		switch {
		case c.expectFound[s]:
		case s.Seq > c.head.Seq:
			c.problem(c.headAt.file, c.headAt.line, fmt.Sprintf("the log ends with record %d, and was seen with record %d: its end was cut off", c.head.Seq, s.Seq))
		case s.Seq+1 == c.first.Seq && s.Hash == c.prev:
		case s.Seq+1 == c.first.Seq:
			c.problem(c.firstAt.file, c.firstAt.line, fmt.Sprintf("it does not follow the record %d whose hash was expected", s.Seq))
		default:
			c.problem(c.firstAt.file, c.firstAt.line, fmt.Sprintf("record %d is not there to be compared", s.Seq))
		}
	}
}
