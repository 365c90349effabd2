package confine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// remote names one byte of a process' memory.
func remote(b *byte) []unix.RemoteIovec {
	return []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(b)), Len: 1}}
}
