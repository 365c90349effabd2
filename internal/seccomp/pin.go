package seccomp

// nrTgkill is the number of tgkill(2).
var nrTgkill = map[string]uint32{"amd64": 234, "arm64": 131}

// Pin returns the program behind a prologue that fails tgkill(2) with EPERM unless
// its first argument is pid: the committed programs cannot know the process that
// they will run in, and the front may signal its own threads only. All other calls,
// and tgkill within the process, are the program's. pid is the process' number in
// its own PID namespace, which is how the kernel reads the argument. An architecture
// without a filter gets the program as it is.
func Pin(goarch string, program []Insn, pid int) []Insn {
	arch, ok := auditArchs[goarch]
	if !ok {
		return program
	}
	const (
		load, jumpEqual, ret = 0x20, 0x15, 0x06 // BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
		eperm                = 0x00050000 | ePERM
	)
	// The argument is an int: the kernel ignores the upper half.
	return append([]Insn{
		{Code: load, K: 4}, {Code: jumpEqual, Jf: 5, K: arch},
		{Code: load, K: 0}, {Code: jumpEqual, Jf: 3, K: nrTgkill[goarch]},
		{Code: load, K: 16}, {Code: jumpEqual, Jt: 1, K: uint32(pid)},
		{Code: ret, K: eperm},
	}, program...)
}
