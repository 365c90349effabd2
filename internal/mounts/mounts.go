// Package mounts reads the kernel's table of mounts, /proc/PID/mountinfo
// (proc_pid_mountinfo(5)).
package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Mount is one line of the table:
//
//	36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/source rw
//
// Its texts are as the file system has them, without the kernel's escapes, but
// for Options and Super: there a comma that is no separator stays escaped.
type Mount struct {
	ID, Parent int
	Device     string // major:minor, as stat(2) tells it
	Root       string // what of the file system is at Point; of some it is no path
	Point      string // from the reader's own root
	Options    string // of this mount, with commas between
	Type       string
	Source     string // may be empty
	Super      string // options of the file system
}

// ReadOnly tells whether nothing can be written through it.
func (m Mount) ReadOnly() bool {
	return slices.Contains(strings.Split(m.Options, ","), "ro") || slices.Contains(strings.Split(m.Super, ","), "ro")
}

const (
	// maxLine holds a root, a point and a source of PATH_MAX each, every byte of
	// them escaped, and a page of options twice.
	maxLine = 64 << 10
	// maxTable is far more than the kernel's own bound of 100000 mounts
	// (fs.mount-max) needs. None of it is kept but the line that is read.
	maxTable = 64 << 20
)

// ErrTooLong is the error for a table of which only the first 64 MiB were read.
var ErrTooLong = errors.New("the table of mounts is too long")

// Each calls visit with the mounts of a table, in its order, until that returns
// false. A line that the kernel would not write is left out, as is one of more
// than 64 KiB and one without its end: what else is mounted must not be hidden by
// it, and no caller takes a missing mount for leave to do more.
func Each(table io.Reader, visit func(Mount) bool) error {
	in := bufio.NewReader(table)
	var line []byte
	cut := false // the line is too long
	for read := 0; read < maxTable; {
		part, err := in.ReadSlice('\n')
		read += len(part)
		if cut = cut || len(line)+len(part) > maxLine; !cut {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading the table of mounts: %w", err)
		}
		if m, ok := parse(string(line)); ok && !cut && !visit(m) {
			return nil
		}
		line, cut = line[:0], false
	}
	return ErrTooLong
}

func parse(line string) (m Mount, ok bool) {
	line, ok = strings.CutSuffix(line, "\n")
	if !ok || strings.Contains(line, "\x00") {
		return m, false
	}
	var id, parent, root, point string
	for _, field := range []*string{&id, &parent, &m.Device, &root, &point, &m.Options} {
		if *field, line, ok = strings.Cut(line, " "); !ok || *field == "" {
			return m, false
		}
	}
	for field := ""; field != "-"; { // the optional fields
		if field, line, ok = strings.Cut(line, " "); !ok || field == "" {
			return m, false
		}
	}
	fsType, line, _ := strings.Cut(line, " ")
	source, super, ok := strings.Cut(line, " ")
	if !ok || fsType == "" || super == "" {
		return m, false
	}
	m.Super = super
	for _, n := range []struct {
		text string
		to   *int
	}{{id, &m.ID}, {parent, &m.Parent}} {
		if *n.to, ok = number(n.text); !ok {
			return m, false
		}
	}
	major, minor, _ := strings.Cut(m.Device, ":")
	if _, ok = number(major); !ok {
		return m, false
	}
	if _, ok = number(minor); !ok {
		return m, false
	}
	for _, f := range []struct {
		text string
		to   *string
	}{{root, &m.Root}, {point, &m.Point}, {fsType, &m.Type}, {source, &m.Source}} {
		if *f.to, ok = unescape(f.text); !ok {
			return m, false
		}
	}
	return m, m.Point[0] == '/'
}

// number reads digits, and no sign.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil
}

// unescape reads what the kernel writes for spaces, tabs, line breaks, backslashes
// and, at the start of a source, #: \040 and the like. Every backslash of the
// kernel's begins such a number.
func unescape(s string) (string, bool) {
	if !strings.Contains(s, `\`) {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i+4 > len(s) {
			return "", false
		}
		n, err := strconv.ParseUint(s[i+1:i+4], 8, 8)
		if err != nil || n == 0 {
			return "", false
		}
		b.WriteByte(byte(n))
		i += 3
	}
	return b.String(), true
}
