//go:build unix

package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

// small makes segments of a few records each.
func small() Options { return Options{Program: "test 1", SegmentBytes: 2200, Sync: SyncNone} }

func mustOpen(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// launch appends the three records of one launch.
func launch(t testing.TB, l *Log, i int) Stamp {
	t.Helper()
	worker, zero := fmt.Sprintf("w%d", i), 0
	_, err1 := l.Request(Request{Worker: worker, UID: 1000, PID: i, Argv: []policy.Raw{"make", "test"}, Cwd: "/w", Mode: "workspace-write", Net: "none"})
	_, err2 := l.Decision(Decision{Worker: worker, UID: 1000, Decision: Allow, Source: "mode", PlanHash: hashOf([]byte(worker)), Level: "full"})
	s, err3 := l.End(End{Worker: worker, UID: 1000, Outcome: Outcome{Kind: "exited", Code: &zero}})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return s
}

func verify(t testing.TB, dir string, expect ...Stamp) Result {
	t.Helper()
	res, err := Verify(dir, VerifyOptions{Expect: expect})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func wantWhole(t testing.TB, dir string, expect ...Stamp) Result {
	t.Helper()
	res := verify(t, dir, expect...)
	if !res.Whole {
		t.Fatalf("the log is not whole: %v", res.Problems)
	}
	return res
}

func segmentsOf(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "audit-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestChainOverRotationAndReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	var anchors []Stamp
	for round := range 4 {
		l := mustOpen(t, dir, small())
		for i := range 10 {
			anchors = append(anchors, launch(t, l, 10*round+i))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		anchors = append(anchors, l.Head())
	}
	res := wantWhole(t, dir, anchors...)
	if want := int64(4 * (10*3 + 2)); res.Records != want || res.First.Seq != 1 || res.Head.Seq != uint64(want) || res.Head != anchors[len(anchors)-1] {
		t.Errorf("found %+v, want %d records", res, want)
	}
	if res.Segments != len(segmentsOf(t, dir)) || res.Segments < 10 {
		t.Errorf("%d segments, %d files", res.Segments, len(segmentsOf(t, dir)))
	}
	if len(res.Notes) > 0 {
		t.Errorf("notes of a log that was always closed: %v", res.Notes)
	}
	for _, p := range segmentsOf(t, dir) {
		st, err := os.Stat(p)
		if err != nil || st.Mode().Perm() != 0o600 || st.Size() > small().SegmentBytes {
			t.Errorf("%s: %v, %d bytes, %v", p, st.Mode(), st.Size(), err)
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", st.Mode(), err)
	}
}

// TestTwoLogsShareNoHash: a log that was begun anew is not the old one, even at
// the same records.
func TestTwoLogsShareNoHash(t *testing.T) {
	now := func() time.Time { return time.Unix(1e9, 0) }
	var heads [2]Stamp
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		o := small()
		o.now = now
		heads[i] = mustOpen(t, dir, o).Head()
	}
	if heads[0].Hash == heads[1].Hash || heads[0].Seq != heads[1].Seq {
		t.Errorf("heads %v", heads)
	}
	if verify(t, dirs[0], heads[1]).Whole {
		t.Error("the head of another log is accepted")
	}
}

// made is a log of several segments, closed, and its head.
func made(t testing.TB) (string, Stamp) {
	t.Helper()
	return madeOf(t, 8, small().SegmentBytes)
}

func madeOf(t testing.TB, launches int, segment int64) (string, Stamp) {
	t.Helper()
	dir := t.TempDir()
	o := small()
	o.SegmentBytes = segment
	l := mustOpen(t, dir, o)
	for i := range launches {
		launch(t, l, i)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, dir)
	return dir, l.Head()
}

func readLines(t testing.TB, path string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.SplitAfter(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
}

func writeLines(t testing.TB, path string, lines [][]byte) {
	t.Helper()
	b := bytes.Join(lines, nil)
	if !bytes.HasSuffix(b, []byte("\n")) {
		b = append(b, '\n')
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCorruptionIsFound(t *testing.T) {
	edit := func(name string, change func([][]byte) [][]byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			p := filepath.Join(dir, name)
			lines := readLines(t, p)
			if len(lines) < 3 {
				t.Fatalf("%s has %d lines", name, len(lines))
			}
			writeLines(t, p, change(lines))
		}
	}
	replace := func(line int, from, to string) func([][]byte) [][]byte {
		return func(l [][]byte) [][]byte {
			changed := bytes.Replace(l[line-1], []byte(from), []byte(to), 1)
			if bytes.Equal(changed, l[line-1]) {
				panic("nothing was changed in " + string(l[line-1]))
			}
			l[line-1] = changed
			return l
		}
	}
	without := func(line int) func([][]byte) [][]byte {
		return func(l [][]byte) [][]byte { return append(l[:line-1:line-1], l[line:]...) }
	}
	with := func(line int, text func(l [][]byte) string) func([][]byte) [][]byte {
		return func(l [][]byte) [][]byte {
			return append(append(l[:line-1:line-1], []byte(text(l)+"\n")), l[line-1:]...)
		}
	}
	const s1, s2, s3, s4 = "audit-000001.jsonl", "audit-000002.jsonl", "audit-000003.jsonl", "audit-000004.jsonl"
	for _, c := range []struct {
		name   string
		change func(*testing.T, string)
		file   string
		line   int
		text   string
	}{
		{"a changed byte", edit(s2, replace(2, `"uid":1000`, `"uid":1001`)), s2, 2, "was changed"},
		{"a changed byte of a segment's first line", edit(s2, replace(1, `"uid":1000`, `"uid":1001`)), s2, 1, "was changed"},
		{"a changed prev", edit(s2, replace(2, `"prev":"`, `"prev":"0`)), s2, 2, "was changed"},
		{"a changed number", edit(s2, replace(2, `"seq":`, `"seq":9`)), s2, 2, "are missing"},
		{"a space that changes no value", edit(s2, replace(2, `{"v":1,`, `{"v": 1,`)), s2, 2, "was changed"},
		{"a changed genesis", edit(s1, replace(1, `"nonce":"`, `"nonce":"0`)), s1, 1, "nonce"},
		{"a line that is no JSON any more", edit(s2, replace(2, `{`, `[`)), s2, 2, "no record"},
		{"a removed line", edit(s2, without(2)), s2, 2, "are missing"},
		{"a removed first line", edit(s2, without(1)), s2, 1, "are missing"},
		{"the first line of all removed", edit(s1, without(1)), s1, 1, "no record says that they were pruned"},
		{"reordered lines", edit(s2, func(l [][]byte) [][]byte { l[0], l[1] = l[1], l[0]; return l }), s2, 2, "its place was changed"},
		{"a foreign line", edit(s2, with(2, func([][]byte) string { return "hello" })), s2, 2, "no record"},
		{"an empty line", edit(s2, with(2, func([][]byte) string { return "" })), s2, 2, "no record"},
		{"a line twice", edit(s2, with(2, func(l [][]byte) string { return strings.TrimSpace(string(l[0])) })), s2, 2, "was put in"},
		{"an inserted record that links to the one before", edit(s2, with(2, func(l [][]byte) string {
			var e envelope
			if err := json.Unmarshal(l[1], &e); err != nil {
				panic(err)
			}
			e.Body = json.RawMessage(`{"uid":0}`)
			b, err := e.line()
			if err != nil {
				panic(err)
			}
			return strings.TrimSpace(string(b))
		})), s2, 3, "was put in"},
		{"an inserted record of a far number", edit(s2, with(2, func(l [][]byte) string {
			return strings.Replace(strings.TrimSpace(string(l[1])), `"seq":`, `"seq":99`, 1)
		})), s2, 2, "are missing"},
		{"a version that is not known", edit(s2, replace(2, `"v":1`, `"v":2`)), s2, 2, "version 2"},
		{"a long line", edit(s2, with(2, func([][]byte) string { return strings.Repeat("x", 3*MaxRecord) })), s2, 2, "longer than a record"},
		{"a torn line of nobody's", edit(s2, with(2, func([][]byte) string { return "x #torn" })), s2, 2, "torn line"},
		{"a torn line of nobody's in the last segment", func(t *testing.T, dir string) {
			all := segmentsOf(t, dir)
			if filepath.Base(all[len(all)-1]) != s4 {
				t.Fatal(all)
			}
			edit(s4, with(2, func([][]byte) string { return "x #torn" }))(t, dir)
		}, s4, 2, "torn line"},
		{"the end of a segment cut off", edit(s2, func(l [][]byte) [][]byte { return l[:len(l)-1] }), s3, 1, "are missing"},
		{"a segment cut inside of a line", func(t *testing.T, dir string) {
			p := filepath.Join(dir, s2)
			st, err := os.Stat(p)
			if err == nil {
				err = os.Truncate(p, st.Size()-9)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, s2, -1, "not whole"},
		{"a segment missing in the middle", func(t *testing.T, dir string) { remove(t, filepath.Join(dir, s2)) }, s3, 1, "are missing"},
		{"the first segment missing", func(t *testing.T, dir string) { remove(t, filepath.Join(dir, s1)) }, s2, 1, "no record says that they were pruned"},
		{"two segments exchanged", func(t *testing.T, dir string) {
			a, b, c := filepath.Join(dir, s2), filepath.Join(dir, s3), filepath.Join(dir, "x")
			if err := errors.Join(os.Rename(a, c), os.Rename(b, a), os.Rename(c, b)); err != nil {
				t.Fatal(err)
			}
		}, s2, 1, "are missing"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			dir, _ := made(t)
			line := c.line
			if line < 0 {
				line = len(readLines(t, filepath.Join(dir, c.file)))
			}
			c.change(t, dir)
			res := verify(t, dir)
			if res.Whole || len(res.Problems) == 0 {
				t.Fatal("it is not found")
			}
			found := false
			for _, p := range res.Problems {
				found = found || p.File == c.file && p.Line == line && strings.Contains(p.Text, c.text)
			}
			if !found {
				t.Errorf("want %q at %s:%d, have %v", c.text, c.file, line, res.Problems)
			}
			if len(res.Problems) > 4 {
				t.Errorf("one change gives %d problems: %v", len(res.Problems), res.Problems)
			}
		})
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestEveryByte: a change of any byte of a segment in the middle is found.
func TestEveryByte(t *testing.T) {
	dir, _ := madeOf(t, 2, 900)
	p := filepath.Join(dir, "audit-000002.jsonl")
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		changed := bytes.Clone(b)
		changed[i] ^= 1
		if err := os.WriteFile(p, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		res := verify(t, dir)
		line := bytes.Count(b[:i], []byte("\n")) + 1
		near := false
		for _, pr := range res.Problems {
			near = near || pr.File == filepath.Base(p) && pr.Line >= line-1 && pr.Line <= line+1 || b[i] == '\n'
		}
		if res.Whole || !near {
			t.Fatalf("byte %d (line %d) changed: %v", i, line, res.Problems)
		}
	}
}

// TestCutTail: what a chain cannot tell an anchor does.
func TestCutTail(t *testing.T) {
	dir, head := made(t)
	all := segmentsOf(t, dir)
	last := all[len(all)-1]
	lines := readLines(t, last)
	if len(lines) < 2 {
		t.Fatalf("%d lines", len(lines))
	}
	writeLines(t, last, lines[:len(lines)-1])
	wantWhole(t, dir) // the documentation says so
	res := verify(t, dir, head)
	if res.Whole || res.Problems[0].File != filepath.Base(last) || res.Problems[0].Line != len(lines)-1 {
		t.Errorf("with an anchor: %+v", res)
	}
	remove(t, last)
	if verify(t, dir, head).Whole {
		t.Error("a missing last segment is not found")
	}
	// A changed last record, too, only the anchor has.
	dir, head = made(t)
	all = segmentsOf(t, dir)
	lines = readLines(t, all[len(all)-1])
	lines[len(lines)-1] = bytes.Replace(lines[len(lines)-1], []byte(`"kind":"close"`), []byte(`"kind":"klose"`), 1)
	writeLines(t, all[len(all)-1], lines)
	if res := verify(t, dir, head); res.Whole || res.Problems[0].Line != len(lines) {
		t.Errorf("a changed last record: %+v", res)
	}
}

func TestPruning(t *testing.T) {
	dir := t.TempDir()
	o := small()
	o.Keep = 3
	l := mustOpen(t, dir, o)
	var early, late Stamp
	for i := range 30 {
		late = launch(t, l, i)
		if i == 0 {
			early = late
		}
	}
	if err := l.Trouble(); err != nil {
		t.Fatal(err)
	}
	paths := segmentsOf(t, dir)
	if len(paths) != 3 {
		t.Fatalf("%d segments are kept", len(paths))
	}
	res := wantWhole(t, dir, late)
	if !res.Pruned || res.First.Seq < 30 {
		t.Errorf("%+v", res)
	}
	// What is pruned cannot be compared, and that is no success.
	if verify(t, dir, early).Whole {
		t.Error("an anchor that was pruned away counts as found")
	}
	// But for the last of them, whose hash is still there.
	first, err := firstRecord(l.dir, dir, segmentNumber(filepath.Base(paths[0])))
	if err != nil {
		t.Fatal(err)
	}
	wantWhole(t, dir, Stamp{first.Seq - 1, first.Prev})
	if verify(t, dir, Stamp{first.Seq - 1, late.Hash}).Whole {
		t.Error("another record than the last one that was pruned is accepted")
	}
	// One more taken away is no pruning.
	keep := paths[0] + ".kept"
	if err := os.Rename(paths[0], keep); err != nil {
		t.Fatal(err)
	}
	if res := verify(t, dir); res.Whole || res.Pruned {
		t.Errorf("a segment taken away at the front: %+v", res)
	}
	if err := os.Rename(keep, paths[0]); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// Opened with fewer to keep, the next rotation deletes more.
	o.Keep = 1
	l = mustOpen(t, dir, o)
	for i := range 8 {
		launch(t, l, i)
	}
	if n := len(segmentsOf(t, dir)); n != 1 {
		t.Errorf("%d segments are kept", n)
	}
	if res := wantWhole(t, dir); !res.Pruned {
		t.Errorf("%+v", res)
	}
}

// TestPrunedButStillThere: a crash between the record and the deletion.
func TestPrunedButStillThere(t *testing.T) {
	dir := t.TempDir()
	o := small()
	o.Keep = 2
	l := mustOpen(t, dir, o)
	saved := map[string][]byte{}
	for i := range 12 {
		launch(t, l, i)
		for _, p := range segmentsOf(t, dir) {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			saved[p] = b
		}
	}
	first := segmentsOf(t, dir)[0]
	before := filepath.Join(dir, segmentName(segmentNumber(filepath.Base(first))-1))
	if saved[before] == nil {
		t.Fatal("nothing was pruned")
	}
	if err := os.WriteFile(before, saved[before], 0o600); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, dir)
	for i := range 4 {
		launch(t, l, i)
	}
	if _, err := os.Stat(before); err == nil {
		t.Error("what was declared and not deleted is still there")
	}
	wantWhole(t, dir)
}

// TestCrashAtEveryByte: whatever part of the last record a crash leaves, the next
// writer declares it and the chain is whole; so after two crashes, too, at every
// byte of the declaration.
func TestCrashAtEveryByte(t *testing.T) {
	dir, _ := madeOf(t, 1, defaultSegment)
	paths := segmentsOf(t, dir)
	last := paths[len(paths)-1]
	base, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	start := bytes.LastIndexByte(base[:len(base)-1], '\n') + 1
	check := func(what string, content []byte, torn bool) {
		t.Helper()
		if err := os.WriteFile(last, content, 0o600); err != nil {
			t.Fatal(err)
		}
		verify(t, dir) // must not fail on what it sees
		l := mustOpen(t, dir, Options{Sync: SyncNone})
		launch(t, l, 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		res := wantWhole(t, dir, l.Head())
		said := strings.Contains(fmt.Sprint(res.Notes), "what a crash left")
		if said != torn {
			t.Fatalf("%s: notes are %v", what, res.Notes)
		}
		after, err := os.ReadFile(last)
		if err != nil || !bytes.HasPrefix(after, content) {
			t.Fatalf("%s: what was there is not there any more", what)
		}
	}
	for cut := start; cut < len(base); cut++ {
		check(fmt.Sprintf("cut at %d", cut), base[:cut], cut > start)
	}
	// The first crash left half of a record; the second, half of its declaration.
	half := base[:start+20]
	if err := os.WriteFile(last, half, 0o600); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, dir, Options{Sync: SyncNone})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	declared, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	end := len(half) + bytes.IndexByte(declared[len(half)+len(tornMark):], '\n') + len(tornMark)
	for cut := len(half) + 1; cut < end; cut++ {
		check(fmt.Sprintf("the declaration cut at %d", cut), declared[:cut], true)
	}
	// A third party's change of what was torn is found.
	changed := bytes.Clone(declared)
	changed[start+3] ^= 1
	if err := os.WriteFile(last, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if verify(t, dir).Whole {
		t.Error("a changed torn line is not found")
	}
}

// TestDecided: a request and its decision are one write of two records, in one
// segment; whatever part of them a crash leaves, the chain goes on.
func TestDecided(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	o := Options{SegmentBytes: 3000}
	l := mustOpen(t, dir, o)
	decide := func(i int) (Stamp, error) {
		worker := fmt.Sprintf("w%d", i)
		return l.Decided(Request{Worker: worker, UID: 1000, Argv: []policy.Raw{"make"}}, Decision{Worker: worker, UID: 1000, Decision: Allow})
	}
	for i := range 20 {
		before := l.Head().Seq
		stamp, err := decide(i)
		if err != nil || stamp.Seq != before+2 || stamp != l.Head() || l.synced != stamp.Seq {
			t.Fatalf("%+v after %d, head %+v, on the disk %d, %v", stamp, before, l.Head(), l.synced, err)
		}
	}
	if _, err := l.Decided(Request{}, Decision{Decision: "perhaps"}); err == nil || l.Head().Seq != 41 {
		t.Errorf("no decision is appended: %v, %+v", err, l.Head())
	}
	wantWhole(t, dir, l.Head())
	kinds := map[string]string{} // of each worker, and in which segment
	if err := readAll(dir, func(e Entry) error {
		if e.Kind == KindRequest || e.Kind == KindDecision {
			var b struct{ Worker string }
			if err := json.Unmarshal(e.Body, &b); err != nil {
				return err
			}
			kinds[b.Worker] += e.Kind + "@" + e.File + " "
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for worker, got := range kinds {
		var file string
		if _, err := fmt.Sscanf(got, "request@%s", &file); err != nil || got != "request@"+file+" decision@"+file+" " {
			t.Errorf("%s: %s", worker, got)
		}
	}
	if len(kinds) != 20 || len(segmentsOf(t, dir)) < 3 {
		t.Errorf("%d workers, %d segments", len(kinds), len(segmentsOf(t, dir)))
	}
	paths := segmentsOf(t, dir)
	last := paths[len(paths)-1]
	before, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	l.o.SegmentBytes = 1 << 20
	if _, err := decide(99); err != nil {
		t.Fatal(err)
	}
	base, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	for cut := len(before); cut <= len(base); cut += 7 {
		if err := os.WriteFile(last, base[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		l := mustOpen(t, dir, Options{Sync: SyncNone})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantWhole(t, dir, l.Head())
	}
}

// TestDecidingWaits: what is written and not yet waited for is not said to be on the
// disk, and a log that fails meanwhile says so to who waits.
func TestDecidingWaits(t *testing.T) {
	l := mustOpen(t, filepath.Join(t.TempDir(), "log"), Options{})
	wait, err := l.Deciding(Request{}, Decision{Decision: Allow})
	if err != nil || l.Head().Seq != 3 || l.synced != 1 {
		t.Fatalf("%v, head %+v, on the disk %d", err, l.Head(), l.synced)
	}
	if stamp, err := wait(); err != nil || stamp.Seq != 3 || l.synced != 3 {
		t.Errorf("%+v, %v, on the disk %d", stamp, err, l.synced)
	}
	if wait, err = l.Deciding(Request{}, Decision{Decision: Allow}); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	_ = l.fail(errors.New("the disk is gone"))
	l.mu.Unlock()
	if _, err := wait(); err == nil {
		t.Error("a launch may begin that is not on the disk")
	}
}

// TestFalseDeclaration: a record that declares other bytes than those before it
// does not excuse them, even if its hash is right.
func TestFalseDeclaration(t *testing.T) {
	for _, left := range []string{"", "x #torn\n", "y #torn\nx #torn\n"} {
		for _, wrong := range []int64{-1, 1, 8} {
			dir := t.TempDir()
			l := mustOpen(t, dir, small())
			at := l.size
			if _, err := l.file.WriteString(left); err != nil {
				t.Fatal(err)
			}
			l.size += int64(len(left))
			from := max(at+wrong, 0)
			b, err := os.ReadFile(segmentsOf(t, dir)[0])
			if err != nil {
				t.Fatal(err)
			}
			part := b[min(from, int64(len(b))):]
			body, err := encode(torn{Offset: from, Bytes: int64(len(part)), SHA256: hashOf(part)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.append(false, record{KindTorn, body}); err != nil {
				t.Fatal(err)
			}
			if verify(t, dir).Whole {
				t.Errorf("%q with a declaration that is wrong by %d is excused", left, wrong)
			}
		}
	}
}

// TestCrashInTheFirstRecord: a log of which nothing but half a line exists, and
// segments that a crash left empty.
func TestCrashInTheFirstRecord(t *testing.T) {
	for _, content := range []string{"", "{", `{"v":1,"seq":1}`, "\x00\x00\x00", "x #torn\ny"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, segmentName(1)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		l := mustOpen(t, dir, small())
		launch(t, l, 1)
		if res := wantWhole(t, dir); res.First.Seq != 1 {
			t.Errorf("%q: %+v", content, res)
		}
	}
	for _, content := range []string{"", `{"v":1`} {
		dir, head := made(t)
		next := filepath.Join(dir, segmentName(len(segmentsOf(t, dir))+1))
		if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		l := mustOpen(t, dir, small())
		if l.Head().Seq <= head.Seq {
			t.Errorf("%q: the chain begins anew", content)
		}
		launch(t, l, 1)
		wantWhole(t, dir, head)
	}
}

// TestDamagedIsNotContinued: a writer does not build on a chain that is broken.
func TestDamagedIsNotContinued(t *testing.T) {
	for name, change := range map[string]func(lines [][]byte) [][]byte{
		"changed": func(l [][]byte) [][]byte { l[0] = bytes.Replace(l[0], []byte("1000"), []byte("1001"), 1); return l },
		"changed last": func(l [][]byte) [][]byte {
			l[len(l)-1] = bytes.Replace(l[len(l)-1], []byte(`"prev":"`), []byte(`"prev":"0`), 1)
			return l
		},
		"garbage": func(l [][]byte) [][]byte { return append(l, []byte("\ngarbage\n")) },
		"missing": func(l [][]byte) [][]byte { return append(l[:1:1], l[2:]...) },
	} {
		dir, _ := made(t)
		paths := segmentsOf(t, dir)
		last := paths[len(paths)-2]
		remove(t, paths[len(paths)-1])
		writeLines(t, last, change(readLines(t, last)))
		before, err := os.ReadFile(last)
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, small())
		var e *Error
		if err == nil || !errors.As(err, &e) || e.Hint == "" || !strings.Contains(err.Error(), filepath.Base(last)) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
		if after, _ := os.ReadFile(last); !bytes.Equal(before, after) {
			t.Errorf("%s: it was written to", name)
		}
	}
}

func TestConcurrentAppends(t *testing.T) {
	dir := t.TempDir()
	o := small()
	o.SegmentBytes, o.Keep = 16<<10, 0
	l := mustOpen(t, dir, o)
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 20 {
				if _, err := l.Request(Request{Worker: fmt.Sprintf("g%d", g), PID: i}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	// A reader beside them sees a whole chain at any time.
	for range 20 {
		wantWhole(t, dir)
	}
	wg.Wait()
	if res := wantWhole(t, dir); res.Records != 32*20+1 {
		t.Errorf("%d records", res.Records)
	}
	next := map[string]int{}
	err := readAll(dir, func(e Entry) error {
		var r Request
		if err := json.Unmarshal(e.Body, &r); err != nil || e.Kind != KindRequest {
			return err
		}
		if r.PID != next[r.Worker] {
			return fmt.Errorf("%s: %d after %d", r.Worker, r.PID, next[r.Worker])
		}
		next[r.Worker]++
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func readAll(dir string, each func(Entry) error) error {
	r, err := NewReader(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Read(each)
}

// TestTouchedUnderneath: whatever somebody does to a log that is open, the next
// append sees it, is refused, and so are all later ones.
func TestTouchedUnderneath(t *testing.T) {
	for name, touch := range map[string]func(dir, file string) error{
		"truncated":       func(_, f string) error { return os.Truncate(f, 10) },
		"cut by one byte": func(_, f string) error { st, err := os.Stat(f); return errors.Join(err, os.Truncate(f, st.Size()-1)) },
		"removed":         func(_, f string) error { return os.Remove(f) },
		"renamed":         func(_, f string) error { return os.Rename(f, f+".old") },
		"replaced by a copy": func(_, f string) error {
			b, err := os.ReadFile(f)
			return errors.Join(err, os.Remove(f), os.WriteFile(f, b, 0o600))
		},
		"replaced by a link": func(_, f string) error { return errors.Join(os.Rename(f, f+".old"), os.Symlink(f+".old", f)) },
		"written by another": func(_, f string) error {
			w, err := os.OpenFile(f, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = w.WriteString("{}\n")
			return errors.Join(err, w.Close())
		},
		"lock removed":      func(d, _ string) error { return os.Remove(filepath.Join(d, lockName)) },
		"directory renamed": func(d, _ string) error { return errors.Join(os.Rename(d, d+".old"), os.Mkdir(d, 0o700)) },
	} {
		dir := filepath.Join(t.TempDir(), "log")
		l := mustOpen(t, dir, Options{Sync: SyncNone})
		launch(t, l, 1)
		head := l.Head()
		if err := touch(dir, segmentsOf(t, dir)[0]); err != nil {
			t.Fatal(name, err)
		}
		if _, err := l.Decision(Decision{Decision: Allow}); err == nil {
			t.Errorf("%s: it is not seen", name)
		}
		if l.Err() == nil || l.Head() != head {
			t.Errorf("%s: the log goes on", name)
		}
		if _, err := l.Request(Request{}); err == nil {
			t.Errorf("%s: a later append is taken", name)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: closing: %v", name, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	refused := func(name, dir string) {
		t.Helper()
		l, err := Open(dir, small())
		var e *Error
		if err == nil {
			_ = l.Close()
			t.Errorf("%s: it is opened", name)
		} else if !errors.As(err, &e) || e.Hint == "" {
			t.Errorf("%s: %v has no hint", name, err)
		}
	}
	base := t.TempDir()
	real, _ := made(t)
	link := filepath.Join(base, "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	refused("a link to a directory", link)
	refused("a link to a directory, with a slash", link+"/")
	if _, err := Verify(link+"/", VerifyOptions{}); err == nil {
		t.Error("a link is read through")
	}

	for _, mode := range []os.FileMode{0o770, 0o702, 0o777 | os.ModeSticky} {
		d := filepath.Join(base, fmt.Sprint(uint32(mode)))
		if err := errors.Join(os.Mkdir(d, 0o700), os.Chmod(d, mode)); err != nil {
			t.Fatal(err)
		}
		refused(fmt.Sprint("mode ", mode), d)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a file", file)

	if os.Geteuid() == 0 {
		d := filepath.Join(base, "foreign")
		if err := errors.Join(os.Mkdir(d, 0o700), os.Chown(d, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		refused("a directory of another user", d)
	} else {
		refused("a directory of another user", "/")
	}

	last := func(dir string) string { p := segmentsOf(t, dir); return p[len(p)-1] }
	for name, prepare := range map[string]func(dir string) error{
		"a segment that is a link":            func(d string) error { f := last(d); return errors.Join(os.Rename(f, d+"/x"), os.Symlink(d+"/x", f)) },
		"a segment that is a directory":       func(d string) error { f := last(d); return errors.Join(os.Remove(f), os.Mkdir(f, 0o700)) },
		"a segment that is a FIFO":            func(d string) error { f := last(d); return errors.Join(os.Remove(f), unix.Mkfifo(f, 0o600)) },
		"a lock that is a FIFO":               func(d string) error { return errors.Join(os.Remove(d+"/lock"), unix.Mkfifo(d+"/lock", 0o600)) },
		"a segment that others can write":     func(d string) error { return os.Chmod(last(d), 0o622) },
		"a segment with another name":         func(d string) error { return os.Link(last(d), d+"/x") },
		"a lock that is a link":               func(d string) error { return errors.Join(os.Remove(d+"/lock"), os.Symlink(d+"/x", d+"/lock")) },
		"a lock that is a link to something":  func(d string) error { return errors.Join(os.Remove(d+"/lock"), os.Symlink(file, d+"/lock")) },
		"a new segment's name that is a link": func(d string) error { return os.Symlink(file, filepath.Join(d, segmentName(999999))) },
	} {
		dir, _ := made(t)
		if err := prepare(dir); err != nil {
			t.Fatal(name, err)
		}
		refused(name, dir)
		if _, err := Verify(dir, VerifyOptions{}); (err == nil) == (strings.Contains(name, "segment that is a") || strings.Contains(name, "name that is")) {
			t.Errorf("%s: reading it: %v", name, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || len(b) > 0 {
		t.Errorf("the target of a link was written: %q, %v", b, err)
	}
}

// TestSecretsStayOut: what must not be in a log is not, whichever way it is put
// into a record.
func TestSecretsStayOut(t *testing.T) {
	dir := t.TempDir()
	o := small()
	o.HashArgv = true
	l := mustOpen(t, dir, o)
	secret := rand.Text()
	raw := policy.Raw(secret)
	if _, err := l.Request(Request{
		Argv:     []policy.Raw{"curl", "-H", raw, "\xff" + raw},
		EnvNames: []policy.Raw{"TOKEN=" + raw, "A=B=" + raw, "\xff=" + raw, "=" + raw, "PATH"},
		Weakened: []policy.Weakening{{Flag: "--env TOKEN=" + secret, Meaning: "m"}, {Flag: "--env=TOKEN=" + secret}},
		// What a caller says of the hash and of cuts is not taken over.
		ArgvSHA256: secret, Cut: map[string]Cut{secret: {}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Decision(Decision{Decision: Refuse, Cut: map[string]Cut{secret: {}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.End(End{Cut: map[string]Cut{secret: {}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Event("ask", map[string]string{"x": secret}); err == nil {
		t.Error("a map is taken for a body")
	}
	names := 0
	err := readAll(dir, func(e Entry) error {
		text := string(e.Raw)
		var r Request
		if err := json.Unmarshal(e.Body, &r); err != nil {
			return err
		}
		if strings.Contains(text, secret) || strings.Contains(fmt.Sprintf("%+v", r), secret) { // base64 is decoded by then
			t.Errorf("the log has the secret: %s", text)
		}
		if e.Kind == KindRequest {
			names = len(r.EnvNames)
			if len(r.Argv) != 1 || r.Argv[0] != "curl" || r.ArgvItems != 4 || r.ArgvSHA256 != hashOf([]byte("curl\x00-H\x00"+secret+"\x00\xff"+secret+"\x00")) {
				t.Errorf("the command: %q %d %s", r.Argv, r.ArgvItems, r.ArgvSHA256)
			}
			if r.Weakened[0].Flag != "--env TOKEN" || r.Weakened[0].Meaning != "m" {
				t.Errorf("the weakening: %q", r.Weakened)
			}
		}
		return nil
	})
	if err != nil || names != 5 {
		t.Errorf("%d names, %v", names, err)
	}
}

// TestBodiesHaveNoPlaceForValues: no field that a record has is for the values of
// variables or for what files hold. Who adds one decides here.
func TestBodiesHaveNoPlaceForValues(t *testing.T) {
	known := "Worker UID GID PID Exe Conn Argv ArgvSHA256 ArgvItems Cwd Workspace Mode Net EnvNames Profiles Label Weakened DryRun Cut " +
		"Decision Reason Source PlanHash Backend Level Effects Outcome Usage Denials DenialsLost ExitStatus "
	for _, body := range []any{Request{}, Decision{}, End{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(body)) {
			if !strings.Contains(known, f.Name+" ") {
				t.Errorf("%T.%s is not known to be free of secrets", body, f.Name)
			}
		}
	}
}

// TestRecordsAreBounded: whatever is put in, a record fits, says what was cut,
// and is one line.
func TestRecordsAreBounded(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{Sync: SyncNone})
	for _, unit := range []string{"x", "\x00", "\n", "\xff", "<", "ä", "\u2028", `"`} {
		long := strings.Repeat(unit, 200_000)
		raw := policy.Raw(long)
		many := make([]policy.Raw, 5000)
		effects := map[string]string{long: long}
		var weak []policy.Weakening
		for i := range many {
			many[i] = policy.Raw(unit)
			effects[fmt.Sprint(unit, i)] = unit
			weak = append(weak, policy.Weakening{Flag: unit, Meaning: unit})
		}
		_, err1 := l.Request(Request{Worker: long, Exe: raw, Conn: long, Argv: append([]policy.Raw{"cmd", raw}, many...), Cwd: raw, Workspace: raw, Mode: long, Net: long,
			EnvNames: many, Profiles: []string{long, long}, Label: raw, Weakened: append(weak, policy.Weakening{Flag: long, Meaning: long})})
		_, err2 := l.Decision(Decision{Worker: long, Decision: Allow, Reason: raw, Source: raw, PlanHash: long, Backend: long, Level: long, Effects: effects})
		_, err3 := l.End(End{Worker: long, Outcome: Outcome{Kind: long, Which: long, Step: long, Errno: long, Reason: raw}, Level: long, Effects: effects})
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatalf("%q: %v", unit, err)
		}
	}
	n := 0
	err := readAll(dir, func(e Entry) error {
		if len(e.Raw) > MaxRecord {
			t.Errorf("record %d has %d bytes", e.Seq, len(e.Raw))
		}
		if e.Kind != KindRequest {
			return nil
		}
		n++
		var r Request
		if err := json.Unmarshal(e.Body, &r); err != nil {
			return err
		}
		size := 0
		for _, a := range r.Argv {
			size += len(a)
		}
		if size > fieldBytes || r.Cut["argv"].Items != 5002 || r.Cut["argv"].Bytes < 200_000 || r.ArgvItems != 5002 || r.Cut["cwd"].Bytes < 200_000 || r.Cut["env_names"].Items != 5000 {
			t.Errorf("argv has %d bytes, and what was cut is %v", size, r.Cut)
		}
		return nil
	})
	if err != nil || n != 8 {
		t.Errorf("%d requests, %v", n, err)
	}
	wantWhole(t, dir)

	// What fits is not cut.
	argv := []policy.Raw{"sh", "-c", policy.Raw(strings.Repeat("y", fieldBytes-10))}
	if _, err := l.Request(Request{Argv: argv, Cwd: policy.Raw(strings.Repeat("/d", 2000))}); err != nil {
		t.Fatal(err)
	}
	err = readAll(dir, func(e Entry) error {
		var r Request
		if e.Seq == l.Head().Seq && (json.Unmarshal(e.Body, &r) != nil || !reflect.DeepEqual(r.Argv, argv) || r.Cut != nil) {
			t.Errorf("what fits was cut: %v", r.Cut)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEvents(t *testing.T) {
	type ask struct {
		Worker string `json:"worker"`
		UID    int    `json:"uid"`
		Text   string `json:"text"`
	}
	dir := t.TempDir()
	l := mustOpen(t, dir, small())
	head := l.Head()
	for _, c := range []struct {
		kind string
		body any
	}{{"request", ask{}}, {"torn", ask{}}, {"pruned", ask{}}, {"", ask{}}, {"A", ask{}}, {"a b", ask{}}, {"a\nb", ask{}}, {"1a", ask{}}, {strings.Repeat("a", 33), ask{}},
		{"ask", nil}, {"ask", "x"}, {"ask", []ask{}}, {"ask", (*ask)(nil)}, {"ask", time.Now()}, {"ask", struct{ F func() }{}}, {"ask", ask{Text: strings.Repeat("x", MaxRecord)}}} {
		if s, err := l.Event(c.kind, c.body); err == nil {
			t.Errorf("%q with %T is taken as %v", c.kind, c.body, s)
		}
	}
	if _, err := l.Decision(Decision{Decision: "perhaps"}); err == nil {
		t.Error("a decision that is none is taken")
	}
	if l.Head() != head || l.Err() != nil {
		t.Error("what was refused was written, or ended the log")
	}
	s, err := l.Event("ask", &ask{"w1", 7, "may I?"})
	if err != nil || s != l.Head() {
		t.Fatal(s, err)
	}
	found := false
	err = readAll(dir, func(e Entry) error {
		worker, uid := e.Subject()
		found = found || e.Kind == "ask" && worker == "w1" && uid != nil && *uid == 7 && e.Hash == s.Hash
		return nil
	})
	if err != nil || !found {
		t.Error(found, err)
	}
}

// TestRelativeDirectory: the directory is where it was when the log was opened.
func TestRelativeDirectory(t *testing.T) {
	base := t.TempDir()
	t.Chdir(base)
	l := mustOpen(t, "log", small())
	t.Chdir("/")
	launch(t, l, 1)
	wantWhole(t, filepath.Join(base, "log"))
	if _, err := Open("", small()); err == nil {
		t.Error("no directory is one")
	}
}

func TestClockGoesBack(t *testing.T) {
	at := time.Unix(1e9, 0)
	o := small()
	o.now = func() time.Time { at = at.Add(-time.Second); return at }
	dir := t.TempDir()
	l := mustOpen(t, dir, o)
	launch(t, l, 1)
	res := wantWhole(t, dir)
	if len(res.Notes) != 3 || res.Notes[0].Line != 2 {
		t.Errorf("notes: %v", res.Notes)
	}
}

func TestUnclosedIsNoted(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, small())
	launch(t, l, 1)
	l.release() // as a kill would
	l = mustOpen(t, dir, small())
	res := wantWhole(t, dir)
	if len(res.Notes) != 1 || res.Notes[0].Line != 5 {
		t.Errorf("notes: %v", res.Notes)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if _, err := l.Request(Request{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestFollow: a reader gets each record once, while the log grows and rotates.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, small())
	r, err := NewReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var seen []uint64
	for i := range 20 {
		launch(t, l, i)
		if err := r.Read(func(e Entry) error { seen = append(seen, e.Seq); return nil }); err != nil {
			t.Fatal(err)
		}
		if want := 1 + 3*(i+1); len(seen) != want || seen[len(seen)-1] != uint64(want) {
			t.Fatalf("%d records, want %d", len(seen), want)
		}
	}
	if res := r.Result(); !res.Whole || res.Segments < 3 {
		t.Errorf("%+v", res)
	}
}

// TestReaderIsBounded: one endless line costs no memory.
func TestReaderIsBounded(t *testing.T) {
	dir, _ := made(t)
	f, err := os.OpenFile(filepath.Join(dir, segmentName(1)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err := errors.Join(err, f.Truncate(st.Size()+128<<20), f.Close()); err != nil { // a hole: it takes no room
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := verify(t, dir)
	runtime.ReadMemStats(&after)
	if res.Whole {
		t.Error("it is not found")
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("reading it took %d bytes", used)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	dir, _ := made(t)
	p := filepath.Join(dir, segmentName(2))
	writeLines(t, p, append(readLines(t, p), []byte("\n"), bytes.Repeat([]byte("x\n"), 5000)))
	res := verify(t, dir)
	if len(res.Problems) != maxProblems || res.ProblemsLost < 4900 {
		t.Errorf("%d problems are kept, %d are not", len(res.Problems), res.ProblemsLost)
	}
}

func TestSegmentNames(t *testing.T) {
	for n, name := range map[int]string{1: "audit-000001.jsonl", 999999: "audit-999999.jsonl", 1000000: "audit-1000000.jsonl"} {
		if segmentName(n) != name || segmentNumber(name) != n {
			t.Errorf("%d is %s, and %s is %d", n, segmentName(n), name, segmentNumber(name))
		}
	}
	for _, name := range []string{"", "lock", "audit-1.jsonl", "audit-0000001.jsonl", "audit-000000.jsonl", "audit-00000x.jsonl", "audit-000001.jsonl.gz",
		"000001.jsonl", "audit-000001", "audit-+00001.jsonl", "audit--00001.jsonl", "audit-99999999999999999999.jsonl"} {
		if n := segmentNumber(name); n != 0 {
			t.Errorf("%q is segment %d", name, n)
		}
	}
}

func TestStamp(t *testing.T) {
	s := Stamp{7, hashOf([]byte("x"))}
	if got, err := ParseStamp(strings.ToUpper(s.String())); err != nil || got != s {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", ":", "7", "7:", "7:ab", "0:" + s.Hash, "-1:" + s.Hash, "7:" + s.Hash + "00", "7:" + s.Hash[:63] + "g"} {
		if got, err := ParseStamp(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

// TestTextIsEscaped: no text in a record can forge a line or steer a terminal.
func TestTextIsEscaped(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, small())
	bad := "\x1b[2J\nsbx: \u202e\x7f\u0085"
	raw := policy.Raw(bad)
	type event struct {
		S string `json:"s"`
	}
	_, err1 := l.Request(Request{Worker: bad, Exe: raw, Argv: []policy.Raw{raw, "\xff" + raw}, Cwd: raw, Mode: bad, Net: bad, Label: raw, Weakened: []policy.Weakening{{Flag: bad}}})
	_, err2 := l.Decision(Decision{Worker: bad, Decision: Refuse, Reason: raw, Source: raw, PlanHash: bad, Backend: bad, Level: bad, Effects: map[string]string{bad: bad}})
	_, err3 := l.End(End{Worker: bad, Outcome: Outcome{Kind: bad, Which: bad, Step: bad, Errno: bad, Reason: raw}, Level: bad, Effects: map[string]string{bad: bad}})
	_, err4 := l.Event("odd", event{bad})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := readAll(dir, func(e Entry) error {
		n++
		if text := e.Text(); text == "" || strings.ContainsAny(text, "\x1b\n\u202e\x7f\u0085") {
			t.Errorf("%s: %q", e.Kind, text)
		}
		if bytes.ContainsAny(e.Raw, "\x1b\n") {
			t.Errorf("the line has control characters: %q", e.Raw)
		}
		return nil
	})
	if err != nil || n != 5 {
		t.Error(n, err)
	}
}

// FuzzReader: whatever a segment holds, reading it ends without a panic, and
// within bounds.
func FuzzReader(f *testing.F) {
	dir, _ := made(f)
	var whole []byte
	for _, p := range segmentsOf(f, dir)[:2] {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		whole = append(whole, b...)
		f.Add(b, 0)
	}
	f.Add(whole, len(whole)/2)
	f.Add(bytes.Repeat(whole[:300], 3), 301)
	f.Add([]byte("x #torn\n"), 0)
	f.Add(append(bytes.Repeat([]byte("y"), 2*MaxRecord), " #torn\n{}\n"...), 5)
	f.Add([]byte(`{"v":1,"seq":18446744073709551615,"time":"2026-01-01T00:00:00Z","kind":"open","body":{},"prev":""}`+"\n"), 0)
	f.Add([]byte(`{"v":1,"seq":1,"time":"2026-01-01T00:00:00Z","kind":"torn","body":{"offset":-1,"bytes":9223372036854775807},"prev":""}`+"\n"), 0)
	f.Add([]byte("a #torn\n"+`{"v":1,"seq":1,"time":"2026-01-01T00:00:00Z","kind":"torn","body":{"offset":0,"bytes":8,"sha256":""},"prev":""}`+"\n"), 0)
	f.Add([]byte(`{"v":1,"seq":1,"kind":"pruned","body":{"through_seq":18446744073709551615},"prev":""}`+"\n"+strings.Repeat(`{"v":1,"seq":2,"kind":"request","body":{"argv":[{"base64":"!"}]}}`+"\n", 3)), 7)
	f.Fuzz(func(t *testing.T, b []byte, split int) {
		dir := t.TempDir()
		at := max(0, min(split, len(b)))
		if err := errors.Join(os.WriteFile(filepath.Join(dir, segmentName(1)), b[:at], 0o600), os.WriteFile(filepath.Join(dir, segmentName(2)), b[at:], 0o600)); err != nil {
			t.Fatal(err)
		}
		records := 0
		if err := readAll(dir, func(e Entry) error {
			records++
			if len(e.Raw) > MaxRecord {
				t.Errorf("a record of %d bytes", len(e.Raw))
			}
			_ = e.Text()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		res := verify(t, dir)
		if len(res.Problems) > maxProblems || len(res.Notes) > maxProblems+1 {
			t.Errorf("%d problems, %d notes", len(res.Problems), len(res.Notes))
		}
		if res.Whole && int64(records) != res.Records {
			t.Errorf("%d records given, %d counted", records, res.Records)
		}
		l, err := Open(dir, small())
		if err != nil {
			return
		}
		// What a writer goes on with it must leave whole, from there on.
		_ = l.Close()
		if res.Whole && !verify(t, dir).Whole {
			t.Error("a whole log is broken after it was opened")
		}
	})
}

// TestConcurrentDecisions: many at a time, over rotations and up to a Close beside
// them: whoever got no error is in the log, and the chain is whole.
func TestConcurrentDecisions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := mustOpen(t, dir, Options{SegmentBytes: 8 << 10})
	var done atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for n := range 50 {
				_, err := l.Decision(Decision{Worker: fmt.Sprintf("w%d-%d", i, n), Decision: Allow})
				switch {
				case err == nil:
					done.Add(1)
				case errors.Is(err, ErrClosed):
					return
				default:
					t.Error(err)
				}
				if i == 0 && n == 40 {
					_ = l.Close()
				}
			}
		})
	}
	all.Wait()
	r, err := Verify(dir, VerifyOptions{})
	if err != nil || !r.Whole || int64(r.Records) < done.Load() || r.Segments < 2 {
		t.Errorf("%d were told, %+v, %v", done.Load(), r, err)
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, sync := range map[string]Sync{"none": SyncNone, "sync": SyncDecisions} {
		b.Run(name, func(b *testing.B) {
			dir, err := os.MkdirTemp("/var/tmp", "audit") // a disk's file system, not memory
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			l := mustOpen(b, filepath.Join(dir, "log"), Options{Sync: sync})
			effects := map[string]string{}
			for i := range 25 {
				effects[fmt.Sprintf("fs.effect%d", i)] = "enforced"
			}
			d := Decision{Worker: "0123456789abcdef", UID: 1000, Decision: Allow, Reason: "the mode allows it", Source: "mode", PlanHash: hashOf(nil), Backend: "landlock", Level: "full", Effects: effects}
			b.Run("one", func(b *testing.B) {
				for b.Loop() {
					if _, err := l.Decision(d); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("many", func(b *testing.B) {
				b.SetParallelism(16)
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						if _, err := l.Decision(d); err != nil {
							b.Error(err)
						}
					}
				})
			})
		})
	}
}
