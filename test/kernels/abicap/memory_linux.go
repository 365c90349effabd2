package main

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errFault says that the address is not the process's: the kernel will say EFAULT.
var errFault = errors.New("no such address")

// memory reads other processes' memory. A process that makes itself non-dumpable
// (the product's launcher does) shuts out an ordinary user, but only from a new
// /proc/PID/mem: one that was opened before stays with its address space. So
// PR_SET_DUMPABLE is made to wait until that is open.
type memory struct {
	kept map[int]*os.File // by thread group
}

func openMemory(tid int) (*os.File, error) {
	return os.Open(filepath.Join("/proc", strconv.Itoa(tid), "mem"))
}

// keep opens the memory of a process that is about to shut it. If it fails, a
// read that needs it will.
func (m *memory) keep(tid int) {
	f, err := openMemory(tid)
	if err != nil {
		return
	}
	if m.kept == nil {
		m.kept = map[int]*os.File{}
	}
	for tgid, old := range m.kept {
		// An address space that is gone reads as empty, any other has an error at 0.
		if _, err := old.ReadAt(make([]byte, 1), 0); errors.Is(err, io.EOF) {
			_ = old.Close()
			delete(m.kept, tgid)
		}
	}
	tgid := threadGroup(tid)
	if old := m.kept[tgid]; old != nil {
		_ = old.Close()
	}
	m.kept[tgid] = f
}

// read fills b, or fails with errFault or with what kept it from the memory.
func (m *memory) read(tid int, address uint64, b []byte) error {
	f, err := openMemory(tid)
	if err == nil {
		defer f.Close()
	} else if f = m.kept[threadGroup(tid)]; f == nil {
		return err
	}
	if address > math.MaxInt64 {
		return errFault // nobody's; and ReadAt would not have it
	}
	switch _, err = f.ReadAt(b, int64(address)); {
	case errors.Is(err, unix.EIO), errors.Is(err, io.EOF):
		return errFault
	default:
		return err
	}
}

// threadGroup is 0 for a thread that is gone.
func threadGroup(tid int) int {
	n, _ := strconv.Atoi(statusField(tid, "Tgid"))
	return n
}

// statusField is the value of a line of /proc/TID/status, which anyone may read.
func statusField(tid int, name string) string {
	status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(tid), "status"))
	for line := range strings.Lines(string(status)) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
