package profiles

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func programInterpreter(e *elf.File) string {
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return ""
		}
		return string(bytes.TrimRight(b, "\x00"))
	}
	return ""
}

// What this package reads is what debug/elf reads.
func TestBinariesAgree(t *testing.T) {
	seen := 0
	for _, dir := range []string{"/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/lib"} {
		files, _ := filepath.Glob(dir + "/*")
		for i, file := range files {
			if i > 1500 {
				break
			}
			want, err := elf.Open(file)
			if err != nil {
				continue
			}
			agree(t, file, want)
			want.Close()
			seen++
		}
	}
	if seen == 0 {
		t.Skip("no programs")
	}
	t.Logf("%d files", seen)
}

func agree(t *testing.T, file string, want *elf.File) {
	t.Helper()
	got, err := openBinary(file)
	if err != nil {
		if want.Type == elf.ET_EXEC || want.Type == elf.ET_DYN {
			t.Errorf("%s: %v", file, err)
		}
		return
	}
	needed, _ := want.ImportedLibraries()
	rpath, _ := want.DynString(elf.DT_RPATH)
	runpath, _ := want.DynString(elf.DT_RUNPATH)
	if got.wide != (want.Class == elf.ELFCLASS64) || got.machine != uint16(want.Machine) || got.interp != programInterpreter(want) ||
		!slices.Equal(got.needed, needed) || !slices.Equal(got.rpath, rpath) || !slices.Equal(got.runpath, runpath) {
		t.Errorf("%s: %+v, want %s %s %q %q %q %q", file, got, want.Class, want.Machine, programInterpreter(want), needed, rpath, runpath)
	}
}

func TestDamagedBinaries(t *testing.T) {
	real, err := os.ReadFile("/bin/echo")
	if err != nil || !bytes.HasPrefix(real, []byte(elfMagic)) {
		t.Skip("no program")
	}
	for size := range min(len(real), 4096) {
		if b, err := readBinary(bytes.NewReader(real[:size])); err == nil && len(b.needed) > 0 {
			t.Errorf("%d bytes are enough", size)
		}
	}
	for i := range 1024 { // no byte of the headers makes it panic or hang
		bad := bytes.Clone(real[:min(len(real), 64<<10)])
		for _, c := range []byte{0, 0x7f, 0xff} {
			bad[i] = c
			_, _ = readBinary(bytes.NewReader(bad))
		}
	}
}

func FuzzReadBinary(f *testing.F) {
	for _, file := range []string{"/bin/echo", "/bin/true"} {
		if data, err := os.ReadFile(file); err == nil {
			f.Add(data[:min(len(data), 16<<10)])
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := readBinary(bytes.NewReader(data))
		if err == nil && len(b.needed) > maxNeeded {
			t.Error("unbounded")
		}
	})
}
