package proxy

import (
	"net/netip"
	"strings"
	"testing"
)

// TestScreen has each special range by its ends, and what is beside it, and every
// form in which an IPv4 address travels inside of an IPv6 one.
func TestScreen(t *testing.T) {
	for _, c := range []struct{ class, addrs string }{
		{"loopback", "127.0.0.1 127.255.255.255 ::1"},
		{"private", "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 fc00:: fdff:ffff::1 fec0::1"},
		{"link-local", "169.254.0.1 169.254.255.255 fe80::1 febf::1"},
		{"metadata", "169.254.169.254 169.254.170.2 169.254.170.23 100.100.100.200 168.63.129.16 fd00:ec2::254 fd00:ec2::23 fd20:ce::254"},
		{"shared", "100.64.0.0 100.127.255.255"},
		{"unspecified", "0.0.0.0 0.255.255.255 ::"},
		{"multicast", "224.0.0.1 239.255.255.255 ff02::1 ffff::1"},
		{"broadcast", ""},
		{"protocol", "192.0.0.0 192.0.0.255 2001:: 2001:1ff:ffff::1"},
		{"documentation", "192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff::1"},
		{"benchmark", "198.18.0.0 198.19.255.255"},
		{"reserved", "192.88.99.1 240.0.0.1 255.255.255.255 255.255.255.254 4000::1 e000::1 200::1 5f00::1 100:0:0:1::1 64:ff9b:2::1"},
		{"translation", "64:ff9b:1::1 64:ff9b:1:ffff::808:808"},
		{"discard", "100::1"},
		{"", "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 " +
			"191.255.255.255 192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 203.0.112.255 223.255.255.255 168.63.129.15 " +
			"2606:4700::1111 2001:200::1 2001:4860:4860::8888 2a00::1 3ffe::1 64:ff9b::8.8.8.8 2002:808:808::1"},
		// Inside of IPv6: mapped, compatible, translated, NAT64, 6to4, ISATAP.
		{"loopback", "::ffff:127.0.0.1 64:ff9b::127.0.0.1 2002:7f00:1::1 ::ffff:0:127.0.0.1 2606:4700::5efe:127.0.0.1 2606:4700::200:5efe:127.0.0.1"},
		{"private", "::ffff:10.0.0.1 ::10.0.0.1 64:ff9b::10.0.0.1 2002:a00:1::1 2002:c0a8:101::1 ::ffff:0:10.0.0.1"},
		{"metadata", "::ffff:169.254.169.254 ::169.254.169.254 64:ff9b::169.254.169.254 2002:a9fe:a9fe::1 ::ffff:0:169.254.169.254"},
		{"unspecified", "::ffff:0.0.0.0 64:ff9b::"},
	} {
		for _, text := range strings.Fields(c.addrs) {
			addr := netip.MustParseAddr(text)
			class := ""
			if hits := screen(addr); len(hits) > 0 {
				class = hits[0].class
			}
			if class != c.class {
				t.Errorf("%s is %q, want %q", text, class, c.class)
			}
		}
	}
	// Teredo: whatever is inside; the server and the client are looked at besides.
	if hits := screen(netip.MustParseAddr("2001:0:a00:1::80ff:fffe")); len(hits) != 3 || hits[1].class != "private" || hits[2].class != "loopback" {
		t.Errorf("Teredo with 10.0.0.1 and 127.0.0.1 inside is %v", hits)
	}
	// A zone takes nothing from it.
	if hits := screen(netip.MustParseAddr("fe80::1%eth0")); len(hits) == 0 {
		t.Error("an address with a zone is public")
	}
}

// TestOpens: a rule opens what it names, not what it merely contains.
func TestOpens(t *testing.T) {
	for _, c := range []struct {
		rule, addr string
		port       uint16
		open       bool
	}{
		{"127.0.0.1", "127.0.0.1", 80, true},
		{"127.0.0.1", "127.0.0.1", 8080, false},
		{"127.0.0.1", "127.0.0.2", 80, false},
		{"127.0.0.0/8", "127.0.0.2", 80, true},
		{"10.0.0.0/8", "10.1.2.3", 80, true},
		{"10.1.0.0/16", "10.1.2.3", 80, true},
		{"8.0.0.0/5", "10.1.2.3", 80, false},
		{"0.0.0.0/0", "10.1.2.3", 80, false},
		{"0.0.0.0/0", "127.0.0.1", 80, false},
		{"0.0.0.0/0", "1.1.1.1", 80, true},
		{"169.254.0.0/16", "169.254.1.1", 80, true},
		{"169.254.0.0/16", "169.254.169.254", 80, false},
		{"169.254.169.254", "169.254.169.254", 80, true},
		{"fd00::/8", "fd12::1", 80, true},
		{"fd00::/8", "fd00:ec2::254", 80, false},
		{"[fd00:ec2::254]", "fd00:ec2::254", 80, true},
		{"::/0", "::1", 80, false},
		{"::/0", "fd12::1", 80, false},
		{"[::1]", "::1", 80, true},
		{"[::1]", "127.0.0.1", 80, false},
		{"127.0.0.1", "::1", 80, false},
		{"127.0.0.1", "::ffff:127.0.0.1", 80, true},
		{"64:ff9b::/96", "64:ff9b::10.0.0.1", 80, false},
		{"10.0.0.0/8", "64:ff9b::10.0.0.1", 80, true},
		{"[64:ff9b::10.0.0.1]", "64:ff9b::10.0.0.1", 80, true},
		{"2001::/32", "2001:0:a00:1::80ff:fffe", 80, false},
		{"64:ff9b:1::/48", "64:ff9b:1::1", 80, true},
		{"internal.example", "10.0.0.1", 80, false},
		{"*.example", "127.0.0.1", 80, false},
		{"localhost", "127.0.0.1", 80, false}, // open to the name alone
	} {
		r, err := ParseRules([]string{c.rule})
		if err != nil {
			t.Fatal(err)
		}
		if class := r.refuses(netip.MustParseAddr(c.addr).Unmap(), c.port, false); (class == "") != c.open {
			t.Errorf("%s and %s at %d: refused as %q", c.rule, c.addr, c.port, class)
		}
	}
	if class := (Rules{}).refuses(netip.MustParseAddr("10.0.0.1"), 80, true); class == "" {
		t.Error("a name that means loopback opens other addresses")
	}
}
