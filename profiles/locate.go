package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// layer is where a profile comes from.
type layer uint8

const (
	layerBuiltin layer = iota
	layerUser
	layerAdmin
	layerFile // named by its path
)

var layerNames = [...]string{layerBuiltin: "built in", layerUser: "user", layerAdmin: "administrator", layerFile: "file"}

func (l layer) String() string { return layerNames[l] }

// Places are the directories in which profiles are looked for.
type Places struct {
	// User and Admin hold NAME.toml files; "" if there is none. The
	// administrator's file of a name wins over the user's, and the user's over
	// the preset.
	User, Admin string
}

// PlacesFor returns the places of a user with this home and environment.
func PlacesFor(home string, hostEnv []string) Places {
	base := xdg(envMap(hostEnv), cleanHome(home), "XDG_CONFIG_HOME", ".config")
	p := Places{Admin: AdminDir}
	if base != "" {
		p.User = base + "/sbx/profiles"
	}
	return p
}

func cleanHome(home string) string {
	if !path.IsAbs(home) || strings.ContainsRune(home, 0) {
		return ""
	}
	return path.Clean(home)
}

// store finds and reads profiles, each at most once.
type store struct {
	places Places
	v      *view
	loaded map[string]*profile
	exists map[string]bool // whether a directory is there at all
	// plantable is [resolver.plantable], and note is told of a file that the
	// caller named and a worker can write; nil if no worker is about to run.
	plantable func(p string) bool
	note      func(file, real string)
}

func newStore(p Places, v *view) *store {
	return &store{places: p, v: v, loaded: map[string]*profile{}, exists: map[string]bool{}}
}

// origin returns the file that answers to a name, the strongest first.
func (s *store) origin(name string) (string, layer) {
	for _, d := range []struct {
		dir string
		l   layer
	}{{s.places.Admin, layerAdmin}, {s.places.User, layerUser}} {
		if d.dir == "" || !s.has(d.dir) {
			continue
		}
		if file := d.dir + "/" + name + ".toml"; exists(file) {
			return file, d.l
		}
	}
	return "", layerBuiltin
}

func (s *store) has(dir string) bool {
	got, ok := s.exists[dir]
	if !ok {
		_, _, err := s.v.eval(dir)
		got = err == nil
		s.exists[dir] = got
	}
	return got
}

// load returns the profile of a name, or of a path (what holds a slash).
func (s *store) load(name string) (*profile, error) {
	if p, ok := s.loaded[name]; ok {
		return p, nil
	}
	p, err := s.read(name)
	if err != nil {
		return nil, err
	}
	s.loaded[name] = p
	return p, nil
}

func (s *store) read(name string) (*profile, error) {
	if strings.Contains(name, "/") {
		if real := s.planted(name); real != "" {
			s.note(name, real)
		}
		return readProfile(name, layerFile)
	}
	if bad := badProfileName(name); bad != "" {
		return nil, refuse("name a profile of `sbx profile list`, or a file with a slash in its path", "profile %q %s", name, bad)
	}
	if file, l := s.origin(name); file != "" {
		if real := s.planted(file); real != "" {
			return nil, refusePlace("the grants of profile "+show(file), real)
		}
		return readProfile(file, l)
	}
	if p := builtinByName(name); p != nil {
		return p, nil
	}
	hint := "see `sbx profile list`"
	if n := nearest(name, s.names()); n != "" {
		hint = fmt.Sprintf("did you mean %q? see `sbx profile list`", n)
	}
	return nil, refuse(hint, "no profile is named %q", name)
}

// planted returns the real path of a file whose text a worker can choose; ""
// if none can.
func (s *store) planted(file string) string {
	if s.plantable == nil {
		return ""
	}
	real, _, links, err := s.v.trace(file)
	if err != nil || !s.plantable(real) && !slices.ContainsFunc(links, s.plantable) {
		return ""
	}
	return real
}

func badProfileName(name string) string {
	switch {
	case name == "" || name == "." || name == "..":
		return "is not a name"
	case strings.ContainsRune(name, 0):
		return "holds a NUL byte"
	}
	return ""
}

func readProfile(file string, l layer) (*profile, error) {
	data, err := readRegular(file, 0)
	if err != nil {
		return nil, &RefusalError{Msg: fmt.Sprintf("profile %s %s", show(file), explainFile(err)), Hint: "name an existing profile file, or see `sbx profile list`", Err: err}
	}
	p, problems := parse(data, file)
	if e := firstError(problems); e != nil {
		return nil, e.refusal()
	}
	p.layer = l
	if p.name == "" {
		p.name = strings.TrimSuffix(path.Base(file), ".toml")
	}
	return &p, nil
}

// names are all profiles that a name can reach, sorted.
func (s *store) names() []string {
	var all []string
	for i := range builtins {
		all = append(all, builtins[i].name)
	}
	for _, d := range []string{s.places.User, s.places.Admin} {
		files, err := os.ReadDir(d)
		if err != nil {
			continue
		}
		for _, f := range files {
			if n, ok := strings.CutSuffix(f.Name(), ".toml"); ok && n != "" {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func builtinByName(name string) *profile {
	for i := range builtins {
		if builtins[i].name == name {
			return &builtins[i]
		}
	}
	return nil
}

var (
	errNotRegular = errors.New("is not a regular file")
	errTooBig     = errors.New("is bigger than 256 KiB") // that is maxFile
)

// placeholder is the mode of a directory that stands for a missing file while a worker
// around this process must not make one: see docs/protected.md.
const placeholder = 0o1555

// readRegular reads a regular file of no more than maxFile.
func readRegular(file string, extraFlags int) ([]byte, error) {
	return readBounded(file, extraFlags, maxFile)
}

// readBounded reads a regular file of no more than most bytes. It opens without waiting, so that
// a FIFO in its place cannot hang the launch, and looks at what it opened, so
// that a swap in between changes nothing.
func readBounded(file string, extraFlags, most int) ([]byte, error) {
	fd, err := openFile(file, extraFlags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: file, Err: err}
	}
	if st.Mode == syscall.S_IFDIR|placeholder {
		return nil, &os.PathError{Op: "open", Path: file, Err: syscall.ENOENT}
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, errNotRegular
	}
	data, err := readAll(fd, int(min(max(st.Size, 0), int64(most))), most)
	if err != nil {
		return data, &os.PathError{Op: "read", Path: file, Err: err}
	}
	if len(data) > most {
		return nil, errTooBig
	}
	return data, nil
}

// openFile opens a file for reading without package os, whose files set up a
// poller that no launch needs.
func openFile(file string, extraFlags int) (int, error) {
	for {
		fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK|extraFlags, 0)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// readAll reads to the end, or until it has more than most bytes. The size is
// a guess only: the file may change meanwhile.
func readAll(fd, size, most int) ([]byte, error) {
	data := make([]byte, 0, size+1)
	for len(data) <= most {
		if len(data) == cap(data) {
			data = slices.Grow(data, 4096)
		}
		n, err := syscall.Read(fd, data[len(data):cap(data)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return data, err
		}
		data = data[:len(data)+n]
	}
	return data, nil
}

// readDir lists a directory in any order, without looking at the entries.
func readDir(dir string) ([]fs.DirEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

func explainFile(err error) string {
	if errors.Is(err, errNotRegular) || errors.Is(err, errTooBig) {
		return err.Error()
	}
	return explain(err)
}
