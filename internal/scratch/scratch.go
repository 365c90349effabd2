// Package scratch makes the private directories of workers such that those of a
// launcher that was killed are found and removed by the next one.
//
// Each process that makes one holds a lease: a file in a state directory of its
// user, locked by flock(2) for as long as the process lives, that lists what the
// process made. The lock is the proof of life: a lease that can be locked has no
// owner, whatever its name says, and pids that came around mean nothing. What it
// lists is removed only if it also bears a name that only this package gives and
// belongs to the user, so a forged lease cannot name anything else.
package scratch

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Mark is one thing that a process made.
type Mark struct {
	// Kind is "dir", or what another package calls its own.
	Kind string `json:"kind"`
	// Path is where it is, absolute; unique within a process.
	Path string `json:"path"`
	// Detail is for the one who removes it.
	Detail json.RawMessage `json:"detail,omitempty"`
}

// KindDir is a directory made by [Lease.Mkdir].
const KindDir = "dir"

// Lease is what this process made and has not yet removed. The zero value is a
// lease that cannot be written: things are made, and nobody finds them after a
// kill.
type Lease struct {
	mu   sync.Mutex
	dir  string   // of all leases of this user
	file *os.File // nil until the first mark
	path string
	made []Mark
	size int
	full int   // the size at which it is written anew
	err  error // why nothing is written
}

// New returns a lease in a state directory, which is made if it is missing.
// Nothing is written until something is made.
func New(dir string) *Lease { return &Lease{dir: dir} }

// Mine is the lease of this process, in the state directory of its user.
var Mine = sync.OnceValue(func() *Lease {
	dir, err := StateDir()
	if err != nil {
		return &Lease{err: err}
	}
	return New(dir)
})

// Trouble says why what this process makes will not be found after a kill; nil
// if it will.
func (l *Lease) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

const (
	prefix  = "sbx-"
	nameLen = len(prefix) + 2*16
	// compactAt is the least size in bytes at which a lease is written anew.
	compactAt = 64 << 10
	// maxLease bounds what is read of somebody's lease.
	maxLease = 4 << 20
)

// NewName returns a name that no other thing bears.
func NewName() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read's contract
	return prefix + hex.EncodeToString(b[:])
}

// IsName tells whether a name is one that [NewName] gives.
func IsName(s string) bool {
	raw, ok := strings.CutPrefix(s, prefix)
	if !ok || len(s) != nameLen {
		return false
	}
	_, err := hex.DecodeString(raw)
	return err == nil && raw == strings.ToLower(raw)
}

// Mkdir makes a private directory (mode 0700) of a new name below base.
func (l *Lease) Mkdir(base string) (string, error) {
	path := filepath.Join(base, NewName())
	l.Add(Mark{Kind: KindDir, Path: path}) // before it is made: a kill can come between
	if err := os.Mkdir(path, 0o700); err != nil {
		l.Drop(path)
		return "", err
	}
	return path, nil
}

// Add notes something before it is made. A lease that cannot be written is no
// reason not to make it: see [Lease.Trouble].
func (l *Lease) Add(m Mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made = append(l.made, m)
	l.append(line{Mark: m})
}

// Drop forgets something that is no more.
func (l *Lease) Drop(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, m := range l.made {
		if m.Path == path {
			l.made = append(l.made[:i], l.made[i+1:]...)
			break
		}
	}
	if len(l.made) == 0 {
		l.end() // nearly always; there is nothing to find
		return
	}
	l.append(line{Mark: Mark{Path: path}, Gone: true})
}

// Remove removes a directory made by [Lease.Mkdir] and forgets it. One that
// cannot be removed stays noted.
func (l *Lease) Remove(path string) error {
	if err := RemoveTree(path); err != nil {
		return err
	}
	l.Drop(path)
	return nil
}

// line is one line of a lease.
type line struct {
	Mark
	Gone bool `json:"gone,omitempty"`
}

func (l *Lease) append(e line) {
	if l.dir == "" || l.err != nil {
		return
	}
	if l.file == nil || l.size > l.full {
		l.begin()
		return
	}
	l.write(e)
}

func (l *Lease) write(lines ...line) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, e := range lines {
		if err := enc.Encode(e); err != nil {
			l.fail(err)
			return
		}
	}
	if _, err := l.file.Write(b.Bytes()); err != nil {
		l.fail(err)
		return
	}
	l.size += b.Len()
}

// begin writes a new lease with all that there is, and lets go of the old one
// after it.
func (l *Lease) begin() {
	old, oldPath := l.file, l.path
	path := filepath.Join(l.dir, NewName())
	file, err := createLocked(l.dir, path)
	if err != nil {
		l.fail(err)
		return
	}
	l.file, l.path, l.size = file, path, 0
	lines := make([]line, len(l.made))
	for i, m := range l.made {
		lines[i].Mark = m
	}
	l.write(lines...)
	l.full = fullAt(l.size)
	if old != nil {
		_ = os.Remove(oldPath)
		_ = old.Close()
	}
}

// fullAt is when a lease that has just been written anew is full: at twice its size,
// so that each mark is written but a few times however many there are, and before
// more is in it than is read of one.
func fullAt(size int) int {
	return max(compactAt, min(2*size, maxLease-compactAt), size+compactAt/4)
}

func (l *Lease) end() {
	if l.file == nil {
		return
	}
	_ = os.Remove(l.path) // under the lock: nobody takes it for a dead one's
	_ = l.file.Close()
	l.file, l.path, l.size = nil, "", 0
}

func (l *Lease) fail(err error) {
	l.err = fmt.Errorf("noting what is made: %w", err)
	l.end()
}

// Swept is what came of one mark of a dead process.
type Swept struct {
	Mark Mark
	Err  error // nil: it is gone
}

// maxLeases is how many leases one sweep looks at.
const maxLeases = 1000

// Sweep removes what dead processes of this user left. Marks of other kinds than
// [KindDir] are given to remove, which must check what it removes. A lease is
// kept while something that it lists could not be removed.
func (l *Lease) Sweep(remove func(Mark) error) (swept []Swept, err error) {
	if l.dir == "" {
		return nil, l.Trouble()
	}
	entries, err := readDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries[:min(len(entries), maxLeases)] {
		if IsName(e) {
			swept = append(swept, l.sweepOne(filepath.Join(l.dir, e), remove)...)
		}
	}
	return swept, err
}

func (l *Lease) sweepOne(path string, remove func(Mark) error) []Swept {
	l.mu.Lock()
	mine := path == l.path
	l.mu.Unlock()
	if mine {
		return nil
	}
	file, ok := openDead(path)
	if !ok {
		return nil
	}
	defer file.Close()
	swept := sweepMarks(readLease(file), remove)
	if !slices.ContainsFunc(swept, func(s Swept) bool { return s.Err != nil }) {
		_ = os.Remove(path)
	}
	return swept
}

// sweepMarks removes the newest first, which may stand in what was made before
// it, and tries again as long as something goes that was in the way of another.
// What took too long is for the next sweep.
func sweepMarks(marks []Mark, remove func(Mark) error) []Swept {
	slices.Reverse(marks)
	swept := make([]Swept, len(marks))
	for round, gone := 0, true; gone; round++ {
		gone = false
		for i, m := range marks {
			if round > 0 && (swept[i].Err == nil || errors.Is(swept[i].Err, errTooLong)) {
				continue
			}
			var err error
			if m.Kind == KindDir {
				err = removeLeft(m.Path)
			} else {
				err = remove(m)
			}
			swept[i] = Swept{m, err}
			gone = gone || err == nil
		}
	}
	return swept
}

// readLease returns what a lease lists and has not forgotten. A last line that
// was cut by a kill is left out: what it would note was not made yet.
func readLease(f *os.File) []Mark {
	data := make([]byte, 0, 4096)
	buf := make([]byte, 32<<10)
	for len(data) < maxLease {
		n, err := f.Read(buf)
		data = append(data, buf[:n]...)
		if err != nil || n == 0 {
			break
		}
	}
	return parseLease(data)
}

func parseLease(data []byte) []Mark {
	var marks []Mark
	for text := range bytes.Lines(data) {
		var e line
		if !bytes.HasSuffix(text, []byte("\n")) || json.Unmarshal(text, &e) != nil || !filepath.IsAbs(e.Path) {
			continue
		}
		if !e.Gone {
			marks = append(marks, e.Mark)
			continue
		}
		for i, m := range marks {
			if m.Path == e.Path {
				marks = append(marks[:i], marks[i+1:]...)
				break
			}
		}
	}
	return marks
}

func readDir(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// removeLeft removes a directory that a lease lists, if it is one of ours.
func removeLeft(path string) error {
	if !IsName(filepath.Base(path)) || filepath.Clean(path) != path {
		return fmt.Errorf("%q has no name that a launcher gives", path)
	}
	mine, err := isLeft(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !mine {
		return fmt.Errorf("%q is not a directory of this user", path)
	}
	if mounted, err := isMountPoint(path); err != nil || mounted {
		return cmp.Or(err, fmt.Errorf("something is mounted on %q", path))
	}
	return RemoveTree(path)
}
