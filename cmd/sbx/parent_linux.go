package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// onParentsDeath calls f when the process that started this one has ended: the
// process and not the thread, which is what PR_SET_PDEATHSIG would tell.
func onParentsDeath(f func()) error {
	parent, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return refuse("leave out --die-with-parent", "--die-with-parent: %v", err)
	}
	go func() {
		defer unix.Close(parent)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(parent), Events: unix.POLLIN}}, -1)
			if err == unix.EINTR {
				continue
			}
			f()
			return
		}
	}()
	return nil
}
