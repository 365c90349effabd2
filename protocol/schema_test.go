package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const schemaFile = "../docs/protocol.schema.json"

// comments are those of this package's types ("Launch") and of their fields
// ("Launch.Argv"): they describe the messages in the schema and in
// docs/protocol.md.
func comments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, file := range []string{"limits.go", "errors.go", "requests.go", "answers.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			g, ok := n.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				return true
			}
			for _, spec := range g.Specs {
				s := spec.(*ast.TypeSpec)
				out[s.Name.Name] = oneLine(g.Doc.Text())
				st, ok := s.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, field := range st.Fields.List {
					for _, name := range field.Names {
						out[s.Name.Name+"."+name.Name] = oneLine(field.Doc.Text())
					}
				}
			}
			return true
		})
	}
	return out
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// ordered is a JSON object that keeps its order.
type ordered []pair

type pair struct {
	key   string
	value any
}

func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", p.key)
		v, err := marshal(p.value)
		if err != nil {
			return nil, err
		}
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

func defName(t reflect.Type) string {
	name := t.Name()
	return strings.ToLower(name[:1]) + name[1:]
}

type generator struct {
	docs map[string]string
	defs map[string]any
	// closed are the types that requests have. What answers have of them, too, is
	// defined a second time, open.
	closed map[reflect.Type]bool
}

func (g *generator) name(t reflect.Type, closed bool) string {
	if !closed && g.closed[t] {
		return "open" + t.Name()
	}
	return defName(t)
}

func ref(name string) ordered { return ordered{{"$ref", "#/$defs/" + name}} }

func (g *generator) value(t reflect.Type, r rule, closed bool) ordered {
	switch t {
	case bytesType:
		if r.some {
			return ref("someBytes")
		}
		return ref("bytes")
	case dataType:
		return ref("data")
	case objectType:
		return ordered{{"type", "object"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.value(t.Elem(), r, closed)
	case reflect.Bool:
		return ordered{{"type", "boolean"}}
	case reflect.Int64:
		return ordered{{"type", "integer"}, {"minimum", r.min}, {"maximum", r.max}}
	case reflect.String:
		o := ordered{{"type", "string"}}
		if r.words != nil {
			return append(o, pair{"enum", r.words})
		}
		if r.some {
			o = append(o, pair{"minLength", 1})
		}
		// maxLength counts characters, so that it is the weaker limit.
		return append(o, pair{"maxLength", r.max}, pair{"pattern", `^[^\x00]*$`})
	case reflect.Slice:
		o := ordered{{"type", "array"}, {"maxItems", r.items}}
		if r.one {
			o = append(o, pair{"minItems", 1})
		}
		return append(o, pair{"items", g.value(t.Elem(), r, closed)})
	}
	g.object(t, closed, "")
	return ref(g.name(t, closed))
}

// object defines a struct. Requests are closed, answers open.
func (g *generator) object(t reflect.Type, closed bool, messageName string) {
	if closed {
		g.closed[t] = true
	}
	name := g.name(t, closed)
	if g.defs[name] != nil {
		return
	}
	g.defs[name] = true // while it is made
	var required []string
	properties := ordered{}
	if messageName != "" {
		properties = append(properties, pair{"type", ordered{{"const", messageName}}})
		required = append(required, "type")
	}
	for _, f := range planOf(t).fields {
		v := g.value(t.Field(f.index).Type, f.rule, closed)
		if d := g.docs[t.Name()+"."+t.Field(f.index).Name]; d != "" {
			v = append(ordered{{"description", d}}, v...)
		}
		properties = append(properties, pair{f.name, v})
		if !f.optional {
			required = append(required, f.name)
		}
	}
	o := ordered{{"description", g.docs[t.Name()]}, {"type", "object"}}
	if closed {
		o = append(o, pair{"additionalProperties", false})
	}
	if required != nil {
		o = append(o, pair{"required", required})
	}
	o = append(o, pair{"properties", properties})
	if t == reflect.TypeFor[Cancel]() || t == reflect.TypeFor[Signal]() || t == reflect.TypeFor[Resize]() {
		o = append(o, pair{"oneOf", []any{ordered{{"required", []string{"launch"}}}, ordered{{"required", []string{"worker"}}}}})
	}
	if t == reflect.TypeFor[Launch]() {
		o = append(o, pair{"anyOf", []any{
			ordered{{"required", []string{"argv"}}, {"properties", ordered{{"argv", ordered{{"minItems", 1}}}}}},
			ordered{{"required", []string{"dry_run"}}, {"properties", ordered{{"dry_run", ordered{{"const", true}}}}}},
		}}, pair{"not", ordered{{"required", []string{"tty", "stdio"}}}})
	}
	g.defs[name] = o
}

func generateSchema(t *testing.T) []byte {
	t.Helper()
	g := generator{docs: comments(t), defs: map[string]any{}, closed: map[reflect.Type]bool{}}
	base64String := func(most int) ordered {
		return ordered{{"type", "string"}, {"contentEncoding", "base64"}, {"maxLength", (most + 2) / 3 * 4}}
	}
	byteString := func(least int) ordered {
		return ordered{{"oneOf", []any{
			ordered{{"type", "string"}, {"minLength", least}, {"maxLength", MaxString}, {"pattern", `^[^\x00]*$`}},
			ordered{{"type", "object"}, {"additionalProperties", false}, {"required", []string{"base64"}}, {"properties", ordered{{"base64", append(base64String(MaxString), pair{"minLength", 4 * least})}}}},
		}}}
	}
	g.defs["bytes"] = append(ordered{{"description", "A path, an argument, a variable: a string where it is valid UTF-8, else base64. No NUL in either."}}, byteString(0)...)
	g.defs["someBytes"] = append(ordered{{"description", "bytes that are not empty."}}, byteString(1)...)
	g.defs["data"] = append(ordered{{"description", "Data of a stream, standard base64 with padding."}}, base64String(MaxChunk)...)
	message := func(list []Message, closed bool) []any {
		var refs []any
		for _, m := range list {
			typ := reflect.TypeOf(m).Elem()
			g.object(typ, closed, m.Type())
			refs = append(refs, ref(g.name(typ, closed)))
		}
		return refs
	}
	requests, answers := message(requestList, true), message(answerList, false)
	defs := ordered{
		{"request", ordered{{"description", "What a client sends. Closed: a daemon refuses what it does not know."}, {"oneOf", requests}}},
		{"answer", ordered{{"description", "What a daemon sends. Open: a client ignores members, types and words that it does not know."}, {"oneOf", answers}}},
	}
	var names []string
	for name := range g.defs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		defs = append(defs, pair{name, g.defs[name]})
	}
	text, err := marshal(ordered{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"title", "sandboxd protocol, version 1"},
		{"description", "One message. Made by `go test ./protocol -update` from the Go types. docs/protocol.md has what a schema cannot say: equal names, how integers are written, lengths in bytes, and the order of messages."},
		{"anyOf", []any{ref("request"), ref("answer")}},
		{"$defs", defs},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), '\n')
}

func TestSchemaIsGenerated(t *testing.T) {
	got := generateSchema(t)
	if *update {
		if err := os.WriteFile(schemaFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the types say (go test ./protocol -update writes it anew)", schemaFile)
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(generateSchema(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	if err := c.AddResource("protocol.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("protocol.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// TestSchemaRefuses: the schema says no where the decoder does, as far as a
// schema can say it.
func TestSchemaRefuses(t *testing.T) {
	schema := compileSchema(t)
	checked := 0
	for name, h := range hostile() {
		if h.schema {
			checked++
			if validate(t, schema, []byte(h.text)) == nil {
				t.Errorf("%s is valid", name)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d messages were tried", checked)
	}
}

// TestEveryMemberIsDescribed: the comments are the documentation.
func TestEveryMemberIsDescribed(t *testing.T) {
	docs := comments(t)
	n := 0
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		if docs[typ.Name()] == "" {
			t.Errorf("%s has no comment", typ)
		}
		for i := range typ.NumField() {
			n++
			if docs[typ.Name()+"."+typ.Field(i).Name] == "" {
				t.Errorf("%s.%s has no comment", typ, typ.Field(i).Name)
			}
			walk(typ.Field(i).Type)
		}
	}
	for _, m := range slices.Concat(requestList, answerList) {
		walk(reflect.TypeOf(m))
	}
	if n < 100 {
		t.Errorf("only %d members were seen", n)
	}
}
