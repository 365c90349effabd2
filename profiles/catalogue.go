package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sandboxd/policy"
)

// Entry is one line of a list of profiles.
type Entry struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Origin is "built in", "user", "administrator" or "file".
	Origin string `json:"origin"`
	// File is where it stands; empty if built in.
	File string `json:"file,omitempty"`
	// Overrides tells that it replaces a preset of the same name.
	Overrides bool `json:"overrides,omitempty"`
	// Error says why the file cannot be used; the list goes on without it.
	Error string `json:"error,omitempty"`
}

// List returns every profile that a name can reach, sorted by name. A broken
// file is listed with its error.
func List(places Places) []Entry {
	s := newStore(places, newView())
	var all []Entry
	for _, name := range s.names() {
		file, l := s.origin(name)
		info := Entry{Name: name, Origin: l.String(), File: file, Overrides: file != "" && builtinByName(name) != nil}
		if p, err := s.load(name); err != nil {
			info.Error = err.Error()
		} else {
			info.Description = p.description
		}
		all = append(all, info)
	}
	return all
}

// Document is a profile's text and where it comes from.
type Document struct {
	Name   string `json:"name"`
	Origin string `json:"origin"`
	// File is where it stands; empty if built in.
	File string `json:"file,omitempty"`
	Text string `json:"text"`
}

// Show returns the text of a profile, named or given by a path with a slash,
// and which file answers to the name. The error is a *[RefusalError].
func Show(places Places, name string) (Document, error) {
	s := newStore(places, newView())
	file, l := name, layerFile
	if !strings.Contains(name, "/") {
		if bad := badProfileName(name); bad != "" {
			return Document{}, refuse("see `sbx profile list`", "profile %q %s", name, bad)
		}
		file, l = s.origin(name)
	}
	if file == "" {
		text, err := presetText(name)
		if err != nil {
			_, err = s.load(name) // words the refusal, with the nearest name
			return Document{}, err
		}
		return Document{Name: name, Origin: l.String(), Text: string(text)}, nil
	}
	data, err := readRegular(file, 0)
	if err != nil {
		return Document{}, &RefusalError{Msg: fmt.Sprintf("profile %s %s", show(file), explainFile(err)), Hint: "see `sbx profile list`", Err: err}
	}
	return Document{Name: strings.TrimSuffix(path.Base(file), ".toml"), Origin: l.String(), File: file, Text: string(data)}, nil
}

// LintContext is what a lint compares a profile with: this host, for this
// user.
type LintContext struct {
	Places  Places
	Home    string
	HostEnv []string
}

// Lint checks a profile, named or given by a path with a slash. A file named
// [ProjectFile] is held to a project's rules. The error is a *[RefusalError]
// if there is no such profile or it cannot be read; what is wrong inside is
// told as problems, in the order of the file.
func Lint(ctx LintContext, name string) ([]Problem, error) {
	doc, err := Show(ctx.Places, name)
	if err != nil {
		return nil, err
	}
	file := doc.File
	if file == "" {
		file = "presets/" + name + ".toml"
	}
	if path.Base(file) == ProjectFile {
		_, problems := parseProject([]byte(doc.Text), file)
		return problems, nil
	}
	p, problems := parse([]byte(doc.Text), file)
	if firstError(problems) != nil {
		return problems, nil
	}
	l := linter{
		checker: checker{file: file, data: []byte(doc.Text), problems: problems},
		preset:  doc.Origin == layerBuiltin.String(), v: newView(),
	}
	l.store = newStore(ctx.Places, l.v)
	host, home := envMap(ctx.HostEnv), cleanHome(ctx.Home)
	l.guard = newGuard(l.v, home, host)
	r := resolver{host: host, v: l.v, path: &toolPath{v: l.v, found: map[string]string{}}}
	r.scanPath()
	l.exp = &expander{v: l.v, home: home, host: host, path: r.path}
	l.profile(p, doc.Name)
	return l.problems, nil
}

// linter adds what can only be told on a host to what the parser tells.
type linter struct {
	checker
	preset bool
	store  *store
	v      *view
	guard  *guard
	exp    *expander
}

func (l *linter) profile(p profile, name string) {
	if p.name != "" && p.name != name && !strings.HasPrefix(name, ".") {
		l.add(SeverityWarning, "name", "make both the same", "the file answers to %q, but calls itself %q", name, p.name)
	}
	if p.description == "" {
		l.add(SeverityInfo, "description", `add description = "..."`, "there is no description")
	}
	for _, e := range p.extends {
		if _, err := l.store.load(e); err != nil {
			l.fail("extends", "", "extends %q: %v", e, err)
		}
	}
	for _, t := range p.toolchains {
		if builtinByName(t) == nil {
			l.fail("toolchains", near(t, toolchainNames()...), "unknown toolchain %q", t)
		}
	}
	if p.mode == policy.FullAccess {
		l.add(SeverityWarning, "mode", "", "the profile asks for no sandbox at all")
	}
	seen := map[string]int{}
	for i, g := range p.grants {
		l.grant(fmt.Sprintf("grant[%d]", i), i, g, seen)
	}
	for i, e := range p.env {
		for _, n := range e.pass {
			if why := hazardOf(strings.TrimSuffix(n, "*")); why != "" {
				l.add(SeverityWarning, fmt.Sprintf("env[%d].pass", i), "", "variable %q %s", n, why)
			}
		}
	}
}

func (l *linter) grant(key string, i int, g rule, seen map[string]int) {
	for _, expr := range g.paths {
		if first, dup := seen[expr+" "+g.os]; dup && first != i {
			l.add(SeverityWarning, key, "merge the two", "%s is granted twice", show(expr))
		}
		seen[expr+" "+g.os] = i
		paths := l.exp.expand(expr)
		there := false
		for _, at := range paths {
			real, n, err := l.v.eval(at)
			if err != nil {
				real = path.Clean(at)
			}
			there = there || err == nil
			l.judge(key, real, n, err != nil || n.isDir(), g)
		}
		if !there && !l.preset {
			l.add(SeverityInfo, key, "", "%s does not exist here", show(expr))
		}
	}
}

func (l *linter) judge(key, real string, n node, wide bool, g rule) {
	if g.access.Has(policy.Write) {
		if why := l.guard.writableRefusal(real, n); why != "" && !(l.preset && real == "/dev/pts") {
			l.fail(key, "grant a directory below it", "%s must not be writable: it %s", show(real), why)
			return
		}
	}
	if why := l.guard.refuses(real, wide); why != "" {
		severity := SeverityWarning
		if l.preset {
			severity = SeverityError
		}
		l.add(severity, key, "grant something narrower", "%s %s", show(real), why)
	}
}

// Changes is how one spec differs from another, for people and for programs.
type Changes struct {
	Lines []Change `json:"changes"`
}

// Change is one difference.
type Change struct {
	// Op is "+" for what only the second has, "-" for what only the first has,
	// "~" for what both have in different form.
	Op string `json:"op"`
	// What is "mode", "net", "workspace", "cwd", "grant", "deny", "env",
	// "temp", "create", "protected", "require", "allow-gap", "exec-only" or
	// "weakening".
	What string `json:"what"`
	// Name is the path, variable or flag.
	Name string `json:"name,omitempty"`
	// From and To are the two forms.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// Empty tells that there is no difference.
func (c Changes) Empty() bool { return len(c.Lines) == 0 }

// String has one printable line per change; values of variables are not shown,
// as they may be secrets.
func (c Changes) String() string {
	var b strings.Builder
	for _, l := range c.Lines {
		fmt.Fprintf(&b, "%s %s", l.Op, l.What)
		for _, s := range []string{l.Name, l.From, l.To} {
			if s != "" {
				if s == l.To && l.Op == "~" {
					b.WriteString(" ->")
				}
				b.WriteString(" " + show(s))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Diff compares two specs. The order is fixed: scalars, then grants and the
// other lists by name.
func Diff(a, b policy.Spec) Changes {
	var c Changes
	for _, s := range []struct{ what, from, to string }{
		{"mode", a.Mode.String(), b.Mode.String()},
		{"net", a.Net.String(), b.Net.String()},
		{"workspace", a.Workspace, b.Workspace},
		{"cwd", a.Cwd, b.Cwd},
		{"require", requirement(a), requirement(b)},
		{"allow-gap", a.AllowGap.String(), b.AllowGap.String()},
		{"exec-only", fmt.Sprint(a.ExecOnly), fmt.Sprint(b.ExecOnly)},
	} {
		if s.from != s.to {
			c.Lines = append(c.Lines, Change{Op: "~", What: s.what, From: s.from, To: s.to})
		}
	}
	c.maps("grant", grantMap(a), grantMap(b))
	c.maps("deny", set(a.Deny), set(b.Deny))
	c.maps("env", hidden(a.Env, b.Env, "one value"), hidden(b.Env, a.Env, "another"))
	c.maps("temp", tempMap(a), tempMap(b))
	c.maps("create", set(a.Create), set(b.Create))
	c.maps("protected", set(a.Protected), set(b.Protected))
	c.maps("weakening", weakMap(a), weakMap(b))
	return c
}

func requirement(s policy.Spec) string {
	if s.RequireFull {
		return "full"
	}
	return s.Require.String()
}

// maps adds the differences of two name-to-form maps.
func (c *Changes) maps(what string, a, b map[string]string) {
	var names []string
	for n := range a {
		names = append(names, n)
	}
	for n := range b {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		from, inA := a[n]
		to, inB := b[n]
		switch {
		case !inA:
			c.Lines = append(c.Lines, Change{Op: "+", What: what, Name: n, To: to})
		case !inB:
			c.Lines = append(c.Lines, Change{Op: "-", What: what, Name: n, From: from})
		case from != to:
			c.Lines = append(c.Lines, Change{Op: "~", What: what, Name: n, From: from, To: to})
		}
	}
}

func grantMap(s policy.Spec) map[string]string {
	m := map[string]string{}
	for _, g := range s.Grants {
		m[string(g.Path)] = g.Access.String() + " " + g.Kind.String()
	}
	return m
}

func tempMap(s policy.Spec) map[string]string {
	m := map[string]string{}
	for _, t := range s.TempEnv {
		m[t.Name] = t.Sub
	}
	return m
}

func weakMap(s policy.Spec) map[string]string {
	m := map[string]string{}
	for _, w := range s.Weakened {
		m[w.Flag] = ""
	}
	return m
}

func set(words []string) map[string]string {
	m := map[string]string{}
	for _, w := range words {
		m[w] = ""
	}
	return m
}

// hidden maps variables to a form that tells only whether both values agree:
// values may be secrets.
func hidden(env, other []string, form string) map[string]string {
	values := envMap(other)
	m := map[string]string{}
	for k, v := range envMap(env) {
		m[k] = ""
		if o, ok := values[k]; ok && o != v {
			m[k] = form
		}
	}
	return m
}
