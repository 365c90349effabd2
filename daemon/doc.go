// Package daemon is sandboxd: two processes that launch workers for many clients.
//
// The monitor owns the socket. It accepts connections, reads who their peers are,
// and hands them to the front; it makes policies, launches, and knows how workers
// end. The front, a process of its own without rights, reads what strangers send
// and keeps their sessions. They speak over one socket pair, in the messages of
// package link, whose ledger says who may ask what; what the front says can only
// narrow what the monitor allows by itself. If the front ends, so do all workers.
package daemon
