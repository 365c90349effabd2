package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxAddresses is how many addresses of a name are tried; a name can have as many
// as its owner likes.
const maxAddresses = 8

// nextAttempt is how long an attempt to connect is waited for before the next
// address is tried beside it (RFC 8305, 5).
const nextAttempt = 250 * time.Millisecond

// hostResolver is the host's own.
type hostResolver struct{}

func (hostResolver) LookupNetIP(ctx context.Context, network, name string) ([]netip.Addr, error) {
	if strings.IndexByte(name, '.') >= 0 {
		name += "." // else a search list could make another name of it
	}
	return net.DefaultResolver.LookupNetIP(ctx, network, name)
}

func dialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false) // Multipath TCP would only be one more way to a host
	return d.DialContext(ctx, "tcp", to.String())
}

// judge asks the allow-list.
func (s *Server) judge(h host, port uint16) (Rule, *failure) {
	rule, ok, other := s.opts.Allow.match(h, port)
	if ok {
		return rule, nil
	}
	flag := "--net-allow " + h.authority()
	if port != 80 && port != 443 || other {
		flag += fmt.Sprintf(":%d", port)
	}
	if other {
		return rule, &failure{reason: PortNotAllowed, text: fmt.Sprintf("%s is allowed, but not port %d of it", h, port), hint: flag}
	}
	return rule, &failure{reason: HostNotAllowed, text: fmt.Sprintf("%s is not on the list of allowed hosts", h), hint: flag}
}

// open judges a destination and connects to it. The worker's connection is p's.
func (s *Server) open(p Protocol, h host, port uint16) (net.Conn, *failure) {
	conn, f := s.connect(h, port)
	if f != nil {
		s.tell(p, h.String(), port, f)
	}
	return conn, f
}

func (s *Server) connect(h host, port uint16) (net.Conn, *failure) {
	rule, f := s.judge(h, port)
	if f != nil {
		return nil, f
	}
	addrs, f := s.addresses(h, port)
	if f != nil {
		f.rule = rule.String()
		return nil, f
	}
	conn, err := s.dial(addrs)
	if err != nil {
		return nil, dialFailure(h, port, err)
	}
	if !s.keep(conn) {
		return nil, &failure{reason: ConnectFailed, text: "the proxy is being closed"}
	}
	return conn, nil
}

// addresses gives the addresses of an allowed host that may be dialled, at least
// one.
func (s *Server) addresses(h host, port uint16) ([]netip.AddrPort, *failure) {
	found, local := []netip.Addr{h.addr}, false
	switch {
	case h.addr.IsValid():
	case h.name == "localhost" || strings.HasSuffix(h.name, ".localhost"):
		found, local = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, true
	default:
		ctx, cancel := context.WithTimeout(s.ctx, s.opts.ResolveTimeout)
		defer cancel()
		var err error
		if found, err = s.opts.Resolver.LookupNetIP(ctx, "ip", h.name); err != nil || len(found) == 0 {
			return nil, resolveFailure(ctx, h, err)
		}
	}
	var good []netip.AddrPort
	var refused *failure
	for _, addr := range found {
		addr = addr.Unmap()
		to := netip.AddrPortFrom(addr.WithZone(""), port)
		class := "zone"
		if addr.Zone() == "" {
			class = s.opts.Allow.refuses(addr, port, local)
		}
		switch {
		case class != "" && refused == nil:
			refused = &failure{
				reason: AddressNotPublic,
				addr:   to.Addr(),
				text:   fmt.Sprintf("%s is at %s, which is no public address (%s)", h, to.Addr(), class),
				hint:   "--net-allow " + to.String(),
			}
			if h.addr.IsValid() {
				refused.text = fmt.Sprintf("%s is no public address (%s), and only a wider rule is for it", h, class)
			}
		case class == "" && !slices.Contains(good, to):
			good = append(good, to)
		}
		if len(good) == maxAddresses {
			break
		}
	}
	if len(good) == 0 {
		return nil, refused
	}
	return good, nil
}

func resolveFailure(ctx context.Context, h host, err error) *failure {
	var dns *net.DNSError
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.As(err, &dns) && dns.IsTimeout {
		return &failure{reason: ResolveTimeout, text: fmt.Sprintf("the addresses of %s could not be had in time", h)}
	}
	return &failure{reason: ResolveFailed, text: fmt.Sprintf("%s has no address", h)}
}

// dial connects to the first address that answers, in their order.
func (s *Server) dial(addrs []netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.DialTimeout)
	defer cancel()
	if len(addrs) == 1 {
		return s.opts.Dial(ctx, addrs[0])
	}
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	next := time.NewTimer(0)
	defer next.Stop()
	var first error
	var won net.Conn
	for started, pending := 0, 0; ; {
		var fire <-chan time.Time
		if won == nil && started < len(addrs) {
			fire = next.C
		} else if pending == 0 {
			break
		}
		select {
		case <-fire:
			to := addrs[started]
			started, pending = started+1, pending+1
			next.Reset(nextAttempt)
			go func() {
				conn, err := s.opts.Dial(ctx, to)
				results <- result{conn, err}
			}()
		case r := <-results:
			pending--
			switch {
			case r.err != nil && won == nil:
				if first == nil {
					first = r.err
				}
				next.Reset(0)
			case r.err == nil && won == nil:
				won = r.conn
				cancel() // the others return, and are waited for
			case r.err == nil:
				_ = r.conn.Close()
			}
		}
	}
	if won != nil {
		return won, nil
	}
	return nil, first
}

// dialFailure words why an allowed host could not be reached.
func dialFailure(h host, port uint16, err error) *failure {
	f := &failure{reason: ConnectFailed, text: fmt.Sprintf("%s could not be reached at port %d", h, port)}
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		f.reason, f.text = ConnectRefused, fmt.Sprintf("%s refuses connections to port %d", h, port)
	case errors.Is(err, syscall.ENETUNREACH):
		f.reason = NetUnreachable
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		f.reason, f.text = ConnectTimeout, fmt.Sprintf("%s did not answer at port %d in time", h, port)
	}
	return f
}
