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
		"creat":         {1, creat, shared},
		"old-open":      {1, oldOpen, shared},
		"old-link":      {2, plain2(linkAsLibc), shared},
		"old-unlink":    {1, plain(unlinkAsLibc), shared},
		"old-rename":    {2, plain2(oldRename), shared},
		"modify-ldt":    {0, modifyLDT, shared},
		"x32-socket":    {0, raw(x32|unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0), alone},
		"x32-getpid":    {0, raw(x32|unix.SYS_GETPID, 0), alone},
		"int80-getpid":  {0, i386(20, 0, 0, 0), alone},
		"int80-socket":  {0, i386(359, unix.AF_INET, unix.SOCK_STREAM, 0), alone},
		"int80-unshare": {0, i386(310, unix.CLONE_FS, 0, 0), alone},
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

func creat(a []string) (string, error) {
	return "", closing(onPath(unix.SYS_CREAT, a[0], 0o644, 0))
}

func oldOpen(a []string) (string, error) {
	return "", closing(onPath(unix.SYS_OPEN, a[0], unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644))
}

func onPath(nr uintptr, path string, b, c uintptr) (int, error) {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	r, _, errno := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), b, c)
	return int(r), orNil(errno)
}

func onPaths(nr uintptr, a, b string) error {
	p, err := unix.BytePtrFromString(a)
	if err != nil {
		return err
	}
	q, err := unix.BytePtrFromString(b)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(q)), 0)
	return orNil(errno)
}

// linkAsLibc and unlinkAsLibc use the calls that glibc uses here.
func linkAsLibc(a, b string) error { return onPaths(unix.SYS_LINK, a, b) }

func unlinkAsLibc(a string) error {
	_, err := onPath(unix.SYS_UNLINK, a, 0, 0)
	return err
}

func oldRename(a, b string) error { return onPaths(unix.SYS_RENAME, a, b) }

func modifyLDT([]string) (string, error) {
	var buf [64]byte
	_, _, errno := unix.Syscall(unix.SYS_MODIFY_LDT, 0, uintptr(unsafe.Pointer(&buf)), 64)
	return "", orNil(errno)
}
