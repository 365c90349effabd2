package proxy

import (
	"net/netip"
	"strings"
	"testing"
)

// TestBeyond: an administrator's list holds what is asked for as a whole or does not,
// and what is not public only where it is named as narrowly as a rule must name it.
func TestBeyond(t *testing.T) {
	for _, tt := range []struct{ most, asked, beyond string }{
		{"example.com", "example.com", ""},
		{"example.com", "EXAMPLE.com.", ""},
		{"example.com", "example.com:443", ""},
		{"example.com:443", "example.com", "example.com:80,443"},
		{"example.com:*", "example.com:1-65535", ""},
		{"example.com:80-90", "example.com:80,85-90", ""},
		{"example.com:80-90", "example.com:85-91", "example.com:85-91"},
		{"example.com", "www.example.com", "www.example.com:80,443"},
		{"example.com", "*.example.com", "*.example.com:80,443"},
		{"*.example.com", "www.example.com a.b.example.com *.example.com *.b.example.com", ""},
		{"*.example.com", "example.com", "example.com:80,443"},
		{"*.example.com", "notexample.com", "notexample.com:80,443"},
		{"*.example.com", "*.com", "*.com:80,443"},
		{"192.0.2.0/24", "192.0.2.7 192.0.2.128/25", ""},
		{"192.0.2.0/24", "192.0.2.0/23", "192.0.2.0/23:80,443"},
		{"192.0.2.0/24", "example.com", "example.com:80,443"},
		{"example.com", "192.0.2.1", "192.0.2.1:80,443"},
		{"0.0.0.0/0", "8.8.8.8", ""},
		{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/8:80,443"},
		{"0.0.0.0/0", "169.254.169.254", "169.254.169.254:80,443"},
		{"169.254.0.0/16", "169.254.169.254", "169.254.169.254:80,443"},
		{"10.0.0.0/8", "10.1.2.3", ""},
		{"::/0", "[2606:4700::1]", ""},
		{"::/0", "[::1] ", "[::1]:80,443"},
		{"::/0", "1.1.1.1", "1.1.1.1:80,443"},
		{"example.com 192.0.2.0/24", "192.0.2.1 example.com example.org", "example.org:80,443"},
	} {
		most, err := ParseRules(strings.Fields(tt.most))
		if err != nil {
			t.Fatal(err)
		}
		asked, err := ParseRules(strings.Fields(tt.asked))
		if err != nil {
			t.Fatal(err)
		}
		more, found := most.Beyond(asked)
		if got := more.String(); found != (tt.beyond != "") || found && got != tt.beyond {
			t.Errorf("%s, asked for %s: %v %s", tt.most, tt.asked, found, got)
		}
	}
	// What is covered is reached under the ceiling's own rules as well.
	most, _ := ParseRules([]string{"10.0.0.0/8"})
	if _, ok, _ := most.match(host{addr: netip.MustParseAddr("10.1.2.3")}, 443); !ok {
		t.Error("the ceiling itself does not match")
	}
	if _, found := (Rules{}).Beyond(most); !found {
		t.Error("an empty list covers something")
	}
}
