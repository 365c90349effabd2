package proxy

import (
	"bufio"
	"errors"
	"io"
	"net/netip"
)

// Replies of SOCKS5 (RFC 1928, 6).
const (
	socksOK              = 0
	socksFailure         = 1
	socksNotAllowed      = 2
	socksNetUnreachable  = 3
	socksHostUnreachable = 4
	socksRefused         = 5
	socksNoCommand       = 7
	socksNoAddressType   = 8
)

// Other words of the protocol.
const (
	socksVersion   = 5
	socksNoAuth    = 0
	socksNoMethod  = 0xff
	socksConnect   = 1
	socksTypeIPv4  = 1
	socksTypeName  = 3
	socksTypeIPv6  = 4
	socks4Rejected = 91
)

// socksRequest is a request as it came.
type socksRequest struct {
	command byte
	name    string     // for a name
	addr    netip.Addr // else
	port    uint16
}

var (
	errSOCKS            = errors.New("it is no message of SOCKS5")
	errSOCKSAddressType = errors.New("the type of the address is unknown")
)

// readGreeting reads the methods that a client offers, and tells whether "none" is
// among them.
func readGreeting(r *bufio.Reader) (noAuth bool, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return false, err
	}
	if head[0] != socksVersion || head[1] == 0 {
		return false, errSOCKS
	}
	for range head[1] {
		m, err := r.ReadByte()
		if err != nil {
			return false, err
		}
		noAuth = noAuth || m == socksNoAuth
	}
	return noAuth, nil
}

func readSOCKSRequest(r *bufio.Reader) (socksRequest, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return socksRequest{}, err
	}
	if head[0] != socksVersion || head[2] != 0 {
		return socksRequest{}, errSOCKS
	}
	q := socksRequest{command: head[1]}
	var size int
	switch head[3] {
	case socksTypeIPv4:
		size = 4
	case socksTypeIPv6:
		size = 16
	case socksTypeName:
		n, err := r.ReadByte()
		if err != nil {
			return q, err
		}
		size = int(n)
	default:
		return q, errSOCKSAddressType
	}
	b := make([]byte, size+2)
	if _, err := io.ReadFull(r, b); err != nil {
		return q, err
	}
	q.port = uint16(b[size])<<8 | uint16(b[size+1])
	if head[3] == socksTypeName {
		q.name = string(b[:size])
	} else {
		q.addr, _ = netip.AddrFromSlice(b[:size])
	}
	return q, nil
}

// host is the destination in its canonical form.
func (q socksRequest) host() (host, error) {
	if q.addr.IsValid() {
		return host{addr: q.addr.Unmap()}, nil
	}
	return parseHost(q.name)
}

// encode is the request as [readSOCKSRequest] reads it.
func (q socksRequest) encode() []byte {
	b := []byte{socksVersion, q.command, 0}
	switch {
	case q.addr.Is4():
		b = append(append(b, socksTypeIPv4), q.addr.AsSlice()...)
	case q.addr.IsValid():
		b = append(append(b, socksTypeIPv6), q.addr.AsSlice()...)
	default:
		b = append(append(b, socksTypeName, byte(len(q.name))), q.name...)
	}
	return append(b, byte(q.port>>8), byte(q.port))
}

// serveSOCKS5 speaks to a client whose first byte was 5.
func (c *session) serveSOCKS5() {
	noAuth, err := readGreeting(c.br)
	if err != nil {
		return
	}
	if !noAuth {
		_, _ = c.conn.Write([]byte{socksVersion, socksNoMethod})
		c.linger()
		return
	}
	if _, err := c.conn.Write([]byte{socksVersion, socksNoAuth}); err != nil {
		return
	}
	q, err := readSOCKSRequest(c.br)
	switch {
	case errors.Is(err, errSOCKSAddressType):
		c.replySOCKS(socksNoAddressType)
		return
	case errors.Is(err, errSOCKS):
		c.replySOCKS(socksFailure)
		return
	case err != nil:
		return
	case c.busy:
		c.replySOCKS(socksFailure)
		return
	}
	c.s.requests.Add(1)
	if q.command != socksConnect {
		c.replySOCKS(socksNoCommand)
		return
	}
	h, err := q.host()
	if err != nil || q.port == 0 {
		if err == nil {
			err = errors.New("the port is 0")
		}
		asked := q.name
		if q.addr.IsValid() {
			asked = q.addr.String()
		}
		c.s.tell(SOCKS5, asked, q.port, &failure{reason: BadHost, text: err.Error()})
		c.replySOCKS(socksNotAllowed)
		return
	}
	up, f := c.s.open(SOCKS5, h, q.port)
	if f != nil {
		c.replySOCKS(answers[f.reason].socks)
		return
	}
	defer c.s.drop(up)
	if c.writeSOCKS(socksOK) != nil {
		return
	}
	c.tunnel(up, nil)
}

// replySOCKS refuses a request.
func (c *session) replySOCKS(code byte) {
	if c.writeSOCKS(code) == nil {
		c.linger()
	}
}

// writeSOCKS answers a request. The address that it has room for is the one from
// which the host was reached, which is no business of the worker's.
func (c *session) writeSOCKS(code byte) error {
	_, err := c.conn.Write([]byte{socksVersion, code, 0, socksTypeIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// refuseSOCKS4 says no in the words of SOCKS4: it has no IPv6, its first form no
// names, and who speaks it mostly speaks SOCKS5 too.
func (c *session) refuseSOCKS4() {
	_, _ = c.conn.Write([]byte{0, socks4Rejected, 0, 0, 0, 0, 0, 0})
	c.linger()
}
