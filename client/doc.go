// Package client talks to sandboxd: it launches commands confined and says how they
// ended. docs/protocol.md is what it speaks.
//
// A [Client] is one connection, for any number of goroutines. Workers without Keep are
// ended with it. What the daemon refuses is a [*protocol.Error], with a code and a hint;
// what is wrong with the connection itself is a [*ConnError].
package client
