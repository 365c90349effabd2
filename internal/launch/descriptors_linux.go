package launch

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// Descriptors says what the files are that a worker is to be given. One that leads
// on to more than itself is an error unless unsafe allows it.
func Descriptors(files []backend.File, unsafe bool) ([]backend.Descriptor, error) {
	var list []backend.Descriptor
	for _, f := range files {
		refused := func(hint, format string, args ...any) error {
			return &backend.SetupError{Step: "descriptors", Hint: hint, Err: fmt.Errorf("descriptor %d: "+format, append([]any{f.To}, args...)...)}
		}
		if f.File == nil || f.To < 3 {
			return nil, refused("", "no file, or a standard descriptor")
		}
		kind, err := kindOf(int(f.File.Fd()))
		if err != nil {
			return nil, refused("", "%w", err)
		}
		if !kind.Safe() && !unsafe {
			name := "a " + string(kind)
			if kind == backend.DescriptorOther {
				name = "what it is"
			}
			return nil, refused("pass a file or a pipe instead, or accept what it opens with --pass-fd-unsafe", "%s leads the worker on to what the policy does not grant", name)
		}
		list = append(list, backend.Descriptor{Number: f.To, Kind: kind})
	}
	return list, nil
}

// harmless are the devices of the memory driver (devices.txt, major 1) that hold
// nothing.
var harmless = map[uint32]bool{3: true, 5: true, 7: true, 8: true, 9: true} // null, zero, full, random, urandom

// storage are the file systems without a block device of their own whose files
// hold bytes and nothing else. (Those with one all do.) What the kernel makes up is
// of regular files as well, and leads on: message queues, namespaces, another
// process' memory, a cgroup. A file system that is not here may do so too.
var storage = map[uint32]bool{
	// in memory: shared memory and memfds are tmpfs
	unix.TMPFS_MAGIC: true, unix.RAMFS_MAGIC: true, unix.HUGETLBFS_MAGIC: true, unix.SECRETMEM_MAGIC: true,
	// on disks, of which they take several or none that has a number
	unix.BTRFS_SUPER_MAGIC: true, unix.BCACHEFS_SUPER_MAGIC: true, zfsMagic: true, ubifsMagic: true, unix.EROFS_SUPER_MAGIC_V1: true,
	// upon others
	unix.OVERLAYFS_SUPER_MAGIC: true, unix.ECRYPTFS_SUPER_MAGIC: true, aufsMagic: true,
	// elsewhere: of a network, of a machine's host, of a program (FUSE) that its
	// mounter trusts with files
	unix.NFS_SUPER_MAGIC: true, unix.CIFS_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true, unix.CEPH_SUPER_MAGIC: true,
	unix.AFS_SUPER_MAGIC: true, unix.AFS_FS_MAGIC: true, unix.CODA_SUPER_MAGIC: true, lustreMagic: true, gpfsMagic: true, orangefsMagic: true,
	unix.V9FS_MAGIC: true, unix.HOSTFS_SUPER_MAGIC: true, vboxsfMagic: true, unix.FUSE_SUPER_MAGIC: true, // virtiofs, too
}

// Those that package unix does not name: statfs(2), and their own sources.
const (
	zfsMagic      = 0x2fc12fc1
	ubifsMagic    = 0x24051905
	aufsMagic     = 0x61756673
	lustreMagic   = 0x0bd00bd0
	gpfsMagic     = 0x47504653
	orangefsMagic = 0x20030528
	vboxsfMagic   = 0x786f4256
)

func kindOf(fd int) (backend.DescriptorKind, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return "", fmt.Errorf("fcntl: %w", err)
	}
	if flags&unix.O_PATH != 0 {
		return backend.DescriptorOther, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", fmt.Errorf("fstat: %w", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFIFO:
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return "", fmt.Errorf("fstatfs: %w", err)
		}
		fifo, magic := st.Mode&unix.S_IFMT == unix.S_IFIFO, uint32(fs.Type)
		switch {
		case fifo && magic == unix.PIPEFS_MAGIC:
			return backend.DescriptorPipe, nil
		case unix.Major(st.Dev) == 0 && !storage[magic]:
			return backend.DescriptorOther, nil
		case fifo:
			return backend.DescriptorPipe, nil
		}
		return backend.DescriptorFile, nil
	case unix.S_IFDIR:
		return backend.DescriptorDirectory, nil
	case unix.S_IFCHR:
		if _, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN); err == nil {
			return backend.DescriptorOther, nil // a master: what is written there somebody else reads as typed
		}
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			return backend.DescriptorTerminal, nil
		}
		if unix.Major(st.Rdev) == 1 && harmless[unix.Minor(st.Rdev)] {
			return backend.DescriptorDevice, nil
		}
	case unix.S_IFSOCK:
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_UNIX {
			return backend.DescriptorUnix, nil
		}
		return backend.DescriptorSocket, nil
	}
	return backend.DescriptorOther, nil // anonymous inodes have no type: epoll, pidfd, ...
}
