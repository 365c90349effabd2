package proxy

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseRule(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"example.com", "example.com:80,443"},
		{"Example.COM.", "example.com:80,443"},
		{"example.com:8080", "example.com:8080"},
		{"example.com:443,80", "example.com:80,443"},
		{"example.com:1-3,2-5,6,9", "example.com:1-6,9"},
		{"example.com:*", "example.com:*"},
		{"example.com:1-65535", "example.com:*"},
		{"*.example.com", "*.example.com:80,443"},
		{"bücher.example", "xn--bcher-kva.example:80,443"},
		{"*.BÜCHER.example", "*.xn--bcher-kva.example:80,443"},
		{"under_score.example", "under_score.example:80,443"},
		{"r3---sn-4g5e.example", "r3---sn-4g5e.example:80,443"},
		{"localhost:3000", "localhost:3000"},
		{"192.0.2.1", "192.0.2.1:80,443"},
		{"192.0.2.0/24", "192.0.2.0/24:80,443"},
		{"192.0.2.0/24:*", "192.0.2.0/24:*"},
		{"192.0.2.1/32", "192.0.2.1:80,443"},
		{"[::1]", "[::1]:80,443"},
		{"[::1]:8080", "[::1]:8080"},
		{"[2001:DB8::1]:443", "[2001:db8::1]:443"},
		{"[2001:db8::/32]:443", "[2001:db8::/32]:443"},
		{"2001:db8::/32", "[2001:db8::/32]:80,443"},
		{"2001:db8::/32:22", "[2001:db8::/32]:22"},
		{"[::ffff:192.0.2.1]:80", "192.0.2.1:80"},
		{"[::ffff:10.0.0.0/104]", "10.0.0.0/8:80,443"},
		{"0.0.0.0/0", "0.0.0.0/0:80,443"},
	} {
		r, err := ParseRule(c.in)
		if err != nil || r.String() != c.out {
			t.Errorf("%s is %s (%v), want %s", c.in, r, err, c.out)
			continue
		}
		if again, err := ParseRule(r.String()); err != nil || again.String() != c.out || again.name != r.name || again.below != r.below || again.prefix != r.prefix || !slices.Equal(again.ports, r.ports) {
			t.Errorf("%s does not read as itself: %+v, %v", r, again, err)
		}
	}
}

func TestRuleErrors(t *testing.T) {
	for _, c := range []struct{ in, reason, hint string }{
		{"", "empty", "example.com"},
		{"*", "every host", "--net host"},
		{"*:443", "every host", "--net host"},
		{"https://example.com/x", "URL", "host alone: example.com"},
		{"ssh://example.com", "URL", "example.com:PORT"},
		{"*example.com", "*", "*.example.com"},
		{"a.*.com", "*", "*.example.com"},
		{"*.*.com", "*", "*.example.com"},
		{"*.192.0.2.1", "below an address", "192.0.2.0/24"},
		{"::1", "brackets", "[2001:db8::1]"},
		{"::1:8080", "brackets", "[2001:db8::1]:443"},
		{"[::1", "no IPv6 address", "["},
		{"[192.0.2.1]", "no IPv6 address", "["},
		{"[::1]8080", "something else than ports", ""},
		{"[2001:db8::]/32", "outside of the brackets", "[2001:db8::/32]"},
		{"[fe80::1%eth0]", "zone", ""},
		{"[fe80::%1/64]", "zone", ""},
		{"example.com:", "no port", "example.com:443"},
		{"example.com:0", "no port", "example.com:443"},
		{"example.com:65536", "no port", ""},
		{"example.com:080", "no port", ""},
		{"example.com:+80", "no port", ""},
		{"example.com:80,", "no port", ""},
		{"example.com:http", "no port", ""},
		{"example.com:90-80", "range", ""},
		{"example.com:80-", "range", ""},
		{"192.0.2.1/24", "192.0.2.0/24", ""},
		{"192.0.2.0/33", "no network", ""},
		{"192.0.2.0/024", "no network", ""},
		{"example.com/path", "no network", "path"},
		{"[::ffff:0:0/90]", "", ""},
		{"127.1", "IPv4", ""},
		{"0x7f.1", "IPv4", ""},
		{"2130706433", "IPv4", ""},
		{"0177.0.0.1", "IPv4", ""},
		{"user@example.com", "'@'", ""},
		{"exa mple.com", "space", ""},
		{"example.com\x00", "control", ""},
		{"example..com", "empty", ""},
		{"-example.com", "hyphen", ""},
		{"xn--a.example", "international", ""},
		{"xn--" + strings.Repeat("a", 1000), "international", ""}, // of which IDNA would say 6 KB
		{strings.Repeat("a", 64) + ".example", "too long", ""},
		{strings.Repeat("a.", 1000), "too long", ""},
		{strings.Repeat("a", maxRule+1), "too long", ""},
	} {
		_, err := ParseRule(c.in)
		var re *RuleError
		if !errors.As(err, &re) {
			t.Errorf("%q is allowed (%v)", c.in, err)
			continue
		}
		if !strings.Contains(re.Reason, c.reason) || !strings.Contains(re.Hint, c.hint) {
			t.Errorf("%q: %q, hint %q", c.in, re.Reason, re.Hint)
		}
		if msg := err.Error(); len(msg) > 500 || strings.ContainsAny(msg, "\x00\n") {
			t.Errorf("the error of %q is not for a terminal: %q", c.in, msg)
		}
	}
	if _, err := ParseRules([]string{"a.example", "*", "::1"}); err == nil || strings.Count(err.Error(), "network rule") != 2 {
		t.Errorf("two bad rules give %v", err)
	}
	if _, err := ParseRules(make([]string, maxRules+1)); err == nil {
		t.Error("there is no bound on rules")
	}
}

func TestMatch(t *testing.T) {
	rules := []string{"example.com", "*.wild.example:443", "bücher.example", "192.0.2.0/24:8000-8099", "[2001:db8::1]:22", "*.com.example:*"}
	list, err := ParseRules(rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host      string
		port      uint16
		ok, other bool
	}{
		{"example.com", 443, true, false},
		{"EXAMPLE.com.", 80, true, false},
		{"example.com", 22, false, true},
		{"www.example.com", 443, false, false},
		{"evilexample.com", 443, false, false},
		{"example.com.evil.example", 443, false, false},
		{"a.wild.example", 443, true, false},
		{"a.b.wild.example", 443, true, false},
		{"wild.example", 443, false, false},
		{"evilwild.example", 443, false, false},
		{"a.wild.example", 80, false, true},
		{"xn--bcher-kva.example", 80, true, false},
		{"BÜCHER.example", 80, true, false},
		{"bücher。example", 80, true, false}, // an ideographic full stop
		{"192.0.2.7", 8050, true, false},
		{"192.0.2.7", 80, false, true},
		{"192.0.3.7", 8050, false, false},
		{"::ffff:192.0.2.7", 8050, true, false},
		{"2001:db8::1", 22, true, false},
		{"2001:0DB8:0::1", 22, true, false},
		{"2001:db8::2", 22, false, false},
	} {
		h, err := parseHost(c.host)
		if err != nil {
			t.Errorf("%s: %v", c.host, err)
			continue
		}
		if _, ok, other := list.match(h, c.port); ok != c.ok || other != c.other {
			t.Errorf("%s at %d: allowed %v, other port %v", c.host, c.port, ok, other)
		}
	}
	// A list of nothing, and rules that are not made by ParseRule, allow nothing.
	h, _ := parseHost("example.com")
	addr, _ := parseHost("0.0.0.0")
	for _, r := range []Rules{{}, {list: []Rule{{}}}, {list: []Rule{{ports: everyPort}}}} {
		for _, h := range []host{h, addr} {
			if _, ok, _ := r.match(h, 80); ok {
				t.Errorf("%v allows %v", r.Strings(), h)
			}
		}
	}
}

func TestParseHost(t *testing.T) {
	for in, out := range map[string]string{
		"example.com": "example.com", "EXAMPLE.COM.": "example.com", "a_b.example": "a_b.example",
		"127.0.0.1": "127.0.0.1", "127.0.0.1.": "127.0.0.1", "::1": "::1", "::FFFF:10.0.0.1": "10.0.0.1",
		"faß.example": "xn--fa-hia.example", "xn--fa-hia.example": "xn--fa-hia.example", "ＥＸample.com": "example.com",
		"localhost": "localhost", "1password.com": "1password.com", "x.0xg": "x.0xg", "3com": "3com",
	} {
		if h, err := parseHost(in); err != nil || h.String() != out {
			t.Errorf("%q is %q (%v), want %q", in, h, err, out)
		}
	}
	for _, in := range []string{
		"", ".", "..", "a..b", "a.example..", ".example", "a b", "a\x00b", "a\tb", "a\nb", "a\x7fb", "a%b", "a%2eb", "a@b", `a\b`, "a/b", "a?b", "a#b", "a,b", "a*b", "[::1]",
		"0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "127.0.1", "127.0.0.1..", "256.1.1.1", "1.2.3.4.5", "01.2.3.4", "1.2.3.0x4", "0x", "1.0x", "example.1",
		"fe80::1%eth0", "fe80::1%25eth0", "::1.", ":", "1:2", "::ffff:1.2.3", "::g",
		"xn--", "xn--a", "xn--a.example", "XN--FA-HIA-.example", "xn--example-.com", "a\u200db.example", "１２７.0.0.1", "127。0。0。1", "a\u2024b\u2044c.example", "\u202eexample.com",
		"-a.example", "a-.example", strings.Repeat("a", 64), strings.Repeat("a.", 130) + "example", strings.Repeat("a", 5000), "\xff\xfe.example",
	} {
		if h, err := parseHost(in); err == nil {
			t.Errorf("%q is %q", in, h)
		}
	}
}

func TestParseAuthority(t *testing.T) {
	for in, out := range map[string]string{
		"example.com:80": "example.com 80", "example.com": "example.com 0", "[::1]:443": "::1 443", "[::1]": "::1 0", "192.0.2.1:1": "192.0.2.1 1",
	} {
		h, port, err := parseAuthority(in)
		if got := h.String() + " " + itoa(port); err != nil || got != out {
			t.Errorf("%q is %q (%v)", in, got, err)
		}
	}
	for _, in := range []string{"", ":80", "a:", "a:b", "a:0", "a:080", "a:+80", "a:-1", "a:65536", "a:80:80", "::1:80", "[::1", "[::1]x", "[::1]:", "[a]:80", "[127.0.0.1]:80", "u@a:80", "u:p@a:80", "a :80", "a: 80", "[fe80::1%25e]:80"} {
		if h, port, err := parseAuthority(in); err == nil {
			t.Errorf("%q is %v %d", in, h, port)
		}
	}
}

func itoa(n uint16) string {
	return strings.TrimPrefix(Rule{name: "x", ports: []span{{n, n}}}.String(), "x:")
}
