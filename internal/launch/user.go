package launch

import "os"

// User is who a worker without a sandbox runs as.
type User struct {
	UID, GID int
	Groups   []int
}

// Own gives a directory that was made for a worker to it; nil is the caller's own.
func (u *User) Own(path string) error {
	if u == nil {
		return nil
	}
	return os.Lchown(path, u.UID, u.GID)
}

// IDs are the user's, or this process' own.
func (u *User) IDs() (uid, gid int) {
	if u == nil {
		return os.Geteuid(), os.Getegid()
	}
	return u.UID, u.GID
}
