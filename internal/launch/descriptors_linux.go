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
	case unix.S_IFREG:
		// Files of nsfs and procfs are regular as well, and lead on: a namespace,
		// another process' memory.
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return "", fmt.Errorf("fstatfs: %w", err)
		}
		switch fs.Type {
		case unix.NSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
			unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.BPF_FS_MAGIC, unix.SECURITYFS_MAGIC:
			return backend.DescriptorOther, nil
		}
		return backend.DescriptorFile, nil
	case unix.S_IFIFO:
		return backend.DescriptorPipe, nil
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
