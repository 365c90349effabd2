//go:build seccompgen && cgo && linux

package seccomp

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	libseccomp "github.com/seccomp/libseccomp-golang"
)

// treeOptimize makes libseccomp look a call up in a binary tree instead of
// comparing with each number in turn, which installs in less than half the time
// and does not tie the length of jumps to the length of the table.
const treeOptimize = 2

// notifyAPI is the libseccomp API level that has notifications. It is set
// because the level that libseccomp finds out describes the machine that
// generates, which has no say in where the programs will run.
const notifyAPI = 6

var libArch = map[string]libseccomp.ScmpArch{
	"amd64": libseccomp.ArchAMD64,
	"arm64": libseccomp.ArchARM64,
}

// libToken is what the kernel calls the architecture (AUDIT_ARCH).
var libToken = map[string]uint32{"amd64": 0xc000003e, "arm64": 0xc00000b7}

// Compile makes the program for one architecture and variant, as bytes for the
// file whose name it returns: libseccomp compiles the table, and flatten
// shortens the search for the call's number. It exists only in the generator's
// build.
func Compile(goarch string, v Variant) (name string, program []byte, err error) {
	long, err := compileTable(goarch, v, treeOptimize)
	if err != nil {
		return "", nil, err
	}
	short, err := flatten(long, libToken[goarch])
	if err != nil {
		return "", nil, fmt.Errorf("linux/%s, %s: %w", goarch, v, err)
	}
	return fileName(goarch, v), encode(short), nil
}

// compileTable returns libseccomp's own program.
func compileTable(goarch string, v Variant, optimize int) ([]Insn, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("generating needs an amd64 machine, this is %s (see newNumbers)", runtime.GOARCH)
	}
	rows, err := table(goarch, v)
	if err != nil {
		return nil, err
	}
	raw, err := compile(goarch, rows, v.fallback(), optimize)
	if err != nil {
		return nil, fmt.Errorf("linux/%s, %s: %w", goarch, v, err)
	}
	return parse(raw)
}

func compile(goarch string, rows []row, fallback verdict, optimize int) ([]byte, error) {
	f, err := newFilter(goarch, fallback, optimize)
	if err != nil {
		return nil, err
	}
	defer f.Release()
	for i, r := range rows {
		// libseccomp refuses rules that say what the default says.
		if r.do == fallback {
			continue
		}
		if err := addRow(f, goarch, r, earlier(rows[:i], r.call)); err != nil {
			return nil, fmt.Errorf("%s (%s): %w", r.call, r.why, err)
		}
	}
	return export(f)
}

func newFilter(goarch string, fallback verdict, optimize int) (*libseccomp.ScmpFilter, error) {
	if err := libseccomp.SetAPI(notifyAPI); err != nil {
		return nil, fmt.Errorf("libseccomp too old to know notifications: %w", err)
	}
	f, err := libseccomp.NewFilter(libAction(fallback))
	if err != nil {
		return nil, err
	}
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, err
	}
	if want := libArch[goarch]; native != want {
		err = errors.Join(f.RemoveArch(native), f.AddArch(want))
	}
	// Killing is the clear answer to a foreign ABI: an i386 program that finds
	// no call working, not even exit, would crash or spin.
	err = errors.Join(err, f.SetBadArchAction(libseccomp.ActKillProcess), f.SetOptimize(optimize))
	if err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

func libAction(v verdict) libseccomp.ScmpAction {
	switch v.act {
	case actAllow:
		return libseccomp.ActAllow
	case actNotify:
		return libseccomp.ActNotify
	}
	return libseccomp.ActErrno.SetReturnCode(int16(v.errno))
}

// earlier returns the rows of the same call.
func earlier(rows []row, call string) []row {
	var same []row
	for _, r := range rows {
		if r.call == call {
			same = append(same, r)
		}
	}
	return same
}

// addRow adds one row as one libseccomp rule per alternative that its
// conditions come to. libseccomp knows no "otherwise" and compares an argument
// once per rule, so "otherwise" becomes two rules: some bit clear, the same bit
// set. That relies on libseccomp asking the rules of the earlier rows first, as
// their masks include that bit; the interpreter tests prove that it does.
func addRow(f *libseccomp.ScmpFilter, goarch string, r row, before []row) error {
	nr, err := number(goarch, r.call)
	if err != nil {
		return err
	}
	alternatives, err := spell(r.when, before)
	if err != nil {
		return err
	}
	for _, when := range alternatives {
		if taken(when, before) {
			continue
		}
		if err := addRule(f, nr, r.do, when); err != nil {
			return err
		}
	}
	return nil
}

func addRule(f *libseccomp.ScmpFilter, nr libseccomp.ScmpSyscall, do verdict, when []cond) error {
	if len(when) == 0 {
		return f.AddRuleExact(nr, libAction(do))
	}
	var conds []libseccomp.ScmpCondition
	for _, c := range when {
		lc, err := libCond(c)
		if err != nil {
			return err
		}
		conds = append(conds, lc)
	}
	return f.AddRuleConditionalExact(nr, libAction(do), conds)
}

func libCond(c cond) (libseccomp.ScmpCondition, error) {
	switch {
	case c.op == opNonZero:
		return libseccomp.MakeCondition(uint(c.arg), libseccomp.CompareNotEqual, 0)
	case c.op == opMasked && c.mask == wholeArg:
		return libseccomp.MakeCondition(uint(c.arg), libseccomp.CompareEqual, c.value)
	case c.op == opMasked:
		return libseccomp.MakeCondition(uint(c.arg), libseccomp.CompareMaskedEqual, c.mask, c.value)
	}
	return libseccomp.ScmpCondition{}, fmt.Errorf("condition %+v has no form in libseccomp", c)
}

// spell replaces each opElse by its two halves.
func spell(when []cond, before []row) ([][]cond, error) {
	all := [][]cond{nil}
	for _, c := range when {
		choices := []cond{c}
		if c.op == opElse {
			bit, err := commonBit(c.arg, before)
			if err != nil {
				return nil, err
			}
			choices = []cond{masked(c.arg, bit, 0), masked(c.arg, bit, bit)}
		}
		var next [][]cond
		for _, prefix := range all {
			for _, choice := range choices {
				next = append(next, append(prefix[:len(prefix):len(prefix)], choice))
			}
		}
		all = next
	}
	return all, nil
}

// commonBit is the lowest bit that every condition on the argument looks at.
func commonBit(arg uint8, before []row) (uint64, error) {
	common := uint64(wholeArg)
	for _, r := range before {
		for _, c := range r.when {
			if c.arg == arg && c.op == opMasked {
				common &= c.mask
			}
		}
	}
	if common == 0 || common == wholeArg {
		return 0, fmt.Errorf("\"otherwise\" for argument %d: the rows above share no bit to split by", arg)
	}
	return 1 << bits.TrailingZeros64(common), nil
}

// taken reports whether an earlier row has exactly these conditions, so that
// nothing is left to answer (and libseccomp would see a contradiction).
func taken(when []cond, before []row) bool {
	for _, r := range before {
		if len(when) > 0 && slices.Equal(r.when, when) {
			return true
		}
	}
	return false
}

// number is how libseccomp wants a call named: by the number it has on the
// generating machine, whatever the target, or by a negative number if it has
// none there.
func number(goarch, call string) (libseccomp.ScmpSyscall, error) {
	if nr, err := libseccomp.GetSyscallFromName(call); err == nil {
		return nr, nil
	}
	if n, ok := newNumbers[call]; ok && goarch == "amd64" {
		return libseccomp.ScmpSyscall(n), nil
	}
	return 0, fmt.Errorf("libseccomp does not know this call on %s", goarch)
}

// export goes through a file, as libseccomp before 2.6 writes to descriptors
// only.
func export(f *libseccomp.ScmpFilter) ([]byte, error) {
	dir, err := os.MkdirTemp("", "seccompgen")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file, err := os.Create(filepath.Join(dir, "program"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := f.ExportBPF(file); err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	return os.ReadFile(file.Name())
}

// newNumbers gives amd64's numbers of the calls whose names libseccomp 2.5.4
// does not know. It compiles such numbers only for the machine that it runs on,
// which is why the generator wants an amd64 machine and why arm64 has to do
// without these calls.
var newNumbers = map[string]int{
	"uretprobe": 335, "uprobe": 336,
	"lsm_get_self_attr": 459, "lsm_set_self_attr": 460, "lsm_list_modules": 461,
	"mseal":      462,
	"setxattrat": 463, "getxattrat": 464, "listxattrat": 465, "removexattrat": 466,
	"open_tree_attr": 467, "file_getattr": 468, "rseq_slice_yield": 471,
}
