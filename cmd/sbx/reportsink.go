package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/report"
)

// reportSink is where --report goes. Its destination is opened before the
// command runs, so that a report that cannot be written is known before.
type reportSink struct {
	// file is written directly: a descriptor, or a device or pipe.
	file *os.File
	// A regular file is written beside its name and renamed over it at the
	// end, when no worker is left that could change it.
	temp *os.File
	dir  *os.Root
	name string
	path string
}

func openReport(spec, workspace string) (*reportSink, error) {
	if spec == "" {
		return &reportSink{}, nil
	}
	if number, ok := strings.CutPrefix(spec, "fd:"); ok {
		return reportToDescriptor(number)
	}
	st, err := os.Stat(spec)
	switch {
	case err == nil && st.IsDir():
		return nil, refuse("name a file", "--report %q is a directory", spec)
	case err == nil && !st.Mode().IsRegular():
		// O_NONBLOCK: a FIFO without a reader must not hang the launch.
		f, err := os.OpenFile(spec, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return nil, refuse("a FIFO needs a reader first", "opening the report: %v", err)
		}
		return &reportSink{file: f, path: spec}, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, refuse("name a file that you can write", "opening the report: %v", err)
	}
	s := &reportSink{path: spec, name: filepath.Base(spec)}
	if s.dir, err = openDirOf(spec, workspace); err != nil {
		return nil, refuse("make its directory first", "opening the report: %v", err)
	}
	if s.temp, err = s.dir.OpenFile(s.tempName(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		s.close()
		return nil, refuse("name a file in a directory that you can write", "opening the report: %v", err)
	}
	return s, nil
}

func (s *reportSink) tempName() string { return fmt.Sprintf(".%.200s.sbx-%d", s.name, os.Getpid()) }

func reportToDescriptor(number string) (*reportSink, error) {
	const hint = "open it for writing, as in: sbx run --report fd:3 -- CMD 3>report.json"
	n, err := strconv.Atoi(number)
	if err != nil || n < 2 {
		return nil, refuse("use fd:N with N of 2 or more; descriptor 1 carries the command's own output", "--report fd:%s is not usable", number)
	}
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil {
		return nil, refuse(hint, "--report fd:%d: %v", n, err)
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, refuse(hint, "--report fd:%d is not open for writing", n)
	}
	return &reportSink{file: os.NewFile(uintptr(n), "fd:"+number), path: "fd:" + number}, nil
}

func (s *reportSink) write(r *report.Report) error {
	switch {
	case s.file != nil:
		return r.WriteJSON(s.file)
	case s.temp == nil:
		return nil
	}
	if err := r.WriteJSON(s.temp); err != nil {
		return err
	}
	mine, err := s.temp.Stat()
	if err != nil {
		return err
	}
	if err := s.dir.Rename(s.tempName(), s.name); err != nil {
		return err
	}
	// The worker is gone, but may have moved the directory or put another in
	// its place while it lived: then the name does not lead to our report.
	now, err := os.Lstat(s.path)
	if err != nil || !os.SameFile(mine, now) {
		return fmt.Errorf("%q does not lead to the report any more: the command changed its directory", s.path)
	}
	s.name = ""
	return nil
}

func (s *reportSink) close() {
	if s.temp != nil {
		_ = s.temp.Close()
		if s.name != "" {
			_ = s.dir.Remove(s.tempName())
		}
	}
	if s.dir != nil {
		_ = s.dir.Close()
	}
	if s.file != nil {
		_ = s.file.Close()
	}
}
