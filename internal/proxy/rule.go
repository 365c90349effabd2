package proxy

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sandboxd/policy"
)

// Rule is one word of an allow-list, HOST[:PORTS]. HOST is one of
//
//	example.com       this name and no other
//	*.example.com     every name below it, at any depth, but not example.com
//	192.0.2.1         this address
//	192.0.2.0/24      these addresses
//	[2001:db8::1]     this address; with a length also [2001:db8::/32] or 2001:db8::/32
//
// PORTS is a list of ports and of ranges of them, as in 443,8000-8099, or * for
// every port. Without it a rule is for ports 80 and 443: "may fetch from this host"
// is what a host's name means to most, and that the same word opened its SSH,
// mail and database servers would surprise more people than a missing port does,
// which the refusal names.
//
// A rule by name reaches the public addresses of the name; a rule by address
// reaches the address by whatever name that is allowed. An address that is not
// public needs a rule that names no more than the special range it is in: 10.0.0.0/8
// opens 10.1.2.3, and 0.0.0.0/0 opens public addresses only. The addresses of
// metadata services must be named one by one.
//
// localhost, and names that end in .localhost, are never resolved (RFC 6761, 6.3):
// they are the loopback addresses of the host, and a rule that names one opens
// these to requests for that name.
type Rule struct {
	name   string       // canonical; "" for an address
	below  bool         // *.name
	prefix netip.Prefix // masked and unmapped, if name is ""
	ports  []span       // sorted, apart from each other
}

// span is a range of ports with both its ends.
type span struct{ first, last uint16 }

var (
	defaultPorts = []span{{80, 80}, {443, 443}}
	everyPort    = []span{{1, math.MaxUint16}}
)

// RuleError is what is wrong with a rule.
type RuleError struct {
	Rule   string // as it was given
	Reason string
	Hint   string // what to write instead; may be empty
}

// Error is one line without the hint, escaped.
func (e *RuleError) Error() string {
	return fmt.Sprintf("network rule %q: %s", clip(e.Rule), e.Reason)
}

// maxRule is what a rule's text may have, in bytes.
const maxRule = 2048

// ParseRule reads a rule; an error is a [*RuleError].
func ParseRule(s string) (Rule, error) {
	r, reason, hint := parseRule(s)
	if reason != "" {
		return Rule{}, &RuleError{Rule: s, Reason: reason, Hint: hint}
	}
	return r, nil
}

func parseRule(s string) (r Rule, reason, hint string) {
	switch {
	case s == "":
		return r, "it is empty", "name a host, as in example.com or example.com:8080"
	case len(s) > maxRule:
		return r, "it is too long", ""
	case s == "*" || strings.HasPrefix(s, "*:"):
		return r, "it names every host", "name hosts, *.suffix or networks; without a filter the network is the host's (--net host)"
	}
	if scheme, rest, ok := strings.Cut(s, "://"); ok {
		rest, _, _ = strings.Cut(rest, "/")
		switch lower(scheme) {
		case "http", "https":
			return r, "it is a URL", "name the host alone: " + clip(rest)
		}
		return r, "it is a URL", "name the host and the port: " + clip(rest) + ":PORT"
	}
	hostPart, ports, reason, hint := splitRule(s)
	if reason != "" {
		return r, reason, hint
	}
	var err error
	if r.ports, err = parsePorts(ports); err != nil {
		return r, err.Error(), "as in example.com:443, example.com:443,8000-8099 or example.com:*"
	}
	if addr, bits, ok := strings.Cut(hostPart, "/"); ok {
		if r.prefix, err = parsePrefix(addr, bits); err != nil {
			return r, err.Error(), "as in 192.0.2.0/24 or [2001:db8::/32]; a path is no part of a rule"
		}
		return r, "", ""
	}
	if suffix, ok := strings.CutPrefix(hostPart, "*."); ok {
		r.below, hostPart = true, suffix
	}
	if strings.IndexByte(hostPart, '*') >= 0 {
		return r, "a * stands elsewhere than for the whole of the first labels", "as in *.example.com"
	}
	h, err := parseHost(hostPart)
	switch {
	case err != nil:
		return r, err.Error(), ""
	case h.addr.IsValid() && r.below:
		return r, "nothing is below an address", "as in 192.0.2.0/24"
	case h.addr.IsValid():
		r.prefix = netip.PrefixFrom(h.addr, h.addr.BitLen())
	case r.below && len(h.name)+2 > maxName:
		return r, "no name can be below it", ""
	default:
		r.name = h.name
	}
	return r, "", ""
}

// splitRule takes a rule's host from its ports; ports are "" if there are none.
func splitRule(s string) (hostPart, ports, reason, hint string) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		inner, after, ok := strings.Cut(rest, "]")
		if !ok || strings.IndexByte(inner, ':') < 0 {
			return "", "", "the brackets hold no IPv6 address", "as in [2001:db8::1]:443"
		}
		if bits, found := strings.CutPrefix(after, "/"); found { // [2001:db8::]/32
			return "", "", "the length is outside of the brackets", "as in [2001:db8::/32]; not [2001:db8::]/" + clip(bits)
		}
		if after == "" {
			return inner, "", "", ""
		}
		if ports, ok = strings.CutPrefix(after, ":"); !ok || ports == "" {
			return "", "", "something else than ports is behind the address", "as in [2001:db8::1]:443"
		}
		return inner, ports, "", ""
	}
	// A length ends an address, so that 2001:db8::/32:443 can be read in one way only.
	from := max(strings.IndexByte(s, '/'), 0)
	i := strings.IndexByte(s[from:], ':')
	if i < 0 {
		return s, "", "", ""
	}
	hostPart, ports = s[:from+i], s[from+i+1:]
	switch {
	case strings.IndexByte(ports, ':') >= 0:
		return "", "", "an IPv6 address stands without brackets, so that its port cannot be told", "as in [2001:db8::1] or [2001:db8::1]:443"
	case ports == "":
		return "", "", "no port is behind the colon", "as in example.com:443, or example.com for 80 and 443"
	}
	return hostPart, ports, "", ""
}

func parsePrefix(addr, bits string) (netip.Prefix, error) {
	if strings.IndexByte(addr, '%') >= 0 {
		return netip.Prefix{}, errors.New("the network has a zone")
	}
	p, err := netip.ParsePrefix(addr + "/" + bits)
	if err != nil {
		return netip.Prefix{}, errors.New("it is no network")
	}
	if masked := p.Masked(); masked != p {
		return netip.Prefix{}, fmt.Errorf("bits are set behind the length of the network, which is %v", masked)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, errors.New("it is wider than the IPv4 addresses that are mapped to IPv6")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}

func parsePorts(s string) ([]span, error) {
	switch s {
	case "":
		return defaultPorts, nil
	case "*":
		return everyPort, nil
	}
	var spans []span
	for item := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(item, "-")
		first, err := parsePort(from)
		if err != nil {
			return nil, fmt.Errorf("%q is no port", clip(item))
		}
		last := first
		if ranged {
			if last, err = parsePort(to); err != nil || last < first {
				return nil, fmt.Errorf("%q is no range of ports", clip(item))
			}
		}
		spans = append(spans, span{first, last})
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.first) - int(b.first) })
	merged := spans[:1]
	for _, next := range spans[1:] {
		if end := &merged[len(merged)-1].last; int(next.first) <= int(*end)+1 {
			*end = max(*end, next.last)
		} else {
			merged = append(merged, next)
		}
	}
	return slices.Clip(merged), nil
}

// String is the rule in its canonical form, always with its ports; [ParseRule]
// reads the same rule from it.
func (r Rule) String() string {
	var b strings.Builder
	switch {
	case r.name != "":
		if r.below {
			b.WriteString("*.")
		}
		b.WriteString(r.name)
	case !r.prefix.IsValid():
		return "nothing"
	default:
		text := r.prefix.String()
		if r.prefix.IsSingleIP() {
			text = r.prefix.Addr().String()
		}
		if r.prefix.Addr().Is6() {
			text = "[" + text + "]"
		}
		b.WriteString(text)
	}
	b.WriteByte(':')
	if slices.Equal(r.ports, everyPort) {
		b.WriteByte('*')
		return b.String()
	}
	for i, p := range r.ports {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(p.first)))
		if p.last != p.first {
			b.WriteString("-" + strconv.Itoa(int(p.last)))
		}
	}
	return b.String()
}

// matchesHost tells whether the rule is for a host, whatever the port.
func (r Rule) matchesHost(h host) bool {
	switch {
	case h.addr.IsValid():
		return r.name == "" && r.prefix.IsValid() && r.prefix.Contains(h.addr)
	case r.name == "":
		return false
	case r.below:
		above, ok := strings.CutSuffix(h.name, r.name)
		return ok && len(above) > 1 && above[len(above)-1] == '.'
	}
	return r.name == h.name
}

func (r Rule) matchesPort(port uint16) bool {
	for _, p := range r.ports {
		if p.first <= port && port <= p.last {
			return true
		}
	}
	return false
}

// Rules are an allow-list. The zero value allows nothing.
type Rules struct{ list []Rule }

// maxRules bounds the work that is done for each request.
const maxRules = 4096

// ParseRules reads an allow-list. All errors are told, joined.
func ParseRules(words []string) (Rules, error) {
	if len(words) > maxRules {
		return Rules{}, fmt.Errorf("%d network rules are more than the %d that may be", len(words), maxRules)
	}
	var rules Rules
	var all []error
	for _, word := range words {
		r, err := ParseRule(word)
		if err != nil {
			all = append(all, err)
			continue
		}
		rules.list = append(rules.list, r)
	}
	if len(all) > 0 {
		return Rules{}, errors.Join(all...)
	}
	return rules, nil
}

// Strings are the rules in their canonical form, in the order they were given.
func (r Rules) Strings() []string {
	words := make([]string, len(r.list))
	for i, rule := range r.list {
		words[i] = rule.String()
	}
	return words
}

// Len is how many there are.
func (r Rules) Len() int { return len(r.list) }

// Beyond finds the first of the asked rules that no single one of r covers.
func (r Rules) Beyond(asked Rules) (more Rule, found bool) {
	for _, o := range asked.list {
		if !slices.ContainsFunc(r.list, func(c Rule) bool { return c.covers(o) }) {
			return o, true
		}
	}
	return Rule{}, false
}

// covers tells whether all that o allows is allowed by r as well: an address that is not
// public, too, is so only by a rule that names no more than its special range.
func (r Rule) covers(o Rule) bool {
	for _, want := range o.ports {
		if !slices.ContainsFunc(r.ports, func(s span) bool { return s.first <= want.first && want.last <= s.last }) {
			return false
		}
	}
	switch {
	case o.name == "" && r.name == "":
		if !r.prefix.IsValid() || !o.prefix.IsValid() || !within(o.prefix, r.prefix) {
			return false
		}
		return !slices.ContainsFunc(special, func(b block) bool { return within(o.prefix, b.prefix) && !within(r.prefix, b.prefix) })
	case o.name == "" || r.name == "":
		return false
	case r.below:
		above, ok := strings.CutSuffix(o.name, r.name)
		return ok && (above == "" && o.below || len(above) > 1 && above[len(above)-1] == '.')
	}
	return !o.below && o.name == r.name
}

func within(p, all netip.Prefix) bool {
	return all.Bits() <= p.Bits() && all.Contains(p.Addr())
}

// match gives the first rule that allows a destination. If none does, other tells
// that one allows another port of the host.
func (r Rules) match(h host, port uint16) (rule Rule, ok, other bool) {
	for _, rule := range r.list {
		if rule.matchesHost(h) {
			if rule.matchesPort(port) {
				return rule, true, false
			}
			other = true
		}
	}
	return Rule{}, false, other
}

// clip makes untrusted text short and printable, for errors and events.
func clip(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "..."
	}
	if p := policy.Printable(s); p != s {
		return strings.Trim(p, `"`)
	}
	return s
}
