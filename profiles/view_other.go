//go:build !linux

package profiles

import (
	"io/fs"
	"os"
	"syscall"
)

// readListing reads a directory.
func (v *view) readListing(dir string) (*listing, error) {
	entries, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	l := &listing{dir: dir, entries: make([]entry, 0, len(entries))}
	for _, e := range entries {
		at := len(l.names)
		l.names = append(l.names, e.Name()...)
		l.add(at, len(e.Name()), kindOf(e.Type()))
	}
	return l, nil
}

// kindOf turns what package fs calls a type into the bits of st_mode; 0 is not
// known.
func kindOf(t fs.FileMode) uint32 {
	switch t {
	case 0:
		return syscall.S_IFREG
	case fs.ModeDir:
		return syscall.S_IFDIR
	case fs.ModeSymlink:
		return syscall.S_IFLNK
	case fs.ModeSocket:
		return syscall.S_IFSOCK
	case fs.ModeNamedPipe:
		return syscall.S_IFIFO
	case fs.ModeDevice:
		return syscall.S_IFBLK
	case fs.ModeDevice | fs.ModeCharDevice:
		return syscall.S_IFCHR
	}
	return 0
}

// eachSome tells the names and kinds (0 is not known) of a part of a directory, and
// whether that is all.
func eachSome(dir string, _ []byte, each func(name []byte, kind uint32)) (all bool, err error) {
	const most = 1024
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	entries, err := f.ReadDir(most)
	for _, e := range entries {
		each([]byte(e.Name()), kindOf(e.Type()))
	}
	return len(entries) < most, nil
}
