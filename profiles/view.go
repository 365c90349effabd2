package profiles

import (
	"errors"
	"path"
	"strings"
	"syscall"
)

// maxDeep is the longest path that is resolved directory by directory, which
// goes as deep as the path does.
const maxDeep = 4096

// maxLinks is how many symbolic links one path may lead through, as in Linux.
const maxLinks = 40

// node is what stands at one real path. What a listing told is its kind only:
// the other fields need [view.full].
type node struct {
	kind  uint32        // the type bits of st_mode
	perm  uint32        // the rest of st_mode
	uid   uint32        // its owner
	errno syscall.Errno // why there is none; 0 if there is one
}

func (n node) isDir() bool  { return n.kind == syscall.S_IFDIR }
func (n node) isFile() bool { return n.kind == syscall.S_IFREG }
func (n node) isChar() bool { return n.kind == syscall.S_IFCHR }

// view is one look at the file system: each path is asked for once, so that a
// resolve is cheap and agrees with itself.
//
// A launch waits for all of this, in a process that has just started: there, a
// system call and a page of fresh memory cost more than anything that is
// computed. So the few directories that most questions are about are listed,
// and everything else is asked for by name.
type view struct {
	nodes map[string]node      // what lstat told, by real path
	links map[string]string    // where symbolic links lead, by real path
	dirs  map[string]directory // existing directories, by the path that was asked for
	lists []*listing           // a handful
	buf   []byte               // room for more listings
	trail []string             // room for the links that walks follow
}

// directory is a path that leads to something: a directory, if all is well.
type directory struct {
	real  string
	isDir bool
	list  *listing // if it is listed
	links []string // that lead there
}

func newView() *view {
	return &view{nodes: make(map[string]node, 96), links: make(map[string]string, 24), trail: make([]string, 0, 64), dirs: make(map[string]directory, 48)}
}

// listing holds the names in a real directory, in no order. Most questions to
// it are about what is not there. A map would cost more to make than it saves,
// so that names are told apart by their length and two of their bytes first.
type listing struct {
	dir     string
	names   []byte // holds every name
	entries []entry
	heads   [64]int32 // one more than the first entry of each chain; 0 if none
}

// entry is one name of a listing.
type entry struct {
	at   uint32 // where the name starts
	next int32  // in the chain, as in heads
	kind uint16 // as in node; 0 is not known
	len  uint8  // no name is longer, see maxName
}

// readRoom is the least room for a read; more than any one entry takes.
const readRoom = 1 << 10

// maxName is how long a name may be; a longer one is an error of its own kind.
const maxName = 255

// add appends the name that stands in names.
func (l *listing) add(at, size int, kind uint32) {
	if size <= 0 || size > maxName {
		return
	}
	c := chain(l.names[at], l.names[at+size-1], size)
	l.entries = append(l.entries, entry{at: uint32(at), next: l.heads[c], kind: uint16(kind), len: uint8(size)})
	l.heads[c] = int32(len(l.entries))
}

// chain spreads names by what looking at them costs nothing.
func chain(first, last byte, size int) int {
	return (int(first) + 5*int(last) + 17*size) % len(listing{}.heads)
}

// name is the name of an entry, in place.
func (l *listing) name(i int) []byte {
	e := &l.entries[i]
	return l.names[e.at:][:e.len]
}

func (l *listing) find(name string) (kind uint32, found bool) {
	if name == "" || len(name) > maxName {
		return 0, false
	}
	i := l.heads[chain(name[0], name[len(name)-1], len(name))]
	for ; i > 0; i = l.entries[i-1].next {
		if string(l.name(int(i-1))) == name {
			return uint32(l.entries[i-1].kind), true
		}
	}
	return 0, false
}

// node is what a listing alone can tell about a name.
func (l *listing) node(name string) (n node, ok bool) {
	kind, found := l.find(name)
	if !found && len(name) <= maxName {
		return node{errno: syscall.ENOENT}, true
	}
	return node{kind: kind}, kind != 0
}

// keep lists real directory dir for good, so that no question about what is in
// it costs a system call. It comes before the first question, as all answers
// must agree. A directory that cannot be listed is asked instead.
func (v *view) keep(dir string) {
	if v.listed(dir) != nil {
		return
	}
	if l, err := v.readListing(dir); err == nil {
		v.lists = append(v.lists, l)
	}
}

// keepUsual lists the directories in which most of what the presets name is
// looked for: so many names that to ask for each would take longer.
func (v *view) keepUsual(home string) {
	v.keep("/")
	dirs := []string{"/etc", home, home + "/.config"}
	if home == "" {
		dirs = dirs[:1]
	}
	for _, d := range dirs {
		if real, n, err := v.eval(d); err == nil && n.isDir() {
			v.keep(real)
		}
	}
}

func (v *view) listed(dir string) *listing {
	for _, l := range v.lists {
		if l.dir == dir {
			return l
		}
	}
	return nil
}

// list lists a real directory; nil if that is not possible.
func (v *view) list(dir string) *listing {
	if l := v.listed(dir); l != nil {
		return l
	}
	l, err := v.readListing(dir)
	if err != nil {
		return nil
	}
	return l
}

// lstat looks at p, whose parents are real directories.
func (v *view) lstat(p string) node {
	dir, name := split(p)
	return v.child(v.listed(dir), p, name)
}

// child is lstat of p, which is a name in a directory that may be listed.
func (v *view) child(l *listing, p, name string) node {
	if p == "/" {
		return node{kind: syscall.S_IFDIR}
	}
	if l != nil {
		if n, ok := l.node(name); ok {
			return n
		}
	}
	return v.full(p)
}

// full is lstat with every field.
func (v *view) full(p string) node {
	n, ok := v.nodes[p]
	if !ok {
		n = stat(p)
		v.nodes[p] = n
	}
	return n
}

// there tells whether something stands at p. It is for questions that are
// asked once and whose answer mostly is no: a no is not remembered.
func (v *view) there(p string) bool {
	dir, name := split(p)
	if l := v.listed(dir); l != nil {
		return v.child(l, p, name).errno == 0
	}
	n, ok := v.nodes[p]
	if !ok {
		if n = stat(p); n.errno == 0 {
			v.nodes[p] = n
		}
	}
	return n.errno == 0
}

// readlink tells where the symbolic link at real path p leads.
func (v *view) readlink(p string) (string, error) {
	target, ok := v.links[p]
	if ok {
		return target, nil
	}
	target, err := readlink(p)
	if err == nil {
		v.links[p] = target
	}
	return target, err
}

func stat(p string) node {
	var st syscall.Stat_t
	if err := lstat(p, &st); err != nil {
		return node{errno: errnoOf(err)}
	}
	mode := uint32(st.Mode)
	return node{kind: mode & syscall.S_IFMT, perm: mode &^ syscall.S_IFMT, uid: st.Uid}
}

// errnoOf is the number in an error of package syscall, which returns no other
// kind.
func errnoOf(err error) syscall.Errno {
	if errno, ok := err.(syscall.Errno); ok {
		return errno
	}
	return syscall.EINVAL
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
		if err = syscall.Lstat(p, st); err != syscall.EINTR {
			return err
		}
	}
}

// readlink reads a link without package os, which costs more than the call.
func readlink(p string) (string, error) {
	for buf := make([]byte, 128); ; buf = make([]byte, 2*len(buf)) {
		n, err := syscall.Readlink(p, buf)
		for err == syscall.EINTR {
			n, err = syscall.Readlink(p, buf)
		}
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
	}
}

// oddPath is why a path could not be resolved.
type oddPath struct {
	at  string // the component where it went wrong, real
	err error
}

func (o *oddPath) Error() string { return o.err.Error() }
func (o *oddPath) Unwrap() error { return o.err }

// odd is the error about a component that is not there or of the wrong kind.
// What is merely missing is no news to anybody, so it needs no place.
func odd(at string, errno syscall.Errno) error {
	if errno == syscall.ENOENT {
		return errno
	}
	return &oddPath{at, errno}
}

// eval resolves absolute path p as the kernel would: symbolic links followed,
// ".." taken physically.
func (v *view) eval(p string) (string, node, error) {
	real, n, _, err := v.trace(p)
	return real, n, err
}

// trace is eval which also tells the symbolic links that it followed, each by
// its own real path.
func (v *view) trace(p string) (real string, n node, links []string, err error) {
	dir, name := split(p)
	if name == "" || name == "." || name == ".." || len(p) > maxDeep || strings.IndexByte(p, 0) >= 0 {
		return v.evalWhole(p)
	}
	// Most questions are about names in a few directories.
	d, err := v.directory(dir)
	if err != nil {
		return "", node{}, nil, err
	}
	at := p
	if d.real != dir || dir == "/" && p[1] == '/' { // "//x" is "/x"
		at = join(d.real, name)
	}
	if !d.isDir {
		return "", node{}, nil, &oddPath{at, syscall.ENOTDIR}
	}
	switch n := v.child(d.list, at, name); {
	case n.errno != 0:
		return "", node{}, nil, odd(at, n.errno)
	case n.kind != syscall.S_IFLNK:
		return at, n, d.links, nil
	}
	return v.evalWhole(p)
}

// directory resolves the directory that a question is about.
func (v *view) directory(dir string) (directory, error) {
	if d, ok := v.dirs[dir]; ok {
		return d, nil
	}
	real, n, links, err := v.trace(dir)
	if err != nil {
		return directory{}, err
	}
	d := directory{real: real, isDir: n.isDir(), list: v.listed(real), links: links}
	v.dirs[dir] = d
	return d, nil
}

// evalWhole is trace for what has to be walked from the root: only the whole
// path tells where ".." leads, and how many links there are.
func (v *view) evalWhole(p string) (string, node, []string, error) {
	real, n, links, _, err := v.walk(p)
	if err != nil {
		return "", node{}, nil, err
	}
	return real, n, links, nil
}

// evalPartial resolves as much of p as exists and adds the rest lexically. It
// also returns the last existing directory.
func (v *view) evalPartial(p string) (full, existing string, n node, err error) {
	full, existing, n, _, err = v.tracePartial(p)
	return full, existing, n, err
}

// tracePartial is evalPartial which also tells the links, as trace does.
func (v *view) tracePartial(p string) (full, existing string, n node, links []string, err error) {
	real, n, links, rest, err := v.walk(p)
	if err == nil {
		return real, real, n, links, nil
	}
	if !errors.Is(err, syscall.ENOENT) {
		return "", "", node{}, nil, err
	}
	return path.Join(real, rest), real, v.lstat(real), links, nil
}

// walk resolves p component by component and tells the links that it followed.
// On error, real is the last directory that was reached and rest is what lay
// beyond it.
func (v *view) walk(p string) (real string, n node, links []string, rest string, err error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", node{}, nil, "", &oddPath{p, errNUL}
	}
	real, rest, n = "/", p, v.lstat("/")
	start := len(v.trail)
	for {
		var name string
		if name, rest = component(rest); name == "" {
			return real, n, links, "", nil
		}
		if name == ".." {
			real = path.Dir(real)
			n = v.lstat(real)
			continue
		}
		at := join(real, name)
		next := v.lstat(at)
		if next.errno != 0 {
			return real, node{}, links, join2(name, rest), odd(at, next.errno)
		}
		if next.kind == syscall.S_IFLNK {
			v.trail = append(v.trail, at)
			if links = v.trail[start:len(v.trail):len(v.trail)]; len(links) > maxLinks {
				return real, node{}, links, join2(name, rest), &oddPath{at, syscall.ELOOP}
			}
			target, err := v.readlink(at)
			if err != nil {
				return real, node{}, links, join2(name, rest), &oddPath{at, err}
			}
			if rest = join2(target, rest); strings.HasPrefix(rest, "/") {
				real, n = "/", v.lstat("/")
			}
			continue
		}
		if rest != "" && !next.isDir() {
			return real, node{}, links, join2(name, rest), &oddPath{at, syscall.ENOTDIR}
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
