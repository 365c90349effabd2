package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"sandboxd/policy"
)

// What one launch pays for at most, whatever the size of the tree.
const (
	maxRepos   = 16       // repositories beside the roots of writable trees
	maxOthers  = 16       // worktrees of one repository, beside this one
	maxLooked  = 32       // directories in which nested repositories are looked for
	maxInclude = 8        // files of one configuration
	lookRoom   = 32 << 10 // bytes that are read of one directory
)

// collectGuarded finds the places of the protected names in the writable trees. It
// reads only; a backend that can holds what it finds.
func (r *resolver) collectGuarded() error {
	if r.spec.Mode != policy.WorkspaceWrite || r.req.Unguarded {
		return nil
	}
	g := r.guarding()
	roots := []string{r.spec.Workspace}
	for _, p := range r.req.Writable {
		abs, err := r.absolute(p)
		if err != nil {
			continue
		}
		if real, n, err := r.v.eval(abs); err == nil {
			g.named = append(g.named, real)
			if n.isDir() {
				roots = append(roots, real)
			}
		}
	}
	for _, grant := range r.spec.Grants {
		if grant.Kind == policy.Tree && grant.Access.Has(policy.Write) && strings.Contains(grant.Source, "profile:") {
			roots = append(roots, string(grant.Path))
		}
	}
	g.root(r.spec.Workspace)
	for _, root := range outermost(slices.Clone(roots), nil) {
		g.root(root)
	}
	for _, root := range roots { // one in another that is a repository by itself
		if r.v.there(join(root, ".git")) || g.isGitDir(root) {
			g.root(root)
		}
	}
	r.spec.Guarded, r.spec.Unguarded = g.sorted(), g.gaps
	return nil
}

func (r *resolver) guarding() *guarding {
	g := &guarding{r: r, at: map[string]bool{}, roots: map[string]bool{}, repos: map[string]bool{}}
	for _, grant := range r.spec.Grants {
		if grant.Kind == policy.Tree && grant.Access.Has(policy.Write) && !grant.Access.Has(policy.Ioctl) {
			g.trees = append(g.trees, string(grant.Path))
		}
		if grant.Kind == policy.File && grant.Access.Has(policy.Write) {
			g.files = append(g.files, string(grant.Path))
		}
	}
	return g
}

func (g *guarding) sorted() []policy.Guarded {
	slices.SortStableFunc(g.found, func(a, b policy.Guarded) int {
		return strings.Compare(treeOrder(a.Path), treeOrder(b.Path))
	})
	return g.found
}

// treeOrder is what paths are ordered by so that each stands after what holds it.
func treeOrder(p policy.Raw) string { return strings.ReplaceAll(string(p), "/", "\x00") }

// guarding is the search for what is to be held.
type guarding struct {
	r      *resolver
	trees  []string // that can be written
	files  []string
	named  []string // by --writable
	at     map[string]bool
	roots  map[string]bool
	repos  map[string]bool
	buf    []byte
	nested int
	found  []policy.Guarded
	gaps   []string
	denied map[string]bool // all that is to be denied; nil if it is to be held only
}

func (g *guarding) gap(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(g.gaps, text) {
		g.gaps = append(g.gaps, text)
	}
}

// movable tells whether the worker could move, remove or make what stands at a path.
func (g *guarding) movable(p string) bool {
	return slices.ContainsFunc(g.trees, func(t string) bool { return p != t && policy.Within(p, t) })
}

// writable tells whether it could change what stands there.
func (g *guarding) writable(p string) bool {
	return g.movable(p) || slices.Contains(g.trees, p) || slices.Contains(g.files, p)
}

func (g *guarding) hold(p string, how policy.Guard, text string) {
	if g.at[p] {
		if how != policy.GuardShut && !how.Denies() {
			return
		}
		for i := range g.found { // what is read-only is pinned as well, and what is denied all of it
			if f := &g.found[i]; string(f.Path) == p && (f.Guard == policy.GuardPinned || how.Denies()) {
				f.Guard = how
			}
		}
		return
	}
	g.at[p] = true
	g.found = append(g.found, policy.Guarded{Path: policy.Raw(p), Guard: how, Text: text})
}

// place holds what stands at a path or will not, and what leads there.
func (g *guarding) place(p string, missing policy.Guard, text string) {
	v := g.r.v
	real, rest := "/", p
	for links := 0; ; {
		var name string
		if name, rest = component(rest); name == "" {
			return // it led back up
		}
		if name == ".." {
			real = path.Dir(real)
			continue
		}
		at := join(real, name)
		last := strings.Trim(rest, "/") == ""
		n := v.lstat(at)
		if n.errno == 0 && g.movable(at) && g.r.v.placeholder(at) {
			n = node{errno: syscall.ENOENT}
		}
		switch {
		case g.denied != nil && (n.errno != 0 || last && n.kind != syscall.S_IFLNK):
			g.denyAt(at, rest, n)
			return
		case n.errno == syscall.ENOENT:
			if g.movable(at) && !g.exempt(at) {
				if !last {
					missing, text = policy.GuardMissing, ""
				}
				g.hold(at, missing, text)
			}
			return
		case n.errno == syscall.EACCES && g.movable(real): // its owner could open it
			g.hold(real, policy.GuardShut, "")
			return
		case n.errno != 0:
			if g.movable(at) {
				g.gap("%s cannot be looked at (%v), and is not protected", show(at), n.errno)
			}
			return
		case n.kind == syscall.S_IFLNK:
			if links++; links > maxLinks {
				return // it leads nowhere
			}
			if last && g.denied == nil && g.exempt(at) {
				return
			}
			if g.movable(at) || g.denied != nil && g.seen(at) {
				g.hold(at, policy.GuardLink, "")
			}
			target, err := v.readlink(at)
			if err != nil {
				return
			}
			if rest = join2(target, rest); strings.HasPrefix(rest, "/") {
				real = "/"
			}
		case last || !n.isDir():
			if g.writable(at) && (g.denied != nil || !g.exempt(at)) {
				g.hold(at, policy.GuardShut, "")
			}
			return
		default:
			if g.movable(at) {
				g.hold(at, policy.GuardPinned, "")
			}
			real = at
		}
	}
}

// pin holds a directory that exists, and what leads there.
func (g *guarding) pin(p string) bool {
	real, n, err := g.r.v.eval(p)
	if err != nil || !n.isDir() {
		return false
	}
	g.place(p+"/..", policy.GuardMissing, "")
	return !g.r.v.placeholder(real)
}

// exempt tells that the caller made exactly this writable, or something in it.
func (g *guarding) exempt(p string) bool {
	for _, n := range g.named {
		if policy.Within(n, p) {
			g.gap("%s is made writable by --writable %s, and is not protected", show(p), show(n))
			return true
		}
	}
	return false
}

// root guards the root of a writable tree, and the repositories in it.
func (g *guarding) root(root string) {
	if g.roots[root] {
		return
	}
	g.roots[root] = true
	if g.isGitDir(root) { // a bare repository, or what belongs to a worktree elsewhere
		g.repos[root] = true
		g.gitDir(root, root)
		g.hooks(root, root)
		return
	}
	g.repo(root)
	g.search(root)
}

// repo guards the names below one root.
func (g *guarding) repo(root string) {
	if g.repos[root] {
		return
	}
	g.repos[root] = true
	for _, name := range protected {
		if !strings.HasPrefix(name, ".git/") {
			g.place(join(root, name), policy.GuardMissing, "")
		}
	}
	at := join(root, ".git")
	switch real, n, err := g.r.v.eval(at); {
	case err != nil, !n.isDir() && !n.isFile(), g.r.v.placeholder(real):
		g.place(at, policy.GuardMissing, "")
	case n.isFile(): // a linked worktree's or a submodule's, which says where it is
		g.place(at, policy.GuardMissing, "")
		if dir := g.pointed(real, "gitdir: ", root); dir != "" {
			g.gitDir(dir, root)
		}
	default:
		g.pin(at)
		g.gitDir(at, root)
	}
	g.bare(root)
	g.submodules(root)
	g.hooks(root, root)
}

// bare keeps a root from becoming a repository's own directory, which git would take
// it for if .git is missing or of no use: with a HEAD, which cannot be kept from it, and
// both objects and refs, there or where commondir says.
func (g *guarding) bare(root string) {
	g.place(join(root, "commondir"), policy.GuardMissing, "")
	for _, name := range []string{"refs", "objects"} {
		if at := join(root, name); !g.r.v.there(at) || g.r.v.placeholder(at) {
			g.place(at, policy.GuardMissing, "")
			return
		}
	}
	g.gap("%s could be made a bare repository, as it has both of objects and refs", show(root))
}

// pointed is what a small file says of where a directory is, as it says it: the links
// on the way matter.
func (g *guarding) pointed(file, prefix, base string) string {
	data, err := readRegular(file, 0)
	if err != nil || len(data) > 8192 {
		return ""
	}
	dir, ok := strings.CutPrefix(strings.TrimRight(string(data), "\r\n"), prefix)
	if !ok || dir == "" || strings.ContainsRune(dir, 0) {
		return ""
	}
	if !path.IsAbs(dir) {
		dir = base + "/" + dir
	}
	return dir
}

// gitDir guards what git goes by in a repository's own directory. Only names in
// protected are guarded in it, and what would have git look for them elsewhere.
func (g *guarding) gitDir(dir, root string) {
	if !g.pin(dir) {
		g.place(dir, policy.GuardMissing, "")
		return
	}
	common := dir
	if to := g.pointed(dir+"/commondir", "", dir); to != "" && g.isDir(to) && !g.r.v.placeholder(path.Clean(dir)+"/commondir") {
		g.place(dir+"/commondir", policy.GuardMissing, "")
		g.place(dir+"/gitdir", policy.GuardFile, "")
		g.place(dir+"/config.worktree", policy.GuardFile, "")
		common = to
		g.pin(common)
	}
	// A repository has no such file, and would be sent elsewhere by one: git takes
	// configuration and hooks from where it leads. This one leads nowhere else.
	g.place(common+"/commondir", policy.GuardFile, ".\n")
	if real, _, err := g.r.v.eval(common); err == nil && !g.r.v.there(join(real, "info")) && g.movable(join(real, "info")) {
		g.hold(join(real, "info"), policy.GuardMade, "") // git keeps other things there, too
		g.hold(join(real, "info/attributes"), policy.GuardFile, "")
	}
	for _, name := range protected {
		if name, ok := strings.CutPrefix(name, ".git/"); ok {
			how := policy.GuardFile
			if name == "hooks" { // to git, a directory
				how = policy.GuardMissing
			}
			g.place(common+"/"+name, how, "")
		}
	}
	g.others(common, dir)
	g.config(common+"/config", root, new(int))
	g.config(dir+"/config.worktree", root, new(int))
}

func (g *guarding) isDir(p string) bool {
	_, n, err := g.r.v.eval(p)
	return err == nil && n.isDir()
}

// isGitDir tells whether git would take a directory for a repository's own.
func (g *guarding) isGitDir(dir string) bool {
	return g.r.v.there(join(dir, "HEAD")) && (g.isDir(join(dir, "objects")) && g.isDir(join(dir, "refs")) || g.r.v.there(join(dir, "commondir")))
}

// others guards what a repository keeps of its other worktrees: each is sent to where
// its file "commondir" says.
func (g *guarding) others(common, own string) {
	dir, n, err := g.r.v.eval(common + "/worktrees")
	if err != nil || !n.isDir() || !g.movable(dir) {
		return
	}
	ownReal, _, _ := g.r.v.eval(own)
	var names []string
	all, err := eachSome(dir, g.room(), func(name []byte, _ uint32) { names = append(names, string(name)) })
	if err != nil {
		g.gap("the worktrees in %s cannot be listed, and are not protected", show(dir))
		return
	}
	slices.Sort(names)
	left := maxOthers
	for _, name := range names {
		at := join(dir, name)
		if at == ownReal || !g.isDir(at) {
			continue
		}
		if left--; left < 0 {
			all = false
			break
		}
		g.place(at+"/commondir", policy.GuardFile, "")
	}
	if !all {
		g.gap("%s has more than %d worktrees: what it keeps of the others is not protected", show(common), maxOthers)
	}
}

// room is a buffer for one directory at a time: fresh memory costs more than to read
// one.
func (g *guarding) room() []byte {
	if g.buf == nil {
		g.buf = make([]byte, lookRoom)
	}
	return g.buf
}

// submodules guards the repositories that a repository says it holds.
func (g *guarding) submodules(root string) {
	data, err := readRegular(join(root, ".gitmodules"), 0)
	if err != nil {
		return
	}
	for _, e := range parseConfig(string(data)) {
		if e.section != "submodule" {
			continue
		}
		switch e.key {
		case "path":
			if p := path.Join(root, e.value); policy.Within(p, root) && p != root {
				g.inner(p)
			}
		}
		// One that is not checked out has its directory, too.
		dir := path.Join(root, ".git/modules", e.sub)
		if real, n, err := g.r.v.eval(dir); err == nil && n.isDir() && !g.repos[real] && g.isGitDir(real) {
			if g.nested++; g.nested > maxRepos {
				g.tooMany()
				return
			}
			g.repos[real] = true
			g.gitDir(dir, root)
		}
	}
}

func (g *guarding) tooMany() {
	g.gap("there are more than %d repositories in the writable trees: the others are not protected", maxRepos)
}

// inner guards a repository below a root, if there is one.
func (g *guarding) inner(dir string) {
	real, n, err := g.r.v.eval(dir)
	if err != nil || !n.isDir() || g.repos[real] || !g.writable(real) || !g.r.v.there(join(real, ".git")) {
		return
	}
	if g.nested++; g.nested > maxRepos {
		g.tooMany()
		return
	}
	g.pin(dir)
	g.repo(real)
}

// search looks for repositories below a root, the nearest first, in so many
// directories as cost next to nothing.
func (g *guarding) search(root string) {
	queue := []string{root}
	for looked := 0; len(queue) > 0; looked++ {
		dir := queue[0]
		queue = queue[1:]
		if looked == maxLooked {
			g.gap("repositories in %s are looked for in %d directories: those beyond are not protected", show(root), maxLooked)
			return
		}
		var below []string
		var repo, bare bool
		all, err := eachSome(dir, g.room(), func(name []byte, kind uint32) {
			switch string(name) {
			case ".git":
				repo = true
				return
			case "HEAD":
				bare = true
			}
			if len(queue)+len(below) > maxLooked { // nobody comes to the rest
				return
			}
			if kind == syscall.S_IFDIR || kind == 0 && g.r.v.lstat(join(dir, string(name))).isDir() {
				below = append(below, join(dir, string(name)))
			}
		})
		if err != nil {
			continue // the worker, too, cannot list it; what it knows the name of it may reach
		}
		if !all {
			g.gap("%s is too large to look for all repositories in it: those that were not found are not protected", show(dir))
		}
		if bare && dir != root && g.isGitDir(dir) {
			if g.nested++; g.nested > maxRepos {
				g.tooMany()
			} else {
				g.repos[dir] = true
				g.gitDir(dir, dir)
			}
			continue
		}
		if repo && dir != root {
			g.inner(dir)
		}
		for _, at := range below {
			if !g.shut(at) {
				queue = append(queue, at)
			}
		}
	}
}

func (g *guarding) shut(p string) bool {
	return g.at[p] && slices.ContainsFunc(g.found, func(f policy.Guarded) bool { return string(f.Path) == p && f.Guard == policy.GuardShut })
}

// hooks guards what the user's and the machine's configuration name for every
// repository.
func (g *guarding) hooks(root, base string) {
	files := []string{"/etc/gitconfig"}
	if g.r.home != "" {
		files = append(files, join(g.r.home, ".gitconfig"))
	}
	if d := xdg(g.r.host, g.r.home, "XDG_CONFIG_HOME", ".config"); d != "" {
		files = append(files, d+"/git/config")
	}
	for _, f := range files {
		g.config(f, base, new(int))
	}
}

// config guards what a configuration of git's has it run or read beside itself:
// core.hooksPath, and the files that it includes, whatever the condition.
func (g *guarding) config(file, root string, read *int) {
	if *read++; *read > maxInclude {
		g.gap("%s includes more than %d files: the others are not protected", show(file), maxInclude)
		return
	}
	data, err := readRegular(file, 0)
	if err != nil {
		return
	}
	for _, e := range parseConfig(string(data)) {
		switch {
		case e.section == "core" && e.key == "hookspath":
			if p := g.configPath(e.value, root); p != "" {
				g.place(p, policy.GuardMissing, "")
			}
		case (e.section == "include" || e.section == "includeif") && e.key == "path":
			if p := g.configPath(e.value, path.Dir(file)); p != "" {
				g.place(p, policy.GuardMissing, "")
				g.config(p, root, read)
			}
		}
	}
}

// configPath is a path of a configuration (git-config(1), "pathname"); "" if nobody
// can tell what it means.
func (g *guarding) configPath(value, base string) string {
	if rest, ok := strings.CutPrefix(value, "~/"); ok {
		if g.r.home == "" {
			return ""
		}
		return join(g.r.home, rest)
	}
	switch {
	case value == "" || value[0] == '~' || strings.HasPrefix(value, "%(") || strings.ContainsRune(value, 0):
		return ""
	case path.IsAbs(value):
		return value
	}
	return base + "/" + value
}

// placeholder tells whether another worker's launcher put something where nothing
// stands; package hold gives it such a mode, and nobody else does.
func (v *view) placeholder(p string) bool {
	const mask, mark = 0o1222, 0o1000
	n := v.full(p)
	return n.errno == 0 && (n.isDir() || n.isFile()) && n.perm&mask == mark
}
