package supervise

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"syscall"
)

// The numbers of the Linux ABI, so that the parsers build and run anywhere.
const (
	afUnspec = 0
	afUnix   = 1
	afInet   = 2
	afInet6  = 10
)

type unixKind int

const (
	unixUnspec   unixKind = iota // disconnects a datagram socket
	unixAutobind                 // family alone: the kernel picks a name on bind
	unixAbstract
	unixPath
)

// unixAddress is what an AF_UNIX socket would make of a sockaddr.
type unixAddress struct {
	kind unixKind
	name string // path or abstract name, without its leading NUL
}

// parseUnix reads a sockaddr for a socket whose own domain is AF_UNIX. A path
// ends at its first NUL or with the sockaddr: sun_path need not be terminated.
// What the kernel would refuse is refused here too, so that no form is left to
// a second reading.
func parseUnix(addr []byte) (unixAddress, syscall.Errno) {
	if len(addr) < 2 || len(addr) > maxAddr {
		return unixAddress{}, syscall.EINVAL
	}
	switch family := binary.NativeEndian.Uint16(addr); {
	case family == afUnspec:
		return unixAddress{kind: unixUnspec}, 0
	case family != afUnix || len(addr) > maxUnixAddr:
		return unixAddress{}, syscall.EINVAL
	}
	name := addr[2:]
	switch {
	case len(name) == 0:
		return unixAddress{kind: unixAutobind}, 0
	case name[0] == 0:
		return unixAddress{kind: unixAbstract, name: string(name[1:])}, 0
	}
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return unixAddress{kind: unixPath, name: string(name)}, 0
}

// unixSockaddr is the terminated sockaddr of a path. The path fits.
func unixSockaddr(path string) []byte {
	addr := make([]byte, 2, 2+len(path)+1)
	binary.NativeEndian.PutUint16(addr, afUnix)
	addr = append(addr, path...)
	return append(addr, 0)
}

// parseInet reads an AF_INET or AF_INET6 sockaddr as long as the kernel asks.
func parseInet(addr []byte) (netip.AddrPort, bool) {
	if len(addr) < 2 {
		return netip.AddrPort{}, false
	}
	switch family := binary.NativeEndian.Uint16(addr); {
	case family == afInet && len(addr) >= 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr[4:8])), binary.BigEndian.Uint16(addr[2:])), true
	case family == afInet6 && len(addr) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(addr[8:24])), binary.BigEndian.Uint16(addr[2:])), true
	}
	return netip.AddrPort{}, false
}
