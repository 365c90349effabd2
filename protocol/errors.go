package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code names an error. Codes are stable: a client decides by them, and by
// [Error.Fatal] and [Error.Retryable] for a code that it does not know.
type Code string

// The codes. Codes says what each means.
const (
	FrameEmpty         Code = "frame-empty"
	FrameTooLarge      Code = "frame-too-large"
	Truncated          Code = "truncated"
	BadJSON            Code = "bad-json"
	NotUTF8            Code = "not-utf8"
	DuplicateField     Code = "duplicate-field"
	TooDeep            Code = "too-deep"
	TooLong            Code = "too-long"
	TooMany            Code = "too-many"
	UnknownType        Code = "unknown-type"
	UnknownField       Code = "unknown-field"
	MissingField       Code = "missing-field"
	WrongType          Code = "wrong-type"
	OutOfRange         Code = "out-of-range"
	BadValue           Code = "bad-value"
	NUL                Code = "nul"
	BadID              Code = "bad-id"
	IDInUse            Code = "id-in-use"
	HelloExpected      Code = "hello-expected"
	HelloRepeated      Code = "hello-repeated"
	Version            Code = "version"
	TooManyRequests    Code = "too-many-requests"
	TooManyConnections Code = "too-many-connections"
	TooManyDescriptors Code = "too-many-descriptors"
	BadDescriptors     Code = "bad-descriptors"
	BadOffset          Code = "bad-offset"
	FlowControl        Code = "flow-control"
	TooSlow            Code = "too-slow"
	Refused            Code = "refused"
	Ceiling            Code = "ceiling"
	NotPermitted       Code = "not-permitted"
	NotFound           Code = "not-found"
	Unsupported        Code = "unsupported"
	Canceled           Code = "canceled"
	Overloaded         Code = "overloaded"
	ShuttingDown       Code = "shutting-down"
	Unaudited          Code = "audit"
	Internal           Code = "internal"
)

// CodeInfo is what a code means for who gets it.
type CodeInfo struct {
	Code Code
	// Fatal tells that the daemon closes the connection after the error.
	Fatal bool
	// Retryable tells that the same request may succeed later.
	Retryable bool
	Meaning   string
	// Hint is what to do, where the error itself says nothing better.
	Hint string
}

var codes = []CodeInfo{
	{FrameEmpty, true, false, "a frame of length 0", "send one JSON object in each frame"},
	{FrameTooLarge, true, false, "a frame that is longer than `limits.frame_bytes`. Nothing after the prefix was read", "send a shorter message; what does not fit cannot be launched through the daemon"},
	{Truncated, true, false, "the peer stopped sending in the middle of a frame", "send as many bytes as the prefix says"},
	{BadJSON, true, false, "the frame is not one JSON object and nothing else", "see RFC 8259: no comment, no trailing comma, no byte order mark, nothing after the object"},
	{NotUTF8, false, false, "a string is not valid UTF-8, or has an escape of half a surrogate pair", "send bytes that are no text as {\"base64\":\"...\"}, where a byte string is meant"},
	{DuplicateField, false, false, "an object has a member twice", "send each member once; escapes count as what they stand for"},
	{TooDeep, false, false, "arrays and objects are nested deeper than `limits.depth`", "send a flatter message"},
	{TooLong, false, false, "a string is longer than it may be", "shorten it"},
	{TooMany, false, false, "an array or object has more elements than it may have", "send fewer"},
	{UnknownType, false, false, "no message of the version in use has this type", "see the capabilities in the daemon's hello before using what is new"},
	{UnknownField, false, false, "the message has no member of this name. Names are case-sensitive", "leave it out, or see the capabilities in the daemon's hello before using what is new"},
	{MissingField, false, false, "a member that must be there is not", "send it"},
	{WrongType, false, false, "a value of another JSON type than the member's. An integer has no fraction and no exponent, and `-0` is none; `null` is of no member's type", "leave out what has no value"},
	{OutOfRange, false, false, "an integer that is less or greater than it may be", "see the member's range"},
	{BadValue, false, false, "a value of the right type that means nothing here, or that contradicts another", "see the member's description"},
	{NUL, false, false, "a text or byte string holds U+0000, which no argument, variable or path can hold", "remove it"},
	{BadID, false, false, "the id is no integer from 1 to 9007199254740991", "count requests from 1"},
	{IDInUse, false, false, "a request with this id is in flight on this connection", "use an id again only after its final answer"},
	{HelloExpected, true, false, "the first message was no hello", "say hello first"},
	{HelloRepeated, false, false, "a second hello after one that was answered", "open another connection"},
	{Version, true, false, "none of the versions in the hello is spoken here. `versions` lists those that are", "use one of them"},
	{TooManyRequests, false, true, "as many requests are in flight on this connection as may be", "wait for an answer, or open another connection"},
	{TooManyConnections, true, true, "the user has as many connections as may be. It is sent without waiting for a hello", "close one, or send several requests on one connection"},
	{TooManyDescriptors, false, false, "more descriptors came with a frame than may; they were closed", "pass fewer"},
	{BadDescriptors, false, false, "other descriptors came with the frame than the message names; they were closed", "send exactly those that the message names, with the first byte of its frame"},
	{BadOffset, false, false, "a `stdin` does not begin where the one before ended, or follows the end of the stream. Nothing of it was used", "send the chunk that is missing"},
	{FlowControl, true, false, "more data than was granted, or more credit than may be open", "count what the daemon grants, and grant again what was read"},
	{TooSlow, true, true, "no hello came in time, or answers were not read for too long", "read answers as they come"},
	{Refused, false, false, "the policy cannot be made, or not be held on this host. Nothing ran", "see the message"},
	{Ceiling, false, false, "the request asks for more than this user may have. Nothing ran", "ask for less, or ask the administrator"},
	{NotPermitted, false, false, "this is not the peer's to do", "use what is yours"},
	{NotFound, false, false, "no such worker, launch or subscription. Another user's counts as none", "see list"},
	{Unsupported, false, false, "this daemon cannot do this, here or at all: a capability is missing in its hello", "see the capabilities in the daemon's hello"},
	{Canceled, false, false, "the launch was canceled before its worker started. Nothing ran", "launch it again if it was not meant"},
	{Overloaded, false, true, "the daemon has no room for it now. Nothing ran", "try again later"},
	{ShuttingDown, false, true, "the daemon is stopping and takes no new work", "connect again"},
	{Unaudited, false, false, "the launch cannot be written to the daemon's audit log. Nothing ran", "tell the administrator: the log needs room on its disk, and the daemon a new start; `sbx audit verify` looks at the log"},
	{Internal, false, false, "a mistake of the daemon's own. What ran is ended", "look into the daemon's log, and report it"},
}

// Codes lists every code in the order of docs/protocol.md.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codes...) }

// Info returns what is known of a code. An unknown one is neither fatal nor
// retryable.
func (c Code) Info() CodeInfo {
	for _, i := range codes {
		if i.Code == c {
			return i
		}
	}
	return CodeInfo{Code: c}
}

// Error is the message "error", and the Go error of this package.
type Error struct {
	// The request that it answers. Absent if no id could be read.
	ID int64 `json:"id,omitempty" is:"min=1"`
	// The type of the message that was refused. Absent if it could not be read. If it is `stdin` or `credit`, or if the code is `id-in-use`, the request in flight goes on: the message alone was refused.
	Of string `json:"of,omitempty" is:"max=64"`
	// What went wrong: see the table of errors.
	Code Code `json:"code" is:"some,max=64"`
	// What went wrong, for a person.
	Message string `json:"message"`
	// What to do, for a person.
	Hint string `json:"hint,omitempty"`
	// The member at fault: `argv[3]`, `limits.memory_bytes`.
	Field string `json:"field,omitempty"`
	// Whether the daemon closes the connection now.
	Fatal bool `json:"fatal"`
	// Whether the same request may succeed later.
	Retryable bool `json:"retryable"`
	// With the code `version`: the versions that the daemon speaks.
	Versions []int64 `json:"versions,omitempty" is:"items=64"`
}

// Errorf makes an error. Fatal, Retryable and the hint are the code's; set
// another hint afterwards where there is a better one. The text may hold
// anything: see [Text].
func Errorf(code Code, format string, args ...any) *Error {
	i := code.Info()
	return &Error{Code: code, Message: Text(fmt.Sprintf(format, args...)), Hint: i.Hint, Fatal: i.Fatal, Retryable: i.Retryable}
}

func (e *Error) Error() string {
	s := string(e.Code) + ": "
	if e.Field != "" {
		s += e.Field + ": "
	}
	return s + e.Message
}

// For returns e as the answer to the request with the id, of the type.
func (e *Error) For(id int64, of string) *Error {
	c := *e
	c.ID, c.Of = id, of
	return &c
}

// under prepends a member's name or an index ("[3]") to the field.
func (e *Error) under(name string) *Error {
	switch {
	case e.Field == "":
		e.Field = name
	case e.Field[0] == '[':
		e.Field = name + e.Field
	default:
		e.Field = name + "." + e.Field
	}
	return e
}

func (e *Error) underIndex(i int) *Error { return e.under("[" + strconv.Itoa(i) + "]") }

// shown is a name of the peer's, short and printable, for a message.
func shown(name string) string {
	if len(name) > 48 {
		cut := 48
		for cut > 0 && !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + "..."
	}
	for _, c := range name {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return strconv.QuoteToASCII(name)
		}
	}
	return name
}

// Text makes s a text that a message can carry: invalid UTF-8 and NUL become
// U+FFFD, and what is longer than 4 KiB is cut. It is for sentences; bytes that
// mean something travel as [Bytes] or [Data].
func Text(s string) string {
	const longest = 4 << 10
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > longest {
		cut := longest
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	return s
}
