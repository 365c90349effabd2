package seccomp

// auditArchs are the kernel's names of the architectures: linux/audit.h.
var auditArchs = map[string]uint32{"amd64": 0xc000003e, "arm64": 0xc00000b7}

// clone3 has the same number on every architecture.
const nrClone3 = 435

// TokenArg is the first of the two arguments of clone3(2) that carry a token;
// the call itself has two (0 and 1).
const TokenArg = 2

// Admit returns the program behind a prologue that allows clone3(2) to whoever
// has the token in the call's registers 2 and 3, which the kernel ignores: the
// thread that starts a worker under the worker's own filter. All other calls,
// and clone3 without the token, are the program's. An architecture without a
// filter gets the program as it is.
func Admit(goarch string, program []Insn, token [2]uint64) []Insn {
	arch, ok := auditArchs[goarch]
	if !ok {
		return program
	}
	const (
		load, jumpEqual, ret = 0x20, 0x15, 0x06 // BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
		allow                = 0x7fff0000       // SECCOMP_RET_ALLOW
		args                 = 16               // offset in struct seccomp_data
	)
	type word struct{ offset, want uint32 }
	words := []word{{4, arch}, {0, nrClone3}}
	for i, t := range token {
		at := uint32(args + 8*(TokenArg+i))
		words = append(words, word{at, uint32(t)}, word{at + 4, uint32(t >> 32)})
	}
	out := make([]Insn, 0, 2*len(words)+1+len(program))
	for i, w := range words {
		out = append(out, Insn{Code: load, K: w.offset},
			Insn{Code: jumpEqual, Jf: uint8(2*(len(words)-i-1) + 1), K: w.want})
	}
	out = append(out, Insn{Code: ret, K: allow})
	return append(out, program...)
}
