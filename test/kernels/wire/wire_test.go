package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func sent(t *testing.T, key string, records ...Record) string {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, []byte(key))
	for _, r := range records {
		if err := w.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestNoiseAroundRecords(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, []byte("key"))
	b.WriteString("SeaBIOS (version x)\r\n[    0.1] Linux")
	_ = w.Send(Record{Begin: "one"})
	b.WriteString("[ 1.0] an oops without a line break")
	if _, err := fmt.Fprint(w.Stream("one", false), strings.Repeat("x", 3*chunk)); err != nil {
		t.Fatal(err)
	}
	b.WriteString(strings.Repeat("endless", maxLine))
	_ = w.Send(Record{End: &End{}})
	records, noise, err := Read(&b, []byte("key"))
	if err != nil || len(records) != 5 || noise < maxLine {
		t.Fatalf("%d records, %d bytes of noise, %v", len(records), noise, err)
	}
	if records[1].Output.Job != "one" || len(records[1].Output.Data) != chunk {
		t.Errorf("the second record is %+v", records[1])
	}
}

func TestForgedRecordsDoNotCount(t *testing.T) {
	real := sent(t, "key", Record{Begin: "one"}, Record{Result: &Result{Name: "one", Exit: 1}}, Record{End: &End{}})
	forged := sent(t, "another key", Record{Begin: "x"}, Record{Result: &Result{Name: "one", Exit: 0}})
	records, noise, err := Read(strings.NewReader(forged+real+forged), []byte("key"))
	if err != nil || len(records) != 3 || records[1].Result.Exit != 1 || noise == 0 {
		t.Fatalf("%d records, %d bytes of noise, %v", len(records), noise, err)
	}
	// Not even the machine's own record twice.
	if _, _, err := Read(strings.NewReader(real+real), []byte("key")); err == nil {
		t.Error("records that came twice were taken")
	}
}

func TestMissingRecordsAreNoticed(t *testing.T) {
	lines := strings.Split(strings.Trim(sent(t, "key", Record{Begin: "a"}, Record{Begin: "b"}, Record{End: &End{}}), "\n"), "\n\n")
	for _, c := range [][]string{{}, lines[:2], {lines[0], lines[2]}, {lines[1], lines[2]}, {lines[0], lines[1], lines[2][:40]}} {
		if r, _, err := Read(strings.NewReader(strings.Join(c, "\n")), []byte("key")); err == nil {
			t.Errorf("%d of 3 records were taken for all: %+v", len(c), r)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	var b bytes.Buffer
	s := NewWriter(&b, nil).Stream("x", true)
	for range MaxOutput/(1<<20) + 2 {
		if n, err := s.Write(make([]byte, 1<<20)); n != 1<<20 || err != nil {
			t.Fatal(n, err)
		}
	}
	if b.Len() > 2*MaxOutput {
		t.Errorf("%d bytes were sent", b.Len())
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("@0 00 e30=\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, _, _ := Read(bytes.NewReader(b), []byte("key")); len(r) > 0 {
			t.Errorf("records without the key: %+v", r)
		}
	})
}
