package protocol

import (
	"math/rand/v2"
	"slices"
	"strconv"
)

// Versions are those that this package speaks, the greatest last.
var versions = []int64{1}

// Versions returns the versions that this package speaks.
func Versions() []int64 { return slices.Clone(versions) }

// Negotiate returns the version that is spoken after the hello, or the error
// with the code "version".
func Negotiate(h *ClientHello) (int64, error) {
	best, found := common(h.Versions, versions)
	if !found {
		e := Errorf(Version, "none of the client's versions is spoken here").For(0, h.Type())
		e.Versions, e.Field = Versions(), "versions"
		return 0, e
	}
	return best, nil
}

// common is the greatest version that is in both lists.
func common(offered, spoken []int64) (best int64, found bool) {
	for _, v := range offered {
		if slices.Contains(spoken, v) {
			best, found = max(best, v), true
		}
	}
	return best, found
}

// The capabilities. A daemon tells those that it has; what is not in its hello
// is answered with "unsupported".
const (
	CapDescriptors = "descriptors"
	CapTTY         = "tty"
	CapKeep        = "keep"
	CapDryRun      = "dry-run"
	CapEvents      = "events"
	CapFeatures    = "features"
	CapNetAllow    = "net-allow"
)

var history = []Capability{
	{CapDescriptors, "2026-12"},
	{CapTTY, "2026-12"},
	{CapKeep, "2026-12"},
	{CapDryRun, "2026-12"},
	{CapEvents, "2026-12"},
	{CapFeatures, "2026-12"},
	{CapNetAllow, "2026-12"},
}

// History lists every capability with the month in which it came. A daemon's
// hello has those of them that it can do.
func History() []Capability { return slices.Clone(history) }

// Grease is a name that means nothing and is new each time: peers send some
// among names of which unknown ones must be ignored, so that a peer that does
// not ignore them is found early and not by the next version.
func Grease() string { return "grease-" + strconv.FormatUint(rand.Uint64(), 36) }

// GreaseVersion is a version that nobody will ever speak.
func GreaseVersion() int64 { return 1<<40 + rand.Int64N(1<<40) }

// Grease adds to the hello what a daemon must ignore.
func (h *ClientHello) Grease() {
	h.Versions = append(h.Versions, GreaseVersion())
	h.Capabilities = append(h.Capabilities, Grease())
	rand.Shuffle(len(h.Versions), func(i, j int) { h.Versions[i], h.Versions[j] = h.Versions[j], h.Versions[i] })
	rand.Shuffle(len(h.Capabilities), func(i, j int) { h.Capabilities[i], h.Capabilities[j] = h.Capabilities[j], h.Capabilities[i] })
}

// GreaseAnswer returns an encoded answer with a member that a client must
// ignore.
func GreaseAnswer(encoded []byte) []byte {
	out := append(slices.Clone(encoded[:len(encoded)-1]), ',')
	return append(append(appendString(out, Grease()), `:{"a":[1.5e3,null,true]}`...), '}')
}

// GreaseMessage is an encoded answer of a type that a client must ignore.
func GreaseMessage() []byte {
	return append(appendString([]byte(`{"type":`), Grease()), '}')
}
