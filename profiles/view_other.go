//go:build !linux

package profiles

import (
	"io/fs"
	"syscall"
)

// readListing reads a directory.
func readListing(dir string) (listing, error) {
	entries, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	l := make(listing, 0, len(entries))
	for _, e := range entries {
		l = append(l, entry{e.Name(), kinds[e.Type()]})
	}
	return l, nil
}

var kinds = map[fs.FileMode]uint32{
	0: syscall.S_IFREG, fs.ModeDir: syscall.S_IFDIR, fs.ModeSymlink: syscall.S_IFLNK,
	fs.ModeSocket: syscall.S_IFSOCK, fs.ModeNamedPipe: syscall.S_IFIFO, fs.ModeDevice: syscall.S_IFBLK, fs.ModeDevice | fs.ModeCharDevice: syscall.S_IFCHR,
}
