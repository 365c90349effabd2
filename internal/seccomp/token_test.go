package seccomp

import "testing"

// TestAdmit: clone3 with the whole token, and nothing else, differs from the
// program without the prologue.
func TestAdmit(t *testing.T) {
	token := [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		admitting := Admit(goarch, p, token)
		if len(admitting) > MaxInsns {
			t.Errorf("%d instructions are more than the kernel takes", len(admitting))
		}
		call := data{nr: nrClone3, arch: auditArch(goarch), args: [6]uint64{1, 88, token[0], token[1]}}
		if got := mustRun(t, admitting, call); got != retAllow {
			t.Errorf("with the token: %#x", got)
		}
		for bit := range 128 {
			wrong := call
			wrong.args[TokenArg+bit/64] ^= 1 << (bit % 64)
			if got := mustRun(t, admitting, wrong); got != retErrno|eNOSYS {
				t.Errorf("with bit %d of the token wrong: %#x", bit, got)
			}
		}
		for name, nr := range numbers(t, goarch) {
			for _, arch := range []uint32{auditAMD64, auditARM64, auditI386, auditARM, auditRISCV} {
				other := call
				other.nr, other.arch = nr, arch
				if other == call {
					continue
				}
				if got, want := mustRun(t, admitting, other), mustRun(t, p, other); got != want {
					t.Errorf("%s (arch %#x): %#x, without the prologue %#x", name, arch, got, want)
				}
				other.nr |= x32Bit
				if got, want := mustRun(t, admitting, other), mustRun(t, p, other); got != want {
					t.Errorf("%s of x32: %#x, without the prologue %#x", name, got, want)
				}
			}
		}
	})
}
