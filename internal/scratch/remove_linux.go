package scratch

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// look tells what name in a directory is, or the handle itself where it is
// empty. Mounts have numbers since Linux 5.8.
func look(at int, name string) (p place, mode uint32, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var x unix.Statx_t
	if unix.Statx(at, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &x) == nil {
		p = place{dev: unix.Mkdev(x.Dev_major, x.Dev_minor), ino: x.Ino}
		if x.Mask&unix.STATX_MNT_ID != 0 {
			p.mnt = x.Mnt_id
		}
		return p, uint32(x.Mode), nil
	}
	var st unix.Stat_t // statx may be filtered
	if err := unix.Fstatat(at, name, &st, flags); err != nil {
		return place{}, 0, err
	}
	return place{dev: st.Dev, ino: st.Ino}, st.Mode, nil
}

// chmodDir makes a directory its owner's to use, if it is a place that is ours.
// A handle of a directory without permissions can only be a path handle, whose
// mode is changed by Linux 6.6 or through /proc; without both it is an error.
func chmodDir(at int, name string, ours func(place) bool) error {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p, _, err := look(fd, "")
	if err != nil {
		return err
	}
	if !ours(p) {
		return errMount
	}
	if fchmodat2(fd, "", 0o700, unix.AT_EMPTY_PATH) == nil {
		return nil
	}
	return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), 0o700, 0)
}

// fchmodat2 is a variable so that tests can be older kernels.
var fchmodat2 = unix.Fchmodat
