package profiles

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sandboxd/policy"
)

// limitExec carries out --allow-exec: nothing may be executed but the named
// files and what the kernel executes on their behalf, that is their loader and
// the interpreters of scripts. Libraries are mapped, so they need reading only.
func (r *resolver) limitExec() error {
	if !r.confined() || len(r.req.AllowExec) == 0 {
		return nil
	}
	r.spec.ExecOnly = true
	kept := r.spec.Grants[:0]
	for _, g := range r.spec.Grants {
		if g.Access &^= policy.Exec; g.Access != 0 {
			kept = append(kept, g)
		}
	}
	r.spec.Grants = kept
	x := execClosure{r: r, seen: map[string]bool{}}
	for _, f := range r.req.AllowExec {
		if err := x.allow(f); err != nil {
			return err
		}
	}
	return nil
}

// maxScriptDepth is how many interpreters of interpreters the kernel follows.
const maxScriptDepth = 5

// execClosure finds what a program needs in order to start.
type execClosure struct {
	r    *resolver
	seen map[string]bool
	dirs []string // the loader's configured directories; nil until asked for
}

func (x *execClosure) allow(f string) error {
	const flag = "--allow-exec"
	if f != "" && !strings.Contains(f, "/") {
		if found := x.r.path.lookup(f); found != "" {
			f = found
		}
	}
	real, n, links, err := x.r.named(flag, f)
	if err != nil {
		var ref *RefusalError
		if errors.As(err, &ref) && errors.Is(err, syscall.ENOENT) {
			ref.Hint = "name an existing program: command -v NAME"
		}
		return err
	}
	if !n.isFile() || x.r.v.full(real).perm&0o111 == 0 {
		return refuse("name a program", "--allow-exec %s is not an executable file", show(f))
	}
	if link := x.r.plantedNamed(links, real); link != "" {
		x.r.loud(flag+" "+shellQuote(f), link, real)
	}
	return x.program(real, "named with --allow-exec", 0)
}

// add grants one file; needs with Exec are told apart from mere reading.
func (x *execClosure) add(file string, access policy.Access, reason string) bool {
	key := file + "\x00" + access.String()
	if x.seen[key] {
		return false
	}
	x.seen[key] = true
	x.r.grant(policy.Grant{Path: policy.Raw(file), Kind: policy.File, Access: access, Reason: reason, Source: "flag:--allow-exec"})
	return true
}

func (x *execClosure) program(file, reason string, depth int) error {
	if !x.add(file, policy.Read|policy.Exec, reason) {
		return nil
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		// May be run but not read: then it can be neither a script nor looked into.
		x.r.note(Warning, "--allow-exec: %s cannot be read, so its loader and libraries are not known", show(file))
		return nil
	}
	defer f.Close()
	var magic [4]byte
	_, _ = io.ReadFull(f, magic[:])
	switch {
	case string(magic[:]) == elfMagic:
		return x.elf(f, file)
	case string(magic[:2]) == "#!":
		return x.script(f, file, depth)
	}
	return nil
}

// script follows the "#!" line, and env(1) to the program that it names.
func (x *execClosure) script(f *os.File, file string, depth int) error {
	if depth >= maxScriptDepth {
		return refuse("name the interpreter itself", "--allow-exec %s needs more than %d interpreters", show(file), maxScriptDepth)
	}
	head := make([]byte, 4096)
	n, _ := f.ReadAt(head, 0)
	line, _, _ := bytes.Cut(head[2:max(n, 2)], []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return nil
	}
	reason := "interpreter of " + show(file)
	real, err := x.interpreter(words[0], file)
	if err != nil {
		return err
	}
	if err := x.program(real, reason, depth+1); err != nil || path.Base(words[0]) != "env" {
		return err
	}
	for _, w := range words[1:] {
		if strings.HasPrefix(w, "-") || strings.Contains(w, "=") {
			continue
		}
		found := w
		if !strings.Contains(w, "/") {
			if found = x.r.path.lookup(w); found == "" {
				return refuse("install it, or put it on PATH", "--allow-exec %s needs %s, which PATH does not find", show(file), show(w))
			}
		}
		if found, err = x.interpreter(found, file); err != nil {
			return err
		}
		return x.program(found, reason, depth+1)
	}
	return nil
}

func (x *execClosure) interpreter(name, file string) (string, error) {
	abs, err := x.r.absolute(name)
	if err != nil {
		abs = join(path.Dir(file), name)
	}
	real, n, links, err := x.r.v.trace(abs)
	if err != nil || !n.isFile() {
		return "", refuse("install it", "--allow-exec %s needs %s, which is not there", show(file), show(name))
	}
	return real, x.trust(file, links, real)
}

// trust refuses what a program names as needed, if a worker can have chosen
// the name: else a "#!" line in the workspace would open any file.
func (x *execClosure) trust(file string, links []string, needed string) error {
	if x.r.planted(links, needed) == "" && !x.r.plantable(file) || x.r.readable(needed) {
		return nil
	}
	return refuse("if you trust it: --readable "+shellQuote(needed),
		"--allow-exec %s needs %s, which nothing else grants, and a worker can have written that need", show(file), show(needed))
}

func (x *execClosure) elf(f *os.File, file string) error {
	e, err := readBinary(f)
	if err != nil {
		return refuse("name a program for this machine", "--allow-exec %s is a damaged program: %v", show(file), err)
	}
	if e.interp != "" {
		real, err := x.interpreter(e.interp, file)
		if err != nil {
			return err
		}
		x.add(real, policy.Read|policy.Exec, "loader of "+show(file))
	}
	return x.libraries(e, file, e.interp != "", nil)
}

// libraries grants what a program or library names as needed, and what those
// need. inherited are the RPATHs of those that lead here: the loader still
// searches them, while a RUNPATH is its owner's alone.
func (x *execClosure) libraries(e *binaryFile, file string, dynamic bool, inherited []string) error {
	if !dynamic {
		return nil
	}
	runpath := searchPath(e, e.runpath, file)
	if len(runpath) == 0 {
		inherited = append(searchPath(e, e.rpath, file), inherited...)
	}
	search := slices.Concat(inherited, runpath, x.loaderDirs(e))
	for _, name := range e.needed {
		lib, at, links := x.find(name, search, e)
		if at == "" {
			return refuse("install it, or make it readable: --readable DIR", "--allow-exec %s needs library %s, which is not found", show(file), show(name))
		}
		err := x.trust(file, links, at)
		if err == nil && x.add(at, policy.Read, "library of "+show(file)) {
			err = x.libraries(lib, at, true, inherited)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// find opens the first library of this name that fits the program.
func (x *execClosure) find(name string, search []string, want *binaryFile) (*binaryFile, string, []string) {
	if strings.Contains(name, "/") {
		search, name = []string{path.Dir(name)}, path.Base(name)
	}
	for _, d := range search {
		real, n, links, err := x.r.v.trace(join(d, name))
		if err != nil || !n.isFile() {
			continue
		}
		if f, err := openBinary(real); err == nil && f.wide == want.wide && f.machine == want.machine {
			return f, real, links
		}
	}
	return nil, "", nil
}

func searchPath(e *binaryFile, entries []string, file string) []string {
	lib := "lib"
	if e.wide {
		lib = "lib64"
	}
	expand := strings.NewReplacer("$ORIGIN", path.Dir(file), "${ORIGIN}", path.Dir(file), "$LIB", lib, "${LIB}", lib)
	var dirs []string
	for _, entry := range entries {
		for _, d := range strings.Split(entry, ":") {
			if d = expand.Replace(d); path.IsAbs(d) && !strings.Contains(d, "$") {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs
}

// triplet is the directory of Debian's multiarch for a machine; "" if it is
// not known.
func triplet(m uint16) string {
	switch m {
	case machineX8664:
		return "x86_64-linux-gnu"
	case machineAArch64:
		return "aarch64-linux-gnu"
	case machine386:
		return "i386-linux-gnu"
	case machineARM:
		return "arm-linux-gnueabihf"
	case machineRISCV:
		return "riscv64-linux-gnu"
	case machinePPC64:
		return "powerpc64le-linux-gnu"
	case machineS390:
		return "s390x-linux-gnu"
	}
	return ""
}

// loaderDirs are where the loader looks without being told: its configuration
// and its built-in directories, those of musl too.
func (x *execClosure) loaderDirs(e *binaryFile) []string {
	if x.dirs == nil {
		x.dirs = append([]string{}, loaderConf("/etc/ld.so.conf", 0)...)
	}
	dirs := slices.Clone(x.dirs)
	if t := triplet(e.machine); t != "" {
		dirs = append(dirs, "/lib/"+t, "/usr/lib/"+t, "/usr/local/lib/"+t)
	}
	if e.wide {
		dirs = append(dirs, "/lib64", "/usr/lib64")
	} else {
		dirs = append(dirs, "/lib32", "/usr/lib32")
	}
	return append(dirs, "/lib", "/usr/lib", "/usr/local/lib")
}

// loaderConf reads ld.so.conf and what it includes.
func loaderConf(file string, depth int) []string {
	if depth > 8 {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var dirs []string
	for lines := bufio.NewScanner(io.LimitReader(f, maxFile)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t:,", c) })
		if len(words) == 0 || words[0] == "hwcap" {
			continue
		}
		if words[0] != "include" {
			dirs = append(dirs, words...)
			continue
		}
		for _, pattern := range words[1:] {
			if !path.IsAbs(pattern) {
				pattern = join(path.Dir(file), pattern)
			}
			included, _ := filepath.Glob(pattern)
			for _, f := range included {
				dirs = append(dirs, loaderConf(f, depth+1)...)
			}
		}
	}
	return dirs
}
