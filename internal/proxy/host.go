package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// host is where a worker wants to go, in its one canonical form: either an
// address, unmapped and without a zone, or a name of lower-case A-labels without
// a trailing dot.
type host struct {
	addr netip.Addr // valid for an address
	name string     // else
}

func (h host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// authority is the host as it stands before a port.
func (h host) authority() string {
	if h.addr.Is6() {
		return "[" + h.addr.String() + "]"
	}
	return h.String()
}

// A name has at most 253 characters, a label 63 (RFC 1035, 2.3.4). U-labels take
// more bytes than their A-labels, and nothing longer than this is looked at.
const (
	maxName      = 253
	maxLabel     = 63
	maxHostBytes = 1024
)

// lookup is IDNA2008 as names are looked up (RFC 5891, 5; UTS 46 without
// transitional processing). It judges only names that are not plain ASCII
// already: names in use break its rules for hyphens and underscores.
var lookup = idna.New(
	idna.MapForLookup(),
	idna.BidiRule(),
	idna.Transitional(false),
	idna.CheckHyphens(false),
	idna.CheckJoiners(true),
	idna.StrictDomainName(true),
	idna.VerifyDNSLength(true),
)

// parseHost reads a host as it is found in a request or a rule, an IPv6 address
// without its brackets. What more than one reader could take for more than one
// host is an error: control characters, spaces, '%', '@', '\', and numbers that
// inet_aton(3) takes for an address while others ask a resolver for them.
func parseHost(s string) (host, error) {
	switch {
	case s == "":
		return host{}, errors.New("the host is empty")
	case len(s) > maxHostBytes:
		return host{}, errors.New("the host is too long")
	}
	if strings.IndexByte(s, ':') >= 0 {
		return parseIPv6(s)
	}
	name, ascii := strings.TrimSuffix(s, "."), true
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c >= 0x80:
			ascii = false
		case c <= ' ' || c == 0x7f:
			return host{}, errors.New("a control character or a space is in the host")
		case c == '%' || c == '@' || c == '\\' || c == '/':
			return host{}, fmt.Errorf("%q is in the host", c)
		}
	}
	name = lower(name)
	if strings.ContainsRune(name, utf8.RuneError) { // what is no UTF-8, too
		return host{}, errors.New("the host is no text")
	}
	if !ascii || strings.HasPrefix(name, "xn--") || strings.Contains(name, ".xn--") {
		mapped, err := lookup.ToASCII(name)
		switch {
		case err != nil:
			return host{}, fmt.Errorf("the host is no international name: %s", clip(err.Error()))
		case ascii && mapped != name:
			return host{}, errors.New("the host is an A-label in another form than its own")
		}
		name = strings.TrimSuffix(mapped, ".") // U+3002 and others are dots, too
	}
	if endsInNumber(name) {
		addr, err := netip.ParseAddr(name)
		if err != nil || !ascii {
			return host{}, errors.New("the host is a number, but no IPv4 address in its usual form")
		}
		return host{addr: addr}, nil
	}
	if err := checkName(name); err != nil {
		return host{}, err
	}
	return host{name: name}, nil
}

func parseIPv6(s string) (host, error) {
	if strings.IndexByte(s, '%') >= 0 {
		return host{}, errors.New("the host is an address with a zone")
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return host{}, errors.New("the host is no IPv6 address")
	}
	return host{addr: addr.Unmap()}, nil
}

// checkName judges a lower-case ASCII name, label by label. An underscore is no
// host's by the book (RFC 952) and many a host's in use.
func checkName(name string) error {
	if len(name) > maxName {
		return errors.New("the host is too long")
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return errors.New("a label of the host is empty")
		case len(label) > maxLabel:
			return errors.New("a label of the host is too long")
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("a label of the host begins or ends with a hyphen")
		}
		for i := 0; i < len(label); i++ {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return fmt.Errorf("%q is in the host", c)
			}
		}
	}
	return nil
}

// endsInNumber is the test of the URL standard for what is to be an IPv4 address:
// the last label is a number, in any of the bases of inet_aton(3).
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// lower is for ASCII alone: other letters are IDNA's to map.
func lower(s string) string {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= 'A' && c <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if c := b[i]; c >= 'A' && c <= 'Z' {
					b[i] = c + ('a' - 'A')
				}
			}
			return string(b)
		}
	}
	return s
}

// parseAuthority reads "host", "host:port" or "[address]:port" of a request. The
// port is 0 if there is none.
func parseAuthority(s string) (host, uint16, error) {
	name, port := s, ""
	if rest, ok := strings.CutPrefix(s, "["); ok {
		var after string
		if name, after, ok = strings.Cut(rest, "]"); !ok {
			return host{}, 0, errors.New("a bracket of the host is not closed")
		}
		if strings.IndexByte(name, ':') < 0 {
			return host{}, 0, errors.New("the host in brackets is no IPv6 address")
		}
		if after != "" {
			if port, ok = strings.CutPrefix(after, ":"); !ok || port == "" {
				return host{}, 0, errors.New("something else than a port is behind the host")
			}
		}
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		if name, port = s[:i], s[i+1:]; port == "" || strings.IndexByte(port, ':') >= 0 {
			return host{}, 0, errors.New("the port is empty or the host an address without brackets")
		}
	}
	h, err := parseHost(name)
	if err != nil || port == "" {
		return h, 0, err
	}
	n, err := parsePort(port)
	return h, n, err
}

// parsePort reads a decimal number of 1 to 65535, without signs or leading zeros.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' {
		return 0, errors.New("the port is no number of 1 to 65535")
	}
	return uint16(n), nil
}
