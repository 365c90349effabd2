package seccomp

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// MaxInsns is the number of instructions beyond which the kernel refuses a
// filter (BPF_MAXINSNS).
const MaxInsns = 4096

// insnSize is the size in bytes of one instruction, in a file and in memory.
const insnSize = 8

// Net says what a command may do with IP sockets. The zero value is invalid.
type Net uint8

const (
	// NetNone refuses every AF_INET and AF_INET6 socket with EACCES. One rule
	// at socket(2) closes TCP, UDP, UDP-Lite, ICMP, raw, MPTCP and SCTP on
	// every kernel.
	NetNone Net = iota + 1
	// NetHost leaves IP sockets alone.
	NetHost
)

// String returns "none" or "host", or "invalid".
func (n Net) String() string {
	switch n {
	case NetNone:
		return "none"
	case NetHost:
		return "host"
	}
	return "invalid"
}

// Unix says who keeps a command away from AF_UNIX sockets that are not its own.
// The zero value is invalid.
type Unix uint8

const (
	// UnixKernel leaves it to Landlock, which governs path sockets from ABI 9.
	UnixKernel Unix = iota + 1
	// UnixSupervised reports connect, bind, sendmsg, sendmmsg and sendto with
	// an address to the notification listener, which performs or refuses them.
	UnixSupervised
	// UnixClosed is for launches that can have no listener: connect fails with
	// EACCES, and AF_UNIX sockets that could carry an address in a message
	// (datagram) cannot be made.
	UnixClosed
)

// String returns "kernel", "supervised" or "closed", or "invalid".
func (u Unix) String() string {
	switch u {
	case UnixKernel:
		return "kernel"
	case UnixSupervised:
		return "supervised"
	case UnixClosed:
		return "closed"
	}
	return "invalid"
}

// Front says that a filter is not a worker's but the front's: the half of the
// daemon that reads what strangers send. It is an allow-list of its own (front.go).
// The zero value is a worker's filter.
type Front uint8

const (
	// FrontBare is for a front that opens no file at all.
	FrontBare Front = iota + 1
	// FrontStore also has the calls on files by path and on open files that a
	// store needs; Landlock decides which files.
	FrontStore
)

// String returns "front" or "front-store", or "invalid".
func (f Front) String() string {
	switch f {
	case FrontBare:
		return "front"
	case FrontStore:
		return "front-store"
	}
	return "invalid"
}

// Variant selects one filter. Only the combinations that [Variants] lists exist.
type Variant struct {
	// Front, if it is set, selects a filter of the front, and no other field is.
	Front Front
	// Net says what becomes of IP sockets.
	Net Net
	// Unix says who governs AF_UNIX sockets.
	Unix Unix
	// Truncate is for kernels whose Landlock cannot govern truncation (ABI 1
	// and 2): opening with O_TRUNC but without write access fails with EACCES,
	// openat2 with ENOSYS, and truncate(2) is reported to the listener, or
	// fails with EACCES where there is none.
	Truncate bool
	// Shm reports the opens, links and unlinks that POSIX shared memory and
	// semaphores are made of to the listener.
	Shm bool
}

// Variants returns every valid combination, in a fixed order.
func Variants() []Variant {
	return []Variant{
		{Net: NetNone, Unix: UnixKernel},
		{Net: NetNone, Unix: UnixKernel, Shm: true},
		{Net: NetNone, Unix: UnixSupervised, Shm: true},
		{Net: NetNone, Unix: UnixSupervised, Shm: true, Truncate: true},
		{Net: NetNone, Unix: UnixClosed},
		{Net: NetNone, Unix: UnixClosed, Truncate: true},
		{Net: NetHost, Unix: UnixKernel},
		{Net: NetHost, Unix: UnixKernel, Shm: true},
		{Net: NetHost, Unix: UnixSupervised, Shm: true},
		{Net: NetHost, Unix: UnixSupervised, Shm: true, Truncate: true},
		{Front: FrontBare},
		{Front: FrontStore},
	}
}

// Arches returns the GOARCH values that have filters.
func Arches() []string { return []string{"amd64", "arm64"} }

// Valid reports whether [Variants] lists v.
func (v Variant) Valid() bool { return slices.Contains(Variants(), v) }

// Notifies reports whether the filter hands calls to a notification listener:
// it must then be installed with SECCOMP_FILTER_FLAG_NEW_LISTENER, for without
// a listener those calls fail with ENOSYS.
func (v Variant) Notifies() bool { return v.Shm || v.Unix == UnixSupervised }

// String returns the variant's stable name, such as "none-supervised-shm". The
// committed programs are named after it.
func (v Variant) String() string {
	if v.Front != 0 && v == (Variant{Front: v.Front}) {
		return v.Front.String()
	}
	parts := []string{v.Net.String(), v.Unix.String()}
	if v.Shm {
		parts = append(parts, "shm")
	}
	if v.Truncate {
		parts = append(parts, "truncate")
	}
	return strings.Join(parts, "-")
}

// Insn is one BPF instruction, laid out like the kernel's struct sock_filter.
type Insn struct {
	// Code is the operation.
	Code uint16
	// Jt and Jf are how many instructions a conditional jump skips when it
	// holds and when it does not.
	Jt, Jf uint8
	// K is the operand: a constant, an offset into struct seccomp_data, or the
	// value to return.
	K uint32
}

//go:embed programs/*.bpf
var programs embed.FS

// parsed remembers each program by file name, so that a launch pays for a copy
// and not for parsing.
var parsed sync.Map

// Load returns the program for linux/goarch and v. The result is the caller's
// own copy: it may be changed and passed to the kernel without harm to other
// callers. Loading a program again costs one copy of it (a few kilobytes).
//
// It is an error if the architecture has no filters, or if v is not one of
// [Variants]. Load works on every operating system, as the programs are data.
func Load(goarch string, v Variant) ([]Insn, error) {
	if !slices.Contains(Arches(), goarch) {
		return nil, fmt.Errorf("seccomp: no filter for linux/%s", goarch)
	}
	if !v.Valid() {
		return nil, fmt.Errorf("seccomp: no filter variant %s", v)
	}
	name := fileName(goarch, v)
	if p, ok := parsed.Load(name); ok {
		return slices.Clone(p.([]Insn)), nil
	}
	p, err := read(programs, "programs/"+name)
	if err != nil {
		return nil, fmt.Errorf("seccomp: filter for linux/%s, %s: %w", goarch, v, err)
	}
	parsed.Store(name, p)
	return slices.Clone(p), nil
}

func fileName(goarch string, v Variant) string {
	return goarch + "-" + v.String() + ".bpf"
}

func read(fsys fs.FS, name string) ([]Insn, error) {
	b, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	return parse(b)
}

// parse decodes a program as libseccomp writes it. Both architectures are
// little-endian, and so are their files, whatever machine reads them.
func parse(b []byte) ([]Insn, error) {
	switch {
	case len(b) == 0:
		return nil, errors.New("program is empty")
	case len(b)%insnSize != 0:
		return nil, fmt.Errorf("program of %d bytes is cut off", len(b))
	case len(b)/insnSize > MaxInsns:
		return nil, fmt.Errorf("program of %d instructions is longer than the kernel takes (%d)", len(b)/insnSize, MaxInsns)
	}
	p := make([]Insn, 0, len(b)/insnSize)
	for ; len(b) > 0; b = b[insnSize:] {
		p = append(p, Insn{
			Code: binary.LittleEndian.Uint16(b),
			Jt:   b[2],
			Jf:   b[3],
			K:    binary.LittleEndian.Uint32(b[4:]),
		})
	}
	return p, nil
}
