package protocol

import (
	"reflect"
	"slices"
)

// Message is one of this package's message types, as a pointer.
type Message interface {
	// Type is the message's name in JSON.
	Type() string
}

// Type is the message's name.
func (*ClientHello) Type() string       { return "hello" }
func (*Launch) Type() string            { return "launch" }
func (*Stdin) Type() string             { return "stdin" }
func (*Credit) Type() string            { return "credit" }
func (*Cancel) Type() string            { return "cancel" }
func (*Signal) Type() string            { return "signal" }
func (*Resize) Type() string            { return "resize" }
func (*List) Type() string              { return "list" }
func (*Inspect) Type() string           { return "inspect" }
func (*Health) Type() string            { return "health" }
func (*Features) Type() string          { return "features" }
func (*Subscribe) Type() string         { return "subscribe" }
func (*Unsubscribe) Type() string       { return "unsubscribe" }
func (*Ping) Type() string              { return "ping" }
func (*DaemonHello) Type() string       { return "hello" }
func (*Error) Type() string             { return "error" }
func (*Started) Type() string           { return "started" }
func (*Output) Type() string            { return "output" }
func (*Exit) Type() string              { return "exit" }
func (*Planned) Type() string           { return "planned" }
func (*CancelResult) Type() string      { return "cancel-result" }
func (*SignalResult) Type() string      { return "signal-result" }
func (*ResizeResult) Type() string      { return "resize-result" }
func (*ListResult) Type() string        { return "list-result" }
func (*InspectResult) Type() string     { return "inspect-result" }
func (*HealthResult) Type() string      { return "health-result" }
func (*FeaturesResult) Type() string    { return "features-result" }
func (*Subscribed) Type() string        { return "subscribed" }
func (*Event) Type() string             { return "event" }
func (*SubscribeResult) Type() string   { return "subscribe-result" }
func (*UnsubscribeResult) Type() string { return "unsubscribe-result" }
func (*Pong) Type() string              { return "pong" }

// Unknown is an answer of a type that this package does not know. A client
// ignores it.
type Unknown struct {
	Name string
	// ID is 0 if the message has none that is an id.
	ID int64
}

// Type is the name that the daemon gave it.
func (u *Unknown) Type() string { return u.Name }

// The messages in the order of docs/protocol.md. Credit goes both ways.
var (
	requestList = []Message{
		&ClientHello{}, &Launch{}, &Stdin{}, &Credit{}, &Cancel{}, &Signal{}, &Resize{}, &List{}, &Inspect{}, &Health{}, &Features{},
		&Subscribe{}, &Unsubscribe{}, &Ping{},
	}
	answerList = []Message{
		&DaemonHello{}, &Error{}, &Started{}, &Output{}, &Credit{}, &Exit{}, &Planned{}, &CancelResult{}, &SignalResult{}, &ResizeResult{},
		&ListResult{}, &InspectResult{}, &HealthResult{}, &FeaturesResult{}, &Subscribed{}, &Event{}, &SubscribeResult{},
		&UnsubscribeResult{}, &Pong{},
	}
	requestTypes, answerTypes = byType(requestList), byType(answerList)
	known                     = typesOf(requestList, answerList)

	messageType = reflect.TypeFor[Message]()
)

func byType(list []Message) map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, m := range list {
		types[m.Type()] = reflect.TypeOf(m).Elem()
	}
	return types
}

func typesOf(lists ...[]Message) map[reflect.Type]bool {
	types := map[reflect.Type]bool{}
	for _, m := range slices.Concat(lists...) {
		types[reflect.TypeOf(m)] = true
	}
	return types
}

// ID returns the id that a message carries, or 0.
func ID(m Message) int64 {
	switch m := m.(type) {
	case *Unknown:
		return m.ID
	case nil:
		return 0
	}
	v := reflect.ValueOf(m).Elem().FieldByName("ID")
	if !v.IsValid() {
		return 0
	}
	return v.Int()
}

// Final tells whether an answer is the final one to the request with its id.
func Final(m Message) bool {
	switch m := m.(type) {
	case *DaemonHello, *Started, *Output, *Credit, *Subscribed, *Event, *Unknown:
		return false
	case *Error:
		return m.Of != "stdin" && m.Of != "credit" && m.Code != IDInUse
	}
	return true
}

// ParseRequest reads what a client sent, strictly. It keeps nothing of the frame. The error is an [*Error] that
// has the message's id and type where they could be read, ready to be sent.
func ParseRequest(frame []byte) (Message, error) { return parse(frame, requestTypes, false) }

// ParseAnswer reads what a daemon sent. Members that it does not know are
// ignored, and a message of an unknown type is an [*Unknown]. It keeps nothing
// of the frame. The error is an [*Error].
func ParseAnswer(frame []byte) (Message, error) { return parse(frame, answerTypes, true) }

// head is what is known of a message before its type is.
type head struct {
	typ, id []byte // the values' texts
}

func (h *head) member(frame []byte) func(string, int, int) {
	return func(name string, start, end int) {
		switch name {
		case "type":
			h.typ = frame[start:end]
		case "id":
			h.id = frame[start:end]
		}
	}
}

// name is the type's name, if there is one.
func (h *head) name() (string, bool) {
	if len(h.typ) == 0 || h.typ[0] != '"' {
		return "", false
	}
	return unescape(h.typ[1 : len(h.typ)-1]), true
}

// number is the id, or 0.
func (h *head) number() int64 {
	n, err := integer(h.id)
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// answer makes err the answer to the message.
func (h *head) answer(err *Error) *Error {
	name, _ := h.name()
	id := h.number()
	if shown(name) != name || err.Code == DuplicateField && err.Field == "type" {
		name = ""
	}
	if err.Code == DuplicateField && err.Field == "id" { // which of them?
		id = 0
	}
	return err.For(id, name)
}

func parse(frame []byte, types map[string]reflect.Type, lenient bool) (Message, error) {
	var h head
	if err := scanMessage(frame, h.member(frame)); err != nil {
		return nil, h.answer(err)
	}
	name, ok := h.name()
	switch {
	case h.typ == nil:
		return nil, h.answer(Errorf(MissingField, "must be there").under("type"))
	case !ok:
		return nil, h.answer(Errorf(WrongType, "want a string").under("type"))
	}
	t, found := types[name]
	if !found {
		if lenient {
			return &Unknown{name, h.number()}, nil
		}
		return nil, h.answer(Errorf(UnknownType, "no message is called %s", shown(name)).under("type"))
	}
	if at, has := planOf(t).byName["id"]; has && (h.id != nil || !planOf(t).fields[at].optional) && h.number() == 0 {
		if h.id == nil {
			return nil, h.answer(Errorf(MissingField, "must be there").under("id"))
		}
		return nil, h.answer(Errorf(BadID, "want an integer from 1 to %d", int64(MaxInteger)).under("id"))
	}
	d := decoder{scanner: scanner{b: frame}, lenient: lenient}
	v := reflect.New(t)
	if err := d.decode(v.Elem(), &rule{}); err != nil {
		return nil, h.answer(err)
	}
	m := v.Interface().(Message)
	if c, ok := m.(*Credit); ok && !lenient && c.Stream == "stdin" {
		return nil, h.answer(Errorf(BadValue, "only the daemon grants credit on stdin").under("stream"))
	}
	return m, nil
}

// Encode returns a message in its one canonical form, without a prefix. What a
// reader would refuse is an [*Error].
func Encode(m Message) ([]byte, error) { return appendMessage(nil, m) }

func appendMessage(dst []byte, m Message) ([]byte, error) {
	v := reflect.ValueOf(m)
	if m == nil || !known[v.Type()] || v.IsNil() {
		return nil, Errorf(UnknownType, "%T is no message, or nil", m)
	}
	dst = append(dst, `{"type":`...)
	dst = appendString(dst, m.Type())
	out, err := appendStruct(dst, v.Elem())
	if err != nil {
		return nil, err.For(ID(m), m.Type())
	}
	return out, nil
}
