package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// exitPort is that of QEMU's isa-debug-exit device. A byte written to it ends
// QEMU with twice the byte plus one.
const exitPort = 0xf4

// powerOff ends the machine, and does not return.
func powerOff(code int) {
	// The console's driver may hold its last lines.
	_ = unix.IoctlSetInt(int(os.Stdout.Fd()), unix.TCSBRK, 1)
	runtime.LockOSThread() // the permission is this thread's
	if err := writePort(exitPort, byte(code)); err != nil {
		say("ending through port %#x: %v", exitPort, err)
	}
	// Without that device QEMU ends with 0, or stays.
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	panic(fmt.Sprintf("power off: %v", err)) // and so does the kernel
}
