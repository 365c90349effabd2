package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// ownSet is the sockets that the worker's tree may reach. Handles pin the
// inodes, so a number cannot come to mean another file.
type ownSet struct {
	mu      sync.Mutex
	paths   map[fileID]int
	booked  int
	names   map[string]uint64 // abstract name to the sockfs inode of its socket
	limit   int               // of bound paths
	allowed int

	diag   int    // asked, opened in Start, kept
	seq    uint32 // of the last question
	works  bool   // it has answered about a socket
	noDiag bool   // the kernel has none, or refuses it
}

func newOwnSet() *ownSet {
	return &ownSet{paths: map[fileID]int{}, names: map[string]uint64{}, diag: -1, limit: maxSockets}
}

func (o *ownSet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, fd := range o.paths {
		unix.Close(fd)
	}
	clear(o.paths)
	if o.diag >= 0 {
		unix.Close(o.diag)
	}
	o.diag, o.noDiag = -1, true
}

func (o *ownSet) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.paths) + len(o.names)
}

func (o *ownSet) allow(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := o.add(fd); err != nil {
		return err
	}
	o.allowed++
	return nil
}

// book keeps room for one bound path. Sockets whose file is gone make room.
func (o *ownSet) book() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.paths)+o.booked >= o.limit+o.allowed {
		for id, fd := range o.paths {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Nlink == 0 {
				unix.Close(fd)
				delete(o.paths, id)
			}
		}
	}
	if len(o.paths)+o.booked >= o.limit+o.allowed {
		return unix.ENOSPC
	}
	o.booked++
	return nil
}

func (o *ownSet) unbook() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.booked--
}

// add owns the handle from here on.
func (o *ownSet) add(fd int) error {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	id := fileID{uint64(st.Dev), st.Ino}
	if _, ok := o.paths[id]; ok {
		unix.Close(fd)
		return nil
	}
	o.paths[id] = fd
	return nil
}

func (o *ownSet) has(id fileID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.paths[id]
	return ok
}

// bookName makes sure that one more name fits.
func (o *ownSet) bookName() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.names) < maxSockets {
		return nil
	}
	for name, ino := range o.names {
		if b, err := o.ask(ino); err == unix.ENOENT || err == nil && b.name != name {
			delete(o.names, name)
		}
	}
	if len(o.names) >= maxSockets {
		return unix.ENOSPC
	}
	return nil
}

func (o *ownSet) addName(name string, socket uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.names[name]; ok || len(o.names) < 2*maxSockets {
		o.names[name] = socket
	}
}

// errNotHeld: no socket of the worker's tree holds the name.
var errNotHeld = errors.New("not held")

// holdsName returns nil if the worker's own socket still has the name. Any error
// but errNotHeld means that it cannot be asked; ours is false where the worker's
// network namespace is not the launcher's. That the worker had the name once is
// no proof: it could have given it up to a host's socket.
func (o *ownSet) holdsName(name string, ours bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	ino, ok := o.names[name]
	switch {
	case !ok:
		return errNotHeld
	case !ours:
		return fmt.Errorf("the worker is in another network namespace: %w", unix.EXDEV)
	}
	switch b, err := o.ask(ino); {
	case err == unix.ENOENT, err == nil && b.name != name:
		delete(o.names, name)
		return errNotHeld
	case err != nil:
		return fmt.Errorf("sock_diag: %w", err)
	}
	return nil
}

// binding is what sock_diag tells about an AF_UNIX socket.
type binding struct {
	name string // abstract
	ino  uint32 // of the file it is bound to; the kernel cuts it to 32 bits
	file bool
}

func (o *ownSet) bound(socket uint64) (binding, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ask(socket)
}

// openDiag opens sock_diag while there is a descriptor to be had: a worker that
// could make this fail would choose how its sockets are judged.
func (o *ownSet) openDiag() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	switch err {
	case nil:
		o.diag = fd
	case unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EPERM, unix.EACCES, unix.ENOENT, unix.ENOSYS:
		o.noDiag = true // no such thing in this kernel, or an outer sandbox
	default:
		return err
	}
	return nil
}

// askIn asks in another network namespace from now on. Whether this kernel answers at
// all is found out in this one, where there is a socket to ask for.
func (o *ownSet) askIn(fd int) {
	if !o.works && !o.noDiag {
		_, _ = o.ask(0xffff_fffe) // hardly anybody's
	}
	if o.noDiag {
		unix.Close(fd)
		return
	}
	unix.Close(o.diag)
	o.diag = fd
}

// ask looks a socket up by its sockfs inode. ENOENT: it is no more. EOPNOTSUPP:
// there is nobody to ask, now and later. Any other error is this question's.
func (o *ownSet) ask(socket uint64) (binding, error) {
	if o.noDiag || o.diag < 0 {
		return binding{}, unix.EOPNOTSUPP
	}
	b, err := o.askOnce(socket)
	if err != unix.ENOENT || o.works {
		o.works = o.works || err == nil
		return b, err
	}
	// A kernel without unix_diag answers ENOENT as well. A socket that is there
	// tells which it is.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return binding{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return binding{}, err
	}
	switch _, err := o.askOnce(st.Ino); err {
	case nil:
		o.works = true
		return binding{}, unix.ENOENT
	case unix.ENOENT:
		o.noDiag = true
		return binding{}, unix.EOPNOTSUPP
	default:
		return binding{}, err
	}
}

func (o *ownSet) askOnce(socket uint64) (binding, error) {
	o.seq++
	return askDiag(o.diag, o.seq, uint32(socket))
}

const (
	diagShowName, diagShowVFS = 1, 2
	diagName, diagVFS         = 0, 1
)

func askDiag(fd int, seq, ino uint32) (binding, error) {
	ne := binary.NativeEndian
	req := ne.AppendUint32(nil, 16+24)
	req = ne.AppendUint16(req, unix.SOCK_DIAG_BY_FAMILY)
	req = ne.AppendUint16(req, unix.NLM_F_REQUEST)
	req = ne.AppendUint32(req, seq)                      //
	req = ne.AppendUint32(req, 0)                        // port
	req = append(req, unix.AF_UNIX, 0, 0, 0)             // family, protocol, pad
	req = ne.AppendUint32(req, ^uint32(0))               // states
	req = ne.AppendUint32(req, ino)                      //
	req = ne.AppendUint32(req, diagShowName|diagShowVFS) //
	req = ne.AppendUint64(req, ^uint64(0))               // no cookie
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return binding{}, err
	}
	var buf [1024]byte
	// The kernel answers within the send. What is left of an earlier question,
	// whose answer was not read for some reason, is passed over.
	for {
		n, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return binding{}, err
		case n < 16 || ne.Uint32(buf[8:]) != seq:
			continue
		}
		return parseDiag(buf[:n], ino)
	}
}

// parseDiag reads one netlink message: unix_diag_msg and its attributes.
func parseDiag(b []byte, ino uint32) (binding, error) {
	ne := binary.NativeEndian
	if len(b) < 16 || int(ne.Uint32(b)) > len(b) || ne.Uint32(b) < 16 {
		return binding{}, unix.EPROTO
	}
	kind, body := ne.Uint16(b[4:]), b[16:ne.Uint32(b)]
	if kind == unix.NLMSG_ERROR && len(body) >= 4 {
		if e := -int32(ne.Uint32(body)); e > 0 && e < 4096 {
			return binding{}, unix.Errno(e)
		}
	}
	if kind != unix.SOCK_DIAG_BY_FAMILY || len(body) < 16 || ne.Uint32(body[4:]) != ino {
		return binding{}, unix.EPROTO
	}
	var out binding
	for attrs := body[16:]; len(attrs) >= 4; {
		size, kind := int(ne.Uint16(attrs)), ne.Uint16(attrs[2:])
		if size < 4 || size > len(attrs) {
			break
		}
		switch value := attrs[4:size]; {
		case kind == diagName && len(value) > 0 && value[0] == 0:
			out.name = string(value[1:])
		case kind == diagVFS && len(value) >= 8:
			out.ino, out.file = ne.Uint32(value), true
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	return out, nil
}

// identify adds the inode that the worker's socket has just been bound to.
//
// The path is no witness: between the bind and a look at it the worker can
// rename a host's socket onto it. The socket is one. With CAP_NET_ADMIN it
// gives the handle; without, sock_diag gives the inode's number, and the file
// behind the path is taken only if it has this number, on the same mount. A
// kernel without either (unix_diag is a module, and may be missing) leaves the
// file's birth: see [ownSet.identifyByBirth].
func (o *ownSet) identify(sock, parent int, name string, since unix.Timespec) error {
	if fd, err := sys.NotifUnixFile(sock); err == nil {
		return o.add(fd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(sock, &st); err != nil {
		return err
	}
	b, err := o.bound(st.Ino)
	switch {
	case err == unix.EOPNOTSUPP:
		return o.identifyByBirth(parent, name, since)
	case err != nil:
		return fmt.Errorf("sock_diag: %w", err)
	}
	if !b.file {
		return fmt.Errorf("sock_diag tells no file: %w", unix.ENOENT)
	}
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	same, err := sameInode(fd, parent, b.ino)
	if err != nil || !same {
		unix.Close(fd)
		if err == nil {
			err = fmt.Errorf("another file has taken the name: %w", unix.ESTALE)
		}
		return err
	}
	return o.add(fd)
}

// identifyByBirth takes the socket behind the path if it was made since the
// bind began: a host's socket that the worker renamed onto the name is older.
// What is left is a host's socket that was made beneath the worker's writable
// roots within the same tick (4 ms at most) and renamed in time. Birth times
// cannot be set (statx(2), STATX_BTIME); a file system without them is refused.
func (o *ownSet) identifyByBirth(parent int, name string, since unix.Timespec) error {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	const mask = unix.STATX_TYPE | unix.STATX_BTIME
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, mask, &st)
	switch {
	case err != nil:
	case st.Mask&mask != mask:
		err = fmt.Errorf("neither sock_diag nor the file's birth time is to be had: %w", unix.ENOTSUP)
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK || bornBefore(st.Btime, since):
		err = fmt.Errorf("another file has taken the name: %w", unix.ESTALE)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	return o.add(fd)
}

func bornBefore(birth unix.StatxTimestamp, t unix.Timespec) bool {
	return birth.Sec < t.Sec || birth.Sec == t.Sec && int64(birth.Nsec) < t.Nsec
}

// coarseNow is the clock that file systems stamp files with.
func coarseNow() unix.Timespec {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &t) // cannot fail for this clock
	return t
}

func sameInode(fd, parent int, want uint32) (bool, error) {
	mount, ino, err := sys.NotifFdinfo(fd)
	if err != nil {
		return false, err
	}
	parentMount, _, err := sys.NotifFdinfo(parent)
	if err != nil {
		return false, err
	}
	if ino == 0 { // before 5.14; wrong on some overlay file systems, then refused
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return false, err
		}
		ino = st.Ino
	}
	return mount == parentMount && uint32(ino) == want, nil
}

// CanAskNames tells whether this kernel says which socket holds an abstract name
// (unix_diag). Where it does not, every abstract name is refused, the worker's
// own as well, for that it held a name once proves nothing.
func CanAskNames() bool {
	o := newOwnSet()
	defer o.close()
	if o.openDiag() != nil {
		return false
	}
	_, err := o.ask(1<<32 - 1) // it need not be there; 0 would be no question
	return err == nil || err == unix.ENOENT
}
