//go:build unix && !linux

package scratch

import "golang.org/x/sys/unix"

// look tells what name in a directory is, or the handle itself where it is
// empty.
func look(at int, name string) (place, uint32, error) {
	var st unix.Stat_t
	var err error
	if name == "" {
		err = unix.Fstat(at, &st)
	} else {
		err = unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return place{}, 0, err
	}
	return place{dev: uint64(st.Dev), ino: uint64(st.Ino)}, uint32(st.Mode), nil
}

// chmodDir makes a directory its owner's to use, if it is a place that is ours.
func chmodDir(at int, name string, ours func(place) bool) error {
	p, _, err := look(at, name)
	if err != nil {
		return err
	}
	if !ours(p) {
		return errMount
	}
	return unix.Fchmodat(at, name, 0o700, unix.AT_SYMLINK_NOFOLLOW)
}
