package protocol

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandboxd/policy"
)

const docsFile = "../docs/protocol.md"

func typeText(t reflect.Type, one rule) string {
	switch t {
	case bytesType:
		return "bytes"
	case dataType:
		return "data"
	case objectType:
		return "report object"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeText(t.Elem(), one)
	case reflect.Bool:
		return "boolean"
	case reflect.Int64:
		switch {
		case one.max < MaxInteger:
			return fmt.Sprintf("integer, %d to %d", one.min, one.max)
		case one.min > 0:
			return fmt.Sprintf("integer, from %d", one.min)
		}
		return "integer"
	case reflect.String:
		if one.words != nil {
			return "text, a word"
		}
		if one.max < MaxString {
			return fmt.Sprintf("text, at most %d bytes", one.max)
		}
		return "text"
	case reflect.Slice:
		each, limit, _ := strings.Cut(typeText(t.Elem(), one), ", ")
		s := "array"
		if one.items < MaxItems {
			s += fmt.Sprintf(" of at most %d", one.items)
		}
		s += ", each " + each
		if limit != "" {
			s += " (" + limit + ")"
		}
		return s
	}
	return "object"
}

func memberTable(t reflect.Type, docs map[string]string, messageName string) string {
	var b strings.Builder
	b.WriteString("| member | type | | meaning |\n|---|---|---|---|\n")
	if messageName != "" {
		fmt.Fprintf(&b, "| `type` | text | needed | `%s` |\n", messageName)
	}
	for _, f := range planOf(t).fields {
		need := "needed"
		if f.optional {
			need = ""
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, typeText(t.Field(f.index).Type, f.rule), need, strings.ReplaceAll(docs[t.Name()+"."+t.Field(f.index).Name], "|", "\\|"))
	}
	return b.String()
}

// examples are the golden messages of a type.
func examples(t *testing.T, s side, typ reflect.Type) string {
	t.Helper()
	var names []string
	for name, m := range s.constructed {
		if reflect.TypeOf(m).Elem() == typ {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("\n```json\n")
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(goldenDir, s.dir, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	b.WriteString("```\n")
	return b.String()
}

// blocks are what the marks in the page stand for.
func blocks(t *testing.T) map[string]string {
	t.Helper()
	docs := comments(t)
	out := map[string]string{}
	for i, word := range []string{"request", "answer"} {
		s := sides()[i]
		for _, m := range s.list {
			typ := reflect.TypeOf(m).Elem()
			out[word+" "+m.Type()] = docs[typ.Name()] + "\n\n" + memberTable(typ, docs, m.Type()) + examples(t, s, typ)
			for i := range typ.NumField() {
				part := typ.Field(i).Type
				for part.Kind() == reflect.Pointer || part.Kind() == reflect.Slice {
					part = part.Elem()
				}
				if part.Kind() == reflect.Struct && part != reflect.TypeFor[Limits]() { // which has a table with numbers
					out["part "+part.Name()] = memberTable(part, docs, "")
				}
			}
		}
	}
	yes := map[bool]string{true: "yes"}
	var b strings.Builder
	b.WriteString("| code | fatal | retry | meaning | what to do |\n|---|---|---|---|---|\n")
	for _, c := range Codes() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", c.Code, yes[c.Fatal], yes[c.Retryable], c.Meaning, c.Hint)
	}
	out["errors"] = b.String()
	b.Reset()
	b.WriteString("| limit | value | of |\n|---|---|---|\n")
	limits := reflect.ValueOf(DefaultLimits())
	for _, f := range planOf(limits.Type()).fields {
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", f.name, limits.Field(f.index).Int(), docs["Limits."+limits.Type().Field(f.index).Name])
	}
	out["limits"] = b.String()
	b.Reset()
	b.WriteString("| capability | since | what it is |\n|---|---|---|\n")
	for _, c := range History() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Name, c.Since, capabilityMeanings[c.Name])
	}
	out["capabilities"] = b.String()
	return out
}

var capabilityMeanings = map[string]string{
	CapDescriptors: "`descriptors`, `descriptors_unsafe`, and the word `descriptor` in `stdio`",
	CapTTY:         "`tty` in `launch`, and `resize`",
	CapKeep:        "`keep`, and `inspect` and `list` of workers that have ended",
	CapDryRun:      "`dry_run`",
	CapEvents:      "`subscribe` and `unsubscribe`",
	CapFeatures:    "`features`",
	CapNetAllow:    "`net_allow` in `launch`, and the networks `loopback` and `proxy`",
}

var mark = regexp.MustCompile(`(?s)<!-- ([^\n]*?) -->\n(.*?)<!-- end -->\n`)

// TestDocs: the page says what the code does.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	want := blocks(t)
	seen := map[string]bool{}
	got := mark.ReplaceAllFunc(page, func(block []byte) []byte {
		name := string(mark.FindSubmatch(block)[1])
		text, ok := want[name]
		if !ok {
			t.Errorf("%s is marked, and nothing is called so", name)
			return block
		}
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		return []byte("<!-- " + name + " -->\n" + text + "<!-- end -->\n")
	})
	for name := range want {
		if !seen[name] {
			t.Errorf("the page has no %q", name)
		}
	}
	if *update {
		if err := os.WriteFile(docsFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(got, page) {
		t.Errorf("%s is not what the code says (go test ./protocol -update writes it anew)", docsFile)
	}
	for _, c := range History() {
		if capabilityMeanings[c.Name] == "" {
			t.Errorf("nothing is said of the capability %s", c.Name)
		}
	}
}

// TestDocsOtherWords: what the page says outside of its tables.
func TestDocsOtherWords(t *testing.T) {
	text, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	list := func(words ...fmt.Stringer) string {
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "`"+w.String()+"`")
		}
		return strings.Join(quoted, ", ")
	}
	var effects []fmt.Stringer
	for _, e := range policy.Effects() {
		effects = append(effects, e)
	}
	frame, err := AppendFrame(nil, &Ping{ID: 1}, MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Words of `mode`: " + list(policy.ReadOnly, policy.WorkspaceWrite, policy.FullAccess) + ".",
		"Of `net`: " + list(policy.NetNone, policy.NetLoopback, policy.NetProxy, policy.NetHost) + ".",
		"for `require` and `allow_gap`: " + list(effects...) + ";",
		fmt.Sprintf("absent is %d.", policy.DefaultGrace.Milliseconds()),
		"| `" + EventWorkerStarted + "` |", "| `" + EventWorkerEnded + "` |", "| `" + EventStopping + "` |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if !strings.Contains(string(text), fmt.Sprintf("% x  % x\n", frame[:4], frame[4:])) {
		t.Error("the frame is not that of a ping")
	}
	for _, c := range regexp.MustCompile("the error `([a-z-]+)`").FindAllStringSubmatch(page, -1) {
		if Code(c[1]).Info().Meaning == "" {
			t.Errorf("the page names a code %s", c[1])
		}
	}
}

// TestEveryFlagHasItsMember: what `sbx run` can ask for, a launch can.
func TestEveryFlagHasItsMember(t *testing.T) {
	page, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| flag | member |")
	table, _, _ = strings.Cut(table, "\n\n")
	flags := 0
	for _, file := range []string{"run.go", "limits.go"} {
		source, err := os.ReadFile("../cmd/sbx/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`fs\.\w*VarP?\([^"]*"([a-z-]+)"`).FindAllSubmatch(source, -1) {
			flags++
			if !strings.Contains(table, "`--"+string(m[1])+"`") {
				t.Errorf("--%s is not in the table", m[1])
			}
		}
	}
	if flags < 35 {
		t.Errorf("only %d flags were found", flags)
	}
	members := map[string]bool{}
	for _, typ := range []reflect.Type{reflect.TypeFor[Launch](), reflect.TypeFor[LaunchLimits]()} {
		for _, f := range planOf(typ).fields {
			members[f.name] = true
		}
	}
	for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(table, -1) {
		if !members[m[1]] && m[1] != "resize" && m[1] != "descriptor" && m[1] != "exit" {
			t.Errorf("the table names a member %s", m[1])
		}
	}
}

func TestCodes(t *testing.T) {
	seen := map[Code]bool{}
	for _, c := range Codes() {
		if seen[c.Code] || c.Meaning == "" || c.Hint == "" || !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(string(c.Code)) {
			t.Errorf("%+v", c)
		}
		seen[c.Code] = true
		if e := Errorf(c.Code, "x"); e.Fatal != c.Fatal || e.Retryable != c.Retryable || e.Hint != c.Hint {
			t.Errorf("%+v", e)
		}
	}
	// Every code that is declared is in the table: it is how the constants are
	// found at all.
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\t\w+ +Code = "([a-z0-9-]+)"$`).FindAllSubmatch(source, -1)
	if len(declared) != len(seen) {
		t.Errorf("%d codes are declared, %d described", len(declared), len(seen))
	}
	if i := Code("later").Info(); i.Fatal || i.Retryable {
		t.Errorf("%+v", i)
	}
}
