package proxy

import "net/netip"

// variable is one that makes tools use the proxy.
type variable struct {
	name, value, reason string
}

// loopback is what a worker reaches itself, in its own namespace: a server that it
// started is not on the proxy's loopback.
const loopback = "localhost,127.0.0.1,::1"

// variables are for a proxy at an address. The general ones come first; the others
// are for tools that do not read those, or let a file of the user's that names
// another proxy stand above them. That every value is http:// is on purpose: the
// listener speaks SOCKS5 too, but ALL_PROXY=socks5h:// makes Python's httpx, and with
// it most clients of web APIs, fail at once where its optional part for SOCKS is
// not installed, and curl tunnels other protocols through HTTP as well.
//
// Left out on purpose: JAVA_TOOL_OPTIONS, since every JVM would print a line on
// standard error that it was picked up; grpc_proxy, as gRPC reads https_proxy; git's
// http.proxy, as git reads http_proxy by libcurl and GIT_CONFIG_* would take the
// place of the caller's; FTP_PROXY and RSYNC_PROXY, as the proxy speaks neither.
func variables(addr netip.AddrPort) []variable {
	url := "http://" + addr.String()
	return []variable{
		{"HTTP_PROXY", url, "most tools"},
		{"HTTPS_PROXY", url, "most tools"},
		{"ALL_PROXY", url, "curl for other schemes, Rust's reqwest, Python's httpx"},
		{"NO_PROXY", loopback, "the worker's own servers"},
		{"http_proxy", url, "curl and all of libcurl, which take only this spelling (CVE-2016-5385); wget"},
		{"https_proxy", url, "wget, older Python and Ruby"},
		{"all_proxy", url, "curl"},
		{"no_proxy", loopback, "wget, older Python and Ruby"},
		{"NODE_USE_ENV_PROXY", "1", "Node's fetch and http, from 22.21 and 24 on, read the others only then"},
		{"npm_config_proxy", url, "above a proxy in .npmrc"},
		{"npm_config_https_proxy", url, "above a proxy in .npmrc"},
		{"npm_config_noproxy", loopback, "above .npmrc"},
		{"YARN_HTTP_PROXY", url, "Yarn from 2 on reads no general one"},
		{"YARN_HTTPS_PROXY", url, "Yarn from 2 on reads no general one"},
		{"PIP_PROXY", url, "above a proxy in pip.conf"},
		{"CARGO_HTTP_PROXY", url, "above http.proxy in Cargo's configuration"},
	}
}

// Environment gives the variables, as NAME=value, that make a worker's tools use the
// proxy at an address of its namespace. They are a convenience and no protection: a
// tool that ignores them reaches nothing. Loopback is left out of it (NO_PROXY), as
// the worker's own servers are there; a server on the host's loopback that a rule
// allows is therefore asked for by another name that leads to it.
func Environment(addr netip.AddrPort) []string {
	var env []string
	for _, v := range variables(addr) {
		env = append(env, v.name+"="+v.value)
	}
	return env
}
