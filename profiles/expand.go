package profiles

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"syscall"
)

// toolPath is the worker's PATH, resolved once.
type toolPath struct {
	v     *view
	dirs  []string // real, existing, without repeats, in PATH order
	found map[string]string
	// planted is [resolver.planted] and skip is told of what it finds; nil if
	// no worker is about to run.
	planted func(links []string, real string) string
	skip    func(who, link, target, suggest string)
	// plantable is [resolver.plantable]; nil as above.
	plantable func(p string) bool
	linked    map[string]bool // names which only a planted link answers to
}

// lookup returns the real path of the program that PATH finds for name, and
// the directory entry that led there; "" if there is none.
func (t *toolPath) lookup(name string) string {
	if real, ok := t.found[name]; ok {
		return real
	}
	real := t.search(name)
	t.found[name] = real
	return real
}

func (t *toolPath) search(name string) string {
	for _, d := range t.dirs {
		real, link := t.program(d, name)
		switch {
		case link != "":
			if t.linked == nil {
				t.linked = map[string]bool{}
			}
			t.linked[name] = true
			t.skip(whoBin(name), link, real, t.suggestion(real))
		case real != "":
			return real
		}
	}
	return ""
}

// has tells whether PATH finds a program at all, be it through a planted link:
// that grants nothing. Most are the system's, whose directory tends to be the
// last one: it is asked first.
func (t *toolPath) has(name string) bool {
	if n := len(t.dirs); n > 0 {
		if real, _ := t.program(t.dirs[n-1], name); real != "" {
			return true
		}
	}
	return t.lookup(name) != "" || t.linked[name]
}

// program returns the real path of a program in directory d, "" if it is not
// there, and the planted link that leads to it, if one does. Most directories lack most names: that costs one lstat and no
// evaluation, which is less than to list the directories, as some are long.
func (t *toolPath) program(d, name string) (real, link string) {
	at := join(d, name)
	if !t.v.there(at) {
		return "", ""
	}
	real, n, links, err := t.v.trace(at)
	if err != nil || !n.isFile() || t.v.full(real).perm&0o111 == 0 {
		return "", ""
	}
	if t.planted != nil {
		link = t.planted(links, real)
	}
	return real, link
}

// tree returns the directory that a program brings with it: the parent of the
// bin, sbin, libexec or shims directory that holds the real file, if the parent
// looks like an installation, else the file's own directory. A program in
// ~/work/bin must not open all of ~/work.
func (t *toolPath) tree(name string) string {
	real := t.lookup(name)
	if real == "" {
		return ""
	}
	return t.treeOf(real)
}

func (t *toolPath) treeOf(real string) string {
	dir := path.Dir(real)
	parent, base := split(dir)
	if !slices.Contains(programDirs, base) {
		return dir
	}
	// A worker that may write in .../bin could choose what .../lib lies beside.
	if t.plantable != nil && t.plantable(dir) && !t.plantable(parent) {
		return dir
	}
	for _, mark := range installationMarks {
		if t.v.lstat(join(parent, mark)).errno == 0 {
			return parent
		}
	}
	return dir
}

var (
	programDirs       = []string{"bin", "sbin", "libexec", "shims"}
	installationMarks = []string{"lib", "lib64", "libexec", "pkg"}
)

// expander turns the path expressions of profiles into absolute paths.
type expander struct {
	v    *view
	home string
	host map[string]string
	path *toolPath
	base string // what relative paths are relative to; "" refuses them

	out, starts []string // room for answers
}

// expand returns the paths that an expression stands for: none if it names
// something that is not set or not there. The answer is good until the next
// question.
//
//	~/x              below the home directory
//	$VAR/x ${VAR}/x  below each directory of a colon-separated variable
//	${VAR:-~/d}/x    with a default
//	$(bin:NAME)/x    below the tree of the program that PATH finds for NAME
//	/x/y*            what is there, in the last component only
func (e *expander) expand(expr string) []string {
	e.out, e.starts = e.out[:0], e.heads(e.starts[:0], expr)
	for _, p := range e.starts {
		if !path.IsAbs(p) {
			if e.base == "" || p == "" {
				continue
			}
			p = join(e.base, p)
		}
		if !hasMeta(p) || !hasMeta(path.Base(p)) {
			e.out = append(e.out, p)
			continue
		}
		e.out = append(e.out, e.glob(p)...)
	}
	return e.out
}

// heads replaces what an expression starts with, and appends what comes out.
func (e *expander) heads(to []string, expr string) []string {
	switch {
	case expr == "~" || strings.HasPrefix(expr, "~/"):
		if e.home == "" {
			return to
		}
		return append(to, e.home+expr[1:])
	case strings.HasPrefix(expr, "$(bin:"):
		name, rest, ok := strings.Cut(expr[len("$(bin:"):], ")")
		tree := ""
		if ok && e.path != nil {
			tree = e.path.tree(name)
		}
		if tree == "" {
			return to
		}
		return append(to, tree+rest)
	case strings.HasPrefix(expr, "$"):
		return e.variable(to, expr[1:])
	}
	return append(to, expr)
}

func (e *expander) variable(to []string, expr string) []string {
	name, fallback, rest := cutVariable(expr)
	value := e.host[name]
	if value == "" {
		if fallback == "" {
			return to
		}
		value = strings.Join(e.heads(nil, fallback), ":")
	}
	for d := range strings.SplitSeq(value, ":") {
		if path.IsAbs(d) { // a relative value would mean another place in each directory
			to = append(to, path.Clean(d)+rest)
		}
	}
	return to
}

// cutVariable splits what follows a "$": NAME, {NAME} or {NAME:-DEFAULT}.
func cutVariable(expr string) (name, fallback, rest string) {
	if inner, ok := strings.CutPrefix(expr, "{"); ok {
		inner, rest, _ = strings.Cut(inner, "}")
		name, fallback, _ = strings.Cut(inner, ":-")
		return name, fallback, rest
	}
	i := strings.IndexFunc(expr, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
	if i < 0 {
		return expr, "", ""
	}
	return expr[:i], "", expr[i:]
}

func hasMeta(s string) bool {
	for i := range len(s) {
		if c := s[i]; c == '*' || c == '?' || c == '[' {
			return true
		}
	}
	return false
}

// glob matches the last component against what is in its directory.
func (e *expander) glob(p string) []string {
	parent := path.Dir(p)
	dir, _, err := e.v.eval(parent)
	if err != nil {
		return nil
	}
	l := e.v.list(dir)
	if l == nil {
		return nil
	}
	var out []string
	pattern := path.Base(p)
	plain := []byte(pattern[:strings.IndexAny(pattern, `*?[\`)]) // what every match starts with
	for i := range l.entries {
		if !bytes.HasPrefix(l.name(i), plain) { // nearly always
			continue
		}
		name := string(l.name(i))
		if ok, err := path.Match(pattern, name); ok && err == nil {
			out = append(out, join(parent, name)) // not dir: how it is reached matters
		}
	}
	slices.Sort(out)
	return out
}

// Limits on what all deny patterns of a launch may cost together.
const (
	maxGlobVisits  = 200_000
	maxGlobMatches = 10_000
)

// globAll matches a whole pattern, "**" for any number of directories
// included, without following symbolic links. A trailing "/**" is the caller's
// business. What it costs is taken from visits; it reports false if that is not
// enough.
func globAll(pattern string, visits *int) (matches []string, ok bool) {
	w := globWalk{visits: *visits}
	defer func() { *visits = w.visits }()
	w.walk("/", strings.Split(strings.Trim(pattern, "/"), "/"))
	slices.Sort(w.found)
	return slices.Compact(w.found), w.visits > 0 && len(w.found) <= maxGlobMatches
}

type globWalk struct {
	visits int
	found  []string
}

func (w *globWalk) walk(dir string, parts []string) {
	if len(parts) == 0 {
		w.found = append(w.found, dir)
		return
	}
	head, rest := parts[0], parts[1:]
	if !hasMeta(head) {
		if w.spend(1) && exists(join(dir, head)) {
			w.walk(join(dir, head), rest)
		}
		return
	}
	entries, err := readDir(dir)
	if err != nil || !w.spend(len(entries)+1) {
		return
	}
	if head == "**" {
		w.walk(dir, rest)
	}
	for _, e := range entries {
		at := join(dir, e.Name())
		if head == "**" {
			if e.IsDir() {
				w.walk(at, parts)
			}
			continue
		}
		if match, err := path.Match(head, e.Name()); err == nil && match && (len(rest) == 0 || e.IsDir()) {
			w.walk(at, rest)
		}
	}
}

func (w *globWalk) spend(n int) bool {
	w.visits -= n
	return w.visits > 0 && len(w.found) <= maxGlobMatches
}

func exists(p string) bool {
	var st syscall.Stat_t
	return lstat(p, &st) == nil
}
