package stream

import "golang.org/x/sys/unix"

// fionread asks how many bytes can be read: pipe(7). TIOCINQ is the same number.
const fionread = unix.TIOCINQ
