package profiles

import (
	"errors"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links one path may lead through, as in Linux.
const maxLinks = 40

// node is what stands at one real path. What a listing told is its kind only:
// the other fields need [view.full].
type node struct {
	kind   uint32 // the type bits of st_mode
	full   bool
	perm   uint32 // the rest of st_mode
	uid    uint32
	size   int64
	target string // of a symbolic link
	err    error  // why there is none
}

func (n node) isDir() bool  { return n.kind == syscall.S_IFDIR }
func (n node) isFile() bool { return n.kind == syscall.S_IFREG }
func (n node) isChar() bool { return n.kind == syscall.S_IFCHR }

// view is one look at the file system: each path is asked for once, so that a
// resolve is cheap and agrees with itself.
type view struct {
	nodes map[string]node
	lists map[string]listing
	asked map[string]int // questions about a directory that is not listed
	dirs  map[string]resolved
}

// resolved is the answer to one question for a directory.
type resolved struct {
	real  string
	isDir bool
	err   error
}

// listing holds the names in a directory, in no order. The lists are short and
// rarely asked: a map would cost more to make than it saves.
type listing []entry

type entry struct {
	name string
	kind uint32 // as in node; 0 is not known
}

func (l listing) find(name string) (kind uint32, found bool) {
	for i := range l {
		if l[i].name == name {
			return l[i].kind, true
		}
	}
	return 0, false
}

func newView() *view {
	return &view{nodes: make(map[string]node, 150), lists: map[string]listing{}, asked: map[string]int{}, dirs: map[string]resolved{}}
}

// A directory is listed instead of asked about once more questions than this
// came up, if it is small: one listing then is cheaper than what follows.
const (
	askLimit  = 3
	smallList = 4 << 10
)

// lstat looks at p, whose parents are real directories.
func (v *view) lstat(p string) node {
	if n, ok := v.nodes[p]; ok {
		return n
	}
	dir, name := split(p)
	if l := v.consider(dir, p); l != nil {
		if n, ok := l.node(name); ok {
			return n
		}
	}
	n := stat(p)
	v.nodes[p] = n
	return n
}

// consider returns the listing of a directory, if there is one or if it is
// time to make one.
func (v *view) consider(dir, p string) listing {
	if l, ok := v.lists[dir]; ok || p == "/" {
		return l
	}
	v.asked[dir]++
	if v.asked[dir] != askLimit+1 || dir == "/dev" { // /dev: few answers, long list
		return nil
	}
	return v.listIfSmall(dir)
}

func (v *view) listIfSmall(dir string) listing {
	if d := v.full(dir); d.size <= 0 || d.size > smallList {
		return nil
	}
	l, _ := v.list(dir)
	return l
}

// node is what a listing alone can tell about a name.
func (l listing) node(name string) (n node, ok bool) {
	kind, found := l.find(name)
	if !found && len(name) <= 255 { // a longer name is another error
		return node{err: syscall.ENOENT}, true
	}
	return node{kind: kind}, kind != 0 && kind != syscall.S_IFLNK
}

// full is lstat with every field.
func (v *view) full(p string) node {
	if n, ok := v.nodes[p]; ok && (n.full || n.err != nil) {
		return n
	}
	n := stat(p)
	v.nodes[p] = n
	return n
}

func stat(p string) node {
	var st syscall.Stat_t
	if err := lstat(p, &st); err != nil {
		return node{err: err}
	}
	mode := uint32(st.Mode)
	n := node{kind: mode & syscall.S_IFMT, perm: mode &^ syscall.S_IFMT, uid: st.Uid, size: st.Size, full: true}
	if n.kind == syscall.S_IFLNK {
		n.target, n.err = readlink(p)
	}
	return n
}

// split cuts a clean absolute path before its last component.
func split(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", ""
	}
	if i == 0 {
		return "/", p[1:]
	}
	return p[:i], p[i+1:]
}

func lstat(p string, st *syscall.Stat_t) (err error) {
	for {
		if err = syscall.Lstat(p, st); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func readlink(p string) (string, error) {
	target, err := os.Readlink(p)
	if pe := (*os.PathError)(nil); errors.As(err, &pe) {
		return "", pe.Err
	}
	return target, err
}

// list lists a real directory; not ok if that is not possible. Once listed,
// what is missing below it costs no system call.
func (v *view) list(dir string) (listing, bool) {
	if l, ok := v.lists[dir]; ok {
		return l, l != nil
	}
	l, err := readListing(dir)
	if err != nil {
		return nil, false
	}
	v.lists[dir] = l
	return l, true
}

// oddPath is why a path could not be resolved.
type oddPath struct {
	at  string // the component where it went wrong, real
	err error
}

func (o *oddPath) Error() string { return o.err.Error() }
func (o *oddPath) Unwrap() error { return o.err }

// eval resolves absolute path p as the kernel would: symbolic links followed,
// ".." taken physically.
func (v *view) eval(p string) (string, node, error) {
	dir, name := split(p)
	if name == "" || name == "." || name == ".." || strings.IndexByte(p, 0) >= 0 {
		return v.evalWhole(p)
	}
	// Most questions are about names in a few directories.
	d, ok := v.dirs[dir]
	if !ok {
		var n node
		d.real, n, d.err = v.evalWhole(dir)
		d.isDir = n.isDir()
		v.dirs[dir] = d
	}
	if d.err != nil {
		return "", node{}, d.err
	}
	at := p
	if d.real != dir {
		at = join(d.real, name)
	}
	switch n := v.lstat(at); {
	case !d.isDir:
		return "", node{}, &oddPath{at, syscall.ENOTDIR}
	case n.err != nil:
		return "", node{}, &oddPath{at, n.err}
	case n.kind != syscall.S_IFLNK:
		return at, n, nil
	}
	return v.evalWhole(p)
}

func (v *view) evalWhole(p string) (string, node, error) {
	real, n, _, err := v.walk(p)
	if err != nil {
		return "", node{}, err
	}
	return real, n, nil
}

// evalPartial resolves as much of p as exists and adds the rest lexically. It
// also returns the last existing directory.
func (v *view) evalPartial(p string) (full, existing string, n node, err error) {
	real, n, rest, err := v.walk(p)
	if err == nil {
		return real, real, n, nil
	}
	if !errors.Is(err, syscall.ENOENT) {
		return "", "", node{}, err
	}
	return path.Join(real, rest), real, v.lstat(real), nil
}

// walk resolves p component by component. On error, real is the last directory
// that was reached and rest is what lay beyond it.
func (v *view) walk(p string) (real string, n node, rest string, err error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", node{}, "", &oddPath{p, errNUL}
	}
	real, rest, n = "/", p, v.lstat("/")
	for links := 0; ; {
		var name string
		if name, rest = component(rest); name == "" {
			return real, n, "", nil
		}
		if name == ".." {
			real = path.Dir(real)
			n = v.lstat(real)
			continue
		}
		at := join(real, name)
		next := v.lstat(at)
		if next.err != nil {
			return real, node{}, join2(name, rest), &oddPath{at, next.err}
		}
		if next.kind == syscall.S_IFLNK {
			if links++; links > maxLinks {
				return real, node{}, join2(name, rest), &oddPath{at, syscall.ELOOP}
			}
			if rest = join2(next.target, rest); strings.HasPrefix(rest, "/") {
				real, n = "/", v.lstat("/")
			}
			continue
		}
		if rest != "" && !next.isDir() {
			return real, node{}, join2(name, rest), &oddPath{at, syscall.ENOTDIR}
		}
		real, n = at, next
	}
}

// component cuts the first component that says something from p.
func component(p string) (name, rest string) {
	for {
		p = strings.TrimLeft(p, "/")
		name, rest, _ = strings.Cut(p, "/")
		if name != "." {
			return name, rest
		}
		p = rest
	}
}

func join(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

func join2(head, rest string) string {
	if rest == "" {
		return head
	}
	return head + "/" + rest
}

// errNUL is what the kernel would never see: a string that ends early.
var errNUL = errors.New("the path holds a NUL byte")

// explain says in words why a path cannot be had.
func explain(err error) string {
	for _, e := range explanations {
		if errors.Is(err, e.errno) {
			return e.text
		}
	}
	return err.Error()
}

var explanations = []struct {
	errno error
	text  string
}{
	{syscall.ENOENT, "does not exist"},
	{syscall.ENOTDIR, "leads through something that is not a directory"},
	{syscall.EACCES, "cannot be reached: permission denied"},
	{syscall.EPERM, "cannot be reached: not permitted"},
	{syscall.ELOOP, "leads through too many symbolic links"},
	{syscall.ENAMETOOLONG, "is too long for this system"},
	{errNUL, "holds a NUL byte"},
	{syscall.ENOTCONN, "lies on a file system that does not answer"},
	{syscall.ESTALE, "lies on a file system that does not answer"},
}

// The bits of access(2); package syscall names them on no system.
const (
	accessX = 1
	accessW = 2
	accessR = 4
)

// may tells whether this process may use p in the way of bits, as access(2).
func may(p string, bits uint32) error { return syscall.Access(p, bits) }
