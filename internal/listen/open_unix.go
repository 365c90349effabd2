//go:build linux || darwin

package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// defaultBacklog is of [Options].
const defaultBacklog = 128

// Listener is a daemon's socket. Its methods may be called at the same time.
type Listener struct {
	sock *net.UnixListener
	path string

	// Of a socket that this process made; nil and zero if it was handed in.
	place *place
	lock  *lock
	bound info

	accepted, refused, failed atomic.Uint64

	spareMu sync.Mutex
	spare   int // a descriptor to let go in a shortage; -1 if there is none

	mu     sync.Mutex // held by Check and Close, which use the place
	closed bool
}

// Open makes the socket, or says why not: *[AlreadyRunning], or *[Error] around
// ErrUntrusted, ErrInTheWay, ErrTooLong or a system error.
//
// The lock beside the socket ("NAME.lock", flock(2), held until [Listener.Close]
// or the end of the process) decides between daemons. Only its holder looks at
// what is at the path, and only a socket of this user at which nobody listens is
// replaced.
//
// The mode is right from the start without the umask, which all threads share: a
// socket that is bound and does not listen yet refuses every connection
// (connect(2), ECONNREFUSED), so its owner, group and mode are set between bind
// and listen. On Linux it is moreover made with no more than mode 0600, as bind
// takes the mode of the socket's own inode.
func Open(o Options) (*Listener, error) {
	gid, err := o.check()
	if err != nil {
		return nil, err
	}
	if o.Path == "" {
		if o.Path, err = DefaultPath(o.Mode); err != nil {
			return nil, err
		}
		if o.Mode == User {
			makeHomeParents(o.Path)
		}
	}
	at, err := openPlace(o.Path, o.Mode, gid)
	if err != nil {
		return nil, err
	}
	held, err := at.lock()
	if err != nil {
		at.close()
		return nil, err
	}
	l, err := at.listen(o, gid)
	if err != nil {
		held.release()
		at.close()
		return nil, err
	}
	l.lock = held
	return l, nil
}

func (o Options) check() (gid int, err error) {
	switch {
	case o.Mode != User && o.Mode != System:
		return -1, fmt.Errorf("listen: %v is no mode", o.Mode)
	case o.Backlog < 0:
		return -1, fmt.Errorf("listen: a backlog of %d", o.Backlog)
	case o.Mode == User && o.Group != "":
		return -1, errors.New("listen: a user's socket has no group")
	case o.Mode == User:
		return -1, nil
	case os.Geteuid() != 0:
		return -1, fmt.Errorf("listen: the system's socket is root's: %w", fs.ErrPermission)
	case o.Group == "":
		return -1, errors.New("listen: the system's socket needs a group")
	}
	g, err := user.LookupGroup(o.Group)
	number := o.Group
	if err == nil {
		number = g.Gid
	}
	// 2^32-1 means "leave it" to chown(2).
	id, perr := strconv.ParseUint(number, 10, 32)
	if perr != nil || id == 1<<32-1 {
		return -1, fmt.Errorf("listen: group %q: %w", o.Group, errors.Join(err, perr))
	}
	return int(id), nil
}

// listen makes the socket under the lock.
func (p *place) listen(o Options, gid int) (_ *Listener, err error) {
	if err := p.clear(); err != nil {
		return nil, err
	}
	fd, err := newSocket()
	if err != nil {
		return nil, fmt.Errorf("listen: making a socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), p.path)
	defer file.Close() // net.FileListener has its own
	if err := narrow(fd); err != nil {
		return nil, fmt.Errorf("listen: the socket's mode: %w", err)
	}
	if err := p.bind(fd); err != nil {
		return nil, err
	}
	bound, err := lstatAt(p.fd, p.name)
	if err != nil {
		return nil, &Error{Op: "listen", Path: p.path, Err: err}
	}
	defer func() {
		if err != nil {
			p.remove(bound)
		}
	}()
	if bound.kind() != unix.S_IFSOCK || bound.uid != uint32(os.Geteuid()) {
		return nil, &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("%w: %s of user %d was put in the socket's place", ErrUntrusted, kindName(bound), bound.uid)}
	}
	perm := uint32(0o600)
	if o.Mode == System {
		perm = 0o660
	}
	if err := p.give(bound, gid, perm); err != nil {
		return nil, &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("the socket's owner and mode: %w", err)}
	}
	backlog := o.Backlog
	if backlog == 0 {
		backlog = defaultBacklog
	}
	if err := retry(func() error { return unix.Listen(fd, backlog) }); err != nil {
		return nil, &Error{Op: "listen", Path: p.path, Err: err}
	}
	sock, err := net.FileListener(file)
	if err != nil {
		return nil, &Error{Op: "listen", Path: p.path, Err: err}
	}
	return &Listener{sock: sock.(*net.UnixListener), path: p.path, place: p, bound: bound, spare: openSpare()}, nil
}

// clear makes room for the socket: it removes a stale one, and nothing else.
func (p *place) clear() error {
	st, err := lstatAt(p.fd, p.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &Error{Op: "listen", Path: p.path, Err: err}
	}
	inTheWay := func(format string, args ...any) error {
		return &Error{Op: "listen", Path: p.path, Err: fmt.Errorf("%w: "+format, append([]any{ErrInTheWay}, args...)...), Hint: "it is left alone; remove it, or choose another path"}
	}
	if st.kind() != unix.S_IFSOCK {
		return inTheWay("%s", kindName(st))
	}
	if st.uid != uint32(os.Geteuid()) {
		return inTheWay("a socket of user %d", st.uid)
	}
	switch err := p.probe(st); {
	case err == nil, err == unix.EAGAIN: // its backlog is full
		return inTheWay("somebody listens who does not hold the lock")
	case err == unix.ECONNREFUSED:
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default: // EPROTOTYPE: a live socket of another type. EACCES: nobody can tell.
		return inTheWay("a socket that may be in use: %v", err)
	}
	if !p.remove(st) {
		return inTheWay("it changed while it was looked at")
	}
	return nil
}

// probe connects to the socket at the path: ECONNREFUSED means that nobody
// listens.
func (p *place) probe(st info) error {
	for try := 0; ; try++ {
		fd, err := newSocket()
		if err != nil {
			return err
		}
		err = p.connect(fd, st)
		_ = unix.Close(fd)
		if err != unix.ECONNREFUSED || try >= refusedByFullBacklog {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// remove removes the socket at the path if it is the one that was looked at.
// Between the look and the removal only root and this user can act, and daemons
// of this user hold the lock for it.
func (p *place) remove(st info) bool {
	now, err := lstatAt(p.fd, p.name)
	if err != nil || !now.same(st) || now.kind() != unix.S_IFSOCK {
		return errors.Is(err, fs.ErrNotExist)
	}
	return unix.Unlinkat(p.fd, p.name, 0) == nil
}

// Path is where the socket is; empty if it was handed in without a name.
func (l *Listener) Path() string { return l.path }

// Accept waits for a connection, as net.UnixListener's does: it fails in a
// shortage of descriptors. [Listener.Serve] survives one.
func (l *Listener) Accept() (*net.UnixConn, error) {
	c, err := l.sock.AcceptUnix()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// Stats are the counts until now.
func (l *Listener) Stats() Stats {
	return Stats{Accepted: l.accepted.Load(), Refused: l.refused.Load(), Failed: l.failed.Load()}
}

// Check tells whether clients can still find the socket: nil, or what has become
// of its path. A cleaner of old files, or a person, may have removed it.
func (l *Listener) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	if l.place == nil {
		return nil
	}
	if err := l.check(); err != nil {
		return &Error{Op: "listen", Path: l.path, Err: err, Hint: "start the daemon again"}
	}
	return nil
}

// check goes the way that a client goes.
func (l *Listener) check() error {
	w := walker{op: "listen", euid: uint32(os.Geteuid())}
	dir, err := w.open(filepath.Dir(l.path))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	now, err := lstatAt(dir, l.place.name)
	switch {
	case err != nil:
		return err
	case !now.same(l.bound):
		return errors.New("another file is in the socket's place")
	case !l.lock.mine():
		return errors.New("another file is in the lock's place")
	}
	return nil
}

// Close stops listening and removes the socket, if the socket and the lock at
// the path are still this listener's: a newer daemon's are left alone. One that
// was handed in stays, as the service manager goes on listening.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.place != nil && l.lock.mine() {
		// While it is open its inode number is not given to another socket.
		l.place.remove(l.bound)
	}
	err := l.sock.Close()
	l.dropSpare()
	if l.place != nil {
		l.lock.release()
		l.place.close()
	}
	return err
}

// lock is a lock file. It is never removed: who waits for a lock on a file that
// was removed would hold a lock that nobody else meets.
type lock struct {
	file *os.File
	dir  int
	name string
	st   info
}

// lockSuffix makes the lock's name of the socket's.
const lockSuffix = ".lock"

// lock takes the lock, without waiting.
func (p *place) lock() (*lock, error) {
	name := p.name + lockSuffix
	path := p.path + lockSuffix
	for range 100 { // somebody removes the file again and again
		// O_NONBLOCK: a FIFO would wait for its other end.
		fd, err := openAt(p.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, &Error{Op: "listen", Path: path, Err: fmt.Errorf("the lock: %w", err), Hint: "the lock must be a regular file of the daemon's user"}
		}
		l := &lock{file: os.NewFile(uintptr(fd), path), dir: p.fd, name: name}
		if l.st, err = fstat(fd); err != nil {
			_ = l.file.Close()
			return nil, &Error{Op: "listen", Path: path, Err: err}
		}
		// Whoever can open the file can lock it, and keep every daemon away.
		if l.st.kind() != unix.S_IFREG || l.st.uid != uint32(os.Geteuid()) || l.st.links > 1 || l.st.mode&0o077 != 0 {
			_ = l.file.Close()
			return nil, &Error{Op: "listen", Path: path, Err: fmt.Errorf("%w: the lock is %s of user %d with mode %04o and %d links", ErrUntrusted, kindName(l.st), l.st.uid, l.st.mode&0o7777, l.st.links),
				Hint: "remove it if no daemon runs"}
		}
		if l.st.mode&0o600 != 0o600 { // a umask took our own bits; the next daemon needs them
			_ = unix.Fchmod(fd, 0o600)
		}
		err = retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if err == unix.EWOULDBLOCK {
			pid := readPID(l.file)
			_ = l.file.Close()
			return nil, &AlreadyRunning{Path: p.path, PID: pid}
		}
		if err != nil {
			_ = l.file.Close()
			return nil, &Error{Op: "listen", Path: path, Err: fmt.Errorf("locking: %w", err)}
		}
		if !l.mine() { // it was removed between open and flock
			_ = l.file.Close()
			continue
		}
		l.write(strconv.Itoa(os.Getpid()) + "\n")
		return l, nil
	}
	return nil, &Error{Op: "listen", Path: path, Err: errors.New("the lock file is removed again and again")}
}

// mine tells whether the file at the lock's path is the one that is locked.
func (l *lock) mine() bool {
	st, err := lstatAt(l.dir, l.name)
	return err == nil && st.same(l.st)
}

// write replaces what the file says. The lock holds whatever becomes of that: a
// full disk is no reason not to listen.
func (l *lock) write(text string) {
	_ = l.file.Truncate(0)
	_, _ = l.file.WriteAt([]byte(text), 0)
}

func (l *lock) release() {
	if l.mine() {
		l.write("")
	}
	_ = l.file.Close()
}

func readPID(f *os.File) int {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	pid, err := strconv.ParseInt(strings.TrimSuffix(string(buf[:n]), "\n"), 10, 32)
	if err != nil || pid <= 0 {
		return 0
	}
	return int(pid)
}

// Dial connects to the daemon at path. It refuses one in whose place others than
// root or this user could be: the directory and the socket must belong to one of
// the two and be writable to nobody else, and so must the directories above; and
// who listens must be one of the two as well. The error is *[Error] around
// ErrNoDaemon if there is no socket or nobody listens, ErrUntrusted, or a system
// error. A full backlog is waited for until ctx is done.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	dir, name, err := splitPath(path)
	if err != nil {
		return nil, &Error{Op: "connect", Path: path, Err: err}
	}
	// Mode User: this user may own what is above. Root does not use another's.
	w := walker{op: "connect", euid: uint32(os.Geteuid())}
	fd, err := w.open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noDaemon(path, err)
	}
	if err != nil {
		return nil, explain(err)
	}
	p := &place{fd, path, name}
	defer p.close()
	if st, err := fstat(fd); err != nil {
		return nil, &Error{Op: "connect", Path: dir, Err: err}
	} else if err := w.client(dir, "directory", st, 0o022); err != nil {
		return nil, err
	}
	st, err := lstatAt(fd, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noDaemon(path, err)
	}
	if err != nil {
		return nil, explain(&Error{Op: "connect", Path: path, Err: err})
	}
	if st.kind() != unix.S_IFSOCK {
		return nil, &Error{Op: "connect", Path: path, Err: fmt.Errorf("%w: %s", ErrInTheWay, kindName(st))}
	}
	// Who may connect is the daemon's matter: a socket's mode does not let others
	// listen.
	if err := w.client(path, "socket", st, 0); err != nil {
		return nil, err
	}
	conn, err := p.dial(ctx, st)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, noDaemon(path, err)
	}
	if err != nil {
		return nil, explain(err)
	}
	if err := w.server(conn, path); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// client judges the socket or its directory for one who connects.
func (w *walker) client(path, what string, st info, closed uint32) error {
	if !w.trusts(st.uid) {
		return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: the %s belongs to user %d, neither root nor this user", ErrUntrusted, what, st.uid)}
	}
	if st.mode&closed != 0 {
		return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: the %s has mode %04o, so that others could listen there", ErrUntrusted, what, st.mode&0o7777)}
	}
	return nil
}

// server judges who listens: a socket can be handed to another.
func (w *walker) server(conn *net.UnixConn, path string) error {
	peer, err := PeerOf(conn)
	if err != nil {
		return &Error{Op: w.op, Path: path, Err: fmt.Errorf("who listens: %w", err)}
	}
	_ = peer.Close()
	if !w.trusts(peer.UID) {
		return &Error{Op: w.op, Path: path, Err: fmt.Errorf("%w: user %d listens, neither root nor this user", ErrUntrusted, peer.UID)}
	}
	return nil
}

func noDaemon(path string, err error) error {
	return &Error{Op: "connect", Path: path, Err: fmt.Errorf("%w: %w", ErrNoDaemon, err), Hint: "start sandboxd"}
}

// explain adds what a closed directory or socket means to a client.
func explain(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Hint == "" && errors.Is(err, fs.ErrPermission) {
		e.Hint = "the system's daemon is open to a group: is this user in it, and since the last login?"
	}
	return err
}

// dial connects within ctx.
func (p *place) dial(ctx context.Context, st info) (*net.UnixConn, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		fd, err := newSocket()
		if err != nil {
			return nil, fmt.Errorf("connect: making a socket: %w", err)
		}
		file := os.NewFile(uintptr(fd), p.path)
		err = p.connect(fd, st)
		if err == nil {
			conn, err := net.FileConn(file)
			_ = file.Close()
			if err != nil {
				return nil, &Error{Op: "connect", Path: p.path, Err: err}
			}
			return conn.(*net.UnixConn), nil
		}
		_ = file.Close()
		if err != unix.EAGAIN {
			return nil, &Error{Op: "connect", Path: p.path, Err: err}
		}
		select {
		case <-ctx.Done():
			return nil, &Error{Op: "connect", Path: p.path, Err: ctx.Err(), Hint: "the daemon does not accept: its backlog is full"}
		case <-time.After(pause):
		}
	}
}

// DialAuto connects to the first of [Candidates] at which a daemon listens, and
// returns its path. Only the absence of a daemon leads on to the next: one that
// is not trusted, or closed to this user, is an error. The error is
// ErrNoDaemon's if there is none.
func DialAuto(ctx context.Context) (*net.UnixConn, string, error) {
	var all error
	for _, path := range Candidates() {
		conn, err := Dial(ctx, path)
		if err == nil {
			return conn, path, nil
		}
		if !errors.Is(err, ErrNoDaemon) {
			return nil, path, err
		}
		all = errors.Join(all, err)
	}
	if all == nil {
		all = ErrNoDaemon
	}
	return nil, "", all
}
