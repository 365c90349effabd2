package landlock

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/proxy"
	"sandboxd/internal/sys"
	"sandboxd/policy"
)

// proxyAt is where a worker finds its proxy: in its own network namespace, in which
// nothing else is yet.
var proxyAt = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 3128)

// way is a worker's way to what its network allows: a proxy of this process, whose
// listener is in the worker's namespace.
type way struct {
	server   *proxy.Server
	listener sys.Ref
}

// newWay makes the proxy of one worker; nil if its network is none of a proxy's.
func newWay(p policy.Policy, denied *denialLog) (*way, error) {
	if p.Net() != policy.NetProxy {
		return nil, nil
	}
	rules, err := proxy.ParseRules(p.Spec().NetAllow)
	if err != nil {
		return nil, fmt.Errorf("the proxy's rules: %w", err)
	}
	server, err := proxy.New(proxy.Options{Allow: rules, Denied: denied.byProxy})
	if err != nil {
		return nil, fmt.Errorf("the proxy: %w", err)
	}
	return &way{server: server}, nil
}

// env are the variables by which programs find the proxy.
func (w *way) env() []string {
	if w == nil {
		return nil
	}
	return proxy.Environment(proxyAt)
}

// enter appends the calls that make the listener.
func (w *way) enter(p *sys.Program) {
	if w == nil {
		return
	}
	p.Step("the proxy's listener")
	w.listener = p.Listen4(proxyAt.Addr().As4(), proxyAt.Port(), backlog)
}

// backlog is how many connections wait to be accepted: listen(2).
const backlog = 128

// serve begins to serve the listener, which is this process' from here on.
func (w *way) serve(fd int) error {
	file := os.NewFile(uintptr(fd), "proxy")
	l, err := net.FileListener(file)
	_ = file.Close() // the listener has a duplicate
	if err != nil {
		return fmt.Errorf("the proxy's listener: %w", err)
	}
	go func() { _ = w.server.Serve(l) }() // which ends with Close
	return nil
}

// take serves what the stage has made of it, or closes that.
func (w *way) take(st *sys.Stage, started bool) error {
	if w == nil {
		return nil
	}
	fd := st.Result(w.listener)
	switch {
	case fd < 0:
		return nil
	case !started:
		return unix.Close(fd)
	}
	return w.serve(fd)
}

// close ends the proxy, with all its connections.
func (w *way) close() error {
	if w == nil {
		return nil
	}
	return w.server.Close()
}

// byProxy notes what the proxy refused.
func (l *denialLog) byProxy(e proxy.Event) {
	to := e.Host
	if e.Port != 0 {
		to = net.JoinHostPort(e.Host, fmt.Sprint(e.Port))
	}
	rule := "no host rule allows it (" + string(e.Reason) + ")"
	if e.Rule != "" {
		rule = fmt.Sprintf("%s allows the host, not where its name leads (%s)", e.Rule, e.Reason)
	}
	l.note(backend.Denial{
		Effect: policy.NetTCPConnect, Operation: "connect", Address: policy.Printable(to), Errno: "ECONNREFUSED", Certainty: backend.Observed,
		Source: "proxy", Rule: rule, Suggestion: e.Hint, Count: 1,
	})
}
