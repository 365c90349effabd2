package proxy

import "net/netip"

// block is a range of addresses that are no public host's.
type block struct {
	prefix netip.Prefix
	class  string // one word, as reports have it
}

func table(rows ...string) []block {
	var blocks []block
	for i := 0; i < len(rows); i += 2 {
		blocks = append(blocks, block{netip.MustParsePrefix(rows[i]), rows[i+1]})
	}
	return blocks
}

// special are the ranges of RFC 6890 with its later rows that are not globally
// reachable, those that are no single host's, and the addresses where clouds answer
// with a machine's credentials. An address can be in several.
var special = table(
	"169.254.169.254/32", "metadata", // most clouds
	"169.254.170.2/32", "metadata", // credentials of AWS' containers
	"169.254.170.23/32", "metadata", // and of their pods
	"100.100.100.200/32", "metadata", // Alibaba
	"168.63.129.16/32", "metadata", // Azure's host, from public space
	"fd00:ec2::254/128", "metadata", // AWS
	"fd00:ec2::23/128", "metadata",
	"fd20:ce::254/128", "metadata", // Google

	"0.0.0.0/8", "unspecified", // RFC 1122: connect(2) takes 0.0.0.0 for loopback
	"10.0.0.0/8", "private", // RFC 1918
	"100.64.0.0/10", "shared", // RFC 6598, carriers' NAT
	"127.0.0.0/8", "loopback", // RFC 1122
	"169.254.0.0/16", "link-local", // RFC 3927
	"172.16.0.0/12", "private", // RFC 1918
	"192.0.0.0/24", "protocol", // RFC 6890
	"192.0.2.0/24", "documentation", // RFC 5737
	"192.88.99.0/24", "reserved", // RFC 7526, relays of 6to4
	"192.168.0.0/16", "private", // RFC 1918
	"198.18.0.0/15", "benchmark", // RFC 2544
	"198.51.100.0/24", "documentation", // RFC 5737
	"203.0.113.0/24", "documentation", // RFC 5737
	"224.0.0.0/4", "multicast", // RFC 5771
	"240.0.0.0/4", "reserved", // RFC 1112
	"255.255.255.255/32", "broadcast", // RFC 919

	"::/128", "unspecified", // RFC 4291
	"::1/128", "loopback", // RFC 4291
	"64:ff9b:1::/48", "translation", // RFC 8215: where the IPv4 address is in it, only its network knows
	"100::/64", "discard", // RFC 6666
	"100:0:0:1::/64", "reserved", // RFC 9780
	"2001::/23", "protocol", // RFC 2928: Teredo, ORCHID, benchmarks and others
	"2001:db8::/32", "documentation", // RFC 3849
	"3fff::/20", "documentation", // RFC 9637
	"5f00::/16", "reserved", // RFC 9602, segment routing
	"fc00::/7", "private", // RFC 4193
	"fe80::/10", "link-local", // RFC 4291
	"fec0::/10", "private", // RFC 3879, site-local
	"ff00::/8", "multicast", // RFC 4291
)

// Of IPv6 only these are handed out to hosts; the rest of it is "reserved".
var (
	global = netip.MustParsePrefix("2000::/3")
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	rest   = block{netip.MustParsePrefix("::/0"), "reserved"}
)

// carriers are the ranges whose addresses have an IPv4 address in them, to which a
// host or a router may send what is sent to them.
var carriers = []struct {
	prefix netip.Prefix
	at     int  // the first byte of the address
	flip   bool // its bits are inverted
}{
	{netip.MustParsePrefix("::/96"), 12, false},           // IPv4-compatible, RFC 4291
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12, false}, // IPv4-translated, RFC 2765
	{nat64, 12, false},
	{netip.MustParsePrefix("2002::/16"), 2, false}, // 6to4, RFC 3056
	{netip.MustParsePrefix("2001::/32"), 4, false}, // Teredo's server, RFC 4380
	{netip.MustParsePrefix("2001::/32"), 12, true}, // Teredo's client
}

// hit is a reason why an address is not dialled: the address itself, or one inside
// of it, is in a block.
type hit struct {
	block
	addr netip.Addr
}

// screen gives the reasons against an address; none for a public host's.
func screen(addr netip.Addr) []hit {
	addr = addr.WithZone("").Unmap()
	hits := lookIn(nil, addr)
	if addr.Is4() {
		return hits
	}
	for _, inner := range carried(addr) {
		hits = lookIn(hits, inner)
	}
	if len(hits) == 0 && !global.Contains(addr) && !nat64.Contains(addr) {
		hits = append(hits, hit{rest, addr})
	}
	return hits
}

func lookIn(hits []hit, addr netip.Addr) []hit {
	for _, b := range special {
		if b.prefix.Contains(addr) {
			hits = append(hits, hit{b, addr})
		}
	}
	return hits
}

// carried gives the IPv4 addresses that are inside of an IPv6 address.
func carried(addr netip.Addr) []netip.Addr {
	b := addr.As16()
	var all []netip.Addr
	for _, c := range carriers {
		if !c.prefix.Contains(addr) {
			continue
		}
		four := [4]byte(b[c.at:])
		if c.flip {
			for i := range four {
				four[i] = ^four[i]
			}
		}
		all = append(all, netip.AddrFrom4(four))
	}
	// ISATAP has it behind any network's prefix (RFC 5214, 6.1).
	if (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		all = append(all, netip.AddrFrom4([4]byte(b[12:])))
	}
	return all
}

// opens tells whether a rule names what a hit is about, and means it: the rule is
// no wider than the block. The whole address, spelled out, is meant whatever is
// inside of it.
func (r Rule) opens(h hit, addr netip.Addr, port uint16) bool {
	if r.name != "" || !r.prefix.IsValid() || !r.matchesPort(port) {
		return false
	}
	if r.prefix.IsSingleIP() && r.prefix.Addr() == addr {
		return true
	}
	return r.prefix.Contains(h.addr) && r.prefix.Bits() >= h.prefix.Bits()
}

// refuses gives why an address is not dialled, or "" if it may be: its class. An
// address of loopback is open to a name that means loopback.
func (r Rules) refuses(addr netip.Addr, port uint16, local bool) string {
	if local && addr.IsLoopback() {
		return ""
	}
hits:
	for _, h := range screen(addr) {
		for _, rule := range r.list {
			if rule.opens(h, addr, port) {
				continue hits
			}
		}
		return h.class
	}
	return ""
}
