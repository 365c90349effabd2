package seccomp

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Return values of a filter, from linux/seccomp.h.
const (
	retKill   = 0x80000000
	retNotify = 0x7fc00000
	retAllow  = 0x7fff0000
	retErrno  = 0x00050000
)

// AUDIT_ARCH values, from linux/audit.h.
const (
	auditAMD64 = 0xc000003e
	auditARM64 = 0xc00000b7
	auditI386  = 0x40000003
	auditARM   = 0x40000028
	auditRISCV = 0xc00000f3
	x32Bit     = 0x40000000
)

func auditArch(goarch string) uint32 {
	if goarch == "arm64" {
		return auditARM64
	}
	return auditAMD64
}

// data is struct seccomp_data.
type data struct {
	nr, arch uint32
	ip       uint64
	args     [6]uint64
}

// word reads 32 bits at a byte offset, as a little-endian kernel lays them out.
func (d data) word(off uint32) (uint32, error) {
	switch {
	case off%4 != 0 || off >= 64:
		return 0, fmt.Errorf("load from offset %d", off)
	case off == 0:
		return d.nr, nil
	case off == 4:
		return d.arch, nil
	}
	v := d.ip
	if off >= 16 {
		v = d.args[off/8-2]
	}
	if off%8 == 4 {
		v >>= 32
	}
	return uint32(v), nil
}

// run interprets a program. It knows the instructions that libseccomp emits and
// refuses all others, wild jumps and a missing return.
func run(p []Insn, d data) (uint32, error) {
	var a uint32
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		holds := false
		switch in.Code {
		case 0x20: // ld [k]
			v, err := d.word(in.K)
			if err != nil {
				return 0, err
			}
			a = v
			continue
		case 0x54: // and #k
			a &= in.K
			continue
		case 0x06: // ret #k
			return in.K, nil
		case 0x05: // ja k
			pc += int(in.K)
			continue
		case 0x15:
			holds = a == in.K
		case 0x25:
			holds = a > in.K
		case 0x35:
			holds = a >= in.K
		default:
			return 0, fmt.Errorf("instruction %d: unknown code %#x", pc, in.Code)
		}
		if holds {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	return 0, errors.New("program ends without a return")
}

func mustRun(t *testing.T, p []Insn, d data) uint32 {
	t.Helper()
	got, err := run(p, d)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func mustLoad(t *testing.T, goarch string, v Variant) []Insn {
	t.Helper()
	p, err := Load(goarch, v)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// numbers reads testdata/syscalls.tsv: the kernel's number of each call, which
// owes nothing to libseccomp.
func numbers(t *testing.T, goarch string) map[string]uint32 {
	t.Helper()
	b, err := os.ReadFile("testdata/syscalls.tsv")
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{"amd64": 1, "arm64": 2}[goarch]
	nrs := map[string]uint32{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || f[column] == "-" {
			continue
		}
		n, err := strconv.ParseUint(f[column], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		nrs[f[0]] = uint32(n)
	}
	return nrs
}

// each runs f for every committed program.
func each(t *testing.T, f func(t *testing.T, goarch string, v Variant, p []Insn)) {
	for _, goarch := range Arches() {
		for _, v := range Variants() {
			t.Run(goarch+"/"+v.String(), func(t *testing.T) {
				f(t, goarch, v, mustLoad(t, goarch, v))
			})
		}
	}
}

// eachWorker leaves the front's programs out.
func eachWorker(t *testing.T, f func(t *testing.T, goarch string, v Variant, p []Insn)) {
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		if v.Front == 0 {
			f(t, goarch, v, p)
		}
	})
}

func TestInterpreterRefuses(t *testing.T) {
	for name, p := range map[string][]Insn{
		"no return":      {{Code: 0x20}},
		"wild jump":      {{Code: 0x05, K: 9}, {Code: 0x06}},
		"unknown code":   {{Code: 0x40}, {Code: 0x06}},
		"odd offset":     {{Code: 0x20, K: 2}, {Code: 0x06}},
		"offset too far": {{Code: 0x20, K: 64}, {Code: 0x06}},
	} {
		if _, err := run(p, data{}); err == nil {
			t.Errorf("%s: ran", name)
		}
	}
}
