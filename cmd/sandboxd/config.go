package main

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"golang.org/x/sys/unix"

	"sandboxd/daemon"
	"sandboxd/internal/cli"
	"sandboxd/internal/proxy"
	"sandboxd/policy"
)

// maxConfig bounds a configuration, in bytes.
const maxConfig = 256 << 10

// configDoc is a configuration as it is written. The toml tags are the format;
// docs/daemon.md describes it.
type configDoc struct {
	Ceiling ceilingDoc `toml:"ceiling"`
	User    []userDoc  `toml:"user"`
	Group   []groupDoc `toml:"group"`
}

type ceilingDoc struct {
	Mode        modeWord      `toml:"mode"`
	Net         netWord       `toml:"net"`
	NetAllow    []hostWord    `toml:"net_allow"`
	Roots       []rootWord    `toml:"roots"`
	Backends    []backendWord `toml:"backends"`
	Memory      sizeWord      `toml:"memory"`
	Disk        sizeWord      `toml:"disk"`
	Pids        countWord     `toml:"pids"`
	CPUs        coresWord     `toml:"cpus"`
	Timeout     lengthWord    `toml:"timeout"`
	Workers     countWord     `toml:"workers"`
	Connections countWord     `toml:"connections"`
}

type userDoc struct {
	Name userWord `toml:"name"`
	ceilingDoc
}

type groupDoc struct {
	Name groupWord `toml:"name"`
	ceilingDoc
}

// all are the ceilings of a configuration.
func (d *configDoc) all() []*ceilingDoc {
	list := []*ceilingDoc{&d.Ceiling}
	for i := range d.User {
		list = append(list, &d.User[i].ceilingDoc)
	}
	for i := range d.Group {
		list = append(list, &d.Group[i].ceilingDoc)
	}
	return list
}

// knownKeys is the hint for an unknown one.
const knownKeys = "[ceiling], [[group]] and [[user]] have mode, net, net_allow, roots, backends, memory, disk, pids, cpus, timeout, workers, connections; the latter two a name"

// Words that are checked where they stand, so that an error has their position. They
// are structs: the decoder would put a number or a text into any other kind by itself,
// zero and negative ones as well.
type (
	modeWord    struct{ m policy.Mode }
	netWord     struct{ n policy.Net }
	hostWord    struct{ rule string }
	rootWord    struct{ path string }
	backendWord struct{ name string }
	userWord    struct{ id int } // one more than the number; 0 is none
	groupWord   struct{ id int } // as userWord
	countWord   struct{ n int }
	coresWord   struct{ n float64 }
	lengthWord  struct{ d time.Duration }
	sizeWord    struct{ cli.Size }
)

func (w *modeWord) UnmarshalText(b []byte) error {
	var err error
	w.m, err = policy.ParseMode(string(b))
	return err
}

func (w *netWord) UnmarshalText(b []byte) error {
	var err error
	w.n, err = policy.ParseNet(string(b))
	return err
}

func (w *hostWord) UnmarshalText(b []byte) error {
	w.rule = string(b)
	_, err := proxy.ParseRule(w.rule)
	return err
}

func (w *rootWord) UnmarshalText(b []byte) error {
	// A launch's paths are resolved; a root with a link in it would hold none.
	path := string(b)
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%q is no absolute path in its shortest form", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if real != path {
		return fmt.Errorf("%q leads to %q, which is what to write", path, real)
	}
	w.path = path
	return nil
}

func (w *backendWord) UnmarshalText(b []byte) error {
	if !slices.Contains(backendNames(), string(b)) {
		return fmt.Errorf("backend %q is unknown; there is %s", b, strings.Join(backendNames(), ", "))
	}
	w.name = string(b)
	return nil
}

func (w *countWord) UnmarshalText(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 31)
	if err != nil || n < 1 {
		return fmt.Errorf("%s is no number from 1 on", b)
	}
	w.n = int(n)
	return nil
}

func (w *coresWord) UnmarshalText(b []byte) error {
	n, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(n >= 0.001 && n <= 1<<20) {
		return fmt.Errorf("%s is no number of cores, as in 0.5 or 2", b)
	}
	w.n = n
	return nil
}

func (w *lengthWord) UnmarshalText(b []byte) error {
	var d cli.Duration
	if err := d.Set(string(b)); err != nil {
		return err
	}
	if time.Duration(d) < time.Millisecond {
		return fmt.Errorf("%q is no time in which anything can run", b)
	}
	w.d = time.Duration(d)
	return nil
}

func (w *userWord) UnmarshalText(b []byte) error {
	number := string(b)
	if u, err := user.Lookup(number); err == nil {
		number = u.Uid
	}
	id, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return fmt.Errorf("there is no user %q", b)
	}
	w.id = int(id) + 1
	return nil
}

func (w *groupWord) UnmarshalText(b []byte) error {
	number := string(b)
	if g, err := user.LookupGroup(number); err == nil {
		number = g.Gid
	}
	id, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return fmt.Errorf("there is no group %q", b)
	}
	w.id = int(id) + 1
	return nil
}

func (d *ceilingDoc) ceiling() daemon.Ceiling {
	c := daemon.Ceiling{
		Mode: d.Mode.m, Net: d.Net.n, Workers: d.Workers.n, Connections: d.Connections.n,
		Limits: policy.Limits{Memory: int64(d.Memory.Size), Disk: int64(d.Disk.Size), Pids: d.Pids.n, CPUs: d.CPUs.n, Time: d.Timeout.d},
	}
	for _, r := range d.Roots {
		c.Roots = append(c.Roots, r.path)
	}
	var hosts []string
	for _, h := range d.NetAllow {
		hosts = append(hosts, h.rule)
	}
	c.NetAllow, _ = proxy.ParseRules(hosts) // each was read already
	for _, b := range d.Backends {
		c.Backends = append(c.Backends, b.name)
	}
	return c
}

// readConfig reads a configuration. One that another user could have written is none:
// it would raise that user's own ceilings.
func readConfig(path string) (daemon.Ceilings, error) {
	bad := func(hint, format string, args ...any) error {
		return refuse(hint, "configuration %q: "+format, append([]any{path}, args...)...)
	}
	// O_NONBLOCK: a FIFO would wait for its other end.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return daemon.Ceilings{}, bad("name a file that exists, and no symbolic link", "%v", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return daemon.Ceilings{}, bad("", "%v", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return daemon.Ceilings{}, bad("name a regular file", "it is none")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return daemon.Ceilings{}, bad("chown it to root", "it belongs to user %d, who could change it", st.Uid)
	case st.Mode&0o022 != 0:
		return daemon.Ceilings{}, bad("chmod go-w", "others can write it: its mode is %04o", st.Mode&0o7777)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err != nil {
		return daemon.Ceilings{}, bad("", "%v", err)
	}
	if len(text) > maxConfig {
		return daemon.Ceilings{}, bad("", "it has more than %d bytes", maxConfig)
	}
	return parseConfig(path, text)
}

// parseConfig is readConfig without the file. An error names line and column.
func parseConfig(path string, text []byte) (daemon.Ceilings, error) {
	var doc configDoc
	err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&doc)
	var missing *toml.StrictMissingError
	var wrong *toml.DecodeError
	switch {
	case errors.As(err, &missing) && len(missing.Errors) > 0:
		first := missing.Errors[0]
		line, column := first.Position()
		return daemon.Ceilings{}, refuse(knownKeys, "%s:%d:%d: unknown key %s", path, line, column, strings.Join(first.Key(), "."))
	case errors.As(err, &wrong):
		line, column := wrong.Position()
		return daemon.Ceilings{}, refuse("docs/daemon.md has an example", "%s:%d:%d: %s", path, line, column, strings.TrimPrefix(wrong.Error(), "toml: "))
	case err != nil: // of a number, which the decoder does not place
		line, column := placeOfNumber(text)
		return daemon.Ceilings{}, refuse("docs/daemon.md has an example", "%s:%d:%d: %v", path, line, column, err)
	}
	for _, c := range doc.all() {
		// No bound, by what it becomes; nothing at all, by what it looks like.
		if c.Roots != nil && len(c.Roots) == 0 || c.Backends != nil && len(c.Backends) == 0 || c.NetAllow != nil && len(c.NetAllow) == 0 {
			return daemon.Ceilings{}, refuse("leave the key out if there is no bound", "%s: roots, backends or net_allow is an empty list", path)
		}
	}
	all := daemon.Ceilings{Default: doc.Ceiling.ceiling(), Users: map[int]daemon.Ceiling{}}
	for i, u := range doc.User {
		if u.Name.id == 0 {
			return daemon.Ceilings{}, refuse("say name = \"...\"", "%s: the [[user]] number %d has no name", path, i+1)
		}
		if _, twice := all.Users[u.Name.id-1]; twice {
			return daemon.Ceilings{}, refuse("leave one of them out", "%s: user %d is there twice", path, u.Name.id-1)
		}
		all.Users[u.Name.id-1] = u.ceiling()
	}
	for i, g := range doc.Group {
		if g.Name.id == 0 {
			return daemon.Ceilings{}, refuse("say name = \"...\"", "%s: the [[group]] number %d has no name", path, i+1)
		}
		if slices.ContainsFunc(all.Groups, func(o daemon.GroupCeiling) bool { return o.GID == g.Name.id-1 }) {
			return daemon.Ceilings{}, refuse("leave one of them out", "%s: group %d is there twice", path, g.Name.id-1)
		}
		all.Groups = append(all.Groups, daemon.GroupCeiling{GID: g.Name.id - 1, Ceiling: g.ceiling()})
	}
	return all, nil
}

// placeOfNumber finds the first number, or word in a number's place, that is wrong.
func placeOfNumber(text []byte) (line, column int) {
	word := func(key string) encoding.TextUnmarshaler {
		switch key {
		case "memory", "disk":
			return &sizeWord{}
		case "pids", "workers", "connections":
			return &countWord{}
		case "cpus":
			return &coresWord{}
		case "timeout":
			return &lengthWord{}
		case "mode":
			return &modeWord{}
		case "net":
			return &netWord{}
		}
		return nil
	}
	p := unstable.Parser{}
	for p.Reset(text); p.NextExpression(); {
		e := p.Expression()
		if e.Kind != unstable.KeyValue {
			continue
		}
		key := ""
		for it := e.Key(); it.Next(); {
			key = string(it.Node().Data)
		}
		if w := word(key); w != nil && w.UnmarshalText(e.Value().Data) != nil {
			at := p.Shape(p.Range(e.Value().Data)).Start
			return at.Line, at.Column
		}
	}
	return 0, 0
}
