package protocol

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bytes are bytes that the system gave us or that go to it (a path, an argument,
// a variable) and that need not be UTF-8. In JSON they are a string where they
// are valid UTF-8, and {"base64":"..."} where they are not. Both forms are read.
// They hold no NUL. It is what policy.Raw is in reports.
type Bytes string

// Data are bytes of a stream, any at all: always base64 in JSON.
type Data []byte

// Object is a JSON object that another page describes (a report), without white
// space between its parts, else as it was written.
type Object []byte

var (
	bytesType  = reflect.TypeFor[Bytes]()
	dataType   = reflect.TypeFor[Data]()
	objectType = reflect.TypeFor[Object]()
)

// rule is what a member's value must be, beside its Go type. It is written in
// the tag "is": min, max, items (most elements), some, one, words. Words
// are for requests: an answer's may become more.
type rule struct {
	min, max int64 // of an integer; max also the most bytes of a text or of data
	items    int
	some     bool // a text, or each of an array, is not empty
	one      bool // an array is not empty
	words    []string
}

type field struct {
	name     string
	index    int
	optional bool
	rule     rule
}

type plan struct {
	fields []field
	byName map[string]int
}

var plans sync.Map // reflect.Type to *plan

// planOf reads the tags of a struct type once. A tag that means nothing is a
// mistake in this package, so that it panics.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := &plan{byName: map[string]int{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			panic(fmt.Sprintf("protocol: %s.%s has no name", t, f.Name))
		}
		p.byName[name] = len(p.fields)
		p.fields = append(p.fields, field{name, i, options == "omitempty", ruleOf(f.Tag.Get("is"), f.Type)})
	}
	plans.Store(t, p)
	return p
}

func ruleOf(tag string, t reflect.Type) rule {
	r := rule{max: MaxInteger, items: MaxItems}
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t != dataType && t != objectType {
		t = t.Elem()
	}
	switch {
	case t == dataType:
		r.max = MaxChunk
	case t.Kind() == reflect.String:
		r.max = MaxString
	}
	for part := range strings.SplitSeq(tag, ",") {
		key, value, _ := strings.Cut(part, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch key {
		case "min":
			r.min = n
		case "max":
			r.max = n
		case "items":
			r.items = int(n)
		case "some":
			r.some, err = true, nil
		case "one":
			r.one, err = true, nil
		case "words":
			r.words, err = strings.Split(value, "|"), nil
		case "":
			err = nil
		default:
			panic("protocol: unknown rule " + key)
		}
		if err != nil {
			panic("protocol: rule " + part)
		}
	}
	return r
}

// checker is a message, or a part of one, whose members depend on each other.
type checker interface{ check() *Error }

// decoder makes values of a text that was scanned: nothing is wrong with its
// JSON any more, and it is within the limits.
type decoder struct {
	scanner
	// lenient ignores members that are unknown: a client must.
	lenient bool
}

// raw walks over one value and returns its text.
func (d *decoder) raw() []byte {
	d.space()
	start := d.i
	_ = d.scanner.value(0) // was scanned
	return d.b[start:d.i]
}

// decode reads the next value into v.
func (d *decoder) decode(v reflect.Value, r *rule) *Error {
	d.space()
	switch {
	case v.Type() == bytesType:
		s, err := d.bytes(r)
		v.SetString(s)
		return err
	case v.Type() == dataType:
		b, err := d.base64(r.max, "data in base64")
		v.SetBytes(b)
		return err
	case v.Type() == objectType:
		text := d.raw()
		if text[0] != '{' {
			return Errorf(WrongType, "want an object")
		}
		v.SetBytes(appendCompact(make([]byte, 0, len(text)), text))
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.decode(v.Elem(), r)
	case reflect.Bool:
		switch text := d.raw(); string(text) {
		case "true":
			v.SetBool(true)
		case "false":
			v.SetBool(false)
		default:
			return Errorf(WrongType, "want true or false")
		}
		return nil
	case reflect.Int64:
		n, err := integer(d.raw())
		if err == nil {
			err = r.number(n)
		}
		v.SetInt(n)
		return err
	case reflect.String:
		if d.peek() != '"' {
			return Errorf(WrongType, "want a string")
		}
		s, _ := d.name()
		v.SetString(s)
		return r.text(s)
	case reflect.Slice:
		return d.slice(v, r)
	case reflect.Struct:
		return d.object(v)
	}
	panic("protocol: no way to decode " + v.Type().String())
}

func (d *decoder) slice(v reflect.Value, r *rule) *Error {
	if d.peek() != '[' {
		return Errorf(WrongType, "want an array")
	}
	d.i++
	d.space()
	for n := 0; d.peek() != ']'; n++ {
		if n >= r.items {
			return Errorf(TooMany, "more than %d elements", r.items)
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.decode(e, r); err != nil {
			return err.underIndex(n)
		}
		v.Set(reflect.Append(v, e))
		d.comma()
	}
	d.i++
	if r.one && v.Len() == 0 {
		return Errorf(BadValue, "is empty")
	}
	return nil
}

func (d *decoder) comma() {
	d.space()
	if d.peek() == ',' {
		d.i++
		d.space()
	}
}

func (d *decoder) object(v reflect.Value) *Error {
	if d.peek() != '{' {
		return Errorf(WrongType, "want an object")
	}
	p := planOf(v.Type())
	seen := make([]bool, len(p.fields))
	d.i++
	d.space()
	for d.peek() != '}' {
		name, _ := d.name()
		d.space()
		d.i++ // :
		at, known := p.byName[name]
		switch {
		case known:
			seen[at] = true
			f := &p.fields[at]
			if err := d.decode(v.Field(f.index), &f.rule); err != nil {
				return err.under(name)
			}
		case d.lenient || name == "type" && v.Addr().Type().Implements(messageType):
			d.raw()
		default:
			return Errorf(UnknownField, "no such member").under(shown(name))
		}
		d.comma()
	}
	d.i++
	for i, f := range p.fields {
		if !seen[i] && !f.optional {
			return Errorf(MissingField, "must be there").under(f.name)
		}
	}
	return check(v)
}

func check(v reflect.Value) *Error {
	if c, ok := v.Addr().Interface().(checker); ok {
		return c.check()
	}
	return nil
}

func (r *rule) number(n int64) *Error {
	if n < r.min || n > r.max {
		return Errorf(OutOfRange, "%d is not from %d to %d", n, r.min, r.max)
	}
	return nil
}

func (r *rule) text(s string) *Error {
	switch {
	case int64(len(s)) > r.max:
		return Errorf(TooLong, "%d bytes; at most %d are allowed", len(s), r.max)
	case strings.IndexByte(s, 0) >= 0:
		return Errorf(NUL, "holds a NUL")
	case s == "" && r.some:
		return Errorf(BadValue, "is empty")
	}
	if r.words != nil {
		for _, w := range r.words {
			if s == w {
				return nil
			}
		}
		return Errorf(BadValue, "%s is none of %s", shown(s), strings.Join(r.words, ", "))
	}
	return nil
}

// bytes reads a string, or {"base64":"..."}.
func (d *decoder) bytes(r *rule) (string, *Error) {
	switch d.peek() {
	case '"':
		s, _ := d.name()
		return s, r.text(s)
	case '{':
	default:
		return "", Errorf(WrongType, `want a string or {"base64":"..."}`)
	}
	d.i++
	d.space()
	var s string
	found := false
	for d.peek() != '}' {
		name, _ := d.name()
		d.space()
		d.i++ // :
		d.space()
		if name != "base64" {
			return "", Errorf(UnknownField, "no such member").under(shown(name))
		}
		b, err := d.base64(r.max, "base64")
		if err != nil {
			return "", err.under("base64")
		}
		s, found = string(b), true
		d.comma()
	}
	d.i++
	if !found {
		return "", Errorf(MissingField, "must be there").under("base64")
	}
	return s, r.text(s)
}

// base64 reads a string of standard base64 with padding. Line ends, which Go's
// decoder skips, and bits that stand for nothing are refused: one value has one
// form.
func (d *decoder) base64(most int64, what string) ([]byte, *Error) {
	if d.peek() != '"' {
		return nil, Errorf(WrongType, "want a string: %s", what)
	}
	s, _ := d.name()
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.IndexByte(s, '\r') >= 0 || strings.IndexByte(s, '\n') >= 0 {
		return nil, Errorf(BadValue, "is not base64, of the standard alphabet and with padding")
	}
	if int64(len(b)) > most {
		return nil, Errorf(TooLong, "%d bytes; at most %d are allowed", len(b), most)
	}
	return b, nil
}

// appendCompact appends a text that was scanned, without the white space between its
// parts.
func appendCompact(dst, text []byte) []byte {
	from, inside := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c > '"' && c != '\\': // nearly always
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case !inside && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			dst = append(dst, text[from:i]...)
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}

// appendValue writes a value in its one canonical form: members in the order of
// the struct, what is optional and zero left out, no white space, and no escape
// but those that JSON needs. What a reader would refuse is not written.
func appendValue(dst []byte, v reflect.Value, r *rule) ([]byte, *Error) {
	switch v.Type() {
	case bytesType:
		s := v.String()
		if err := r.text(s); err != nil {
			return nil, err
		}
		if utf8.ValidString(s) {
			return appendString(dst, s), nil
		}
		dst = append(dst, `{"base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, []byte(s))
		return append(dst, `"}`...), nil
	case dataType:
		if int64(v.Len()) > r.max {
			return nil, Errorf(TooLong, "%d bytes; at most %d are allowed", v.Len(), r.max)
		}
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, v.Bytes())
		return append(dst, '"'), nil
	case objectType:
		return appendObject(dst, v.Bytes())
	}
	switch v.Kind() {
	case reflect.Pointer:
		return appendValue(dst, v.Elem(), r)
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool()), nil
	case reflect.Int64:
		if err := r.number(v.Int()); err != nil {
			return nil, err
		}
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case reflect.String:
		s := v.String()
		if !utf8.ValidString(s) {
			return nil, Errorf(NotUTF8, "a text is not valid UTF-8")
		}
		if err := r.text(s); err != nil {
			return nil, err
		}
		return appendString(dst, s), nil
	case reflect.Slice:
		if v.Len() > r.items {
			return nil, Errorf(TooMany, "%d elements; at most %d are allowed", v.Len(), r.items)
		}
		if v.Len() == 0 && r.one {
			return nil, Errorf(BadValue, "is empty")
		}
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err *Error
			if dst, err = appendValue(dst, v.Index(i), r); err != nil {
				return nil, err.underIndex(i)
			}
		}
		return append(dst, ']'), nil
	case reflect.Struct:
		return appendStruct(append(dst, '{'), v)
	}
	panic("protocol: no way to encode " + v.Type().String())
}

// appendStruct writes the members and the closing brace.
func appendStruct(dst []byte, v reflect.Value) ([]byte, *Error) {
	if err := check(v); err != nil {
		return nil, err
	}
	for _, f := range planOf(v.Type()).fields {
		value := v.Field(f.index)
		if f.optional && (value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0) {
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, f.name), ':')
		var err *Error
		if dst, err = appendValue(dst, value, &f.rule); err != nil {
			return nil, err.under(f.name)
		}
	}
	return append(dst, '}'), nil
}

// appendObject writes an object of another page. It stands in the second level
// of its message.
func appendObject(dst, text []byte) ([]byte, *Error) {
	s := scanner{b: text}
	s.space()
	if s.peek() != '{' {
		return nil, Errorf(WrongType, "want an object")
	}
	if err := s.object(2); err != nil {
		return nil, err
	}
	end := s.i
	if s.space(); s.i < len(text) {
		return nil, s.syntax("something follows the object")
	}
	return appendCompact(dst, text[:end]), nil
}

const hexDigits = "0123456789abcdef"

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}
