package supervise

import (
	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// roots are the places that the worker may write to, held open.
type roots struct {
	list []root
}

type root struct {
	fd  int
	id  fileID
	dir bool
}

func (r *roots) add(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return err
	}
	r.list = append(r.list, root{fd, fileID{uint64(st.Dev), st.Ino}, st.Mode&unix.S_IFMT == unix.S_IFDIR})
	return nil
}

func (r *roots) close() {
	for _, root := range r.list {
		unix.Close(root.fd)
	}
	r.list = nil
}

// ruleset lets the deputies do beneath the roots and in shm what they are for,
// and keeps the kernel from letting them do it elsewhere.
func (r *roots) ruleset(shm int) (int, error) {
	const (
		write  = unix.LANDLOCK_ACCESS_FS_WRITE_FILE
		remove = unix.LANDLOCK_ACCESS_FS_REMOVE_FILE
		create = unix.LANDLOCK_ACCESS_FS_MAKE_REG
		socket = unix.LANDLOCK_ACCESS_FS_MAKE_SOCK
	)
	var rules []sys.DeputyRule
	for _, root := range r.list {
		rights := uint64(write)
		if root.dir {
			rights |= socket
		}
		rules = append(rules, sys.DeputyRule{FD: root.fd, Rights: rights})
	}
	if shm >= 0 {
		rules = append(rules, sys.DeputyRule{FD: shm, Rights: write | remove | create})
	}
	return sys.DeputyRuleset(write|remove|create|socket, rules)
}

// maxDepth is more than a path can name.
const maxDepth = maxPath / 2

// contains walks up from an open directory. Handles and inode numbers do not
// care under which name or through which mount the worker sees a root, and a
// directory that a rename moves while we climb was the worker's to move.
func (r *roots) contains(dir int) bool {
	fd, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { unix.Close(fd) }()
	var last fileID
	same := 0
	for range maxDepth {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			return false
		}
		id := fileID{uint64(st.Dev), st.Ino}
		for _, root := range r.list {
			if root.dir && root.id == id {
				return true
			}
		}
		// ".." of the top is the top. A directory mounted on its own child gives
		// the same number twice as well, and is not the top.
		if id != last {
			same = 0
		} else if same++; same > 8 {
			return false
		}
		last = id
		up, err := unix.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		unix.Close(fd)
		fd = up
	}
	return false
}
