package backendtest

import (
	"runtime"
	"slices"
	"strings"

	"sandboxd/policy"
)

// want is what must come of a row's attempt. The zero value is invalid.
type want uint8

const (
	// denied: refused, with one of the row's errnos, and without effect.
	denied want = iota + 1
	// allowed: it works.
	allowed
	// workspace: it works where the mode lets the workspace be written, and is
	// denied elsewhere.
	workspace
	// pinned: a named gap. It works unless the effect is reported as enforced.
	pinned
	// silent: whatever the call answers, nothing may have reached the host.
	silent
	// same: the answer is the one that it is outside the sandbox.
	same
)

// Row is one attempt with what must come of it.
type Row struct {
	// Name is unique.
	Name string
	// Catalogue is the number of the escape catalogue's entry.
	Catalogue int
	// Effect is the report's effect that the row belongs to; zero for what no
	// effect covers and every launch must hold (descriptors, environment).
	Effect policy.Effect
	// Op is the attempt: a word and its operands, with {variables} that the
	// fixture knows.
	Op   string
	want want
	// errnos are those that a denial may have.
	errnos []string
	// natural are those that the attempt may have outside the sandbox, where
	// no ordinary user could succeed. None of them can be among errnos.
	natural []string
	// needs says what of the host or the user the control depends on: without
	// it the row is skipped by name.
	needs string
	// readOnly are the errnos in read-only, where they differ.
	readOnly []string
	// writes: a pinned row that needs a writable workspace, so that read-only
	// denies it.
	writes bool
	// traceless: the control leaves no trace in the row's own directory.
	traceless bool
}

func deny(catalogue int, e policy.Effect, name, op, errnos string) Row {
	return Row{Name: name, Catalogue: catalogue, Effect: e, Op: op, want: denied, errnos: strings.Split(errnos, "|")}
}

func allow(catalogue int, e policy.Effect, name, op string) Row {
	return Row{Name: name, Catalogue: catalogue, Effect: e, Op: op, want: allowed}
}

func work(catalogue int, name, op, errnos string) Row {
	return Row{Name: name, Catalogue: catalogue, Effect: policy.FSWrite, Op: op, want: workspace, errnos: strings.Split(errnos, "|")}
}

func gap(catalogue int, e policy.Effect, name, op, errnos string) Row {
	return Row{Name: name, Catalogue: catalogue, Effect: e, Op: op, want: pinned, errnos: strings.Split(errnos, "|")}
}

func alike(catalogue int, e policy.Effect, name, op string) Row {
	return Row{Name: name, Catalogue: catalogue, Effect: e, Op: op, want: same}
}

func (r Row) naturally(errnos string) Row {
	r.natural = strings.Split(errnos, "|")
	return r
}

func (r Row) needing(what string) Row {
	r.needs = what
	return r
}

func (r Row) elsewhere() Row {
	r.traceless = true
	return r
}

func (r Row) inReadOnly(errnos string) Row {
	r.readOnly = strings.Split(errnos, "|")
	return r
}

func (r Row) writing() Row {
	r.writes = true
	return r
}

// Gap tells whether the row pins a named gap.
func (r Row) Gap() bool { return r.want == pinned }

// deniedIn tells whether the attempt must be refused in a mode.
func (r Row) deniedIn(m policy.Mode) bool {
	switch r.want {
	case denied:
		return true
	case workspace:
		return m == policy.ReadOnly
	case pinned:
		return r.writes && m == policy.ReadOnly
	}
	return false
}

// errnosIn are those that a denial may have in a mode.
func (r Row) errnosIn(m policy.Mode) []string {
	if m == policy.ReadOnly && r.readOnly != nil {
		return r.readOnly
	}
	return r.errnos
}

// slug is the row's name as a file name and as a token on the wire.
func (r Row) slug() string {
	keep := func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}
	return strings.Map(keep, r.Name)
}

// sends tells whether the attempt carries its slug to a listener.
func (r Row) sends() bool { return slices.Contains(strings.Fields(r.Op), "{token}") }

// mutates tells whether the control must leave a trace in the row's directory.
func (r Row) mutates() bool {
	return r.want == denied && !r.traceless && (r.Effect == policy.FSWrite || r.Effect == policy.FSTruncate)
}

// Rows returns the whole table, less the older calls where the architecture
// does not have them.
func Rows() []Row {
	all := slices.Concat(writeRows(), workspaceRows(), readRows(), networkRows(), unixRows(), processRows(), kernelRows(), architectureRows(),
		terminalRows(), sharedMemoryRows(), inheritanceRows())
	if runtime.GOARCH == "amd64" {
		return all
	}
	return slices.DeleteFunc(all, func(r Row) bool {
		return strings.HasPrefix(r.Op, "old-") || strings.HasPrefix(r.Op, "creat ")
	})
}
