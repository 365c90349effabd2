package supervise

import (
	"fmt"
	"net/netip"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// socket is the worker's socket in our table. It shares the open description
// with the worker's: what is changed through it, the worker sees. Nothing is but
// O_NONBLOCK, for the moment of a connect.
type socket struct {
	fd     int
	domain int
	kind   int
}

func (c *call) socket(n int32) (socket, error) {
	fd, err := c.fd(n)
	if err != nil {
		return socket{}, err
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil { // ENOTSOCK; EBADF for an O_PATH handle
		return socket{}, err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	switch domain {
	case unix.AF_UNIX:
		c.kind = KindUnixPath
	case unix.AF_INET, unix.AF_INET6:
		c.kind = KindInet
	}
	return socket{fd, domain, kind}, err
}

// target is the address that a call goes to: bytes that the kernel may have, or
// a path that a deputy still has to open.
type target struct {
	addr []byte
	path string
	at   place
	file int
	id   fileID // of the file
}

// target judges an address as the socket's own domain reads it, whatever family
// the address claims. A path is judged in open.
func (c *call) target(sock socket, addr []byte) (*target, error) {
	t := &target{addr: addr, file: -1}
	if sock.domain != unix.AF_UNIX {
		return t, c.judgeOther(sock, addr)
	}
	u, errno := parseUnix(addr)
	if errno != 0 {
		return nil, errno
	}
	switch u.kind {
	case unixUnspec:
		return t, nil
	case unixAutobind:
		return nil, unix.EINVAL
	case unixAbstract:
		c.kind = KindUnixAbstract
		return t, c.judgeName(u.name)
	}
	t.path = u.name
	var err error
	t.at, err = c.place(t.path)
	return t, err
}

// judgeName lets a name through if a socket of the worker's tree holds it now.
func (c *call) judgeName(name string) error {
	ns, err := statID(c.proc("ns/net"))
	if err != nil {
		return unreachable("the worker's network namespace cannot be seen", err)
	}
	if c.s.cfg.OwnNet && ns != c.s.netns {
		return nil
	}
	r := &refusal{kind: KindUnixAbstract, errno: unix.EPERM, address: "@" + name}
	switch err := c.s.own.holdsName(name, ns == c.s.netns); err {
	case nil:
		return nil
	case errNotHeld:
	default:
		r.gap = "whether the worker still holds this abstract name cannot be asked: " + err.Error()
	}
	return r
}

// judgeOther judges a socket that is not AF_UNIX. With Config.Inet whatever it
// cannot be asked about is refused: AF_UNSPEC, which disconnects a socket so that
// it can be connected anew, and families that reach a host or its hardware. What
// remains is NETLINK_ROUTE, which the filter leaves to programs too.
func (c *call) judgeOther(sock socket, addr []byte) error {
	if c.s.cfg.Inet == nil {
		return nil
	}
	switch sock.domain {
	case unix.AF_INET, unix.AF_INET6:
		to, ok := parseInet(addr)
		if !ok {
			return &refusal{kind: KindInet, errno: unix.EACCES}
		}
		if to.Addr().Is4In6() {
			to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
		}
		if errno := c.s.cfg.Inet(c.op, to); errno != 0 {
			return &refusal{kind: KindInet, errno: errno, address: to.String()}
		}
		return nil
	case unix.AF_NETLINK:
		if p, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err == nil && p == unix.NETLINK_ROUTE {
			return nil
		}
	}
	return &refusal{kind: KindOther, errno: unix.EACCES}
}

// open turns a path into a handle, judges the handle, and from then on uses
// nothing else: a sockaddr that names the handle leads to this inode always.
func (t *target) open(s *Supervisor) error {
	if t.path == "" || t.file >= 0 {
		return nil
	}
	fd, err := t.at.resolve(t.path, 0)
	if err != nil {
		return err
	}
	t.file = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return unix.ECONNREFUSED // what the kernel answers for any other file
	}
	t.id = fileID{uint64(st.Dev), st.Ino}
	if !s.own.has(t.id) {
		return &refusal{errno: unix.EACCES, path: t.path}
	}
	t.addr = unixSockaddr(selfFD(fd))
	return nil
}

func (t *target) close() {
	if t != nil && t.file >= 0 {
		unix.Close(t.file)
		t.file = -1
	}
}

// enabled refuses a call that the configuration did not ask to have trapped.
func (c *call) enabled(on bool) error {
	if !on {
		return gap("the filter traps a call that is not configured", nil)
	}
	return nil
}

func (c *call) connect() (int64, error) {
	if err := c.enabled(c.s.cfg.Unix); err != nil {
		return 0, err
	}
	sock, err := c.socket(int32(c.n.Args[0]))
	if err != nil {
		return 0, err
	}
	addr, err := c.address(c.n.Args[1], int32(c.n.Args[2]))
	if err != nil {
		return 0, err
	}
	t, err := c.target(sock, addr)
	if err != nil {
		return 0, err
	}
	defer t.close()
	if err := c.check(); err != nil {
		return 0, err
	}
	flags, err := unix.FcntlInt(uintptr(sock.fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, err
	}
	// The other types have nobody to wait for.
	block := flags&unix.O_NONBLOCK == 0 && (sock.kind == unix.SOCK_STREAM || sock.kind == unix.SOCK_SEQPACKET)
	err = c.asWorker(func() error {
		if err := t.open(c.s); err != nil {
			return err
		}
		if c.started && sock.domain != unix.AF_INET && sock.domain != unix.AF_INET6 {
			// TCP tells with the next connect; others would begin anew.
			if e, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && e != 0 {
				return unix.Errno(e)
			}
		}
		if !block {
			return c.connectNow(sock, t.addr)
		}
		if _, err := unix.FcntlInt(uintptr(sock.fd), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return err
		}
		defer unix.FcntlInt(uintptr(sock.fd), unix.F_SETFL, flags)
		return c.connectNow(sock, t.addr)
	})
	if err == unix.EINTR && c.cancelled.Load() {
		// The worker has changed the flags meanwhile. Not soon again: the others
		// had to wait for this.
		err = c.later(sock, false, unix.EAGAIN)
		c.next = time.Now().Add(10 * watchAfter)
		return 0, err
	}
	switch {
	case err == unix.EISCONN && c.started:
		err = nil // it has become so since this call began it
	case err == unix.EINPROGRESS && c.started:
		// Begun again: the first has failed, and another has read how.
		err = unix.ECONNREFUSED
	case !block:
	case err == unix.EAGAIN && sock.domain == unix.AF_UNIX:
		c.full = string(addr)
		if t.path != "" {
			c.full = fmt.Sprint(t.id)
		}
		return 0, c.later(sock, false, unix.EAGAIN)
	case err == unix.EINPROGRESS, err == unix.EALREADY:
		c.started = c.started || err == unix.EINPROGRESS
		return 0, c.later(sock, true, unix.EINPROGRESS)
	}
	c.effect = err == nil || err == unix.EINPROGRESS
	if err == nil {
		c.recordAutobind(sock)
	}
	return 0, err
}

// connectNow runs on the deputy. The socket does not block, unless the worker
// changes that at this moment.
func (c *call) connectNow(sock socket, addr []byte) error {
	c.connecting.Store(true)
	defer c.connecting.Store(false)
	return c.again(func() error { return sys.DeputyConnect(sock.fd, addr) })
}

// recordAutobind learns the name that the kernel gives an unnamed socket with
// SO_PASSCRED when it connects or sends.
func (c *call) recordAutobind(sock socket) {
	if sock.domain != unix.AF_UNIX {
		return
	}
	if pass, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, unix.SO_PASSCRED); err != nil || pass == 0 {
		return
	}
	if c.s.own.bookName() == nil {
		c.recordName(sock)
	}
}

func (c *call) recordName(sock socket) {
	name, err := sys.NotifSockname(sock.fd)
	if err != nil {
		return
	}
	u, errno := parseUnix(name)
	var st unix.Stat_t
	if errno == 0 && u.kind == unixAbstract && unix.Fstat(sock.fd, &st) == nil {
		c.s.own.addName(u.name, st.Ino)
	}
}

func (c *call) bind() (int64, error) {
	if err := c.enabled(c.s.cfg.Unix); err != nil {
		return 0, err
	}
	sock, err := c.socket(int32(c.n.Args[0]))
	if err != nil {
		return 0, err
	}
	addr, err := c.address(c.n.Args[1], int32(c.n.Args[2]))
	if err != nil {
		return 0, err
	}
	if sock.domain != unix.AF_UNIX {
		if err := c.judgeOther(sock, addr); err != nil {
			return 0, err
		}
		return 0, c.bindRaw(sock, addr)
	}
	u, errno := parseUnix(addr)
	switch {
	case errno != 0:
		return 0, errno
	case u.kind == unixUnspec:
		return 0, unix.EINVAL
	case u.kind == unixPath:
		return 0, c.bindPath(sock, addr, u.name)
	}
	c.kind = KindUnixAbstract
	if err := c.s.own.bookName(); err != nil {
		return 0, err
	}
	if err := c.bindRaw(sock, addr); err != nil {
		return 0, err
	}
	c.recordName(sock)
	return 0, nil
}

func (c *call) bindRaw(sock socket, addr []byte) error {
	if err := c.check(); err != nil {
		return err
	}
	err := c.asWorker(func() error {
		return c.again(func() error { return sys.DeputyBind(sock.fd, addr) })
	})
	c.effect = err == nil
	return err
}

// bindPath makes a socket file. The parent directory is judged by handle. Then
// the kernel is given the worker's own words, from the worker's own directory,
// since they become the socket's address, which peers see and to which they
// answer; should they mean something else by now, the deputy's Landlock domain
// judges that. Without Landlock, or in another root, the deputy stands in the
// judged directory and binds the bare name, and the address is that name.
func (c *call) bindPath(sock socket, addr []byte, path string) error {
	dir, name := splitLast(path)
	if dir == "" {
		dir = "."
	}
	at, err := c.place(dir)
	if err != nil {
		return err
	}
	st, err := c.status()
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	parent := -1
	err = c.asWorker(func() (err error) {
		parent, err = at.resolve(dir, unix.O_DIRECTORY)
		return err
	})
	if err != nil {
		return err
	}
	c.hold(parent)
	if !c.s.roots.contains(parent) {
		return &refusal{errno: unix.EACCES, path: path}
	}
	if err := c.s.own.book(); err != nil {
		return err
	}
	defer c.s.own.unbook()
	from, words := at.dir, addr
	if c.s.ruleset < 0 || at.foreign {
		from, words = parent, unixSockaddr(name)
	}
	since := coarseNow()
	err = c.asWorker(func() error {
		unix.Umask(st.umask)
		if from != unix.AT_FDCWD {
			if err := unix.Fchdir(from); err != nil {
				return err
			}
			defer unix.Chdir("/") // do not pin the worker's directory
		}
		return c.again(func() error { return sys.DeputyBind(sock.fd, words) })
	})
	if err != nil {
		return err
	}
	c.effect = true
	if err := c.s.own.identify(sock.fd, parent, name, since); err != nil {
		c.s.emit(Event{Kind: KindUnixPath, Op: c.op, Path: path, Errno: errnoOf(err), PID: c.tid,
			Gap: "the bound socket cannot be identified, so it will not be reachable: " + err.Error()})
	}
	return nil
}
