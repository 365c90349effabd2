package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

//go:embed machines.toml
var machinesTOML []byte

// machine is one row of the matrix: a kernel and how it is started.
type machine struct {
	Name string `toml:"name"`
	// Arch is the processor, by its GOARCH; without one it is amd64.
	Arch string `toml:"arch"`
	// Series are upstream versions, "6.18"; the first that can be had is booted.
	Series []string `toml:"series"`
	// Parameters are added to the kernel command line.
	Parameters []string `toml:"parameters"`
	// Sysctls hold for the whole machine, by their dotted names.
	Sysctls map[string]string `toml:"sysctls"`
	// HighRes leaves timers of high resolution on, as kernels have them by themselves:
	// see lowResolution.
	HighRes bool `toml:"highres"`
	// CI puts the machine into the small set.
	CI bool `toml:"ci"`
	// Alike tells that the kernel differs from the one before in what Landlock can do,
	// and that packages which are not about Landlock run on that one.
	Alike bool `toml:"alike"`
	// Leaves are packages whose tests do not run here, as kernels before and after it
	// run them.
	Leaves []string `toml:"leaves"`
	// Fakes are arguments of abicap: ABIs as which the kernel is asked once more.
	Fakes []string `toml:"fakes"`
}

// All of these end up on a kernel command line, where a blank would begin
// another parameter.
var (
	machineName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)
	seriesName  = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	parameter   = regexp.MustCompile(`^[A-Za-z0-9_.]+(=[A-Za-z0-9_.,:/-]*)?$`)
)

// machines reads the declared machines.
func machines(text []byte) ([]machine, error) {
	var file struct {
		Machine []machine `toml:"machine"`
	}
	if err := strictTOML(text, &file); err != nil {
		return nil, fmt.Errorf("machines.toml: %w", err)
	}
	seen := map[string]bool{}
	for i := range file.Machine {
		m := &file.Machine[i]
		m.Arch = cmp.Or(m.Arch, amd64)
		if err := m.check(); err != nil {
			return nil, fmt.Errorf("machines.toml: machine %q: %w", m.Name, err)
		}
		if seen[m.Name] {
			return nil, fmt.Errorf("machines.toml: machine %q is declared twice", m.Name)
		}
		seen[m.Name] = true
	}
	if len(file.Machine) == 0 {
		return nil, errors.New("machines.toml: it declares no machine")
	}
	return file.Machine, nil
}

func (m machine) check() error {
	if !machineName.MatchString(m.Name) {
		return errors.New("the name must be of lower-case letters, digits, dots and dashes")
	}
	if _, ok := arches[m.Arch]; !ok {
		return fmt.Errorf("the architecture %q is none of %s", m.Arch, strings.Join(archNames(), ", "))
	}
	if m.CI && m.Arch != amd64 {
		return errors.New("the set ci is of amd64")
	}
	if len(m.Series) == 0 {
		return errors.New("it names no series")
	}
	for _, s := range m.Series {
		if !seriesName.MatchString(s) {
			return fmt.Errorf("series %q is not like 6.12", s)
		}
	}
	for _, p := range m.commandLine() {
		if !parameter.MatchString(p) {
			return fmt.Errorf("%q cannot be a kernel parameter", p)
		}
	}
	for _, path := range m.Leaves {
		if !slices.ContainsFunc(testPackages, func(p testPackage) bool { return p.path == path }) {
			return fmt.Errorf("no tests of %q run in the machines", path)
		}
	}
	for _, f := range m.Fakes {
		if !slices.Contains(fakeNames, f) {
			return fmt.Errorf("abicap knows no %q", f)
		}
	}
	return nil
}

// commandLine is what this machine's kernel is told beside what all are told.
// The kernel itself sets sysctls given to it (since 5.8), so they hold before
// init looks at anything.
func (m machine) commandLine() []string {
	list := slices.Clone(m.Parameters)
	for name, value := range m.Sysctls {
		list = append(list, "sysctl."+name+"="+value)
	}
	slices.Sort(list)
	return list
}

// sets are those that --set knows. All is of one processor: two would take
// longer than one run may.
var sets = map[string]func(m machine) bool{
	"all": func(m machine) bool { return m.Arch == amd64 },
	"ci":  func(m machine) bool { return m.CI },
	arm64: func(m machine) bool { return m.Arch == arm64 },
}

// pick selects machines by set, or by names or series.
func pick(all []machine, set string, only []string) ([]machine, error) {
	inSet, ok := sets[set]
	if !ok {
		return nil, withHint(fmt.Errorf("no set %q", set), "the sets are "+strings.Join(slices.Sorted(maps.Keys(sets)), ", "))
	}
	wanted := map[string]bool{}
	for _, o := range only {
		found := matching(all, o)
		if found == nil {
			return nil, withHint(fmt.Errorf("no machine or series %q", o), "--list shows them")
		}
		for _, name := range found {
			wanted[name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(m machine) bool {
		if len(only) > 0 {
			return !wanted[m.Name]
		}
		return !inSet(m)
	}), nil
}

// matching are the machines of a name or pattern ("6.12*") and, if there are
// none, of a series.
func matching(all []machine, pattern string) (names []string) {
	for _, m := range all {
		if ok, _ := path.Match(pattern, m.Name); ok {
			names = append(names, m.Name)
		}
	}
	if names != nil {
		return names
	}
	for _, m := range all {
		if slices.Contains(m.Series, pattern) {
			names = append(names, m.Name)
		}
	}
	return names
}

// strictTOML refuses keys that nothing reads: a misspelt expectation would
// otherwise be one that is never checked.
func strictTOML(text []byte, into any) error {
	d := toml.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		return fmt.Errorf("unknown keys:\n%s", unknown.String())
	}
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		row, _ := wrong.Position()
		return fmt.Errorf("line %d: %s", row, strings.TrimPrefix(wrong.Error(), "toml: "))
	}
	return err
}
