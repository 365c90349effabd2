package protocol

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// scanner walks over one JSON text. Everything that is wrong with JSON as such
// is found here, before any value is made of it: syntax, UTF-8, equal names,
// depth, counts and lengths. Memory is taken for many names in one object alone, to
// compare them.
type scanner struct {
	b []byte
	i int
	// member, if it is set, is told of each member of the outermost object.
	member func(name string, start, end int)
}

// scanMessage checks that b is one JSON object and nothing else, and tells each
// of its members as soon as it was read.
func scanMessage(b []byte, member func(name string, start, end int)) *Error {
	s := scanner{b: b, member: member}
	s.space()
	if s.peek() != '{' {
		return s.syntax("a JSON object is expected")
	}
	if err := s.object(1); err != nil {
		return err
	}
	s.space()
	if s.i < len(s.b) {
		return s.syntax("something follows the object")
	}
	return nil
}

func (s *scanner) syntax(what string) *Error {
	return Errorf(BadJSON, "%s, at byte %d", what, s.i)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek is the next byte, or 0, which is no byte of JSON, at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) value(depth int) *Error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(depth + 1)
	case c == '[':
		return s.array(depth + 1)
	case c == '"':
		_, err := s.text()
		return err
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if rest := s.b[s.i:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			s.i += len(word)
			return nil
		}
	}
	return s.syntax("a value is expected")
}

func (s *scanner) object(depth int) *Error {
	if depth > MaxDepth {
		return Errorf(TooDeep, "nested deeper than %d", MaxDepth)
	}
	s.i++ // {
	s.space()
	if s.peek() == '}' {
		s.i++
		return nil
	}
	var room [8][]byte
	few := room[:0] // beyond a few, in seen
	var seen map[string]bool
	for n := 1; ; n++ {
		if n > MaxItems {
			return Errorf(TooMany, "more than %d members", MaxItems)
		}
		if s.peek() != '"' {
			return s.syntax("a member's name is expected")
		}
		name, err := s.nameInPlace()
		if err != nil {
			return err
		}
		twice := seen[string(name)]
		for _, have := range few {
			twice = twice || bytes.Equal(have, name)
		}
		if twice {
			return Errorf(DuplicateField, "the member is there twice").under(shown(string(name)))
		}
		if len(few) < 32 {
			few = append(few, name)
		} else {
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[string(name)] = true
		}
		s.space()
		if s.peek() != ':' {
			return s.syntax("a colon is expected")
		}
		s.i++
		s.space()
		start := s.i
		if err := s.value(depth); err != nil {
			return err.under(shown(string(name)))
		}
		if depth == 1 && s.member != nil {
			s.member(string(name), start, s.i)
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
			s.space()
		case '}':
			s.i++
			return nil
		default:
			return s.syntax("a comma or the object's end is expected")
		}
	}
}

func (s *scanner) array(depth int) *Error {
	if depth > MaxDepth {
		return Errorf(TooDeep, "nested deeper than %d", MaxDepth)
	}
	s.i++ // [
	s.space()
	if s.peek() == ']' {
		s.i++
		return nil
	}
	for n := 0; ; n++ {
		if n >= MaxItems {
			return Errorf(TooMany, "more than %d elements", MaxItems)
		}
		if err := s.value(depth); err != nil {
			return err.underIndex(n)
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
			s.space()
		case ']':
			s.i++
			return nil
		default:
			return s.syntax("a comma or the array's end is expected")
		}
	}
}

func (s *scanner) digits() bool {
	from := s.i
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.i++
	}
	return s.i > from
}

// number walks over a number as JSON has them. Which of them is an integer is
// the decoder's question.
func (s *scanner) number() *Error {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if !s.digits() {
		return s.syntax("a digit is expected")
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return s.syntax("a digit is expected")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if !s.digits() {
			return s.syntax("a digit is expected")
		}
	}
	return nil
}

// plain are the bytes that stand for themselves in a string, whatever is around
// them.
var plain = func() (t [256]bool) {
	for c := byte(' '); c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// text walks over a string and returns it between its quotes, escapes and all.
func (s *scanner) text() (raw []byte, err *Error) {
	s.i++ // "
	start, escaped := s.i, 0
	for s.i < len(s.b) {
		rest := s.b[s.i:]
		n := 0
		for n < len(rest) && plain[rest[n]] {
			n++
		}
		if s.i += n; n == len(rest) {
			break
		}
		switch c := s.b[s.i]; {
		case c == '"':
			raw = s.b[start:s.i]
			if len(raw)-escaped > maxJSONString {
				return nil, Errorf(TooLong, "a string of %d bytes; at most %d are allowed", len(raw)-escaped, maxJSONString)
			}
			s.i++
			return raw, nil
		case c < ' ':
			return nil, s.syntax("a control character must be escaped")
		case c == '\\':
			from := s.i
			r, err := s.escape()
			if err != nil {
				return nil, err
			}
			escaped += s.i - from - utf8.RuneLen(r)
		default:
			r, n := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && n == 1 {
				return nil, Errorf(NotUTF8, "a string is not valid UTF-8, at byte %d", s.i)
			}
			s.i += n
		}
	}
	return nil, s.syntax("a string does not end")
}

// escape walks over one escape, or over the two of a surrogate pair, and
// returns what it stands for.
func (s *scanner) escape() (rune, *Error) {
	at := s.i
	s.i++ // backslash
	c := s.peek()
	switch c {
	case '"', '\\', '/':
		s.i++
		return rune(c), nil
	case 'b', 'f', 'n', 'r', 't':
		s.i++
		return map[byte]rune{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}[c], nil
	case 'u':
		r, ok := s.hex()
		if !ok {
			return 0, s.syntax("four hexadecimal digits are expected")
		}
		if r < 0xD800 || r > 0xDFFF {
			return r, nil
		}
		if r < 0xDC00 && s.peek() == '\\' {
			s.i++
			if s.peek() == 'u' {
				if low, ok := s.hex(); ok && 0xDC00 <= low && low <= 0xDFFF {
					return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, nil
				}
			}
		}
		return 0, Errorf(NotUTF8, "an escape of half a surrogate pair, at byte %d", at)
	}
	return 0, s.syntax("an unknown escape")
}

// hex walks over u and four digits.
func (s *scanner) hex() (rune, bool) {
	if len(s.b)-s.i < 5 {
		return 0, false
	}
	var r rune
	for _, c := range s.b[s.i+1 : s.i+5] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	s.i += 5
	return r, true
}

// name walks over a string and returns what it stands for.
func (s *scanner) name() (string, *Error) {
	raw, err := s.text()
	if err != nil {
		return "", err
	}
	return unescape(raw), nil
}

// nameInPlace is name without memory of its own, nearly always.
func (s *scanner) nameInPlace() ([]byte, *Error) {
	raw, err := s.text()
	if err != nil || bytes.IndexByte(raw, '\\') < 0 {
		return raw, err
	}
	return []byte(unescape(raw)), nil
}

// unescape returns what the inside of a string that was scanned stands for.
func unescape(raw []byte) string {
	first := bytes.IndexByte(raw, '\\')
	if first < 0 {
		return string(raw)
	}
	s := scanner{b: raw, i: first}
	out := append(make([]byte, 0, len(raw)), raw[:first]...)
	for s.i < len(raw) {
		if raw[s.i] != '\\' {
			out = append(out, raw[s.i])
			s.i++
			continue
		}
		r, _ := s.escape() // was scanned
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

// integer reads an integer as this protocol writes them.
func integer(text []byte) (int64, *Error) {
	digits := text
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, Errorf(WrongType, "want an integer, without fraction and exponent")
		}
	}
	if len(digits) == 0 || digits[0] == '0' && len(text) > 1 {
		return 0, Errorf(WrongType, "want an integer")
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n > MaxInteger || n < -MaxInteger {
		return 0, Errorf(OutOfRange, "beyond 9007199254740991")
	}
	return n, nil
}
