package audit

// VerifyOptions are what a log is compared with.
type VerifyOptions struct {
	// Expect are records as they were once, from [Log.Head] or `sbx audit head`,
	// kept where the log's writer cannot write.
	Expect []Stamp
}

// Result is what was found of a log's chain.
type Result struct {
	// Whole tells that no problem was found. Without an anchor it does not say
	// that the end is there, nor that the log is not a new one as a whole.
	Whole bool `json:"whole"`
	// First is the oldest record that is there, and Head the newest.
	First    Stamp `json:"first"`
	Head     Stamp `json:"head"`
	Records  int64 `json:"records"`
	Segments int   `json:"segments"`
	// Pruned tells that records before First were deleted, as a record declares.
	Pruned   bool      `json:"pruned,omitempty"`
	Problems []Problem `json:"problems"`
	// ProblemsLost is how many there are beside Problems.
	ProblemsLost int `json:"problems_lost,omitempty"`
	// Notes are no breaks: crashes, clocks that went back.
	Notes     []Problem `json:"notes,omitempty"`
	NotesLost int       `json:"notes_lost,omitempty"`
}

// Verify reads a whole log and looks at its chain, in bounded memory. An error
// is a log that cannot be read.
func Verify(path string, o VerifyOptions) (Result, error) {
	r, err := NewReader(path)
	if err != nil {
		return Result{}, err
	}
	defer r.Close()
	r.chain.expected, r.chain.expectFound = o.Expect, map[Stamp]bool{}
	if err := r.Read(func(Entry) error { return nil }); err != nil {
		return Result{}, err
	}
	return r.Result(), nil
}

// Result is what was found of the chain in what was read. It ends the reading.
func (r *Reader) Result() Result {
	c := &r.chain
	c.finish()
	if c.records == 0 && c.lost+len(c.problems) == 0 {
		c.problem(segmentName(max(r.number, 1)), 1, "the log has no record")
	}
	if r.dir.exposed() {
		c.note(".", 0, "others than its owner can write to the directory")
	}
	res := Result{First: c.first, Head: c.head, Records: c.records, Segments: c.segments, Pruned: c.first.Seq > 1 && c.declared,
		Problems: c.problems, ProblemsLost: c.lost, Notes: c.notes, NotesLost: c.notesLost}
	res.Whole = len(c.problems)+c.lost == 0
	if res.Problems == nil {
		res.Problems = []Problem{}
	}
	return res
}
