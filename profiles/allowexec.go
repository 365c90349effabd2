package profiles

import (
	"bufio"
	"bytes"
	"debug/elf"
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
	real, n, err := x.r.named(flag, f)
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
	case string(magic[:]) == elf.ELFMAG:
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
	real, n, err := x.r.v.eval(abs)
	if err != nil || !n.isFile() {
		return "", refuse("install it", "--allow-exec %s needs %s, which is not there", show(file), show(name))
	}
	return real, nil
}

func (x *execClosure) elf(f *os.File, file string) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return refuse("name a program for this machine", "--allow-exec %s is a damaged program: %v", show(file), err)
	}
	interp := programInterpreter(e)
	if interp != "" {
		real, err := x.interpreter(interp, file)
		if err != nil {
			return err
		}
		x.add(real, policy.Read|policy.Exec, "loader of "+show(file))
	}
	return x.libraries(e, file, interp != "", nil)
}

func programInterpreter(e *elf.File) string {
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return ""
		}
		return string(bytes.TrimRight(b, "\x00"))
	}
	return ""
}

// libraries grants what a program or library names as needed, and what those
// need. inherited are the RPATHs of those that lead here: the loader still
// searches them, while a RUNPATH is its owner's alone.
func (x *execClosure) libraries(e *elf.File, file string, dynamic bool, inherited []string) error {
	if !dynamic {
		return nil
	}
	needed, err := e.ImportedLibraries()
	if err != nil {
		return nil // no dynamic section: static
	}
	runpath := searchPath(e, elf.DT_RUNPATH, file)
	if len(runpath) == 0 {
		inherited = append(searchPath(e, elf.DT_RPATH, file), inherited...)
	}
	search := slices.Concat(inherited, runpath, x.loaderDirs(e))
	for _, name := range needed {
		lib, at := x.find(name, search, e)
		if at == "" {
			return refuse("install it, or make it readable: --readable DIR", "--allow-exec %s needs library %s, which is not found", show(file), show(name))
		}
		if !x.add(at, policy.Read, "library of "+show(file)) {
			lib.Close()
			continue
		}
		err := x.libraries(lib, at, true, inherited)
		lib.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// find opens the first library of this name that fits the program.
func (x *execClosure) find(name string, search []string, want *elf.File) (*elf.File, string) {
	if strings.Contains(name, "/") {
		search, name = []string{path.Dir(name)}, path.Base(name)
	}
	for _, d := range search {
		real, n, err := x.r.v.eval(join(d, name))
		if err != nil || !n.isFile() {
			continue
		}
		f, err := elf.Open(real)
		if err != nil {
			continue
		}
		if f.Class == want.Class && f.Machine == want.Machine {
			return f, real
		}
		f.Close()
	}
	return nil, ""
}

func searchPath(e *elf.File, tag elf.DynTag, file string) []string {
	entries, err := e.DynString(tag)
	if err != nil {
		return nil
	}
	lib := "lib"
	if e.Class == elf.ELFCLASS64 {
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
func triplet(m elf.Machine) string {
	switch m {
	case elf.EM_X86_64:
		return "x86_64-linux-gnu"
	case elf.EM_AARCH64:
		return "aarch64-linux-gnu"
	case elf.EM_386:
		return "i386-linux-gnu"
	case elf.EM_ARM:
		return "arm-linux-gnueabihf"
	case elf.EM_RISCV:
		return "riscv64-linux-gnu"
	case elf.EM_PPC64:
		return "powerpc64le-linux-gnu"
	case elf.EM_S390:
		return "s390x-linux-gnu"
	}
	return ""
}

// loaderDirs are where the loader looks without being told: its configuration
// and its built-in directories, those of musl too.
func (x *execClosure) loaderDirs(e *elf.File) []string {
	if x.dirs == nil {
		x.dirs = append([]string{}, loaderConf("/etc/ld.so.conf", 0)...)
	}
	dirs := slices.Clone(x.dirs)
	if t := triplet(e.Machine); t != "" {
		dirs = append(dirs, "/lib/"+t, "/usr/lib/"+t, "/usr/local/lib/"+t)
	}
	if e.Class == elf.ELFCLASS64 {
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
