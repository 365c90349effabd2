//go:build unix

package scratch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// removeTime bounds one removal. What is left then goes at the next try, which
// finds a flatter tree. Tests change it.
var removeTime = 10 * time.Second

const (
	// removeChunk is how many names of a directory are held at a time.
	removeChunk = 512
	// maxAbove and maxStuck bound what is remembered of directories that can
	// only be emptied where they are: some 24 bytes of each.
	maxAbove = 1 << 20
	maxStuck = 1 << 12
	// maxShown is how much of a worker's name an error shows.
	maxShown = 48
)

var (
	errTooLong = errors.New("it takes too long")
	errMoved   = errors.New("it was moved meanwhile")
	errMount   = errors.New("something is mounted there")
	errTooMuch = errors.New("too much of it cannot be moved or removed")
)

// RemoveTree removes a directory that a worker wrote to, who may have made that
// hard: with depth, with width, with directories without permissions, and with
// processes that still move things around. It takes a few descriptors, little
// memory and time in proportion to what is there, and stops after some seconds.
// Nothing outside is touched: no link is followed, no mount is entered.
//
// A directory that is not empty is moved to the top, under a new name, and
// emptied there, so that there is never a way down or back up to go; and what
// was done stays done when time is up. Where the system refuses the move it is
// emptied where it is: see [remover.walk].
func RemoveTree(dir string) error {
	end := time.Now().Add(removeTime)
	r := remover{late: func() bool { return time.Now().After(end) }}
	return r.remove(dir)
}

// place tells directories, and the mounts that they are on, apart.
type place struct {
	dev, ino uint64
	mnt      uint64 // 0: not known
}

func (p place) sameMount(q place) bool {
	if p.mnt != 0 && q.mnt != 0 {
		return p.mnt == q.mnt
	}
	return p.dev == q.dev
}

// level is an open directory.
type level struct {
	fd   int
	file *os.File
	place
}

type remover struct {
	late func() bool
	root *level
	// Directories that were moved to the root are named by a prefix and a
	// number; those of [next, end) are to be emptied.
	prefix    string
	next, end uint64
	stuck     map[place]bool // those that stay, of the ones that are emptied where they are
	gone      uint64         // entries removed
	failed    uint64         // entries that stay
	err       error          // why the first of them does
	halted    bool
	calls     uint64
	looked    func(at string) // for tests: names of a directory were read
}

// call makes a system call.
func (r *remover) call(f func() error) error {
	for {
		r.calls++
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func (r *remover) unlink(at int, name string, flags int) error {
	return r.call(func() error { return unix.Unlinkat(at, name, flags) })
}

func (r *remover) look(at int, name string) (p place, mode uint32, err error) {
	err = r.call(func() error { p, mode, err = look(at, name); return err })
	return p, mode, err
}

func (r *remover) remove(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("removing %q: %w", dir, err)
		}
	}()
	switch err := r.unlink(unix.AT_FDCWD, dir, unix.AT_REMOVEDIR); err {
	case nil, unix.ENOENT:
		return nil
	case unix.ENOTDIR: // something else took its place
		return r.unlink(unix.AT_FDCWD, dir, 0)
	case unix.EBUSY: // something is mounted there, whose contents are not ours
		return err
	}
	if r.root, err = r.open(unix.AT_FDCWD, dir); err != nil {
		return err
	}
	defer r.root.file.Close()
	r.prefix = NewName()[:len(prefix)+16] + "-"
	for {
		before := r.progress()
		r.walk(r.root, unix.AT_FDCWD, dir)
		if r.halted {
			return r.err
		}
		err := r.unlink(unix.AT_FDCWD, dir, unix.AT_REMOVEDIR)
		switch {
		case err == nil || err == unix.ENOENT:
			return nil
		case r.late():
			return fmt.Errorf("%w: %d entries are gone, at least %d directories are left", errTooLong, r.gone, r.end-r.next+1)
		case r.progress() == before && r.err != nil:
			return r.err
		case r.progress() == before:
			return err
		}
		// Something came while it was read, or was not shown for what went.
		if _, err := r.root.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func (r *remover) progress() uint64 { return r.gone + r.end }

func (r *remover) over() bool { return r.halted || r.late() }

// fail notes what stays, and goes on.
func (r *remover) fail(name string, err error) {
	r.failed++
	if r.err == nil {
		r.err = fmt.Errorf("%s: %w", shown(name), err)
	}
}

// halt notes what makes going on unsafe.
func (r *remover) halt(name string, err error) {
	r.halted = true
	r.err = fmt.Errorf("%s: %w", shown(name), err)
}

// shown is a name as an error shows it.
func shown(name string) string {
	if len(name) > maxShown {
		return fmt.Sprintf("%q...", name[:maxShown])
	}
	return strconv.Quote(name)
}

// open opens a directory, which gets the permissions that it lacks.
func (r *remover) open(at int, name string) (*level, error) {
	fd, err := r.openDir(at, name)
	if err == unix.EACCES && r.openUp(at, name) == nil {
		fd, err = r.openDir(at, name)
	}
	if err != nil {
		return nil, err
	}
	l := &level{fd: fd}
	var mode uint32
	if l.place, mode, err = r.look(fd, ""); err == nil && r.root != nil && !l.sameMount(r.root.place) {
		err = errMount
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if mode&0o700 != 0o700 {
		_ = r.call(func() error { return unix.Fchmod(fd, 0o700) }) // else the next call says what is wrong
	}
	l.file = os.NewFile(uintptr(fd), "directory")
	return l, nil
}

func (r *remover) openDir(at int, name string) (fd int, err error) {
	err = r.call(func() error {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// openUp gives a directory that cannot be opened the permissions for it.
func (r *remover) openUp(at int, name string) error {
	return r.call(func() error {
		return chmodDir(at, name, func(p place) bool { return r.root == nil || p.sameMount(r.root.place) })
	})
}

// walk empties a directory, which is name in at, and closes it unless it is the
// root. What cannot be moved to the root is emptied where it is: on the way down
// each directory is noted and closed, on the way up it must be found again as
// the one above. It is read anew then, which is why this is the second choice.
func (r *remover) walk(d *level, at int, name string) {
	top := d
	defer func() {
		if d != r.root {
			_ = d.file.Close()
		}
	}()
	var above []place
	enter := func(l *level) {
		if d != r.root {
			_ = d.file.Close()
		}
		d = l
	}
	failed := r.failed
	for !r.over() {
		r.calls++
		names, err := d.file.Readdirnames(removeChunk)
		if r.looked != nil {
			r.looked(name)
		}
		var sub *level
		for _, n := range names {
			if r.over() {
				return
			}
			if d == r.root && strings.HasPrefix(n, r.prefix) {
				continue // it stays, and was told of
			}
			sub = r.entry(d, n)
			if top == r.root {
				r.drain()
			}
			if sub != nil {
				break
			}
		}
		if sub != nil {
			if len(above) == maxAbove {
				_ = sub.file.Close()
				r.halt(name, errTooMuch)
				return
			}
			above = append(above, d.place)
			enter(sub)
			failed = r.failed
			continue
		}
		if len(above) == 0 {
			if p, _, err := r.look(at, name); err != nil || p != d.place {
				r.halt(name, errMoved)
				return
			}
		}
		if err == nil && len(names) == removeChunk {
			continue
		}
		if err != nil && err != io.EOF {
			r.fail(name, bare(err))
		}
		if len(above) == 0 {
			return
		}
		if r.failed != failed {
			if len(r.stuck) == maxStuck {
				r.halt(name, errTooMuch)
				return
			}
			if r.stuck == nil {
				r.stuck = map[place]bool{}
			}
			r.stuck[d.place] = true
		}
		last := len(above) - 1
		up, err := r.open(d.fd, "..")
		if err == nil && up.place != above[last] {
			_ = up.file.Close()
			err = errMoved
		}
		if err != nil {
			r.halt(name, err)
			return
		}
		above = above[:last]
		if up.place == r.root.place { // has its own reading, which goes on
			_ = up.file.Close()
			up = r.root
			_, _ = up.file.Seek(0, io.SeekStart)
		}
		enter(up)
		failed = r.failed
	}
}

// entry removes one entry of a directory, or moves it to the root if it is a
// directory and not empty. What it returns is to be emptied where it is.
func (r *remover) entry(d *level, name string) *level {
	err := r.unlink(d.fd, name, 0)
	if err == unix.EISDIR || err == unix.EPERM { // Linux, POSIX
		if as := r.unlink(d.fd, name, unix.AT_REMOVEDIR); as != unix.ENOTDIR {
			err = as
		}
	}
	switch err {
	case nil:
		r.gone++
		return nil
	case unix.ENOENT:
		return nil
	case unix.ENOTEMPTY, unix.EEXIST:
	default:
		r.fail(name, err)
		return nil
	}
	to := r.name(r.end)
	move := func() error { return renameat(d.fd, name, r.root.fd, to) }
	err = r.call(move)
	if err == unix.EACCES && r.openUp(d.fd, name) == nil { // its ".." changes
		err = r.call(move)
	}
	switch err {
	case nil:
		r.end++
		return nil
	case unix.ENOENT:
		return nil
	case unix.EBUSY:
		r.fail(name, errMount)
		return nil
	}
	sub, err := r.open(d.fd, name)
	if err == nil && r.stuck[sub.place] {
		_ = sub.file.Close()
		err = unix.ENOTEMPTY
	}
	if err != nil {
		r.fail(name, err)
		return nil
	}
	return sub
}

// renameat is a variable so that tests can be systems that refuse it: an outer
// Landlock domain does, and directories of another subvolume or project quota.
var renameat = unix.Renameat

func (r *remover) name(n uint64) string { return r.prefix + strconv.FormatUint(n, 36) }

// drain empties and removes what was moved to the root.
func (r *remover) drain() {
	for r.next < r.end && !r.over() {
		name := r.name(r.next)
		before, failed := r.progress(), r.failed
		d, err := r.open(r.root.fd, name)
		if err == nil {
			r.walk(d, r.root.fd, name)
			if r.over() {
				return
			}
			err = r.unlink(r.root.fd, name, unix.AT_REMOVEDIR)
		}
		switch {
		case err == nil:
			r.gone++
		case err == unix.ENOENT:
		case (err == unix.ENOTEMPTY || err == unix.EEXIST) && r.failed == failed && r.progress() != before:
			continue // as in remove
		default:
			r.fail(name, err)
		}
		r.next++
	}
}

// bare is an error without the path that it is about.
func bare(err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
