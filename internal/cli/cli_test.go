package cli

import (
	"strings"
	"testing"
	"time"
)

func TestSize(t *testing.T) {
	for word, want := range map[string]Size{"1": 1, "65536": 65536, "2k": 2 << 10, "512M": 512 << 20, "2GiB": 2 << 30, "1T": 1 << 40} {
		var got Size
		if err := got.Set(word); err != nil || got != want {
			t.Errorf("%s is %d, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "0", "-1", "1.5G", "G", "9999999T", "1X", " 1"} {
		var got Size
		if err := got.UnmarshalText([]byte(word)); err == nil || got != 0 {
			t.Errorf("%q is %d", word, got)
		}
	}
}

func TestDuration(t *testing.T) {
	for word, want := range map[string]time.Duration{"90": 90 * time.Second, "0.5": time.Second / 2, "5m": 5 * time.Minute, "0": 0} {
		var got Duration
		if err := got.Set(word); err != nil || time.Duration(got) != want {
			t.Errorf("%s is %v, %v", word, time.Duration(got), err)
		}
	}
	for _, word := range []string{"", "-1s", "-1", "NaN", "Inf", "1e300", "soon"} {
		var got Duration
		if err := got.UnmarshalText([]byte(word)); err == nil || got != 0 {
			t.Errorf("%q is %v", word, time.Duration(got))
		}
	}
}

// TestComplain: untrusted text makes no line of its own.
func TestComplain(t *testing.T) {
	var b strings.Builder
	Complain(&b, "prog", "bad \"x\nprog: hint: rm\"", "try\x1b[2Jthis")
	if got := b.String(); strings.Count(got, "\n") != 2 || strings.Contains(got, "\x1b") || !strings.HasPrefix(got, "prog: bad ") {
		t.Errorf("%q", got)
	}
}
