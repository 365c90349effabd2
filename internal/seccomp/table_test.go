package seccomp

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// decide answers a call as the table reads: the first row that matches.
func decide(rows []row, fallback verdict, call string, args [6]uint64) verdict {
	for _, r := range rows {
		if r.call == call && r.matches(args) {
			return r.do
		}
	}
	return fallback
}

func returned(v verdict) uint32 {
	switch v.act {
	case actAllow:
		return retAllow
	case actNotify:
		return retNotify
	}
	return retErrno | uint32(v.errno)
}

func mustTable(t *testing.T, goarch string, v Variant) []row {
	t.Helper()
	rows, err := table(goarch, v)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestTableIsSound: rows have reasons and known names, a call with conditions
// is decided for all its arguments, and no row stands behind one that takes
// everything.
func TestTableIsSound(t *testing.T) {
	each(t, func(t *testing.T, goarch string, v Variant, _ []Insn) {
		nrs := numbers(t, goarch)
		open := map[string]bool{} // whether the last row so far left something over
		for _, r := range mustTable(t, goarch, v) {
			if r.why == "" || r.do.act == 0 || (r.do.act == actErrno) != (r.do.errno != 0) {
				t.Errorf("%s: row without reason or verdict: %+v", r.call, r)
			}
			if _, ok := nrs[r.call]; !ok {
				t.Errorf("%s: no such call", r.call)
			}
			if left, ok := open[r.call]; ok && !left {
				t.Errorf("%s: row behind one that takes everything", r.call)
			}
			open[r.call] = len(r.when) > 0
			for _, c := range r.when {
				if c.op == opMasked && c.value&^c.mask != 0 {
					t.Errorf("%s: condition that never holds: %+v", r.call, c)
				}
			}
		}
		for name := range nrs { // what the front's allow-list does not name is refused
			if _, ok := open[name]; !ok && v.Front == 0 {
				t.Errorf("%s: not in the table", name)
			}
		}
	})
}

func TestTableRefuses(t *testing.T) {
	if _, err := table("riscv64", Variants()[0]); err == nil {
		t.Error("made a table for riscv64")
	}
	if _, err := table("amd64", Variant{}); err == nil {
		t.Error("made a table for an invalid variant")
	}
}

// witness finds arguments that row i answers, not an earlier row.
func witness(rows []row, i int, r *rand.Rand) ([6]uint64, bool) {
	for range 4096 {
		args := noise(r)
		for _, c := range rows[i].when {
			switch c.op {
			case opMasked:
				args[c.arg] = args[c.arg]&^c.mask | c.value
			case opNonZero:
				args[c.arg] |= 1
			}
		}
		if !slices.ContainsFunc(rows[:i], func(e row) bool { return e.call == rows[i].call && e.matches(args) }) {
			return args, true
		}
	}
	return [6]uint64{}, false
}

// noise makes arguments of several kinds: small, all bits, few bits.
func noise(r *rand.Rand) [6]uint64 {
	var args [6]uint64
	for i := range args {
		switch r.IntN(4) {
		case 0:
			args[i] = uint64(r.IntN(4))
		case 1:
			args[i] = r.Uint64()
		case 2:
			a, b := r.IntN(64), r.IntN(64)
			args[i] = 1<<a | 1<<b
		}
	}
	return args
}

// TestEveryRow hits each row and expects its verdict from the program.
func TestEveryRow(t *testing.T) {
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		nrs, rows, r := numbers(t, goarch), mustTable(t, goarch, v), rand.New(rand.NewPCG(1, 2))
		for i, row := range rows {
			args, ok := witness(rows, i, r)
			if !ok {
				t.Errorf("%s %+v: nothing reaches this row", row.call, row.when)
				continue
			}
			got := mustRun(t, p, data{nr: nrs[row.call], arch: auditArch(goarch), args: args})
			if got != returned(row.do) {
				t.Errorf("%s(%#x) = %#x, row says %#x (%s)", row.call, args, got, returned(row.do), row.why)
			}
		}
	})
}

// TestEveryConditionMatters changes each single bit that a condition looks at.
// The program must follow the table each time, and at least one change has to
// flip the verdict: a condition that no change flips would be no condition.
func TestEveryConditionMatters(t *testing.T) {
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		nrs, rows, r := numbers(t, goarch), mustTable(t, goarch, v), rand.New(rand.NewPCG(3, 4))
		for i, row := range rows {
			for _, c := range row.when {
				if c.op == opElse {
					continue
				}
				flipped := false
				for range 12 { // as the rest of the arguments may hide the flip
					args, _ := witness(rows, i, r)
					for _, changed := range changes(c, args) {
						want := decide(rows, v.fallback(), row.call, changed)
						got := mustRun(t, p, data{nr: nrs[row.call], arch: auditArch(goarch), args: changed})
						if got != returned(want) {
							t.Fatalf("%s(%#x) = %#x, table says %#x", row.call, changed, got, returned(want))
						}
						flipped = flipped || want != row.do
					}
				}
				if !flipped && !restates(row, rows) && !exempts(row, rows[i+1:]) {
					t.Errorf("%s: condition %+v decides nothing", row.call, c)
				}
			}
		}
	})
}

// restates reports whether a row only spells out what the call's last row says
// too, as it must where an earlier row looks at one argument more: libseccomp
// does not go on to the next alternative when an inner condition fails.
func restates(r row, rows []row) bool {
	last := r
	for _, other := range rows {
		if other.call == r.call {
			last = other
		}
	}
	spelled := slices.ContainsFunc(r.when, func(c cond) bool { return c.op == opElse })
	return spelled && len(r.when) > 1 && last.do == r.do
}

// exempts reports whether a row is the exception from the call's next row, which
// takes the rest of one argument. Where that row does not apply, the rows below
// may well say the same as the exception.
func exempts(r row, below []row) bool {
	i := slices.IndexFunc(below, func(o row) bool { return o.call == r.call })
	if i < 0 || below[i].do == r.do || len(below[i].when) != len(r.when) {
		return false
	}
	for k, c := range below[i].when {
		if c != r.when[k] && (c.op != opElse || c.arg != r.when[k].arg) {
			return false
		}
	}
	return true
}

// changes returns variations of args in which c no longer holds: the value one
// up, one down, and each bit flipped.
func changes(c cond, args [6]uint64) [][6]uint64 {
	var all [][6]uint64
	add := func(v uint64) {
		changed := args
		changed[c.arg] = v
		if !c.holds(changed) {
			all = append(all, changed)
		}
	}
	if c.op == opNonZero {
		add(0)
		return all
	}
	step := uint64(1) << bits.TrailingZeros64(c.mask)
	add(args[c.arg] + step)
	add(args[c.arg] - step)
	for m := c.mask; m != 0; m &= m - 1 {
		add(args[c.arg] ^ m&-m)
	}
	return all
}

// TestProgramsFollowTable compares program and table on random arguments, with
// the values that conditions name strewn in.
func TestProgramsFollowTable(t *testing.T) {
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		nrs, rows, r := numbers(t, goarch), mustTable(t, goarch, v), rand.New(rand.NewPCG(5, 6))
		byCall := map[string][]row{}
		for _, row := range rows {
			byCall[row.call] = append(byCall[row.call], row)
		}
		for call, own := range byCall {
			if len(own) == 1 {
				continue
			}
			for range 1000 {
				args := noise(r)
				for _, c := range own[r.IntN(len(own))].when {
					if c.op == opMasked && r.IntN(4) != 0 {
						args[c.arg] = args[c.arg]&^c.mask | c.value
					}
				}
				got := mustRun(t, p, data{nr: nrs[call], arch: auditArch(goarch), args: args})
				if want := returned(decide(own, v.fallback(), call, args)); got != want {
					t.Fatalf("%s(%#x) = %#x, table says %#x", call, args, got, want)
				}
			}
		}
	})
}
