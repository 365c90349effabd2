package hold

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/scratch"
	"sandboxd/policy"
)

// Place is one place that is held.
type Place struct {
	Path string
	// Stat is what stands there.
	Stat unix.Stat_t
	// Shut tells that it can be read only; else what is in it can be changed.
	Shut bool
	// Placeholder tells that it was made to be held, here or by another launcher. FD
	// has the lock then, and Dir is the directory that it is in.
	Placeholder bool
	Dir, FD     int
	Text        string // of a placeholder that is a file
	// Denied tells that what stands there is not to be reached at all.
	Denied bool

	how    policy.Guard
	denies bool // as it was asked for
}

// Name is the last component of its path.
func (p *Place) Name() string { return path.Base(p.Path) }

// IsDir tells whether it is a directory.
func (p *Place) IsDir() bool { return p.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// Set is all that one worker's launch holds.
type Set struct {
	Places []Place
	// Gaps are what could not be held, in words, and DenyGaps those of them that are
	// denied.
	Gaps, DenyGaps []string

	dirs map[string]*dir
	mark string // in the lease
	lone bool   // a placeholder bears no mark here, so that others do not know it
}

// dir is a directory that places are in.
type dir struct {
	fd  int
	err error
}

// ErrChanged tells that what a policy was resolved to is not there any more.
var ErrChanged = errors.New("it is another since it was resolved")

// ErrBusy tells that a placeholder is somebody else's to remove.
var ErrBusy = errors.New("another worker holds it")

// The modes of placeholders. With the sticky bit and no right to write for group and
// others there is nothing else of the kind.
const (
	modeShut = 0o1555
	modeOpen = 0o1755 // of a directory that is pinned only
	modeFile = 0o1444
	modeMask = 0o1022
	modeMark = 0o1000
)

// tries bounds how often a placeholder is tried to have while others remove it.
const tries = 2000

// Take holds places. They come in the order of [policy.Spec.Guarded].
func Take(guarded []policy.Guarded) (_ *Set, err error) {
	s := &Set{dirs: map[string]*dir{}}
	defer func() {
		if err != nil {
			_, rerr := s.Release()
			err = errors.Join(err, rerr)
		}
	}()
	var missing []int
	shut := "" // nothing can be changed in it
	for _, g := range guarded {
		p := Place{Path: string(g.Path), Shut: g.Guard != policy.GuardPinned && g.Guard != policy.GuardMade, Text: g.Text, Dir: -1, FD: -1, how: g.Guard, denies: g.Guard.Denies()}
		if shut != "" && policy.Within(p.Path, shut) {
			if !g.Guard.Denies() {
				continue
			}
			p.how = policy.GuardHidden
		}
		stands, err := s.look(&p)
		switch {
		case err != nil:
			return s, fmt.Errorf("%q: %w", p.Path, err)
		case stands == nothing && p.how == policy.GuardHidden:
			continue
		case stands != itself:
			missing = append(missing, len(s.Places))
		}
		if p.Shut && !p.Denied {
			shut = p.Path
		}
		s.Places = append(s.Places, p)
	}
	if len(missing) == 0 {
		s.spare()
		return s, nil
	}
	s.note(missing)
	var without []int
	for _, i := range missing {
		p := &s.Places[i]
		err := s.stand(p)
		switch {
		case err == nil:
			p.Placeholder = true
			s.forget(p.Path)
		case errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM): // nobody can
			without = append(without, i)
		case errors.Is(err, unix.EACCES):
			s.barred(p)
			without = append(without, i)
		default:
			return s, fmt.Errorf("%q: a placeholder: %w", p.Path, err)
		}
	}
	for _, i := range slices.Backward(without) {
		s.Places = slices.Delete(s.Places, i, i+1)
	}
	s.spare()
	return s, nil
}

// maxDirs is how many directories are kept open for one worker without need.
const maxDirs = 64

// spare closes directories that are not needed before the end, if they are many.
func (s *Set) spare() {
	if len(s.dirs) <= maxDirs {
		return
	}
	needed := map[string]bool{}
	for i := range s.Places {
		if p := &s.Places[i]; p.Placeholder {
			needed[path.Dir(p.Path)] = true
		} else {
			p.Dir = -1
		}
	}
	for name := range s.dirs {
		if !needed[name] {
			s.forget(name)
		}
	}
}

// barred sees to a place in a directory where this process may make nothing. Its
// worker may not, either, unless it changes the mode of that directory first.
func (s *Set) barred(p *Place) {
	above := path.Dir(p.Path)
	for i := range s.Places {
		if s.Places[i].Path == above {
			s.Places[i].Shut = true
			return
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.dir(above).fd, &st); err == nil && int(st.Uid) == os.Geteuid() {
		gap := fmt.Sprintf("%q cannot be kept from being made: its directory is closed to its owner, who may open it", p.Path)
		if p.denies {
			s.DenyGaps = append(s.DenyGaps, gap)
		} else {
			s.Gaps = append(s.Gaps, gap)
		}
	}
}

// standing is what stands at a place.
type standing int

const (
	nothing standing = iota
	itself
	placeholder // another launcher's
)

// look finds what stands at a place.
func (s *Set) look(p *Place) (standing, error) {
	d := s.dir(path.Dir(p.Path))
	if errors.Is(d.err, unix.ENOENT) { // one that is yet to be made is above
		return nothing, nil
	}
	if d.err != nil {
		switch {
		case errors.Is(d.err, unix.ELOOP) || errors.Is(d.err, unix.ENOTDIR):
			return nothing, ErrChanged
		case errors.Is(d.err, unix.EACCES) && p.how == policy.GuardHidden: // nor may the worker
			return nothing, nil
		}
		return nothing, d.err
	}
	p.Dir = d.fd
	err := unix.Fstatat(d.fd, p.Name(), &p.Stat, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		if p.how != policy.GuardFile && p.how != policy.GuardMade && p.how != policy.GuardHidden {
			p.how, p.Shut = policy.GuardMissing, true // it may have been removed meanwhile
		}
		return nothing, nil
	}
	if err != nil {
		return nothing, err
	}
	kind := p.Stat.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFLNK && p.how != policy.GuardLink:
		return nothing, ErrChanged // where it leads is not known
	case kind != unix.S_IFDIR:
		p.Shut = true
	}
	if !p.isPlaceholder(&p.Stat) || p.how == policy.GuardHidden {
		p.Denied = p.how.Denies()
		return itself, nil
	}
	if p.Stat.Mode&0o200 == 0 && kind == unix.S_IFDIR { // another launcher's, who found nothing
		p.how, p.Shut = policy.GuardMissing, true
	}
	return placeholder, nil
}

// isPlaceholder tells whether a file is one, by its mode.
func (p *Place) isPlaceholder(st *unix.Stat_t) bool {
	if st.Mode&modeMask != modeMark {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return true
	case unix.S_IFREG:
		return p.how == policy.GuardFile && st.Nlink == 1
	}
	return false
}

func (s *Set) dir(name string) *dir {
	d := s.dirs[name]
	if d == nil || errors.Is(d.err, unix.ENOENT) {
		d = &dir{fd: -1}
		d.fd, d.err = open(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY)
		s.dirs[name] = d
	}
	return d
}

// forget has a directory opened again that may be another than before.
func (s *Set) forget(name string) {
	if d := s.dirs[name]; d != nil {
		if d.fd >= 0 {
			_ = unix.Close(d.fd)
		}
		delete(s.dirs, name)
	}
}

func open(at int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(at, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// mode is that of a placeholder.
func (p *Place) mode() uint32 {
	switch p.how {
	case policy.GuardFile:
		return modeFile
	case policy.GuardMade:
		return modeOpen
	}
	return modeShut
}

// stand makes a placeholder, or finds another launcher's, and locks it.
func (s *Set) stand(p *Place) error {
	d := s.dir(path.Dir(p.Path))
	if d.err != nil {
		return d.err
	}
	p.Dir = d.fd
	var err error
	for try := 0; try < tries; try++ {
		var made bool
		if made, err = p.make(); err != nil {
			return err
		}
		flags := uint64(unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK)
		if p.FD, err = open(p.Dir, p.Name(), flags); err == nil {
			if err = s.lock(p, made); err == nil {
				return nil
			}
			_ = unix.Close(p.FD)
			p.FD = -1
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if try > 10 {
			time.Sleep(time.Millisecond)
		}
	}
	return err
}

func (p *Place) make() (made bool, err error) {
	if p.how != policy.GuardFile {
		err = unix.Mkdirat(p.Dir, p.Name(), p.mode())
		if errors.Is(err, unix.EEXIST) {
			return false, nil
		}
		return err == nil, err
	}
	if p.Text != "" { // whoever finds it by its name has to find that in it
		if made, err = p.makeWhole(); err == nil {
			return made, nil
		}
	}
	fd, err := unix.Openat(p.Dir, p.Name(), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, p.mode())
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if p.Text != "" {
		_, err = unix.Write(fd, []byte(p.Text))
	}
	return true, err
}

// makeWhole makes a file without a name, and gives it one when its text is in it
// (O_TMPFILE, open(2)). Not every file system can do that.
func (p *Place) makeWhole() (made bool, err error) {
	fd, err := unix.Openat(p.Dir, ".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, p.mode())
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(p.Text)); err != nil {
		return false, err
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), p.Dir, p.Name(), unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// lock takes the shared lock on what was opened, and sees to it that it is still what
// stands there. ENOENT and EWOULDBLOCK ask for another try.
func (s *Set) lock(p *Place, made bool) error {
	if err := unix.Fstat(p.FD, &p.Stat); err != nil {
		return err
	}
	if p.Stat.Nlink == 0 { // somebody removed it after it was opened
		return unix.ENOENT
	}
	if made {
		if bits := p.Stat.Mode & 0o7777; bits&^unix.S_ISGID != p.mode() { // the umask
			_ = unix.Fchmod(p.FD, p.mode())
			if err := unix.Fstat(p.FD, &p.Stat); err != nil {
				return err
			}
		}
		if !p.isPlaceholder(&p.Stat) {
			s.lone = true
		}
	} else if !p.isPlaceholder(&p.Stat) {
		return ErrChanged
	}
	switch err := unix.Flock(p.FD, unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return err // somebody is about to remove it
	case err != nil:
		s.lone = true // no locks there: it is removed by whoever made it
		if !made {
			return ErrChanged
		}
	}
	var now unix.Stat_t
	if err := unix.Fstatat(p.Dir, p.Name(), &now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if !same(&now, &p.Stat) {
		return unix.ENOENT
	}
	return nil
}

func same(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }

// left is the detail of a mark: what is to be removed, what holds others first.
type left struct {
	Path string       `json:"path"`
	How  policy.Guard `json:"how"`
	Text string       `json:"text,omitempty"`
}

// note lists placeholders in the lease before they are made.
func (s *Set) note(missing []int) {
	var list []left
	for _, i := range missing {
		p := &s.Places[i]
		list = append(list, left{p.Path, p.how, p.Text})
	}
	detail, err := json.Marshal(list)
	if err != nil {
		return
	}
	s.mark = path.Join(path.Dir(list[0].Path), scratch.NewName()) // a name that nothing has
	scratch.Mine().Add(scratch.Mark{Kind: KindPlaces, Path: s.mark, Detail: detail})
}

// Changed are the places where something else stands than what was held: somebody
// outside replaced or removed it. The kernel takes the mounts off what is removed, so
// that it was not held from then on.
func (s *Set) Changed() (paths []string) {
	for i := range s.Places {
		p := &s.Places[i]
		var now unix.Stat_t
		d := s.dir(path.Dir(p.Path))
		if err := unix.Fstatat(d.fd, p.Name(), &now, unix.AT_SYMLINK_NOFOLLOW); err != nil || !same(&now, &p.Stat) {
			paths = append(paths, p.Path)
		}
	}
	return paths
}

// Release gives all up, when the worker and all of its processes have ended. It tells
// what [Set.Changed] does.
func (s *Set) Release() (changed []string, err error) {
	changed = s.Changed()
	var errs []error
	for i := range slices.Backward(s.Places) {
		p := &s.Places[i]
		if !p.Placeholder || p.FD < 0 {
			continue
		}
		if rerr := p.remove(); rerr != nil && !(errors.Is(rerr, ErrBusy) && !s.lone) {
			errs = append(errs, fmt.Errorf("%q: %w", p.Path, rerr))
		}
		_ = unix.Close(p.FD)
		p.FD = -1
	}
	for _, d := range s.dirs {
		if d.fd >= 0 {
			_ = unix.Close(d.fd)
		}
	}
	s.dirs, s.Places = nil, nil
	if s.mark != "" && len(errs) == 0 {
		scratch.Mine().Drop(s.mark)
		s.mark = ""
	}
	return changed, errors.Join(errs...)
}

// remove removes a placeholder, if nobody else holds it and it is as it was.
func (p *Place) remove() error {
	err := unix.Flock(p.FD, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	var st, now unix.Stat_t
	if err := unix.Fstat(p.FD, &st); err != nil {
		return err
	}
	if err := unix.Fstatat(p.Dir, p.Name(), &now, unix.AT_SYMLINK_NOFOLLOW); err != nil || !same(&st, &now) {
		return nil // somebody has removed it
	}
	flags := 0
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags = unix.AT_REMOVEDIR
	} else if !p.untouched(&st) {
		return nil
	}
	err = unix.Unlinkat(p.Dir, p.Name(), flags)
	switch {
	case errors.Is(err, unix.ENOTEMPTY): // somebody put something in it: it is theirs
		return unix.Fchmod(p.FD, 0o755)
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return err
}

// untouched tells whether a file holds its text and nothing else.
func (p *Place) untouched(st *unix.Stat_t) bool {
	if st.Size != int64(len(p.Text)) || st.Nlink != 1 {
		return false
	}
	b := make([]byte, len(p.Text)+1)
	n, err := unix.Pread(p.FD, b, 0)
	return err == nil && string(b[:n]) == p.Text
}

// RemoveLeft removes the placeholders of a launcher that was killed.
func RemoveLeft(m scratch.Mark) error {
	var list []left
	if err := json.Unmarshal(m.Detail, &list); err != nil {
		return err
	}
	var errs []error
	for _, l := range slices.Backward(list) {
		if err := l.remove(); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", l.Path, err))
		}
	}
	return errors.Join(errs...)
}

func (l *left) remove() error {
	if !path.IsAbs(l.Path) || path.Clean(l.Path) != l.Path || strings.ContainsRune(l.Path, 0) {
		return errors.New("no path of a placeholder")
	}
	p := Place{Path: l.Path, Text: l.Text, how: l.How, FD: -1}
	var err error
	if p.Dir, err = open(unix.AT_FDCWD, path.Dir(l.Path), unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return gone(err)
	}
	defer unix.Close(p.Dir)
	if p.FD, err = open(p.Dir, p.Name(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK); err != nil {
		return gone(err)
	}
	defer unix.Close(p.FD)
	if err := unix.Fstat(p.FD, &p.Stat); err != nil {
		return err
	}
	// What does not bear the mark is somebody's own.
	if me := os.Geteuid(); !p.isPlaceholder(&p.Stat) || me != 0 && int(p.Stat.Uid) != me {
		return nil
	}
	return p.remove()
}

// gone is nil where there is nothing, or something that no placeholder is.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return cmp.Or(err, io.ErrUnexpectedEOF)
}
