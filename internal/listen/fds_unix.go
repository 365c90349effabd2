//go:build linux || darwin

package listen

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// maxFDs is how many descriptors one message can carry (SCM_MAX_FD, unix(7)).
const maxFDs = 253

// Send writes all of data, and with its first byte the descriptors fds, which
// stay the caller's and must stay open meanwhile. Descriptors need data: a
// stream carries nothing beside no bytes (unix(7)). It waits for room in the
// socket, until the connection's deadline for writing. After an error the
// stream may end anywhere in data, and the descriptors may have gone.
func Send(conn *net.UnixConn, data []byte, fds []int) error {
	switch {
	case len(data) == 0 && len(fds) > 0:
		return fmt.Errorf("sending: %w", ErrNoBytes)
	case len(fds) > maxFDs:
		return fmt.Errorf("sending %d descriptors, of at most %d: %w", len(fds), maxFDs, ErrTooManyFDs)
	case len(data) == 0:
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var sendErr error
	// One call for all of it: no other writer comes between.
	err = raw.Write(func(s uintptr) bool {
		for len(data) > 0 {
			n, err := unix.SendmsgN(int(s), data, oob, nil, noSignal)
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				return false
			case err != nil:
				sendErr = err
				return true
			default:
				data, oob = data[n:], nil // what comes with the first byte is gone
			}
		}
		return true
	})
	if err == nil {
		err = sendErr
	}
	if err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	return nil
}

// Recv reads at least one byte into buf, and the descriptors that came with it,
// at most limit of them. They are close-on-exec and the caller's to close, with
// [CloseAll]; everything else about them is the sender's choice: what they are,
// their flags, and that a close may take as long as the sender's file system
// likes.
//
// At the end of the stream it is io.EOF. ErrTooManyFDs, ErrTruncated (the
// kernel cut something off: more than asked for, or no room in this process)
// and ErrNoBytes leave no descriptor open; the bytes are lost, and the stream is
// of no more use. Credentials that were sent along are ignored: [PeerOf] has
// those that decide.
func Recv(conn *net.UnixConn, buf []byte, limit int) (n int, fds []int, err error) {
	if len(buf) == 0 || limit < 0 {
		return 0, nil, errors.New("receiving: no room was given")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, nil, fmt.Errorf("receiving: %w", err)
	}
	oob := make([]byte, roomFor(min(limit, maxFDs)))
	var flags int
	var recvErr error
	err = raw.Read(func(s uintptr) bool {
		for {
			n, flags, fds, recvErr = receive(int(s), buf, oob)
			switch recvErr {
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
	})
	if err == nil {
		err = recvErr
	}
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0:
		err = ErrTruncated
	case len(fds) > limit:
		err = fmt.Errorf("%w: %d came, of at most %d", ErrTooManyFDs, len(fds), limit)
	case flags&unix.MSG_TRUNC != 0: // a message, on a socket that has them
		err = io.ErrShortBuffer
	case n == 0 && len(fds) > 0:
		err = ErrNoBytes
	case n == 0: // with credentials or without
		return 0, nil, io.EOF
	default:
		return n, fds, nil
	}
	CloseAll(fds)
	return 0, nil, fmt.Errorf("receiving: %w", err)
}

// descriptors collects those of all control messages, as far as they can be
// read. Handles on processes, that a socket which was handed in may be set to
// give (SO_PASSPIDFD), are not for the caller and are closed.
func descriptors(oob []byte) (fds []int, err error) {
	for len(oob) >= unix.CmsgLen(0) {
		hdr, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return fds, err
		}
		if hdr.Level == unix.SOL_SOCKET && (hdr.Type == unix.SCM_RIGHTS || hdr.Type == scmPIDFD) {
			m := unix.SocketControlMessage{Header: hdr, Data: data}
			m.Header.Type = unix.SCM_RIGHTS
			got, err := unix.ParseUnixRights(&m)
			if err != nil {
				return fds, err
			}
			if hdr.Type == unix.SCM_RIGHTS {
				fds = append(fds, got...)
			} else {
				CloseAll(got)
			}
		}
		oob = rest
	}
	return fds, nil
}

// CloseAll closes descriptors that [Recv] returned.
func CloseAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
