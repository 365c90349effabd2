package backendtest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"sandboxd/policy"
)

// snapshot is what can be told of a tree without opening it up to change: for
// each name its inode, kind, links, size, time of change and content.
type snapshot map[string]string

// snap looks at a tree. That it is not there is what can be told of it, too.
func snap(dir string) (snapshot, error) {
	s := snapshot{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path == dir && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := describe(path)
		s[path] = text
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking at %s: %w", dir, err)
	}
	return s, nil
}

func describe(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("no stat of %s", path)
	}
	text := fmt.Sprintf("inode %d, %s, links %d, size %d, mtime %d.%09d", st.Ino, info.Mode(), st.Nlink, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
	switch {
	case info.Mode().IsRegular():
		b, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(b)
		text += ", sha256 " + hex.EncodeToString(sum[:8])
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		text += ", to " + target
	}
	return text, nil
}

// changes lists what differs between two looks at one tree.
func (s snapshot) changes(later snapshot) []string {
	var all []string
	names := maps.Clone(s)
	maps.Copy(names, later)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		shown := policy.Printable(name)
		was, before := s[name]
		is, after := later[name]
		switch {
		case !before:
			all = append(all, shown+" appeared")
		case !after:
			all = append(all, shown+" vanished")
		case was != is:
			all = append(all, fmt.Sprintf("%s was %s and is %s", shown, was, is))
		}
	}
	return all
}
