// Package supervise answers the system calls that a worker's seccomp filter
// hands over with SECCOMP_RET_USER_NOTIF, by performing them on the worker's
// behalf. It governs what Landlock cannot govern on older kernels: AF_UNIX
// sockets by path (Landlock ABI < 9), truncate(2) (ABI < 3); and it gives the
// worker a private /dev/shm.
//
// # How a call is judged
//
// Whatever a judgement rests on is read once, copied or opened as a handle, and
// then the notification is checked to be still waiting, so that the thread id
// meant the same thread all along. The call is then made by the supervisor with
// the copy and the handle: the worker may rewrite its memory, swap links or
// renumber its descriptors meanwhile, and nothing of it is looked at again.
// SECCOMP_USER_NOTIF_FLAG_CONTINUE, after which the kernel reads the arguments
// anew, is used for two kinds of calls only. For open, link and unlink of files
// outside /dev/shm it gives nothing away: the worker's own thread makes the call
// under the worker's own Landlock domain, which grants nothing in /dev/shm and
// judges the arguments that are really used. The supervisor does not restrict these
// calls, it only offers /dev/shm/NAME instead of a refusal. For the calls that
// schedule a task what is judged is a number in a register, which stays as it is.
//
// Calls that touch names or sockets run on the deputy (but for sends, and links in
// Shm, where the launcher has the worker's credentials itself): an OS thread with
// the worker's effective ids and groups, its umask, no capabilities, no_new_privs,
// and a Landlock domain that lets it make sockets and write only beneath
// WritableRoots and Shm. A raced path in bind is therefore judged by the kernel.
//
// # What a worker can use up
//
// The worker decides how many calls block, and may leave no process or thread to
// be had (RLIMIT_NPROC, a pids cgroup); Go's runtime ends the process when it
// cannot make a thread that it wants. So none is made while the worker runs. One
// goroutine takes and judges all calls, one deputy makes them, if any needs one, and
// neither waits for a peer: a connect is made with O_NONBLOCK, a send with MSG_DONTWAIT, and
// what would block is set aside and tried again, all of it from the beginning,
// when its socket polls writable or after a short time. Start sees to it that a thread
// waits to be the deputy's, and as many idle ones as GOMAXPROCS, up to [sys.MaxProcs],
// can put to use; garbage collection alone may want them all. Where GOMAXPROCS is
// larger the launcher should lower it, and a launcher that blocks in system calls of
// its own needs threads for these, too.
//
// Where there are many workers, a loop that has nothing to do takes no thread. Those
// that have take turns, a few at a time and one call each, so that none that floods
// keeps another from its turn. One that hangs in a call, as on a file system that does
// not answer, loses its turn after 10 ms. Up to 16 threads wait to be deputies, or to
// stand in for loops that hang: of more at the same time each needs one to be made,
// as another launch does.
//
// The descriptors held for a worker are bounded by RLIMIT_NOFILE: a quarter for
// sockets bound by path (1024 at most), a sixteenth for calls that wait (128), a
// quarter for those passed with the message in hand (253; more are ENOBUFS).
// Between attempts nothing else is held.
//
// # What is promised
//
//   - connect, sendto, sendmsg and sendmmsg reach an AF_UNIX path only if its
//     inode is one that this worker's tree bound through the supervisor, or one
//     of AllowSockets (by inode, opened once: a service that binds anew is
//     refused). Anything else is EACCES, a file that is no socket ECONNREFUSED.
//   - An abstract name is reached only if a socket of this worker's tree holds
//     it, else EPERM, as Landlock's scope answers from ABI 6 on. That the holder
//     is still the worker's is asked from sock_diag just before the call; a host
//     process that binds a name in the microseconds after the worker gave it
//     up could be reached. Where that cannot be asked, in a kernel without
//     unix_diag or from another network namespace than the launcher's, every name
//     is refused, with a Gap. The socket to ask is opened in Start and kept.
//   - With Config.Inet, a socket that is neither AF_UNIX nor NETLINK_ROUTE gets
//     nowhere without its consent, inherited ones included: no AF_UNSPEC, which
//     would free a connected one for another address, and no other family.
//   - sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr,
//     setpriority and ioprio_set change the worker's own tasks only, or give EPERM;
//     process groups and users are always refused. Whose a task is Landlock tells
//     (see [Supervisor.Scope]); without it, that it has more seccomp filters than
//     the launcher, which another sandbox's tasks may have, too.
//   - bind by path makes a socket only beneath WritableRoots. Which inode it made
//     is asked from the socket (SIOCUNIXFILE, or sock_diag without privilege),
//     not from the path, onto which the worker could have renamed a host's. Where
//     neither can be asked, the file behind the path must be younger than the bind.
//   - Unreadable memory (a non-dumpable worker with an ordinary user's launcher,
//     yama) is EACCES and an Event with a Gap, never CONTINUE, but for /dev/shm.
//
// # What is not
//
//   - SO_PEERCRED, SO_PASSCRED and SCM_CREDENTIALS show the launcher's pid, with
//     the worker's uid and gid, for calls made on its behalf. A pid in explicit
//     SCM_CREDENTIALS is replaced by the launcher's; the kernel checks the rest.
//   - Without Config.Inet, AF_INET and others are performed as asked, with the
//     copied address. They run outside of the worker's Landlock domain, so
//     Landlock's TCP rules do not see them: a launcher that has such rules must
//     judge in Config.Inet.
//   - Connected and inherited sockets, and send without an address by a call that
//     is not trapped, are not looked at.
//   - Paths through /proc magic links (/proc/self/fd/3/name) are refused: ELOOP.
//     In another root or mount namespace than the launcher's, a relative path
//     that leaves the working directory is refused (EACCES and a Gap), and a
//     bound socket's address reads as the bare name.
//   - A blocking call that is delayed by its peer ends with EINTR if a signal with
//     a handler arrives for the worker, also where SA_RESTART would resume it.
//     It goes on up to 5 ms after it could, later if many wait. More than 4096
//     at once get EAGAIN.
//   - While a blocking stream socket is being connected, it has O_NONBLOCK for some
//     microseconds; who shares it may see that, and a change of its flags in this
//     moment is lost. A worker that takes it off again holds up its own calls for
//     10 ms, until the deputy is interrupted.
//   - One call after the other also means that a lookup on a file system that hangs
//     holds up the others, and Close, which says so after two seconds.
//   - MSG_ZEROCOPY is answered ENOBUFS, which programs take as "copy instead".
//   - The number and size of files in Shm are bounded by its file system only, so
//     it belongs on a tmpfs with a limit.
//   - The kernel makes the launcher non-dumpable when the deputy takes other ids.
//     The kernel would let the worker change the deputy's nice value and CPU affinity
//     then, as both ask for the effective uid; it can neither trace nor signal it.
//   - A task's number that is let through may be another's, of the same user, when
//     the call is made, if the task ends in between. It is none of the launcher's.
//
// # Kernels before 5.19
//
// Without WAIT_KILLABLE_RECV a signal (a Go worker's SIGURG) can interrupt a
// trapped call while it is performed; the answer finds nobody, and the worker
// makes the same call again. The result of a call that took effect is kept for
// two seconds, and the next identical call of that thread gets it, in place of
// EISCONN, EINVAL, EEXIST or a second copy of a message. A window remains that
// only the newer kernels close: a signal that wakes the thread just before the
// answer is taken as delivered loses it without a sign. Then the call is made
// twice. Nothing is let through by it.
package supervise

import (
	"net/netip"
	"syscall"
)

// Config says what one worker may reach. All paths are real absolute paths.
type Config struct {
	// Unix: connect, bind, sendto, sendmsg and sendmmsg are trapped and judged.
	Unix bool
	// Truncate: truncate(2) is trapped and judged. It needs Landlock.
	Truncate bool
	// WritableRoots are opened once in Start. Sockets may be bound beneath the
	// directories, and files beneath them, or named here, may be truncated.
	WritableRoots []string
	// AllowSockets are host sockets that the worker may use. They are identified
	// once in Start, by inode.
	AllowSockets []string
	// Shm is the host directory that stands for /dev/shm, owned by UID, mode
	// 0700. Empty: every object in /dev/shm is refused with EACCES.
	Shm string
	// UID, GID and Groups are the worker's; DropCaps says it has no capabilities.
	UID, GID int
	Groups   []int
	DropCaps bool
	// OwnNet tells that it has a network namespace of its own: abstract names there
	// are all its own.
	OwnNet bool
	// OwnPIDs tells that the worker has a PID namespace of its own: it can name no
	// task but its own, and not by the numbers that this process knows.
	OwnPIDs bool
	// Inet judges a connect, bind or addressed send of an AF_INET or AF_INET6
	// socket; zero performs it. With it every such call is refused (EACCES) that
	// it cannot be asked about: AF_UNSPEC and other addresses that are none of
	// these, and sockets of other families but AF_UNIX and NETLINK_ROUTE. Nil
	// performs all.
	Inet func(op string, to netip.AddrPort) syscall.Errno
	// OnEvent is told of denials and gaps, by Start and then by the one goroutine
	// that answers all calls, so it must be quick. It may be nil.
	OnEvent func(Event)

	noLandlock bool // tests: as on a kernel without it
}

// Kind is what a call was about.
type Kind string

// The kinds. A call that could not be looked at far enough is of the kind that
// its socket has, and KindOther if not even the socket is known.
const (
	KindUnixPath     Kind = "unix-path"     // a path socket; the path of a bind is a write, too
	KindUnixAbstract Kind = "unix-abstract" // an abstract name
	KindInet         Kind = "inet"          // an AF_INET or AF_INET6 socket
	KindFile         Kind = "file"          // /dev/shm, truncate, a writable root
	KindSchedule     Kind = "schedule"      // how a task is scheduled
	KindOther        Kind = "other"         // a socket of another family, or an unknown call
)

// Event is one refused call, or one that could not be judged. Both are refused,
// but for Op start and for a bind whose socket could not be identified, which
// nobody reaches then.
type Event struct {
	Kind    Kind
	Op      string // connect, bind, sendto, sendmsg, sendmmsg, open, link, unlink, truncate, start, or a call that schedules
	Path    string // as the worker wrote it
	Address string // an abstract name with a leading @, or host:port
	Errno   syscall.Errno
	PID     int // the thread id in the launcher's PID namespace
	Exe     string
	Gap     string // not empty: something could not be judged, and why
}

// Stats counts since Start.
type Stats struct {
	Calls     uint64 // notifications taken
	Performed uint64 // answered with the result of a call made on behalf
	Continued uint64 // left to the worker's own thread
	Denied    uint64
	Gaps      uint64
	Replayed  uint64 // answered with a result whose first answer was lost
	InFlight  int    // blocked, and tried again until they end
	Deputies  int    // threads that make calls on behalf: one, from the first call that needs it until Close
	Sockets   int    // inodes and names in the own set
}

// Limits of what one worker can make the launcher hold.
const (
	maxWaiting  = 4096      // blocked calls; more are answered EAGAIN
	maxWatched  = 128       // of these, with a descriptor to poll
	maxSockets  = 1024      // bound path sockets, and as many abstract names
	maxAddr     = 128       // sizeof(struct sockaddr_storage)
	maxUnixAddr = 110       // sizeof(struct sockaddr_un)
	maxControl  = 64 << 10  // control bytes of one message; more is ENOBUFS
	maxMessage  = 8 << 20   // one datagram; more is EMSGSIZE
	chunk       = 256 << 10 // copied at once from a stream's buffer
	maxVectors  = 1024      // UIO_MAXIOV
	maxPath     = 4096      // PATH_MAX
	maxFDs      = 253       // SCM_MAX_FD
)
