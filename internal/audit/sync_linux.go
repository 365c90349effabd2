package audit

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dataSync returns when the disk has the file's bytes and its length. What
// fdatasync(2) leaves out, its times, no reader needs. The file may be closed
// meanwhile: its descriptor is held until then.
func dataSync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := conn.Control(func(fd uintptr) { err = unix.Fdatasync(int(fd)) }); cerr != nil {
		return cerr
	}
	if err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

// bootID is the kernel's name of this run of the machine (random(4)).
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return head(strings.TrimSpace(string(b)), 64)
}
