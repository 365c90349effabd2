package policy

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Effect is one kind of touch that a sandbox may govern. The zero value is
// invalid. docs/enforcement.md says what each means and which test holds it.
type Effect uint8

// The effects, in the order in which reports list them.
const (
	FSRead Effect = iota + 1
	FSWrite
	FSExec
	FSTruncate
	FSMetadata
	FSIoctl
	FSProtected
	FSHardlink
	NetTCPConnect
	NetTCPBind
	NetUDP
	NetRaw
	NetOther
	NetUnixPath
	NetUnixAbstract
	ProcSignal
	ProcTrace
	ProcSee
	KernelKeyring
	KernelIOUring
	KernelMount
	KernelUserns
	TTYInject
	LimitsMemory
	LimitsPids
	LimitsCPU
	LimitsDisk
	LimitsTime
	TreeKill
	effectEnd
)

var effectNames = [effectEnd]string{
	FSRead:          "fs.read",
	FSWrite:         "fs.write",
	FSExec:          "fs.exec",
	FSTruncate:      "fs.truncate",
	FSMetadata:      "fs.metadata",
	FSIoctl:         "fs.ioctl",
	FSProtected:     "fs.protected",
	FSHardlink:      "fs.hardlink",
	NetTCPConnect:   "net.tcp.connect",
	NetTCPBind:      "net.tcp.bind",
	NetUDP:          "net.udp",
	NetRaw:          "net.raw",
	NetOther:        "net.other",
	NetUnixPath:     "net.unix.path",
	NetUnixAbstract: "net.unix.abstract",
	ProcSignal:      "proc.signal",
	ProcTrace:       "proc.trace",
	ProcSee:         "proc.see",
	KernelKeyring:   "kernel.keyring",
	KernelIOUring:   "kernel.io_uring",
	KernelMount:     "kernel.mount",
	KernelUserns:    "kernel.userns",
	TTYInject:       "tty.inject",
	LimitsMemory:    "limits.memory",
	LimitsPids:      "limits.pids",
	LimitsCPU:       "limits.cpu",
	LimitsDisk:      "limits.disk",
	LimitsTime:      "limits.time",
	TreeKill:        "tree.kill",
}

// Effects returns every effect, in report order.
func Effects() []Effect {
	all := make([]Effect, 0, effectEnd-1)
	for e := Effect(1); e < effectEnd; e++ {
		all = append(all, e)
	}
	return all
}

// ParseEffect reads an effect's name.
func ParseEffect(s string) (Effect, error) {
	if i := slices.Index(effectNames[:], s); i > 0 {
		return Effect(i), nil
	}
	return 0, fmt.Errorf("unknown effect %q (see `sbx features` for the list)", s)
}

// Valid tells whether e is one of the declared effects.
func (e Effect) Valid() bool { return e > 0 && e < effectEnd }

func (e Effect) String() string {
	if !e.Valid() {
		return "unset"
	}
	return effectNames[e]
}

// MarshalText writes the effect's name; an invalid one is an error.
func (e Effect) MarshalText() ([]byte, error) {
	if !e.Valid() {
		return nil, fmt.Errorf("effect is unset")
	}
	return []byte(effectNames[e]), nil
}

// UnmarshalText reads an effect's name.
func (e *Effect) UnmarshalText(b []byte) (err error) {
	*e, err = ParseEffect(string(b))
	return err
}

// EffectSet is a set of effects. The zero value is the empty set.
type EffectSet uint64

// SetOf makes a set; invalid effects panic, as they can only be a mistake in
// the program's own tables.
func SetOf(effects ...Effect) EffectSet {
	var s EffectSet
	for _, e := range effects {
		if !e.Valid() {
			panic("policy: invalid effect in a set")
		}
		s |= 1 << e
	}
	return s
}

// Has tells whether e is in the set.
func (s EffectSet) Has(e Effect) bool { return e.Valid() && s&(1<<e) != 0 }

// Union returns the effects in either set.
func (s EffectSet) Union(o EffectSet) EffectSet { return s | o }

// Minus returns the effects of s that are not in o.
func (s EffectSet) Minus(o EffectSet) EffectSet { return s &^ o }

// Len is the number of effects in the set.
func (s EffectSet) Len() int { return bits.OnesCount64(uint64(s)) }

// List returns the set's effects in report order.
func (s EffectSet) List() []Effect {
	list := make([]Effect, 0, s.Len())
	for e := Effect(1); e < effectEnd; e++ {
		if s.Has(e) {
			list = append(list, e)
		}
	}
	return list
}

func (s EffectSet) String() string {
	names := make([]string, 0, s.Len())
	for _, e := range s.List() {
		names = append(names, e.String())
	}
	return strings.Join(names, ",")
}

// Promise is what a confined mode stands for without a word from the caller: a
// launch that would lose one of these takes another backend that holds it or
// is refused, unless the caller names the loss (--allow-gap).
func Promise() EffectSet {
	return SetOf(FSRead, FSWrite, FSTruncate, NetTCPConnect, NetTCPBind, NetUDP, NetRaw, NetOther, NetUnixPath, NetUnixAbstract)
}

// networkEffects are those that --net host gives up. Unix sockets are not
// among them: a host's docker.sock is a way out whatever the IP network is.
func networkEffects() EffectSet {
	return SetOf(NetTCPConnect, NetTCPBind, NetUDP, NetRaw, NetOther)
}
