package seccomp

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// This file is the verdict table of the front's filters, written by hand from what
// the front may do and not from front.go. A call that no list names must be EPERM
// whatever its arguments.

const frontAllowed = `
	exit exit_group restart_syscall munmap madvise brk
	read write readv writev close lseek pread64 getdents64 fstat
	recvmsg sendmsg shutdown getsockname getpeername
	epoll_create1 epoll_ctl epoll_pwait eventfd2
	futex sched_yield sched_getaffinity set_robust_list rseq
	clock_gettime clock_getres clock_nanosleep gettimeofday nanosleep
	setitimer timer_create timer_settime timer_delete
	rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack tgkill
	getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getrandom uname`

const storeAllowed = `
	pwrite64 fsync fdatasync ftruncate fallocate flock
	newfstatat readlinkat unlinkat renameat renameat2 faccessat getcwd
	stat lstat access unlink`

const frontENOSYS = `
	clone3 sendfile copy_file_range statx openat2 faccessat2 epoll_pwait2 futex_waitv close_range
	io_uring_setup io_uring_enter io_uring_register`

const frontJudged = `mmap mprotect clone prctl prlimit64 fcntl getsockopt setsockopt open openat mkdir mkdirat`

const errINVAL = retErrno | 22

// eachFront runs f for the front's programs.
func eachFront(t *testing.T, f func(t *testing.T, goarch string, store bool, p []Insn)) {
	ran := 0
	each(t, func(t *testing.T, goarch string, v Variant, p []Insn) {
		if v.Front != 0 {
			f(t, goarch, v.Front == FrontStore, p)
			ran++
		}
	})
	if ran != 4 {
		t.Errorf("%d programs were tried", ran)
	}
}

func TestFrontLists(t *testing.T) {
	known := numbers(t, "amd64")
	seen := map[string]bool{}
	for name := range strings.FieldsSeq(frontAllowed + storeAllowed + frontENOSYS + " " + frontJudged) {
		if _, ok := known[name]; !ok || seen[name] {
			t.Errorf("%q is no call, or named twice", name)
		}
		seen[name] = true
	}
}

func TestFrontFixedVerdicts(t *testing.T) {
	eachFront(t, func(t *testing.T, goarch string, store bool, p []Insn) {
		nrs := numbers(t, goarch)
		want := map[string]uint32{}
		for name := range nrs {
			want[name] = errPERM
		}
		set := func(list string, v uint32) {
			for name := range strings.FieldsSeq(list) {
				if _, ok := want[name]; ok {
					want[name] = v
				}
			}
		}
		set(frontAllowed, retAllow)
		set(frontENOSYS, errNOSYS)
		if store {
			set(storeAllowed, retAllow)
		}
		for name := range strings.FieldsSeq(frontJudged) {
			delete(want, name)
		}
		for name, v := range want {
			for _, a := range []uint64{0, 1, 0xffffffff, high, highAll, anything, 1<<64 - 1} {
				d := data{nr: nrs[name], arch: auditArch(goarch), args: [6]uint64{a, a, a, a, a, a}}
				if got := mustRun(t, p, d); got != v {
					t.Errorf("%s(%#x...) = %#x, want %#x", name, a, got, v)
				}
			}
		}
	})
}

func TestFrontJudgedVerdicts(t *testing.T) {
	eachFront(t, func(t *testing.T, goarch string, store bool, p []Insn) {
		nrs := numbers(t, goarch)
		seen := map[string]bool{}
		for _, c := range slices.Concat(frontProcessCalls(), frontDescriptorCalls(store), frontPathCalls(store)) {
			nr, ok := nrs[c.call]
			if !ok {
				continue
			}
			seen[c.call] = true
			if got := mustRun(t, p, data{nr: nr, arch: auditArch(goarch), ip: anything, args: c.args}); got != c.want {
				t.Errorf("%s(%#x) = %#x, want %#x", c.call, c.args, got, c.want)
			}
		}
		for name := range strings.FieldsSeq(frontJudged) {
			if _, ok := nrs[name]; ok && !seen[name] {
				t.Errorf("%s is never tried", name)
			}
		}
	})
}

func frontProcessCalls() []try {
	var all []try
	for prot := range uint64(16) {
		want := uint32(retAllow)
		if prot&4 != 0 { // PROT_EXEC
			want = errPERM
		}
		for _, over := range []uint64{0, high, highAll, 0x01000000} {
			all = append(all, call(want, "mmap", 0, 4096, over|prot, 0x22), call(want, "mprotect", anything, 4096, over|prot))
		}
	}
	for _, flags := range []uint64{0x50f00, 0xd0f00, 0x3d0f00} {
		all = append(all, call(retAllow, "clone", flags, anything, anything))
		// A process of its own (CLONE_THREAD missing), other memory, another table
		// of descriptors, a namespace, a signal at the end, a traced child.
		for bit := range 64 {
			changed := flags ^ 1<<bit
			if changed != 0x50f00 && changed != 0xd0f00 && changed != 0x3d0f00 {
				all = append(all, call(errPERM, "clone", changed, anything, anything))
			}
		}
	}
	for _, flags := range []uint64{0, 17, 0x4111, 0x01200011, 0x10000000 | 17, 1<<64 - 1} {
		all = append(all, call(errPERM, "clone", flags))
	}
	for _, resource := range []uint64{0, 4, 6, 7, anything} {
		all = append(all,
			call(retAllow, "prlimit64", 0, resource, 0, anything), call(retAllow, "prlimit64", high, resource, 0, anything),
			call(errPERM, "prlimit64", 0, resource, 1, 0), call(errPERM, "prlimit64", 0, resource, high, 0),
			call(errPERM, "prlimit64", 0, resource, anything, anything), call(errPERM, "prlimit64", 1, resource, 0, anything),
			call(errPERM, "prlimit64", 0xffffffff, resource, 0, anything))
	}
	all = append(all, call(errINVAL, "prctl", 0x53564d41, 0, anything, 4096, anything))
	for option := range uint64(80) {
		all = append(all, call(errPERM, "prctl", option, 1), call(errPERM, "prctl", high|option, anything))
	}
	return all
}

func frontDescriptorCalls(store bool) []try {
	var all []try
	pick := func(name string, allowed, of []uint64, more func(uint64) []uint64) {
		for _, v := range of {
			want := uint32(errPERM)
			if slices.Contains(allowed, v&0xffffffff) {
				want = retAllow
			}
			all = append(all, call(want, name, more(v)...))
		}
	}
	upTo := func(n uint64) (list []uint64) {
		for v := range n {
			list = append(list, v, high|v, highAll|v)
		}
		return append(list, 0x80000000, 0xffffffff)
	}
	commands := []uint64{1, 2, 3, 4, 1030}
	if store {
		commands = append(commands, 5, 6, 7, 36, 37, 38)
	}
	pick("fcntl", commands, upTo(1100), func(v uint64) []uint64 { return []uint64{7, v, anything} })
	for _, level := range []uint64{0, 1, 6, 41, 263, 270, 281} {
		var get, set []uint64
		switch level {
		case 1:
			get, set = []uint64{3, 4, 7, 8, 17, 30, 38, 39}, []uint64{7, 8, 9}
		case 6:
			set = []uint64{1, 4, 5, 6}
		}
		for _, l := range []uint64{level, high | level} {
			pick("getsockopt", get, upTo(90), func(v uint64) []uint64 { return []uint64{7, l, v, anything, anything} })
			pick("setsockopt", set, upTo(90), func(v uint64) []uint64 { return []uint64{7, l, v, anything, 4} })
		}
	}
	return all
}

func frontPathCalls(store bool) []try {
	open := uint32(errPERM)
	if store {
		open = retAllow
	}
	var all []try
	for _, flags := range []uint64{0, 1, 2, 0x42, 0x241, 0x80042, 0x200000, 0x410002, high, highAll | 2} {
		for _, mode := range []uint64{0, 0o600, 0o644, 0o777, 0o1777, high, 0o100600} {
			all = append(all,
				call(open, "openat", 0xffffff9c, anything, flags, mode), call(open, "open", anything, flags, mode),
				call(open, "mkdirat", 5, anything, mode), call(open, "mkdir", anything, mode))
			for _, bad := range []uint64{0o4000, 0o2000, 0o6000} {
				all = append(all,
					call(errPERM, "openat", 5, anything, flags, mode|bad), call(errPERM, "open", anything, flags, mode|bad),
					call(errPERM, "mkdirat", 5, anything, mode|bad), call(errPERM, "mkdir", anything, mode|bad))
			}
			// Access mode 3.
			all = append(all, call(errPERM, "openat", 5, anything, flags|3, mode), call(errPERM, "open", anything, flags|3|0x200, mode))
		}
	}
	return all
}

// frontAllows are the calls that a filter allows, and whether with some arguments only.
func frontAllows(goarch string, f Front) map[string]bool {
	calls := map[string]bool{}
	for _, r := range frontRows(goarch, f) {
		if r.do == allow() {
			calls[r.call] = len(r.when) > 0
		}
	}
	calls["tgkill"] = true // Pin
	return calls
}

// TestFrontDocument holds the table of docs/front.md to the filters: the calls, which
// of them only a store brings, which of them only amd64 has, and which are limited.
func TestFrontDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/front.md")
	if _, serr := os.Stat("front_test.go"); os.IsNotExist(serr) {
		t.Skip("needs the sources: it runs from a binary alone here (test/vm)")
	}
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "<!-- calls -->\n")
	table, _, end := strings.Cut(rest, "<!-- end of calls -->")
	if !ok || !end {
		t.Fatal("docs/front.md has no marks around the table")
	}
	type entry struct{ store, amd64, limited bool }
	said := map[string]entry{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "`") {
			continue // the head
		}
		for name := range strings.FieldsSeq(strings.ReplaceAll(cells[1], "`", "")) {
			if _, twice := said[name]; twice {
				t.Errorf("%s stands there twice", name)
			}
			limit := strings.TrimSpace(cells[2])
			said[name] = entry{strings.Contains(cells[3], "store"), strings.Contains(cells[3], "amd64"), limit != "" && limit != "-"}
		}
		if len(strings.TrimSpace(cells[4])) < 10 {
			t.Errorf("no reason: %s", line)
		}
	}
	does := map[string]entry{}
	bare, arm := frontAllows("amd64", FrontBare), frontAllows("arm64", FrontStore)
	for name, limited := range frontAllows("amd64", FrontStore) {
		_, everywhere := bare[name]
		_, both := arm[name]
		does[name] = entry{!everywhere, !both, limited}
	}
	for name, e := range does {
		if said[name] != e {
			t.Errorf("%s: the filter %+v, docs/front.md %+v", name, e, said[name])
		}
	}
	for name := range said {
		if _, ok := does[name]; !ok {
			t.Errorf("%s is not allowed", name)
		}
	}
}

// TestFrontBareIsLess: the filter without a store allows nothing that the one with a
// store refuses.
func TestFrontBareIsLess(t *testing.T) {
	for _, goarch := range Arches() {
		bare, store := frontAllows(goarch, FrontBare), frontAllows(goarch, FrontStore)
		for name := range bare {
			if _, ok := store[name]; !ok {
				t.Errorf("%s: only without a store", name)
			}
		}
		if len(bare) < 50 || len(store) <= len(bare) {
			t.Errorf("%s: %d and %d calls", goarch, len(bare), len(store))
		}
	}
}

// TestPin: tgkill reaches the process itself and no other; nothing else changes.
func TestPin(t *testing.T) {
	const pid = 0x1234567
	eachFront(t, func(t *testing.T, goarch string, _ bool, p []Insn) {
		pinned := Pin(goarch, p, pid)
		if len(pinned) <= len(p) || len(pinned) > MaxInsns {
			t.Fatalf("%d instructions of %d", len(pinned), len(p))
		}
		nrs := numbers(t, goarch)
		for _, c := range []try{
			call(retAllow, "tgkill", pid, 5, 23), call(retAllow, "tgkill", high|pid, 5, 23), call(errPERM, "tgkill", pid+1, 5, 23),
			call(errPERM, "tgkill", 0, 5, 23), call(errPERM, "tgkill", 1, 1, 9), call(errPERM, "tgkill", pid<<32, pid, pid),
			call(errPERM, "tgkill", 1<<64-1, 5, 23), call(errPERM, "tkill", pid, 23), call(errPERM, "kill", pid, 9),
		} {
			if got := mustRun(t, pinned, data{nr: nrs[c.call], arch: auditArch(goarch), args: c.args}); got != c.want {
				t.Errorf("%s(%#x) = %#x, want %#x", c.call, c.args, got, c.want)
			}
		}
		for bit := range 32 {
			d := data{nr: nrs["tgkill"], arch: auditArch(goarch), args: [6]uint64{pid ^ 1<<bit, 5, 23}}
			if got := mustRun(t, pinned, d); got != errPERM {
				t.Errorf("tgkill to %#x = %#x", d.args[0], got)
			}
		}
		for name, nr := range nrs {
			for _, arch := range []uint32{auditAMD64, auditARM64, auditI386, auditARM} {
				d := data{nr: nr, arch: arch, args: [6]uint64{pid + 1, 2, 3, 4, 5, 6}}
				if name == "tgkill" && arch == auditArch(goarch) {
					continue
				}
				if got, want := mustRun(t, pinned, d), mustRun(t, p, d); got != want {
					t.Errorf("%s (arch %#x): %#x, without the prologue %#x", name, arch, got, want)
				}
			}
		}
	})
	if p := Pin("riscv64", []Insn{{Code: 6}}, 1); len(p) != 1 {
		t.Error("a program for an unknown architecture was changed")
	}
}
