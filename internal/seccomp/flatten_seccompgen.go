//go:build seccompgen && cgo && linux

package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// BPF operation codes that libseccomp emits, see linux/bpf_common.h.
const (
	bpfLoad = 0x20 // A = word at byte offset K of struct seccomp_data
	bpfAnd  = 0x54
	bpfRet  = 0x06
	bpfJump = 0x05
	bpfJeq  = 0x15
	bpfJgt  = 0x25
	bpfJge  = 0x35

	offNr   = 0
	offArch = 4
	offArgs = 16
)

// tail is what is left of a program once the call's number is known: a return
// value, or the place where the arguments are looked at.
type tail struct {
	returns bool
	k       uint32 // value to return
	pc      int    // first load of an argument
}

// span is the numbers from first up to the next span's first.
type span struct {
	first uint32
	tail  tail
}

// flatten replaces the part of libseccomp's program that finds the call's
// number. libseccomp compares with each number; most neighbours get the same
// answer, so a search over spans of numbers is a third as long, and the kernel
// needs less than half the time to install it (it translates each instruction,
// and runs the filter for each number to see which it always allows). The code
// that judges arguments is libseccomp's, copied.
func flatten(p []Insn, arch uint32) ([]Insn, error) {
	bad, err := lookup(p, 0, ^arch)
	if err != nil || !bad.returns {
		return nil, errors.Join(err, errors.New("foreign architectures are not refused outright"))
	}
	spans, err := findSpans(p, arch)
	if err != nil {
		return nil, err
	}
	blocks, err := reachable(p, spans)
	if err != nil {
		return nil, err
	}
	out := []Insn{
		{Code: bpfLoad, K: offArch}, {Code: bpfJeq, Jt: 1, K: arch}, {Code: bpfRet, K: bad.k},
		{Code: bpfLoad, K: offNr},
	}
	search, jumps, err := searchTree(spans)
	if err != nil {
		return nil, err
	}
	base := len(out) + len(search)
	for at, pc := range jumps {
		place, _ := slices.BinarySearch(blocks, pc)
		search[at].K = uint32(base + place - (len(out) + at + 1))
	}
	moved, err := move(p, blocks)
	if err != nil {
		return nil, err
	}
	return slices.Concat(out, search, moved), nil
}

// lookup runs a program for one number until it returns or loads an argument.
func lookup(p []Insn, nr, arch uint32) (tail, error) {
	var a uint32
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		switch {
		case in.Code == bpfRet:
			return tail{returns: true, k: in.K}, nil
		case in.Code == bpfLoad && in.K >= offArgs:
			return tail{pc: pc}, nil
		case in.Code == bpfLoad && in.K == offNr:
			a = nr
		case in.Code == bpfLoad && in.K == offArch:
			a = arch
		case in.Code == bpfJump:
			pc += int(in.K)
		case in.Code == bpfJeq && a == in.K, in.Code == bpfJgt && a > in.K, in.Code == bpfJge && a >= in.K:
			pc += int(in.Jt)
		case in.Code == bpfJeq, in.Code == bpfJgt, in.Code == bpfJge:
			pc += int(in.Jf)
		default:
			return tail{}, fmt.Errorf("instruction %d: unexpected %+v before the arguments", pc, in)
		}
	}
	return tail{}, errors.New("program ends without a return")
}

// findSpans goes through all 2^32 numbers: the program can change its mind only
// at a number that it compares with, or just behind one.
func findSpans(p []Insn, arch uint32) ([]span, error) {
	edges := []uint32{0}
	for _, in := range p {
		switch in.Code {
		case bpfJeq, bpfJgt, bpfJge:
			edges = append(edges, in.K, in.K+1)
		}
	}
	slices.Sort(edges)
	var spans []span
	for _, nr := range slices.Compact(edges) {
		t, err := lookup(p, nr, arch)
		if err != nil {
			return nil, err
		}
		if len(spans) == 0 || spans[len(spans)-1].tail != t {
			spans = append(spans, span{first: nr, tail: t})
		}
	}
	return spans, nil
}

// searchTree makes the binary search. The leaves that go on to argument code
// are jumps to be filled in: jumps gives the old place for each.
func searchTree(spans []span) (code []Insn, jumps map[int]int, err error) {
	if len(spans) == 1 {
		if t := spans[0].tail; t.returns {
			return []Insn{{Code: bpfRet, K: t.k}}, nil, nil
		}
		return []Insn{{Code: bpfJump}}, map[int]int{0: spans[0].tail.pc}, nil
	}
	half := len(spans) / 2
	low, lowJumps, err := searchTree(spans[:half])
	if err != nil {
		return nil, nil, err
	}
	high, highJumps, err := searchTree(spans[half:])
	if err != nil {
		return nil, nil, err
	}
	if len(low) > 255 {
		return nil, nil, fmt.Errorf("search of %d instructions is too far to jump over", len(low))
	}
	jumps = map[int]int{}
	for at, pc := range lowJumps {
		jumps[1+at] = pc
	}
	for at, pc := range highJumps {
		jumps[1+len(low)+at] = pc
	}
	head := Insn{Code: bpfJge, Jt: uint8(len(low)), K: spans[half].first}
	return slices.Concat([]Insn{head}, low, high), jumps, nil
}

// next returns the places that the instruction at pc can go on to.
func next(p []Insn, pc int) []int {
	switch in := p[pc]; in.Code {
	case bpfRet:
		return nil
	case bpfJump:
		return []int{pc + 1 + int(in.K)}
	case bpfJeq, bpfJgt, bpfJge:
		return []int{pc + 1 + int(in.Jt), pc + 1 + int(in.Jf)}
	}
	return []int{pc + 1}
}

// reachable lists, in order, all instructions that argument code consists of.
func reachable(p []Insn, spans []span) ([]int, error) {
	seen := map[int]bool{}
	var todo []int
	for _, s := range spans {
		if !s.tail.returns {
			todo = append(todo, s.tail.pc)
		}
	}
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if pc >= len(p) {
			return nil, fmt.Errorf("jump out of the program to %d", pc)
		}
		if !seen[pc] {
			seen[pc] = true
			todo = append(todo, next(p, pc)...)
		}
	}
	var all []int
	for pc := range p {
		if seen[pc] {
			all = append(all, pc)
		}
	}
	return all, nil
}

// move copies the instructions in keep, with their jumps shortened by what lay
// between and is gone.
func move(p []Insn, keep []int) ([]Insn, error) {
	var out []Insn
	for at, pc := range keep {
		in := p[pc]
		var far []int
		for _, to := range next(p, pc) {
			place, ok := slices.BinarySearch(keep, to)
			if !ok || place <= at {
				return nil, fmt.Errorf("instruction %d goes to %d, which is not kept", pc, to)
			}
			far = append(far, place-at-1)
		}
		switch in.Code {
		case bpfJump:
			in.K = uint32(far[0])
		case bpfJeq, bpfJgt, bpfJge:
			in.Jt, in.Jf = uint8(far[0]), uint8(far[1]) // no further than they were
		}
		out = append(out, in)
	}
	return out, nil
}

// encode writes a program as parse reads it.
func encode(p []Insn) []byte {
	b := make([]byte, 0, len(p)*insnSize)
	for _, in := range p {
		b = binary.LittleEndian.AppendUint16(b, in.Code)
		b = append(b, in.Jt, in.Jf)
		b = binary.LittleEndian.AppendUint32(b, in.K)
	}
	return b
}
