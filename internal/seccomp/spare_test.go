package seccomp

import "testing"

// TestSpare: the calls that schedule one of the threads are refused, and whatever
// else is called gets the answer of the program without the prologue.
func TestSpare(t *testing.T) {
	threads := make([]int, 0, 600)
	for id := 1000; len(threads) < cap(threads); id += 7 {
		threads = append(threads, id)
	}
	first, last := uint64(threads[0]), uint64(threads[len(threads)-1])
	place := map[string]int{"sched_setaffinity": 0, "sched_setattr": 0, "sched_setparam": 0, "sched_setscheduler": 0, "setpriority": 1, "ioprio_set": 1}
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		sparing := Spare(goarch, p, threads)
		if len(sparing) > MaxInsns {
			t.Errorf("%d instructions are more than the kernel takes", len(sparing))
		}
		for name, nr := range numbers(t, goarch) {
			for _, arch := range []uint32{auditAMD64, auditARM64, auditI386} {
				for _, id := range []uint64{0, 1, first, first + 1, last, last + 7, high | first, highAll | last, highAll} {
					call := data{nr: nr, arch: arch, args: [6]uint64{id, 1}}
					at, schedules := place[name]
					if at == 1 {
						call.args = [6]uint64{1, id}
						if name == "setpriority" {
							call.args[0] = 0
						}
					}
					want := mustRun(t, p, call)
					low := uint64(uint32(id))
					if schedules && arch == auditArch(goarch) && (low == first || low == last) {
						want = errPERM
					}
					if got := mustRun(t, sparing, call); got != want {
						t.Errorf("%s(%#x), arch %#x: %#x, want %#x", name, call.args, arch, got, want)
					}
				}
			}
		}
	})
	p := mustLoad(t, "amd64", Variants()[0])
	if got := Spare("amd64", p, nil); len(got) != len(p) {
		t.Error("without threads there is a prologue")
	}
	if got := len(Spare("amd64", p, make([]int, 9999))); got > MaxInsns {
		t.Errorf("%d instructions are more than the kernel takes", got)
	}
}
