package seccomp

import (
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func TestVariantNames(t *testing.T) {
	want := []string{
		"none-kernel", "none-kernel-shm", "none-supervised-shm", "none-supervised-shm-truncate",
		"none-closed", "none-closed-truncate",
		"host-kernel", "host-kernel-shm", "host-supervised-shm", "host-supervised-shm-truncate",
		"front", "front-store",
	}
	var got []string
	for _, v := range Variants() {
		got = append(got, v.String())
		listens := strings.Contains(v.String(), "supervised") || strings.Contains(v.String(), "shm")
		if v.Notifies() != listens {
			t.Errorf("%s: Notifies() = %v", v, v.Notifies())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	good := Variant{Net: NetNone, Unix: UnixKernel}
	for _, c := range []struct {
		goarch string
		v      Variant
		want   string
	}{
		{"riscv64", good, "seccomp: no filter for linux/riscv64"},
		{"", good, "seccomp: no filter for linux/"},
		{"amd64", Variant{}, "seccomp: no filter variant invalid-invalid"},
		{"amd64", Variant{Net: NetNone}, "seccomp: no filter variant none-invalid"},
		{"amd64", Variant{Net: NetHost, Unix: UnixClosed}, "seccomp: no filter variant host-closed"},
		{"arm64", Variant{Net: NetNone, Unix: UnixClosed, Shm: true}, "seccomp: no filter variant none-closed-shm"},
		{"arm64", Variant{Net: NetNone, Unix: UnixSupervised}, "seccomp: no filter variant none-supervised"},
		{"arm64", Variant{Net: NetNone, Unix: UnixKernel, Truncate: true}, "seccomp: no filter variant none-kernel-truncate"},
		{"arm64", Variant{Net: 9, Unix: 9}, "seccomp: no filter variant invalid-invalid"},
		{"amd64", Variant{Front: 9}, "seccomp: no filter variant invalid"},
		{"amd64", Variant{Front: FrontBare, Shm: true}, "seccomp: no filter variant invalid-invalid-shm"},
		{"amd64", Variant{Front: FrontStore, Net: NetNone, Unix: UnixKernel}, "seccomp: no filter variant none-kernel"},
	} {
		p, err := Load(c.goarch, c.v)
		if err == nil || err.Error() != c.want || p != nil {
			t.Errorf("Load(%q, %s) = %d instructions, %v; want error %q", c.goarch, c.v, len(p), err, c.want)
		}
	}
}

// TestEveryVariant asks for all combinations of the fields: those that Variants
// lists load, no other does.
func TestEveryVariant(t *testing.T) {
	loaded := 0
	for n := range Net(4) {
		for u := range Unix(5) {
			for bits := range 16 {
				v := Variant{Net: n, Unix: u, Shm: bits&1 != 0, Truncate: bits&2 != 0, Front: Front(bits >> 2)}
				_, err := Load("amd64", v)
				if (err == nil) != slices.Contains(Variants(), v) {
					t.Errorf("%s: %v", v, err)
				}
				if err == nil {
					loaded++
				}
			}
		}
	}
	if loaded != len(Variants()) {
		t.Errorf("%d variants load, %d are listed", loaded, len(Variants()))
	}
}

func TestLoadGivesCopies(t *testing.T) {
	v := Variants()[0]
	first := mustLoad(t, "amd64", v)
	want := slices.Clone(first)
	clear(first)
	if !slices.Equal(mustLoad(t, "amd64", v), want) {
		t.Error("changing one result changed the next")
	}
}

func TestLoadConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, v := range Variants() {
				if p, err := Load("arm64", v); err != nil || len(p) == 0 {
					t.Errorf("%s: %v", v, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestFiles holds the embedded files to exactly the variants.
func TestFiles(t *testing.T) {
	var got, want []string
	entries, err := fs.ReadDir(programs, "programs")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	for _, goarch := range Arches() {
		for _, v := range Variants() {
			want = append(want, fileName(goarch, v))
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("files %q\nwant %q", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":    nil,
		"cut off":  make([]byte, 9),
		"too long": make([]byte, insnSize*(MaxInsns+1)),
	} {
		if _, err := parse(b); err == nil {
			t.Errorf("%s: parsed", name)
		}
	}
	p, err := parse([]byte{0x15, 0, 1, 2, 0x78, 0x56, 0x34, 0x12})
	if err != nil || p[0] != (Insn{Code: 0x15, Jt: 1, Jf: 2, K: 0x12345678}) {
		t.Errorf("parse = %v, %v", p, err)
	}
}

// TestShape checks what the kernel checks before it takes a filter.
func TestShape(t *testing.T) {
	if s := unsafe.Sizeof(Insn{}); s != insnSize {
		t.Fatalf("Insn has %d bytes, struct sock_filter has %d", s, insnSize)
	}
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		if len(p) == 0 || len(p) > MaxInsns {
			t.Fatalf("%d instructions", len(p))
		}
		if last := p[len(p)-1]; last.Code != 0x06 {
			t.Errorf("last instruction %#x is no return", last.Code)
		}
		for i, in := range p {
			far := -1 // a return goes nowhere
			switch in.Code {
			case 0x15, 0x25, 0x35:
				far = int(max(in.Jt, in.Jf))
			case 0x05:
				far = int(in.K)
			case 0x20, 0x54:
				far = 0
			case 0x06:
			default:
				t.Errorf("instruction %d: unknown code %#x", i, in.Code)
			}
			if i+1+far >= len(p) {
				t.Errorf("instruction %d jumps out of the program", i)
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	v := Variants()[0]
	for b.Loop() {
		if _, err := Load("amd64", v); err != nil {
			b.Fatal(err)
		}
	}
}
