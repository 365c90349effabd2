//go:build amd64 || arm64

package sys

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Program is a list of system calls, made ahead, for a process that is forked of this
// one and may run no Go: it is one thread of what was many, or shares its memory with
// this process. The calls are made one after the other; the first that fails ends the
// process, and which it was is told.
//
// The methods append calls. They return no errors: what cannot be said in a call (a
// path with a NUL) is kept for [Program.Err].
type Program struct {
	calls []call
	regs  []uintptr
	steps []step
	keep  []unsafe.Pointer // what the calls point to
	texts []byte           // room for paths
	err   error
}

// step is a name that is put together where it is asked for.
type step struct {
	format string
	args   []any
}

func (s step) String() string { return fmt.Sprintf(s.format, s.args...) }

// Room makes room for as many more calls.
func (p *Program) Room(calls int) {
	p.calls, p.regs = slices.Grow(p.calls, calls), slices.Grow(p.regs, calls)
}

// Ref is an argument: a number that is known, or the result of an earlier call.
type Ref struct {
	n      uintptr
	result bool
}

// FD is a descriptor that is known.
func FD(fd int) Ref { return Ref{n: uintptr(fd)} }

// AtCwd stands for the working directory, where a descriptor of a directory is asked
// for (AT_FDCWD).
var AtCwd = FD(unix.AT_FDCWD)

// noResult is that of a call that was not made.
const noResult = ^uintptr(0)

// call is one call.
type call struct {
	kind    callKind
	step    uint32
	nr      uintptr
	args    [6]uintptr
	results uint8 // bit i is set: args[i] is the number of a register
	to      int   // the register of the result; -1: none
	errno   syscall.Errno
	a, b    *[16]byte
	store   *int32
	opens   bool // the result is a descriptor
	next    int  // the call to go on with if it fails; 0: none
}

type callKind uint8

const (
	callPlain callKind = iota + 1 // errno is a failure that does not matter
	callFails                     // it has to fail, with errno
	callSame                      // a and b have to be equal
	callStore                     // a result is stored where another call's argument points to
	callAwait                     // reads until there is nothing more to come
	callClose                     // closes a descriptor, which is none from then on
)

// Step names the calls that follow, for errors.
func (p *Program) Step(format string, args ...any) {
	p.steps = append(p.steps, step{format, args})
}

// Err is the first thing that could not be said.
func (p *Program) Err() error { return p.err }

// Len is how many calls there are.
func (p *Program) Len() int { return len(p.calls) }

func (p *Program) add(c call) {
	if len(p.steps) == 0 {
		p.steps = []step{{format: "begin"}}
	}
	c.step = uint32(len(p.steps) - 1)
	p.calls = append(p.calls, c)
}

// Try has calls made that may fail: after the first that does, the rest of them is
// left out.
func (p *Program) Try(calls func()) {
	first := len(p.calls)
	calls()
	for i := first; i < len(p.calls); i++ {
		p.calls[i].next = len(p.calls)
	}
}

// do appends a call, and returns its result.
func (p *Program) do(nr uintptr, args ...any) Ref {
	return p.ignoring(0, nr, args...)
}

// ignoring is do, where one errno does not matter.
func (p *Program) ignoring(errno syscall.Errno, nr uintptr, args ...any) Ref {
	c := call{kind: callPlain, nr: nr, to: len(p.regs), errno: errno}
	p.arguments(&c, args)
	p.regs = append(p.regs, noResult)
	p.add(c)
	return Ref{uintptr(c.to), true}
}

// failing appends a call that has to fail.
func (p *Program) failing(errno syscall.Errno, nr uintptr, args ...any) {
	c := call{kind: callFails, nr: nr, to: -1, errno: errno}
	p.arguments(&c, args)
	p.add(c)
}

func (p *Program) arguments(c *call, args []any) {
	for i, a := range args {
		switch a := a.(type) {
		case Ref:
			c.args[i] = a.n
			if a.result {
				c.results |= 1 << i
			}
		case int:
			c.args[i] = uintptr(a)
		case uint64:
			c.args[i] = uintptr(a)
		case string:
			c.args[i] = uintptr(unsafe.Pointer(p.text(a)))
		case []byte:
			p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(a)))
			c.args[i] = uintptr(unsafe.Pointer(unsafe.SliceData(a)))
		default:
			p.fail(fmt.Errorf("an argument of type %T", a))
		}
	}
}

func (p *Program) text(s string) *byte {
	if strings.IndexByte(s, 0) >= 0 {
		p.fail(fmt.Errorf("%q: %w", s, unix.EINVAL))
		return nil
	}
	if need := len(s) + 1; need > len(p.texts) {
		p.texts = make([]byte, max(need, 4<<10))
		p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(p.texts)))
	}
	b := &p.texts[0]
	p.texts = p.texts[copy(p.texts, s)+1:]
	return b
}

func (p *Program) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// words are bytes as the kernel's structs have them.
func words(list ...uint64) []byte {
	var b []byte
	for _, w := range list {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

// Unshare enters new namespaces (unshare(2)).
func (p *Program) Unshare(flags int) { p.do(unix.SYS_UNSHARE, flags) }

// Open opens a path below a directory, on the way to which no link is followed
// (openat2(2), Linux 5.6).
func (p *Program) Open(dir Ref, path string, flags uint64) Ref {
	return p.open(unix.SYS_OPENAT2, dir, path, words(flags|unix.O_CLOEXEC, 0, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS), 24)
}

// Look opens a file to know it alone, which may be a link. No other link is followed.
func (p *Program) Look(dir Ref, path string) Ref {
	return p.Open(dir, path, unix.O_PATH|unix.O_NOFOLLOW)
}

// Close closes a descriptor.
func (p *Program) Close(fd Ref) {
	p.do(unix.SYS_CLOSE, fd)
	p.calls[len(p.calls)-1].kind = callClose
}

// open appends a call whose result is a descriptor.
func (p *Program) open(nr uintptr, args ...any) Ref {
	r := p.do(nr, args...)
	p.calls[len(p.calls)-1].opens = true
	return r
}

// discard closes what a program has opened and not closed, that was run with this
// process' descriptors.
func (p *Program) discard() {
	for i := range p.calls {
		if c := &p.calls[i]; c.opens && c.to >= 0 && p.regs[c.to] != noResult {
			_ = unix.Close(int(p.regs[c.to]))
			p.regs[c.to] = noResult
		}
	}
}

// CloseFrom closes all descriptors from one on (close_range(2), Linux 5.9).
func (p *Program) CloseFrom(first int) { p.do(unix.SYS_CLOSE_RANGE, first, int(^uint32(0)), 0) }

// CloseOthers closes all descriptors but some.
func (p *Program) CloseOthers(but ...int) {
	first := 0
	slices.Sort(but)
	for _, fd := range but {
		if fd > first {
			p.do(unix.SYS_CLOSE_RANGE, first, fd-1, 0)
		}
		first = max(first, fd+1)
	}
	p.CloseFrom(first)
}

// Same requires that a descriptor is of a certain file. ESTALE is the error if not.
func (p *Program) Same(fd Ref, dev, ino uint64) {
	// struct stat begins with both, on every 64-bit architecture.
	got := make([]byte, unsafe.Sizeof(unix.Stat_t{}))
	p.do(unix.SYS_FSTAT, fd, got)
	want := words(dev, ino)
	p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(want)))
	p.add(call{kind: callSame, to: -1, a: (*[16]byte)(got), b: (*[16]byte)(want), errno: unix.ESTALE})
}

// Unchanged requires that a descriptor is of a file that stat tells of, and that its
// size is what it was. ESTALE is the error if not.
func (p *Program) Unchanged(fd Ref, st unix.Stat_t) {
	const size = 48 // the offset of st_size, before st_blksize, on both architectures
	got := make([]byte, unsafe.Sizeof(unix.Stat_t{}))
	p.do(unix.SYS_FSTAT, fd, got)
	want := slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)))
	p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(want)))
	for _, at := range []int{0, size} {
		p.add(call{kind: callSame, to: -1, a: (*[16]byte)(got[at:]), b: (*[16]byte)(want[at:]), errno: unix.ESTALE})
	}
}

// Write writes a text to a file, which is opened by its path.
func (p *Program) Write(path, text string) {
	fd := p.open(unix.SYS_OPENAT, AtCwd, path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	p.do(unix.SYS_WRITE, fd, []byte(text), len(text))
	p.Close(fd)
}

// MapUser maps a user and a group of a new user namespace to the same ones outside, of
// the caller's own (user_namespaces(7)).
func (p *Program) MapUser(uid, gid int) {
	// What /proc has of a process that is not dumpable belongs to root: proc(5).
	p.Prctl(unix.PR_SET_DUMPABLE, 1)
	p.Write("/proc/self/setgroups", "deny")
	p.Write("/proc/self/uid_map", fmt.Sprintf("%d %[1]d 1", uid))
	p.Write("/proc/self/gid_map", fmt.Sprintf("%d %[1]d 1", gid))
	p.Prctl(unix.PR_SET_DUMPABLE, 0)
}

// Fail is a call that always fails, with EEXIST.
func (p *Program) Fail() { p.failing(unix.EPERM, unix.SYS_GETPID) }

// Mount mounts a file system (mount(2)).
func (p *Program) Mount(source, target, fstype string, flags int, data string) {
	p.do(unix.SYS_MOUNT, source, target, fstype, flags, data)
}

// Clone makes a detached mount of a tree, with all mounts in it (open_tree(2), Linux
// 5.2). No link is followed at its end; those before it see to [Program.Open].
func (p *Program) Clone(dir Ref, path string) Ref {
	const recursive = 0x8000 // AT_RECURSIVE
	return p.open(unix.SYS_OPEN_TREE, dir, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|recursive|unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH)
}

// Restrain sets attributes of a mount and of all that are in it (mount_setattr(2),
// Linux 5.12), which take no part in what is mounted elsewhere from then on.
func (p *Program) Restrain(tree Ref, attributes uint64) {
	const recursive = 0x8000
	p.do(unix.SYS_MOUNT_SETATTR, tree, "", unix.AT_EMPTY_PATH|recursive, words(attributes, 0, unix.MS_PRIVATE, 0), 32)
}

// RestrainOne sets attributes of a mount alone.
func (p *Program) RestrainOne(mount Ref, attributes uint64) {
	p.do(unix.SYS_MOUNT_SETATTR, mount, "", unix.AT_EMPTY_PATH, words(attributes, 0, 0, 0), 32)
}

// NewMount makes a detached mount of a new file system, with options in pairs of name
// and value (fsopen(2), Linux 5.2).
func (p *Program) NewMount(fstype string, options ...string) Ref {
	fs := p.open(unix.SYS_FSOPEN, fstype, unix.FSOPEN_CLOEXEC)
	for i := 0; i+1 < len(options); i += 2 {
		p.do(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_STRING, options[i], options[i+1], 0)
	}
	p.do(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
	m := p.open(unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, 0)
	p.Close(fs)
	return m
}

// Move puts a detached mount on a file or directory (move_mount(2), Linux 5.2).
func (p *Program) Move(tree, onto Ref) {
	p.do(unix.SYS_MOVE_MOUNT, tree, "", onto, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// Detach takes a mount out of the tree, with all in it (MNT_DETACH, umount(2)).
func (p *Program) Detach(path string) {
	p.do(unix.SYS_UMOUNT2, path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// Unlink removes a name, with AT_REMOVEDIR that of an empty directory.
func (p *Program) Unlink(dir Ref, name string, flags int) {
	p.do(unix.SYS_UNLINKAT, dir, name, flags)
}

// Lock takes a lock (flock(2)).
func (p *Program) Lock(fd Ref, how int) { p.do(unix.SYS_FLOCK, fd, how) }

// KillOthers kills all other processes of the PID namespace, whose first this is, and
// waits until they have ended. One of them is another's child: its number there. It may
// stay as a zombie, if whoever should does not wait for it; what it leaves behind comes
// to this process, for which the kernel reaps ([Program.IgnoreChildren]).
func (p *Program) KillOthers(stranger int) {
	p.ignoring(unix.ESRCH, unix.SYS_KILL, -1, int(unix.SIGKILL)) // no fork escapes: copy_process
	p.Try(func() {
		fd := p.open(unix.SYS_PIDFD_OPEN, stranger, 0)
		poll := words(unix.POLLIN << 32) // struct pollfd: the descriptor, and the events (both architectures are little-endian)
		p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(poll)))
		p.add(call{kind: callStore, to: -1, args: [6]uintptr{fd.n}, results: boolBit(fd.result), store: (*int32)(unsafe.Pointer(&poll[0]))})
		p.do(unix.SYS_PPOLL, poll, 1, 0, 0)
	})
	p.ignoring(unix.ECHILD, unix.SYS_WAIT4, -1, 0, unix.WALL, 0) // only when there are none left: wait(2), SIG_IGN
}

// Mkdir makes a directory; one that is there is as good.
func (p *Program) Mkdir(dir Ref, path string, mode int) {
	p.ignoring(unix.EEXIST, unix.SYS_MKDIRAT, dir, path, mode)
}

// Create makes an empty file.
func (p *Program) Create(dir Ref, path string, mode int) {
	fd := p.open(unix.SYS_OPENAT, dir, path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	p.Close(fd)
}

// Umask sets the mask of modes (umask(2)).
func (p *Program) Umask(mask int) { p.do(unix.SYS_UMASK, mask) }

// Make makes a file with a text in it.
func (p *Program) Make(dir Ref, path, text string, mode int) {
	fd := p.open(unix.SYS_OPENAT, dir, path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	p.do(unix.SYS_WRITE, fd, []byte(text), len(text))
	p.Close(fd)
}

// Symlink makes a link.
func (p *Program) Symlink(target string, dir Ref, path string) {
	p.do(unix.SYS_SYMLINKAT, target, dir, path)
}

// Chdir changes the working directory.
func (p *Program) Chdir(dir Ref) { p.do(unix.SYS_FCHDIR, dir) }

// Pivot makes a mount the root, and lets go of the old one (pivot_root(2), NOTES, for
// both being the same directory). Others in this mount namespace that have the old
// root get the new one.
func (p *Program) Pivot(root Ref) {
	p.Chdir(root)
	p.do(unix.SYS_PIVOT_ROOT, ".", ".")
	p.do(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	p.do(unix.SYS_CHDIR, "/")
}

// Rule adds a path rule to a Landlock ruleset (landlock_add_rule(2)).
func (p *Program) Rule(ruleset Ref, path Ref, rights uint64) {
	attr := make([]byte, 12) // struct landlock_path_beneath_attr, packed
	binary.NativeEndian.PutUint64(attr, rights)
	p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(attr)))
	p.add(call{kind: callStore, to: -1, args: [6]uintptr{path.n}, results: boolBit(path.result), store: (*int32)(unsafe.Pointer(&attr[8]))})
	const pathBeneath = 1
	p.do(unix.SYS_LANDLOCK_ADD_RULE, ruleset, pathBeneath, attr, 0)
}

func boolBit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// LoopbackUp brings up the loopback device of the network namespace (netdevice(7)),
// which takes CAP_NET_ADMIN there. If it is not needed, it may fail.
func (p *Program) LoopbackUp(needed bool) {
	s := p.open(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	request := make([]byte, unsafe.Sizeof(unix.Ifreq{}))
	copy(request, "lo")
	binary.NativeEndian.PutUint16(request[unix.IFNAMSIZ:], unix.IFF_UP|unix.IFF_RUNNING)
	up := func() { p.do(unix.SYS_IOCTL, s, unix.SIOCSIFFLAGS, request) }
	if needed {
		up()
	} else {
		p.Try(up)
	}
	p.Close(s)
}

// Listen4 makes a TCP listener on an IPv4 address (ip(7), struct sockaddr_in).
func (p *Program) Listen4(addr [4]byte, port uint16, backlog int) Ref {
	s := p.open(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	at := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	at = binary.BigEndian.AppendUint16(at, port)
	at = append(append(at, addr[:]...), make([]byte, 8)...)
	p.do(unix.SYS_BIND, s, at, len(at))
	p.do(unix.SYS_LISTEN, s, backlog)
	return s
}

// AskSockets makes a socket by which to ask for those of the network namespace
// (sock_diag(7)); [Stage.Result] is -1 where this kernel has none, or a filter around
// this process refuses it so.
func (p *Program) AskSockets() Ref {
	return p.ignoring(unix.EPROTONOSUPPORT, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
}

// Name is what others see as the process' name.
func (p *Program) Name(name string) {
	p.do(unix.SYS_PRCTL, unix.PR_SET_NAME, append([]byte(name), make([]byte, 16)...))
}

// Prctl makes a call of prctl(2).
func (p *Program) Prctl(option, value int) {
	p.do(unix.SYS_PRCTL, option, value, 0, 0, 0)
}

// Dup makes a descriptor another's duplicate, close-on-exec or not.
func (p *Program) Dup(from Ref, to, flags int) Ref { return p.do(unix.SYS_DUP3, from, to, flags) }

// Refused requires that a path cannot be opened to be read: EACCES.
func (p *Program) Refused(path string) {
	p.failing(unix.EACCES, unix.SYS_OPENAT, AtCwd, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	p.calls[len(p.calls)-1].opens = true
}

// DropBounding empties the capability bounding set, which takes CAP_SETPCAP. It comes
// before a change of uid, which takes that away.
func (p *Program) DropBounding() {
	for c := range 64 { // EINVAL marks the end of those that this kernel knows
		p.ignoring(unix.EINVAL, unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
}

// DropCapabilities gives up all capabilities (capabilities(7)), those of the bounding
// set as well if that is said.
func (p *Program) DropCapabilities(bounding bool) {
	if bounding {
		p.DropBounding()
	}
	p.KeepCapabilities()
}

// KeepCapabilities gives up all capabilities but some, which no program that it
// executes would have.
func (p *Program) KeepCapabilities(some ...int) {
	p.ignoring(unix.EINVAL, unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := words(unix.LINUX_CAPABILITY_VERSION_3) // and pid 0, in either byte order's first half
	var sets [6]uint32                               // effective, permitted and inheritable, in two halves
	for _, c := range some {
		sets[c/32*3] |= 1 << (c % 32)
		sets[c/32*3+1] |= 1 << (c % 32)
	}
	var b []byte
	for _, s := range sets {
		b = binary.NativeEndian.AppendUint32(b, s)
	}
	p.do(unix.SYS_CAPSET, header, b)
}

// Become changes the groups and the ids of the process, all four of each
// (credentials(7)), in the order that each step's privilege allows.
func (p *Program) Become(uid, gid int, groups []int) {
	list := make([]byte, 0, 4*len(groups)+4)
	for _, g := range groups {
		list = binary.NativeEndian.AppendUint32(list, uint32(g))
	}
	p.do(unix.SYS_SETGROUPS, len(groups), append(list, 0, 0, 0, 0))
	p.do(unix.SYS_SETRESGID, gid, gid, gid)
	p.do(unix.SYS_SETRESUID, uid, uid, uid)
}

// Restrict enters a Landlock domain (landlock_restrict_self(2)).
func (p *Program) Restrict(d Domain) {
	p.do(unix.SYS_LANDLOCK_RESTRICT_SELF, d.Ruleset, int(d.Flags))
}

// Filter installs a seccomp filter, as [InstallFilter] does, and returns the listener,
// if one is asked for.
func (p *Program) Filter(prog []SockFilter, listener bool) Ref {
	if len(prog) == 0 || len(prog) > 4096 {
		p.fail(fmt.Errorf("a seccomp filter of %d instructions", len(prog)))
		return Ref{}
	}
	p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(prog)))
	flags := 0
	if listener {
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | waitKillable()
	}
	// struct sock_fprog: a length, and after padding a pointer.
	fprog := words(uint64(len(prog)), uint64(uintptr(unsafe.Pointer(&prog[0]))))
	r := p.do(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, fprog)
	p.calls[len(p.calls)-1].opens = listener
	return r
}

// waitKillable is the flag of Linux 5.19 by which a call that the supervisor has taken
// is interrupted by fatal signals only, or 0. A filter that is none tells: the flags
// are looked at first (seccomp_set_mode_filter).
var waitKillable = sync.OnceValue(func() int {
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, 0)
	if errno == unix.EFAULT {
		return unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	return 0
})

// IgnoreChildren has the kernel reap what ends below the process (SIG_IGN for
// SIGCHLD, wait(2)).
func (p *Program) IgnoreChildren() {
	const size = 8 // of the kernel's sigset_t
	p.do(unix.SYS_RT_SIGACTION, int(unix.SIGCHLD), words(1, 0, 0, 0), 0, size)
}

// Await reads from a descriptor until nobody can write there any more.
func (p *Program) Await(fd Ref) {
	buf := make([]byte, 1)
	c := call{kind: callAwait, nr: unix.SYS_READ, to: -1}
	p.arguments(&c, []any{fd, buf, 1})
	p.add(c)
}

// Tell writes one byte.
func (p *Program) Tell(fd Ref) { p.do(unix.SYS_WRITE, fd, []byte{0}, 1) }

// Calls are the numbers and steps of the calls, for tests.
func (p *Program) Calls() (list []string) {
	for _, c := range p.calls {
		list = append(list, fmt.Sprintf("%v: %d", p.steps[c.step], c.nr))
	}
	return list
}

// failed is what a program ended with. Its memory is shared, or it goes over a pipe.
type failed struct {
	step  uint32
	errno uint32
}

// error is nil if nothing failed.
func (f failed) error(p *Program) error {
	if f.errno == 0 {
		return nil
	}
	name := "?"
	if int(f.step) < len(p.steps) {
		name = p.steps[f.step].String()
	}
	return &ProgramError{Step: name, Errno: syscall.Errno(f.errno)}
}

// ProgramError is a call of a program that failed, or did not fail as it had to.
type ProgramError struct {
	Step  string
	Errno syscall.Errno
}

func (e *ProgramError) Error() string { return e.Step + ": " + e.Errno.Error() }
func (e *ProgramError) Unwrap() error { return e.Errno }

// run makes the calls. It is a forked child's: nothing may be called but assembly,
// and nothing allocated.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (p *Program) run(f *failed) {
	for i := 0; i < len(p.calls); i++ {
		c := &p.calls[i]
		args := c.args
		for k := range args {
			if c.results&(1<<k) != 0 {
				args[k] = p.regs[args[k]]
			}
		}
		if c.kind == callSame {
			switch {
			case *c.a == *c.b:
			case c.next > 0:
				i = c.next - 1
			default:
				f.step, f.errno = c.step, uint32(c.errno)
				return
			}
			continue
		}
		if c.kind == callStore {
			*c.store = int32(args[0])
			continue
		}
		r, _, e := syscall.RawSyscall6(c.nr, args[0], args[1], args[2], args[3], args[4], args[5])
		for c.kind == callAwait && (e == unix.EINTR || e == 0 && r > 0) {
			r, _, e = syscall.RawSyscall6(c.nr, args[0], args[1], args[2], 0, 0, 0)
		}
		switch {
		case c.kind == callFails && e == 0:
			if c.opens {
				syscall.RawSyscall(unix.SYS_CLOSE, r, 0, 0)
			}
			e = unix.EEXIST
		case e == c.errno:
			e = 0
		}
		if e != 0 && c.next > 0 {
			i = c.next - 1
			continue
		}
		if e != 0 {
			f.step, f.errno = c.step, uint32(e)
			return
		}
		if c.to >= 0 {
			p.regs[c.to] = r
		}
		if c.kind == callClose && c.results&1 != 0 {
			p.regs[c.args[0]] = noResult
		}
	}
}
