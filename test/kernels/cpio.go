package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// cpio writes an archive in the newc format, which the kernel unpacks as its
// first root. It is not compressed: an emulated machine would pay for that with
// more time than it saves. Errors stick; Close returns the first.
type cpio struct {
	w    *bufio.Writer
	size int64
	inos uint32
	dirs map[string]bool
	err  error
}

func newCPIO(w io.Writer) *cpio {
	return &cpio{w: bufio.NewWriterSize(w, 1<<20), dirs: map[string]bool{}}
}

// The types of newc's mode.
const (
	typeDir  = 0o040000
	typeReg  = 0o100000
	typeLink = 0o120000
	typeChar = 0o020000
)

// attributes of an entry; the zero value is root's.
type attributes struct {
	perm     fs.FileMode
	uid      int
	mtime    time.Time
	maj, min int
}

// Dir adds a directory with its parents. Adding it again does nothing, but the
// first time counts: /home/user must be made before what is in it.
func (c *cpio) Dir(name string, a attributes) {
	name = c.clean(name)
	if name == "" || c.dirs[name] {
		return
	}
	c.parents(name)
	c.dirs[name] = true
	c.entry(name, typeDir, a, nil, 0)
}

// File adds a regular file of a known size.
func (c *cpio) File(name string, a attributes, content io.Reader, size int64) {
	name = c.clean(name)
	c.parents(name)
	c.entry(name, typeReg, a, content, size)
}

// Text adds a small file.
func (c *cpio) Text(name string, perm fs.FileMode, text string) {
	c.File(name, attributes{perm: perm}, strings.NewReader(text), int64(len(text)))
}

// Link adds a symbolic link.
func (c *cpio) Link(name, target string) {
	name = c.clean(name)
	c.parents(name)
	c.entry(name, typeLink, attributes{perm: 0o777}, strings.NewReader(target), int64(len(target)))
}

// Device adds a character device.
func (c *cpio) Device(name string, perm fs.FileMode, maj, min int) {
	name = c.clean(name)
	c.parents(name)
	c.entry(name, typeChar, attributes{perm: perm, maj: maj, min: min}, nil, 0)
}

// Close ends the archive. The kernel wants the next one, if there is one, to
// begin at a multiple of 4; whole blocks are what cpio(1) writes.
func (c *cpio) Close() error {
	c.entry("TRAILER!!!", 0, attributes{}, nil, 0)
	c.pad(512)
	if c.err == nil {
		c.err = c.w.Flush()
	}
	return c.err
}

// clean makes names relative, as the format wants them.
func (c *cpio) clean(name string) string {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean != strings.Trim(name, "/") {
		c.fail(fmt.Errorf("cpio: %q is not a clean path", name))
	}
	return clean
}

func (c *cpio) parents(name string) {
	if d := path.Dir(name); d != "." {
		c.Dir(d, attributes{perm: 0o755})
	}
}

func (c *cpio) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *cpio) entry(name string, typ uint32, a attributes, content io.Reader, size int64) {
	if c.err != nil {
		return
	}
	if size > 1<<32-1 {
		c.fail(fmt.Errorf("cpio: %q is too large for the format", name))
		return
	}
	c.inos++
	mode := typ
	if typ != 0 {
		mode |= uint32(a.perm.Perm())
		if a.perm&fs.ModeSticky != 0 {
			mode |= 0o1000
		}
		if a.perm&fs.ModeSetuid != 0 {
			mode |= 0o4000
		}
		if a.perm&fs.ModeSetgid != 0 {
			mode |= 0o2000
		}
	}
	var mtime int64
	if !a.mtime.IsZero() {
		mtime = a.mtime.Unix()
	}
	// One link each, so that the kernel looks for no other name of the inode.
	c.write(fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.inos, mode, a.uid, a.uid, 1, uint32(mtime), size, 0, 0, a.maj, a.min, len(name)+1, 0))
	c.write(name + "\x00")
	c.pad(4)
	if content != nil {
		n, err := io.Copy(c.w, content)
		c.size += n
		if err == nil && n != size {
			err = errors.New("its size changed")
		}
		if err != nil {
			c.fail(fmt.Errorf("cpio: %q: %w", name, err))
		}
		c.pad(4)
	}
}

func (c *cpio) write(s string) {
	n, err := c.w.WriteString(s)
	c.size += int64(n)
	if err != nil {
		c.fail(err)
	}
}

func (c *cpio) pad(to int64) {
	c.write(strings.Repeat("\x00", int((to-c.size%to)%to)))
}
