package backend

import (
	"fmt"
	"os"
	"slices"

	"sandboxd/policy"
)

// File is a descriptor that a worker gets beside its standard ones.
type File struct {
	File *os.File
	// To is its number in the worker, 3 or more.
	To int
}

// DescriptorKind is what a descriptor leads to. The zero value is no kind.
type DescriptorKind string

// The kinds. Those up to DescriptorDevice hold what the descriptor itself can do
// and no more; the others lead on.
const (
	DescriptorFile     DescriptorKind = "file" // regular, of a file system that holds files, or in memory
	DescriptorPipe     DescriptorKind = "pipe"
	DescriptorTerminal DescriptorKind = "terminal"
	DescriptorDevice   DescriptorKind = "device" // null, zero, full, random, urandom

	DescriptorUnix      DescriptorKind = "unix socket"
	DescriptorSocket    DescriptorKind = "network socket"
	DescriptorDirectory DescriptorKind = "directory"
	DescriptorOther     DescriptorKind = "other" // O_PATH handles, other devices, pidfds, namespaces, message queues, /proc, what is not known, ...
)

// Safe tells whether such a descriptor may be passed without a word.
func (k DescriptorKind) Safe() bool {
	return slices.Contains([]DescriptorKind{DescriptorFile, DescriptorPipe, DescriptorTerminal, DescriptorDevice}, k)
}

// Descriptor is one that a worker was given, as the report tells it.
type Descriptor struct {
	Number int            `json:"number"`
	Kind   DescriptorKind `json:"kind"`
}

// opens are the effects that the policy no longer has alone once a worker holds
// such a descriptor.
func (k DescriptorKind) opens() policy.EffectSet {
	switch k {
	case DescriptorUnix:
		return policy.SetOf(policy.NetUnixPath, policy.NetUnixAbstract)
	case DescriptorSocket:
		return policy.SetOf(policy.NetTCPConnect, policy.NetTCPBind, policy.NetUDP, policy.NetRaw, policy.NetOther)
	case DescriptorDirectory:
		return policy.SetOf(policy.FSMetadata)
	case DescriptorOther:
		return policy.SetOf(policy.Effects()...).Minus(policy.SetOf(policy.TreeKill))
	}
	return 0
}

// WithDescriptors says what of an enforcement is left when the worker holds these
// descriptors.
func (e Enforcement) WithDescriptors(list []Descriptor) Enforcement {
	for _, d := range list {
		for _, effect := range d.Kind.opens().List() {
			s := e.State(effect)
			if s.Status != Enforced && s.Status != Partial {
				continue
			}
			s.Status = Partial
			s.Gaps = append(slices.Clone(s.Gaps), fmt.Sprintf("the worker was given descriptor %d (%s)", d.Number, d.Kind))
			e = e.With(effect, s)
		}
	}
	return e
}
