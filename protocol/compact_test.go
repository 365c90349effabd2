package protocol

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestAppendCompact(t *testing.T) {
	for _, text := range []string{
		`{}`, " { } ", `{"a":"b"}`, "{\t\"a\" :\r\n [ 1 , true , null ] }", `{"a b" : "c  d"}`, `{ "a" : "\" , \\" , "b" : "\\" , "c": " \u0020 " }`, `{"!" : "! " , "ü" : "ü  é" }`,
	} {
		var want bytes.Buffer
		if err := json.Compact(&want, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := appendCompact([]byte("x"), []byte(text)); string(got) != "x"+want.String() {
			t.Errorf("%s: got %s", text, got)
		}
	}
}

// TestNamesTakeNoMemory: a name with an escape is the one that it stands for, and a
// text of many objects is scanned without memory for their names.
func TestNamesTakeNoMemory(t *testing.T) {
	for _, text := range []string{`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"\u0061":1,"a":2}`, `{"1":0,"2":0,"3":0,"4":0,"5":0,"6":0,"7":0,"8":0,"9":0,"10":0,"\u0031":0}`, `{"é":1,"\u00e9":2}`} {
		s := scanner{b: []byte(text)}
		if err := s.object(1); err == nil || err.Code != DuplicateField {
			t.Errorf("%s: %v", text, err)
		}
	}
	text := []byte(`[` + string(bytes.Repeat([]byte(`{"one":1,"two":"2","three":[]},`), 500)) + `{}]`)
	if n := testing.AllocsPerRun(5, func() {
		s := scanner{b: text}
		if err := s.array(1); err != nil {
			t.Fatal(err)
		}
	}); n > 5 {
		t.Errorf("%v allocations", n)
	}
}
