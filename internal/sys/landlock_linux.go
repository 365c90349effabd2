package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RulesetAttr is struct landlock_ruleset_attr of linux/landlock.h, as of ABI 10.
type RulesetAttr struct {
	HandledFS, HandledNet, Scoped  uint64
	QuietFS, QuietNet, QuietScoped uint64
}

// CreateRuleset calls landlock_create_ruleset(2) with the size of the struct
// that the kernel's ABI has, so that a field that the kernel does not know is
// never sent. The descriptor is close-on-exec by the kernel's choice.
func CreateRuleset(attr RulesetAttr, size int) (int, error) {
	if size < 8 || size > int(unsafe.Sizeof(attr)) {
		return -1, fmt.Errorf("creating the ruleset: size %d: %w", size, unix.EINVAL)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), uintptr(size), 0)
	if errno != 0 {
		return -1, fmt.Errorf("creating the ruleset: %w", errno)
	}
	return int(fd), nil
}
