package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// int80 makes a system call of the i386 table, on any filter's blind side.
func int80(nr, a, b, c uint32) int32

const x32 = 0x4000_0000 // __X32_SYSCALL_BIT

func init() {
	register(map[string]op{
		"creat":         {1, creat},
		"old-open":      {1, oldOpen},
		"old-link":      {2, plain2(linkAsLibc)},
		"old-unlink":    {1, plain(unlinkAsLibc)},
		"old-rename":    {2, plain2(oldRename)},
		"modify-ldt":    {0, modifyLDT},
		"x32-socket":    {0, raw(x32|unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)},
		"x32-getpid":    {0, raw(x32|unix.SYS_GETPID, 0)},
		"int80-getpid":  {0, i386(20, 0, 0, 0)},
		"int80-socket":  {0, i386(359, unix.AF_INET, unix.SOCK_STREAM, 0)},
		"int80-unshare": {0, i386(310, unix.CLONE_FS, 0, 0)},
	})
}

func i386(nr, a, b, c uint32) func([]string) (string, error) {
	return func([]string) (string, error) {
		if r := int80(nr, a, b, c); r < 0 {
			return "", unix.Errno(-r)
		}
		return "", nil
	}
}

func pathPointer(s string) (uintptr, error) {
	p, err := unix.BytePtrFromString(s)
	return uintptr(unsafe.Pointer(p)), err
}

func creat(a []string) (string, error) {
	p, err := pathPointer(a[0])
	if err != nil {
		return "", err
	}
	fd, _, errno := unix.Syscall(unix.SYS_CREAT, p, 0o644, 0)
	return "", closing(int(fd), orNil(errno))
}

func oldOpen(a []string) (string, error) {
	p, err := pathPointer(a[0])
	if err != nil {
		return "", err
	}
	fd, _, errno := unix.Syscall(unix.SYS_OPEN, p, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	return "", closing(int(fd), orNil(errno))
}

func twoPaths(nr uintptr, a, b string) error {
	p, err := pathPointer(a)
	if err != nil {
		return err
	}
	q, err := pathPointer(b)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(nr, p, q, 0)
	return orNil(errno)
}

// linkAsLibc and unlinkAsLibc use the calls that glibc uses here.
func linkAsLibc(a, b string) error { return twoPaths(unix.SYS_LINK, a, b) }

func unlinkAsLibc(a string) error {
	p, err := pathPointer(a)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_UNLINK, p, 0, 0)
	return orNil(errno)
}

func oldRename(a, b string) error { return twoPaths(unix.SYS_RENAME, a, b) }

func modifyLDT([]string) (string, error) {
	var buf [64]byte
	_, _, errno := unix.Syscall(unix.SYS_MODIFY_LDT, 0, uintptr(unsafe.Pointer(&buf)), 64)
	return "", orNil(errno)
}
