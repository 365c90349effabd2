package profiles

import (
	"bytes"
	"encoding/binary"
	"slices"
	"syscall"
)

const listRoom = 16 << 10 // of the buffer that small directories share

// readListing reads a directory with getdents64(2) and nothing else: package
// os takes five times as long, which every launch would pay. The entries stay
// in the buffer that the kernel wrote them to.
func (v *view) readListing(dir string) (*listing, error) {
	fd, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	if cap(v.buf)-len(v.buf) < listRoom/2 {
		v.buf = make([]byte, 0, listRoom)
	}
	buf, shared := v.buf[len(v.buf):], true
	for {
		if cap(buf)-len(buf) < readRoom { // a large directory takes a buffer of its own
			buf, shared = slices.Grow(buf, 2*cap(buf)), false
		}
		n, err := syscall.Getdents(fd, buf[len(buf):cap(buf)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		buf = buf[:len(buf)+n]
	}
	if shared {
		v.buf = v.buf[:len(v.buf)+len(buf)]
	}
	return newListing(dir, slices.Clip(buf)), nil
}

func openDir(dir string) (int, error) {
	for {
		fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// The layout of struct linux_dirent64, see getdents64(2).
const (
	direntLen  = 16
	direntType = 18
	direntName = 19
	direntMin  = 24 // a name of one byte, padded
)

// newListing finds the names in what getdents64 wrote.
func newListing(dir string, buf []byte) *listing {
	l := &listing{dir: dir, names: buf, entries: make([]entry, 0, len(buf)/direntMin)}
	eachDirent(buf, l.add)
	return l
}

// eachDirent tells where each name is in what getdents64 wrote, but for . and .., and
// of what kind.
func eachDirent(buf []byte, each func(at, size int, kind uint32)) {
	for at := 0; at+direntName < len(buf); {
		size := int(binary.NativeEndian.Uint16(buf[at+direntLen:]))
		if size < direntName || at+size > len(buf) {
			break
		}
		name := buf[at+direntName : at+size]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if string(name) != "." && string(name) != ".." {
			// DT_* are the type bits of st_mode, shifted.
			each(at+direntName, len(name), uint32(buf[at+direntType])<<12)
		}
		at += size
	}
}

// eachSome tells the names and kinds (0 is not known) that one call gives of a
// directory, in a buffer of the caller's, and whether that is all.
func eachSome(dir string, buf []byte, each func(name []byte, kind uint32)) (all bool, err error) {
	fd, err := openDir(dir)
	if err != nil {
		return false, err
	}
	defer syscall.Close(fd)
	n := 0
	for {
		if n, err = syscall.Getdents(fd, buf); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return false, err
	}
	eachDirent(buf[:n], func(at, size int, kind uint32) { each(buf[at:at+size], kind) })
	var more [readRoom]byte
	rest, err := syscall.Getdents(fd, more[:])
	return rest == 0 && err == nil, nil
}
