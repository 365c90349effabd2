package profiles

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"sandboxd/policy"
)

// maxFile bounds a profile file; a bigger one is a mistake or an attack.
const maxFile = 256 << 10

// document is a profile file as it is written. The toml tags are the format.
type document struct {
	Name        string      `toml:"name"`
	Description string      `toml:"description"`
	Extends     []string    `toml:"extends"`
	Mode        string      `toml:"mode"`
	Net         string      `toml:"net"`
	Deny        []string    `toml:"deny"`
	Require     []string    `toml:"require"`
	AllowGap    []string    `toml:"allow_gap"`
	Toolchains  []string    `toml:"toolchains"`
	Detect      detectDoc   `toml:"detect"`
	Grant       []grantDoc  `toml:"grant"`
	Env         []envDoc    `toml:"env"`
	Cache       []cacheRule `toml:"cache"`
}

type detectDoc struct {
	Commands []string `toml:"commands"`
	Env      []string `toml:"env"`
}

type grantDoc struct {
	Path     string   `toml:"path"`
	Paths    []string `toml:"paths"`
	Access   string   `toml:"access"`
	Optional *bool    `toml:"optional"`
	OS       string   `toml:"os"`
	Secrets  string   `toml:"secrets"`
	Reason   string   `toml:"reason"`
}

type envDoc struct {
	Pass   []string          `toml:"pass"`
	Set    map[string]string `toml:"set"`
	Drop   []string          `toml:"drop"`
	Reason string            `toml:"reason"`
}

// profile is a checked document.
type profile struct {
	name, description string
	layer             layer
	file              string // "" if built in
	extends           []string
	mode              policy.Mode
	net               policy.Net
	deny              []string
	require, allowGap policy.EffectSet
	requireFull       bool
	toolchains        []string
	limited           bool // toolchains is given, be it empty
	commands          []string
	detectEnv         []string
	grants            []rule
	env               []envRule
	caches            []cacheRule
}

type rule struct {
	paths    []string
	access   policy.Access
	required bool
	os       string
	secrets  string // what to do with a file that seems to hold some
	reason   string
}

type envRule struct {
	pass, set, drop []string
	reason          string
}

type cacheRule struct {
	Env    string `toml:"env"`
	Dir    string `toml:"dir"`
	Reason string `toml:"reason"`
}

// Severity is how bad a [Problem] is.
type Severity string

// The severities: a file with an error is refused, one with warnings works.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityInfo    Severity = "info"
)

// Problem is one thing that is wrong with a profile file.
type Problem struct {
	File string `json:"file"`
	// Line and Column start at 1; 0 if the whole file is meant.
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	// Hint is the next step, if there is one.
	Hint string `json:"hint,omitempty"`
}

// String is "file:line:column: text".
func (p Problem) String() string {
	if p.Line == 0 {
		return show(p.File) + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", show(p.File), p.Line, p.Column, p.Text)
}

func (p Problem) refusal() *RefusalError {
	return &RefusalError{Msg: "profile " + p.String(), Hint: p.Hint}
}

// known returns the keys of each table, for hints.
func known(table string) []string {
	switch table {
	case "":
		return []string{"name", "description", "extends", "mode", "net", "deny", "require", "allow_gap", "toolchains", "detect", "grant", "env", "cache"}
	case "detect":
		return []string{"commands", "env"}
	case "grant":
		return []string{"path", "paths", "access", "optional", "os", "secrets", "reason"}
	case "env":
		return []string{"pass", "set", "drop", "reason"}
	case "cache":
		return []string{"env", "dir", "reason"}
	}
	return nil
}

// parse reads a profile. Problems come in the order of the file; with an error
// among them the profile must not be used.
func parse(data []byte, file string) (profile, []Problem) {
	if many, at := survey(data); many != "" {
		p := Problem{File: file, Severity: SeverityError, Text: "the file " + many, Hint: "shorten it"}
		p.Line, p.Column = position(lineStarts(data), at)
		return profile{}, []Problem{p}
	}
	var doc document
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return profile{}, decodeProblems(err, file)
	}
	c := checker{file: file, data: data}
	return c.profile(doc), c.problems
}

func decodeProblems(err error, file string) []Problem {
	var missing *toml.StrictMissingError
	if errors.As(err, &missing) {
		var all []Problem
		for i := range missing.Errors {
			all = append(all, unknownKey(&missing.Errors[i], file))
		}
		return all
	}
	p := Problem{File: file, Severity: SeverityError, Text: "not a profile: " + oneLine(err.Error()), Hint: "see docs/profiles.md for the format, or `sbx profile show system` for an example"}
	var de *toml.DecodeError
	if errors.As(err, &de) {
		p.Line, p.Column = de.Position()
		p.Text = oneLine(strings.TrimPrefix(de.Error(), "toml: "))
	}
	return []Problem{p}
}

func oneLine(s string) string {
	return policy.Printable(cutText(strings.Join(strings.Fields(s), " ")))
}

// maxText bounds what a message repeats of a file.
const maxText = 400

func cutText(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

func unknownKey(e *toml.DecodeError, file string) Problem {
	key := e.Key()
	p := Problem{File: file, Severity: SeverityError, Text: fmt.Sprintf("unknown key %q", shorten(strings.Join(key, ".")))}
	p.Line, p.Column = e.Position()
	if len(key) == 0 {
		return p
	}
	table := ""
	if len(key) > 1 {
		table = key[0]
	}
	last := key[len(key)-1]
	if near := nearest(last, known(table)); near != "" && len(last) <= maxShown {
		p.Hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(known(table)) > 0 {
		p.Hint = "known keys here: " + strings.Join(known(table), ", ")
	}
	return p
}

// Limits on what a file may hold. What reads a document costs more than in
// proportion to its keys, and who writes a project's file is not trusted.
const (
	maxKeys     = 1000
	maxElements = 4096 // of all lists
)

// survey counts what a document holds, as far as it can be read, and stops
// where that is too much.
func survey(data []byte) (tooMany string, at int) {
	var keys, elements int
	var p unstable.Parser
	p.Reset(data)
	var values func(n *unstable.Node)
	values = func(n *unstable.Node) {
		if n.Kind != unstable.Array && n.Kind != unstable.InlineTable {
			return
		}
		for it := n.Children(); it.Next(); {
			c := it.Node()
			if c.Kind == unstable.KeyValue {
				keys++
				c = c.Value()
			} else {
				elements++
			}
			values(c)
		}
	}
	for p.NextExpression() {
		n := p.Expression()
		for it := n.Key(); it.Next(); { // a.b.c is three
			keys++
		}
		if n.Kind == unstable.KeyValue {
			values(n.Value())
		}
		switch {
		case keys > maxKeys:
			return fmt.Sprintf("holds more than %d keys", maxKeys), keyOffset(&p, n)
		case elements > maxElements:
			return fmt.Sprintf("lists more than %d words", maxElements), keyOffset(&p, n)
		}
	}
	return "", 0
}

// keyOffset is where an expression starts.
func keyOffset(p *unstable.Parser, n *unstable.Node) int {
	if it := n.Key(); it.Next() {
		return int(it.Node().Raw.Offset)
	}
	return 0
}

// offsets finds where each key of a valid document starts: "mode", "grant[2]",
// "grant[2].access".
func offsets(data []byte) map[string]int {
	at := map[string]int{}
	counts := map[string]int{}
	table := ""
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		n := p.Expression()
		var words []string
		for it := n.Key(); it.Next(); {
			words = append(words, string(it.Node().Data))
		}
		where := keyOffset(&p, n)
		name := strings.Join(words, ".")
		switch n.Kind {
		case unstable.ArrayTable:
			table = fmt.Sprintf("%s[%d]", name, counts[name])
			counts[name]++
			at[table] = where
		case unstable.Table:
			table = name
			at[table] = where
		case unstable.KeyValue:
			if table != "" {
				name = table + "." + name
			}
			at[name] = where
		}
	}
	return at
}

// lineStarts are the offsets at which the lines of a text start.
func lineStarts(data []byte) []int {
	starts := []int{0}
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// position turns an offset into a line and a column, both from 1.
func position(starts []int, offset int) (line, column int) {
	i, found := slices.BinarySearch(starts, offset)
	if !found {
		i--
	}
	return i + 1, offset - starts[i] + 1
}

// checker turns a document into a profile and collects what is wrong.
type checker struct {
	file     string
	data     []byte
	at       map[string]int // where keys start; nil until there is a problem
	lines    []int
	problems []Problem
}

func (c *checker) add(sev Severity, key, hint, format string, args ...any) {
	if c.at == nil {
		c.at, c.lines = offsets(c.data), lineStarts(c.data)
	}
	p := Problem{File: c.file, Severity: sev, Text: cutText(fmt.Sprintf(format, args...)), Hint: hint}
	for k := key; ; { // a key that is not there is reported at its table
		if at, ok := c.at[k]; ok {
			p.Line, p.Column = position(c.lines, at)
			break
		}
		i := strings.LastIndexByte(k, '.')
		if i < 0 {
			break
		}
		k = k[:i]
	}
	c.problems = append(c.problems, p)
}

func (c *checker) fail(key, hint, format string, args ...any) {
	c.add(SeverityError, key, hint, format, args...)
}

func (c *checker) profile(d document) profile {
	p := profile{
		name: d.Name, description: d.Description, extends: d.Extends, deny: d.Deny, file: c.file,
		toolchains: d.Toolchains, limited: d.Toolchains != nil,
		commands: d.Detect.Commands, detectEnv: d.Detect.Env,
	}
	var err error
	if d.Mode != "" {
		if p.mode, err = policy.ParseMode(d.Mode); err != nil {
			c.fail("mode", near(d.Mode, "read-only", "workspace-write", "danger-full-access"), "%v", err)
		}
	}
	if d.Net != "" {
		if p.net, err = policy.ParseNet(d.Net); err != nil {
			c.fail("net", near(d.Net, "none", "loopback", "proxy", "host"), "%v", err)
		}
	}
	p.require, p.requireFull = c.effects("require", d.Require, true)
	p.allowGap, _ = c.effects("allow_gap", d.AllowGap, false)
	for i, g := range d.Grant {
		p.grants = append(p.grants, c.grant(fmt.Sprintf("grant[%d]", i), g))
	}
	for i, e := range d.Env {
		p.env = append(p.env, c.env(fmt.Sprintf("env[%d]", i), e))
	}
	for i, k := range d.Cache {
		c.cache(fmt.Sprintf("cache[%d]", i), k)
		p.caches = append(p.caches, k)
	}
	c.plain(d)
	return p
}

func near(got string, words ...string) string {
	if n := nearest(shorten(got), words); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "one of " + strings.Join(words, ", ")
}

func (c *checker) effects(key string, names []string, full bool) (set policy.EffectSet, all bool) {
	var words []string
	for _, e := range policy.Effects() {
		words = append(words, e.String())
	}
	for _, n := range names {
		if full && n == "full" {
			all = true
			continue
		}
		e, err := policy.ParseEffect(n)
		if err != nil {
			c.fail(key, near(n, words...), "unknown effect %q", n)
			continue
		}
		set = set.Union(policy.SetOf(e))
	}
	return set, all
}

func (c *checker) grant(key string, g grantDoc) rule {
	r := rule{paths: g.Paths, os: g.OS, secrets: g.Secrets, reason: g.Reason, required: g.Optional != nil && !*g.Optional}
	if g.Path != "" {
		r.paths = append([]string{g.Path}, g.Paths...)
	}
	if len(r.paths) == 0 {
		c.fail(key, `add path = "/..."`, "the grant names no path")
	}
	seen := map[string]bool{}
	for _, p := range r.paths {
		if hint := badPath(p); hint != "" {
			c.fail(key+".path", hint, "the grant's path %q cannot be used", p)
		}
		if seen[p] {
			c.add(SeverityWarning, key+".paths", "remove one", "%q is named twice", p)
		}
		seen[p] = true
	}
	if strings.TrimSpace(g.Reason) == "" {
		c.fail(key, `add reason = "who needs it"`, "the grant of %s has no reason", show(strings.Join(r.paths, " ")))
	}
	if err := r.access.UnmarshalText([]byte(g.Access)); err != nil {
		c.fail(key+".access", `letters of "rwxi": r read, w write, x execute, i ioctl`, "access %q: %v", g.Access, err)
	}
	if g.OS != "" && g.OS != "linux" && g.OS != "darwin" {
		c.fail(key+".os", `"linux" or "darwin"`, "unknown system %q", g.OS)
	}
	if g.Secrets != "" && g.Secrets != secretsSkip && g.Secrets != secretsWarn {
		c.fail(key+".secrets", `"skip" or "warn"`, "%q does not say what to do with a file that seems to hold a secret", g.Secrets)
	}
	return r
}

// badPath returns what to write instead of a path that means nothing.
func badPath(p string) string {
	switch {
	case p == "":
		return "remove it"
	case strings.ContainsRune(p, 0):
		return "remove the NUL byte"
	case !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~") && !strings.HasPrefix(p, "$"):
		return "start it with /, ~/ or $VAR"
	case strings.HasPrefix(p, "~") && p != "~" && p[1] != '/':
		return "other users' homes must be written out"
	case hasMeta(path.Dir(p)):
		return "*, ? and [ may stand in the last component only"
	}
	return ""
}

func (c *checker) env(key string, e envDoc) envRule {
	r := envRule{pass: e.Pass, drop: e.Drop, reason: e.Reason}
	for _, n := range slices.Concat(e.Pass, e.Drop) {
		if bad := badName(strings.TrimSuffix(n, "*")); bad != "" {
			c.fail(key, "", "variable %q %s", n, bad)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(e.Set)) {
		if bad := badName(k); bad != "" || strings.ContainsRune(e.Set[k], 0) {
			c.fail(key+".set", "", "variable %q %s", k, cmpOr(bad, "has a NUL byte in its value"))
		}
		r.set = append(r.set, k+"="+e.Set[k])
	}
	if strings.TrimSpace(e.Reason) == "" && len(e.Pass)+len(e.Set) > 0 {
		c.fail(key, `add reason = "who needs it"`, "the variables have no reason")
	}
	return r
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func badName(n string) string {
	switch {
	case n == "":
		return "has no name"
	case strings.ContainsAny(n, "=\x00"):
		return "has = or NUL in its name"
	}
	return ""
}

func (c *checker) cache(key string, k cacheRule) {
	if bad := badName(k.Env); bad != "" {
		c.fail(key+".env", "", "the cache's variable %q %s", k.Env, bad)
	}
	if k.Dir == "" || k.Dir == "." || k.Dir == ".." || strings.ContainsAny(k.Dir, "/\x00") {
		c.fail(key+".dir", `a plain name, such as "npm"`, "the cache's directory %q is not a plain name", k.Dir)
	}
	if strings.TrimSpace(k.Reason) == "" {
		c.fail(key, `add reason = "who needs it"`, "the cache has no reason")
	}
}

// plain checks the lists of words that need no parsing.
func (c *checker) plain(d document) {
	for _, l := range []struct {
		key   string
		words []string
	}{{"deny", d.Deny}, {"extends", d.Extends}, {"toolchains", d.Toolchains}, {"detect.commands", d.Detect.Commands}, {"detect.env", d.Detect.Env}} {
		for _, w := range l.words {
			if w == "" || strings.ContainsRune(w, 0) {
				c.fail(l.key, "", "%s holds an empty word or a NUL byte", l.key)
			}
		}
	}
	for _, w := range d.Detect.Commands {
		if strings.Contains(w, "/") {
			c.fail("detect.commands", "", "command %q is a path; name it alone", w)
		}
	}
}

// firstError returns the first problem that forbids using the file.
func firstError(problems []Problem) *Problem {
	for i := range problems {
		if problems[i].Severity == SeverityError {
			return &problems[i]
		}
	}
	return nil
}
