package profiles

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
)

// This reads what the kernel and the loader read of a program in order to
// start it, and nothing else: package debug/elf would be linked into every
// launch for the few that need --allow-exec.

const elfMagic = "\x7fELF"

// The machines whose library directories are known.
const (
	machine386     = 3
	machinePPC64   = 21
	machineS390    = 22
	machineARM     = 40
	machineX8664   = 62
	machineAArch64 = 183
	machineRISCV   = 243
)

const (
	segmentLoad    = 1
	segmentDynamic = 2
	segmentInterp  = 3

	tagNull    = 0
	tagNeeded  = 1
	tagStrings = 5
	tagRPath   = 15
	tagRunPath = 29
)

// Bounds on what a file may make this read.
const (
	maxSegments = 4096
	maxDynamic  = 1 << 20
	maxString   = 4096
	maxNeeded   = 4096
)

// binaryFile is a program or a library.
type binaryFile struct {
	wide    bool   // 64 bits
	machine uint16 // e_machine
	interp  string // its loader; "" if it needs none
	needed  []string
	rpath   []string // each may hold several, parted by ":"
	runpath []string
}

var errNotELF = errors.New("not a valid ELF file")

// openBinary reads the file at a path.
func openBinary(file string) (*binaryFile, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBinary(f)
}

func readBinary(r io.ReaderAt) (*binaryFile, error) {
	e := elfReader{r: r}
	b := e.file()
	if e.err != nil {
		return nil, e.err
	}
	return b, nil
}

// elfReader reads an ELF file; after the first error it reads no more.
type elfReader struct {
	r     io.ReaderAt
	order binary.ByteOrder
	wide  bool
	loads []segment
	err   error
}

type segment struct {
	kind              uint32
	off, vaddr, bytes uint64
}

func (e *elfReader) fail() { e.err = errNotELF }

// read returns size bytes at an offset, all of them.
func (e *elfReader) read(off, size uint64) []byte {
	if e.err != nil || off > 1<<62 || size > maxDynamic {
		e.fail()
		return nil
	}
	buf := make([]byte, size)
	if n, err := e.r.ReadAt(buf, int64(off)); n < len(buf) && err != nil {
		e.fail()
		return nil
	}
	return buf
}

// word is a number of the file's own width.
func (e *elfReader) word(b []byte) uint64 {
	if e.wide {
		return e.order.Uint64(b)
	}
	return uint64(e.order.Uint32(b))
}

func (e *elfReader) file() *binaryFile {
	head := e.read(0, 52) // of 32 bits; 64 has more
	if e.err != nil || string(head[:4]) != elfMagic || head[6] != 1 {
		e.fail()
		return nil
	}
	switch head[5] {
	case 1:
		e.order = binary.LittleEndian
	case 2:
		e.order = binary.BigEndian
	default:
		e.fail()
		return nil
	}
	var table uint64
	var entry, count uint16
	switch head[4] {
	case 1:
		table, entry, count = uint64(e.order.Uint32(head[28:])), e.order.Uint16(head[42:]), e.order.Uint16(head[44:])
	case 2:
		e.wide = true
		if head = e.read(0, 64); e.err != nil {
			return nil
		}
		table, entry, count = e.order.Uint64(head[32:]), e.order.Uint16(head[54:]), e.order.Uint16(head[56:])
	default:
		e.fail()
		return nil
	}
	b := &binaryFile{wide: e.wide, machine: e.order.Uint16(head[18:])}
	e.segments(b, table, int(entry), int(count))
	return b
}

func (e *elfReader) segments(b *binaryFile, table uint64, entry, count int) {
	want := 32
	if e.wide {
		want = 56
	}
	if count == 0 {
		return
	}
	if entry != want || count > maxSegments {
		e.fail()
		return
	}
	raw := e.read(table, uint64(entry*count))
	var interp, dynamic *segment
	for ; len(raw) >= entry; raw = raw[entry:] {
		s := segment{kind: e.order.Uint32(raw)}
		if e.wide {
			s.off, s.vaddr, s.bytes = e.order.Uint64(raw[8:]), e.order.Uint64(raw[16:]), e.order.Uint64(raw[32:])
		} else {
			s.off, s.vaddr, s.bytes = uint64(e.order.Uint32(raw[4:])), uint64(e.order.Uint32(raw[8:])), uint64(e.order.Uint32(raw[16:]))
		}
		switch {
		case s.kind == segmentLoad:
			e.loads = append(e.loads, s)
		case s.kind == segmentDynamic && dynamic == nil:
			dynamic = &s
		case s.kind == segmentInterp && interp == nil:
			interp = &s
		}
	}
	if interp != nil {
		if interp.bytes > maxString {
			e.fail()
			return
		}
		text, _, _ := bytes.Cut(e.read(interp.off, interp.bytes), []byte{0})
		b.interp = string(text)
	}
	if dynamic != nil {
		e.dynamic(b, dynamic)
	}
}

// dynamic reads what the loader is told.
func (e *elfReader) dynamic(b *binaryFile, s *segment) {
	size := 8
	if e.wide {
		size = 16
	}
	var strings uint64
	var found bool
	var needed, rpath, runpath []uint64
scan:
	for raw := e.read(s.off, s.bytes); len(raw) >= size; raw = raw[size:] {
		value := e.word(raw[size/2:])
		switch e.word(raw) {
		case tagNull:
			break scan
		case tagStrings:
			strings, found = value, true
		case tagNeeded:
			needed = append(needed, value)
		case tagRPath:
			rpath = append(rpath, value)
		case tagRunPath:
			runpath = append(runpath, value)
		}
	}
	if e.err != nil || len(needed)+len(rpath)+len(runpath) == 0 {
		return
	}
	at, ok := e.offset(strings)
	if !found || !ok || len(needed)+len(rpath)+len(runpath) > maxNeeded {
		e.fail()
		return
	}
	b.needed, b.rpath, b.runpath = e.texts(at, needed), e.texts(at, rpath), e.texts(at, runpath)
}

// offset is where in the file an address of the running program comes from.
func (e *elfReader) offset(address uint64) (uint64, bool) {
	for _, l := range e.loads {
		if address >= l.vaddr && address-l.vaddr < l.bytes {
			return l.off + (address - l.vaddr), true
		}
	}
	return 0, false
}

func (e *elfReader) texts(table uint64, offsets []uint64) []string {
	var all []string
	for _, off := range offsets {
		if off > 1<<32 {
			e.fail()
		}
		if e.err != nil {
			return nil
		}
		buf := make([]byte, maxString)
		n, _ := e.r.ReadAt(buf, int64((table+off)&(1<<62-1)))
		text, _, ended := bytes.Cut(buf[:n], []byte{0})
		if !ended {
			e.fail()
			return nil
		}
		all = append(all, string(text))
	}
	return all
}
