// Package protocol is what sandboxd and its clients say to each other: frames,
// messages, limits and errors. docs/protocol.md describes it for a stranger.
//
// It opens no socket and starts nothing. A frame is a length and one JSON
// object ([Reader], [Writer]); an object is a message ([ParseRequest] for a
// daemon, [ParseAnswer] for a client, [Encode] for both).
//
// The decoder is this package's own. encoding/json takes "ID" for "id", the
// last of two equal names, anything for a lone surrogate and 1e3 for an
// integer. Two readers of one request could then see two different requests,
// and one of them decides what may run.
package protocol
