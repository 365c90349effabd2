package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// takeKey reads the machine's key and removes its file.
func takeKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("removing the key: %w", err)
	}
	key, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(key) == 0 {
		return nil, fmt.Errorf("the key of %d bytes is not hexadecimal", len(text)) // an error would quote it
	}
	return key, nil
}

// openLine opens a serial line for bytes as they are, for root alone, and makes
// it this process's controlling terminal, which a leader's open without O_NOCTTY
// and for reading does. Else a job that leads a session and opens it (stty, as
// root) would get it for one, and with that job's end the kernel would hang it up
// for everybody.
func openLine(path string) (*os.File, error) {
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if _, err := unix.Setsid(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	// Without an UART behind it, this is EIO.
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// drain waits until all is sent: the machine ends with what the driver holds.
func drain(f *os.File) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // tcdrain(3)
}
