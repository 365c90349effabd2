package protocol

import (
	"bytes"
	"testing"
)

// What a launch through the daemon pays for the protocol: one request read, a
// chunk written.
func BenchmarkParseLaunch(b *testing.B) {
	text, err := Encode(constructedRequests()["launch"])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWriteChunk(b *testing.B) {
	var to bytes.Buffer
	w := NewWriter(&to, MaxAnswer)
	m := &Output{ID: 1, Stream: "stdout", Data: make(Data, MaxChunk)}
	b.SetBytes(MaxChunk)
	b.ReportAllocs()
	for b.Loop() {
		to.Reset()
		if err := w.Write(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseChunk(b *testing.B) {
	text, err := Encode(&Stdin{ID: 1, Data: make(Data, MaxChunk)})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(MaxChunk)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest(text); err != nil {
			b.Fatal(err)
		}
	}
}
