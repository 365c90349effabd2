package sys

import (
	"crypto/rand"
	"encoding/binary"
)

// Token lets one thread make clone3(2) calls under its own filter.
//
// A filter cannot see the flags of clone3, which are in memory, and so refuses
// it to a worker. But CLONE_INTO_CGROUP exists in clone3 alone, and the thread
// that starts the worker carries the worker's filter already. The kernel ignores
// the registers beyond a call's arguments, a filter sees them: the token is 128
// random bits there, new for each thread. It is in this process' memory only,
// which no worker can read; filters cannot be read without CAP_SYS_ADMIN
// (PTRACE_SECCOMP_GET_FILTER, ptrace(2)).
type Token [2]uint64

// NewToken returns a random token.
func NewToken() Token {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read's contract
	return Token{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}
