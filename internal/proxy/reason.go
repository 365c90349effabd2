package proxy

import (
	"net/netip"
	"time"
)

// Reason is why the proxy refused something or failed, as a word for programs. It
// is in the header X-Sbx-Reason of an answer over HTTP, and in an [Event].
type Reason string

// What the policy refuses: each is an [Event].
const (
	// HostNotAllowed: no rule is for the host.
	HostNotAllowed Reason = "host-not-allowed"
	// PortNotAllowed: a rule is for the host, and none for this port of it.
	PortNotAllowed Reason = "port-not-allowed"
	// AddressNotPublic: the host is allowed, and all of its addresses are such as
	// need a rule of their own.
	AddressNotPublic Reason = "address-not-public"
	// BadHost: the host is none that all readers would take for the same.
	BadHost Reason = "bad-host"
	// HostMismatch: a request's Host field names another host than its target.
	HostMismatch Reason = "host-mismatch"
)

// What else goes wrong.
const (
	BadRequest       Reason = "bad-request"
	TargetTooLong    Reason = "target-too-long"
	HeadTooLarge     Reason = "head-too-large"
	RequestTimeout   Reason = "request-timeout"
	Unsupported      Reason = "unsupported"
	VersionUnknown   Reason = "version-unknown"
	Busy             Reason = "too-many-connections"
	ResolveFailed    Reason = "resolve-failed"
	ResolveTimeout   Reason = "resolve-timeout"
	ConnectRefused   Reason = "connect-refused"
	ConnectFailed    Reason = "connect-failed"
	NetUnreachable   Reason = "network-unreachable"
	ConnectTimeout   Reason = "connect-timeout"
	BadResponse      Reason = "bad-response"
	ResponseCutShort Reason = "response-cut-short"
)

// answer is how a reason is told: the status of HTTP, the reply of SOCKS5 (RFC
// 1928, 6), the error of the field Proxy-Status (RFC 9209, 2.3).
type answer struct {
	status int
	title  string
	socks  byte
	error  string
	denial bool
}

var answers = map[Reason]answer{
	HostNotAllowed:   {403, "Forbidden", socksNotAllowed, "http_request_denied", true},
	PortNotAllowed:   {403, "Forbidden", socksNotAllowed, "http_request_denied", true},
	AddressNotPublic: {403, "Forbidden", socksNotAllowed, "destination_ip_prohibited", true},
	BadHost:          {403, "Forbidden", socksNotAllowed, "http_request_denied", true},
	HostMismatch:     {400, "Bad Request", socksFailure, "http_request_error", true},
	BadRequest:       {400, "Bad Request", socksFailure, "http_request_error", false},
	TargetTooLong:    {414, "URI Too Long", socksFailure, "http_request_error", false},
	HeadTooLarge:     {431, "Request Header Fields Too Large", socksFailure, "http_request_error", false},
	RequestTimeout:   {408, "Request Timeout", socksFailure, "http_request_error", false},
	Unsupported:      {501, "Not Implemented", socksNoCommand, "http_request_error", false},
	VersionUnknown:   {505, "HTTP Version Not Supported", socksFailure, "http_request_error", false},
	Busy:             {503, "Service Unavailable", socksFailure, "connection_limit_reached", false},
	ResolveFailed:    {502, "Bad Gateway", socksHostUnreachable, "dns_error", false},
	ResolveTimeout:   {504, "Gateway Timeout", socksHostUnreachable, "dns_timeout", false},
	ConnectRefused:   {502, "Bad Gateway", socksRefused, "connection_refused", false},
	ConnectFailed:    {502, "Bad Gateway", socksHostUnreachable, "destination_ip_unroutable", false},
	NetUnreachable:   {502, "Bad Gateway", socksNetUnreachable, "destination_ip_unroutable", false},
	ConnectTimeout:   {504, "Gateway Timeout", socksHostUnreachable, "connection_timeout", false},
	BadResponse:      {502, "Bad Gateway", socksFailure, "http_protocol_error", false},
	ResponseCutShort: {502, "Bad Gateway", socksFailure, "http_response_incomplete", false},
}

// failure is why there is no connection, for whoever speaks to the worker.
type failure struct {
	reason Reason
	text   string     // what happened, one clause
	hint   string     // what would allow it; may be empty
	addr   netip.Addr // the address that was refused, if it came to that
	rule   string     // the rule that allowed the host, if it came to that
}

// Protocol is how a worker asked.
type Protocol string

// The protocols.
const (
	Connect Protocol = "connect" // HTTP CONNECT
	HTTP    Protocol = "http"    // plain HTTP
	SOCKS5  Protocol = "socks5"
)

// Event is something that the policy refused. The proxy saw it itself, so it is an
// observed denial; which process of the worker asked, it cannot know.
type Event struct {
	Time     time.Time
	Protocol Protocol
	// Host is the host in its canonical form; for [BadHost] and [HostMismatch],
	// what was asked for, escaped and cut to some 120 bytes.
	Host string
	Port uint16 // 0 if it did not come to that
	// Address is the first address that was refused, for [AddressNotPublic].
	Address netip.Addr
	Reason  Reason
	// Rule is the rule that allowed the host, for [AddressNotPublic].
	Rule string
	// Detail is what happened as one clause, and Hint the flag that would allow
	// it, if there is one; both are printable.
	Detail, Hint string
}
