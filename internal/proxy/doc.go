// Package proxy is the filtering proxy of a worker whose network is "proxy": one
// for each worker, run by the launcher, on a listener inside the worker's network
// namespace, so that the worker reaches nothing else. It speaks HTTP (CONNECT and
// plain, RFC 9110 and 9112) and SOCKS5 (RFC 1928) on the one listener, told apart
// by the first byte.
//
// A destination passes two gates, in this order:
//
//  1. The allow-list ([Rules]): the host that the worker named, in its one
//     canonical form, and the port. Nothing is resolved before.
//  2. The screen: each address that the name has now. One that is not a public
//     host's (RFC 6890: loopback, private, link-local, metadata services and so
//     on) is dialled only if a rule names that address itself.
//
// The address that was screened is the address that is dialled; a name is not
// resolved a second time. What was refused is an [Event].
//
// # What it does not protect from
//
// Of a tunnel (CONNECT, SOCKS) only its first words are looked at: not the name in
// a TLS handshake, nor the host that is asked for inside. Who may reach one host
// of a content network may reach what that host serves for others. An allowed name
// is resolved by the host's resolver, so its servers see the question. docs/network.md
// has the whole table.
package proxy
