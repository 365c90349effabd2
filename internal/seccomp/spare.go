package seccomp

// schedulers are the calls that change how a thread is scheduled, with the place
// of its number: x/sys' numbers on amd64 and arm64.
var schedulers = []struct {
	nrs map[string]uint32
	id  uint32
}{
	{map[string]uint32{"amd64": 203, "arm64": 122}, 0}, // sched_setaffinity
	{map[string]uint32{"amd64": 314, "arm64": 274}, 0}, // sched_setattr
	{map[string]uint32{"amd64": 142, "arm64": 118}, 0}, // sched_setparam
	{map[string]uint32{"amd64": 144, "arm64": 119}, 0}, // sched_setscheduler
	{map[string]uint32{"amd64": 141, "arm64": 140}, 1}, // setpriority
	{map[string]uint32{"amd64": 251, "arm64": 30}, 1},  // ioprio_set
}

// maxSpared bounds what a filter gets longer by: two instructions for each.
const maxSpared = 1024

// Spare returns the program behind a prologue that refuses (EPERM) to change how
// these threads are scheduled. It is for a filter whose calls nobody judges: the
// launcher's own threads, which the worker may starve else, are known by number
// when it is installed. What number another thread gets later is not.
func Spare(goarch string, program []Insn, threads []int) []Insn {
	arch, ok := auditArchs[goarch]
	if !ok || len(threads) == 0 {
		return program
	}
	const (
		load, jump, jumpEqual, ret = 0x20, 0x05, 0x15, 0x06 // BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JA, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
		refuse                     = 0x0005_0000 | ePERM    // SECCOMP_RET_ERRNO
		args                       = 16                     // offset in struct seccomp_data
	)
	threads = threads[:min(len(threads), maxSpared)]
	list := make([]Insn, 0, 2*len(threads))
	for _, id := range threads {
		list = append(list, Insn{Code: jumpEqual, Jf: 1, K: uint32(id)}, Insn{Code: ret, K: refuse})
	}
	// A jump on a condition reaches 255 instructions, one without any.
	end := uint32(len(list))
	out := []Insn{
		{Code: load, K: 4},
		{Code: jumpEqual, Jt: 1, K: arch},
		{Code: jump, K: 2 + 3*uint32(len(schedulers)) + end},
		{Code: load, K: 0},
	}
	for i, s := range schedulers {
		out = append(out,
			Insn{Code: jumpEqual, Jf: 2, K: s.nrs[goarch]},
			Insn{Code: load, K: args + 8*s.id},
			Insn{Code: jump, K: 3*uint32(len(schedulers)-i-1) + 1}) // to the list
	}
	out = append(out, Insn{Code: jump, K: end})
	out = append(out, list...)
	return append(out, program...)
}
