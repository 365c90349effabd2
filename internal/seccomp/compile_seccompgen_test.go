//go:build seccompgen && cgo && linux

package seccomp

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	libseccomp "github.com/seccomp/libseccomp-golang"
)

// onGenerator skips on machines whose libseccomp cannot compile all programs.
func onGenerator(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("programs are generated on amd64, see newNumbers")
	}
}

// TestCommittedPrograms proves that the committed bytes are what libseccomp
// makes of the table today.
func TestCommittedPrograms(t *testing.T) {
	onGenerator(t)
	major, minor, micro := libseccomp.GetLibraryVersion()
	for _, goarch := range Arches() {
		for _, v := range Variants() {
			name, want, err := Compile(goarch, v)
			if err != nil {
				t.Fatal(err)
			}
			got, err := programs.ReadFile("programs/" + name)
			if err != nil {
				t.Error(err)
				continue
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from what libseccomp %d.%d.%d makes: run go generate ./internal/seccomp", name, major, minor, micro)
			}
		}
	}
}

// TestNewNumbers: the numbers are the kernel's. When libseccomp learns a name,
// the log says that it can go from newNumbers (and absentARM64).
func TestNewNumbers(t *testing.T) {
	nrs := numbers(t, "amd64")
	for name, nr := range newNumbers {
		if int(nrs[name]) != nr {
			t.Errorf("%s is %d, not %d", name, nrs[name], nr)
		}
		if got, err := libseccomp.GetSyscallFromName(name); err == nil {
			t.Logf("this libseccomp knows %s (%d)", name, got)
		}
	}
}

// TestFlattenKeepsMeaning compares the committed programs with libseccomp's own,
// in both of its layouts, on every number and on random arguments.
func TestFlattenKeepsMeaning(t *testing.T) {
	onGenerator(t)
	for _, optimize := range []int{1, treeOptimize} {
		each(t, func(t *testing.T, goarch string, v Variant, short []Insn) {
			long, err := compileTable(goarch, v, optimize)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(7, 8))
			same := func(d data) {
				if got, want := mustRun(t, short, d), mustRun(t, long, d); got != want {
					t.Fatalf("%+v = %#x, libseccomp's program says %#x", d, got, want)
				}
			}
			for nr := range uint32(600) {
				for _, arch := range []uint32{auditAMD64, auditARM64, auditI386, auditARM} {
					same(data{nr: nr, arch: arch})
				}
				for range 40 {
					same(data{nr: nr, arch: auditArch(goarch), args: noise(r)})
				}
				same(data{nr: nr | x32Bit, arch: auditArch(goarch)})
			}
			for range 2000 {
				same(data{nr: r.Uint32(), arch: auditArch(goarch), args: noise(r)})
			}
			for _, nr := range []uint32{x32Bit - 1, x32Bit, 1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1} {
				same(data{nr: nr, arch: auditArch(goarch)})
			}
		})
	}
}

// BenchmarkAttachCompiled compares libseccomp's two layouts of the same rules
// with the committed program (BenchmarkAttach).
func BenchmarkAttachCompiled(b *testing.B) {
	for name, optimize := range map[string]int{"list": 1, "tree": treeOptimize} {
		p, err := compileTable(runtime.GOARCH, Variants()[0], optimize)
		if err != nil {
			b.Skip(err)
		}
		b.Run(name, func(b *testing.B) { benchmarkAttach(b, p) })
	}
}
