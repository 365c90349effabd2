package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/report"
)

// reportSink is where --report goes. That it can be written is found out before
// the command runs; it is written when no worker is left that could change it.
type reportSink struct {
	// file is written directly: a descriptor, or a device or pipe.
	file *os.File
	// A regular file is written beside its name and renamed over it.
	dir  *os.Root
	name string
	path string
}

// openReport prepares the destination. outputs are the command's own standard
// descriptors and grants the policy's: what the command can write to is no place
// for the report of it.
func openReport(spec string, p policy.Policy, passed []backend.File) (*reportSink, error) {
	if spec == "" {
		return &reportSink{}, nil
	}
	if number, ok := strings.CutPrefix(spec, "fd:"); ok {
		return reportToDescriptor(number, p, passed)
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
		return direct(f, spec, p, passed)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, refuse("name a file that you can write", "opening the report: %v", err)
	}
	if err == nil && isCommands(st, passed) {
		return nil, mixed(spec) // /dev/stdout, among others
	}
	// A link in its place is replaced and never followed: a command may have
	// planted it.
	s := &reportSink{path: spec, name: filepath.Base(spec)}
	if s.dir, err = openDirOf(spec, p.Workspace()); err != nil {
		return nil, refuse("make its directory first", "opening the report: %v", err)
	}
	f, name, err := s.createTemp()
	if err != nil {
		s.close()
		return nil, refuse("name a file in a directory that you can write", "opening the report: %v", err)
	}
	_ = f.Close()
	if err := s.dir.Remove(name); err != nil {
		s.close()
		return nil, refuse("name a file in a directory that you can write", "opening the report: %v", err)
	}
	return s, nil
}

// createTemp makes a file beside the destination, under a name that nobody can
// have prepared.
func (s *reportSink) createTemp() (*os.File, string, error) {
	name := fmt.Sprintf(".%.100s.%s", s.name, rand.Text())
	f, err := s.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, err
}

func reportToDescriptor(number string, p policy.Policy, passed []backend.File) (*reportSink, error) {
	const hint = "open it for writing, as in: sbx run --report fd:3 -- CMD 3>report.json"
	n, err := strconv.Atoi(number)
	if err != nil || n < 3 {
		return nil, refuse("use fd:N with N of 3 or more; 0, 1 and 2 are the command's own", "--report fd:%s is not usable", number)
	}
	// What was inherited has survived an execve; sbx's own descriptors never would.
	if own, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err == nil && own&unix.FD_CLOEXEC != 0 {
		return nil, refuse(hint, "--report fd:%d: %v", n, unix.EBADF)
	}
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil {
		return nil, refuse(hint, "--report fd:%d: %v", n, err)
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY || flags&unix.O_ACCMODE == 3 {
		return nil, refuse(hint, "--report fd:%d is not open for writing", n)
	}
	return direct(os.NewFile(uintptr(n), "fd:"+number), "fd:"+number, p, passed)
}

// direct takes an open file as the destination, if the command cannot write it.
func direct(f *os.File, spec string, p policy.Policy, passed []backend.File) (*reportSink, error) {
	st, err := f.Stat()
	if err == nil && isCommands(st, passed) {
		err = mixed(spec)
	}
	// Where it lies, /proc tells; a pipe or socket lies nowhere.
	if real, lerr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err == nil && lerr == nil && filepath.IsAbs(real) &&
		st.Mode()&os.ModeCharDevice == 0 && p.Mode().Confined() && p.Allows(real, policy.Write) {
		err = refuse("send it to a file outside of what the command may write", "--report %s lies where the command can write to it", spec)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &reportSink{file: f, path: spec}, nil
}

func mixed(spec string) error {
	return refuse("use --report FILE or another descriptor", "--report %s is the command's own descriptor", spec)
}

// isCommands tells whether a file is one of the command's descriptors. The
// null device keeps nothing, so that it cannot mix anything.
func isCommands(st fs.FileInfo, passed []backend.File) bool {
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(st, null) {
		return false
	}
	own := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for _, f := range passed {
		own = append(own, f.File)
	}
	for _, f := range own {
		if own, err := f.Stat(); err == nil && os.SameFile(st, own) {
			return true
		}
	}
	return false
}

func (s *reportSink) write(r *report.Report) error {
	switch {
	case s.file != nil:
		return r.WriteJSON(patient{s.file, readerPatience})
	case s.dir == nil:
		return nil
	}
	f, name, err := s.createTemp()
	if err != nil {
		return err
	}
	err = r.WriteJSON(f)
	mine, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err == nil {
		err = s.dir.Rename(name, s.name)
	}
	if err != nil {
		return errors.Join(err, s.dir.Remove(name))
	}
	// The worker is gone, but may have moved the directory or put another in
	// its place while it lived: then the name does not lead to our report.
	now, err := os.Lstat(s.path)
	if err != nil || !os.SameFile(mine, now) {
		return fmt.Errorf("%q does not lead to the report any more: the command changed its directory", s.path)
	}
	return nil
}

// readerPatience is how long a reader of the report may read nothing: the caller may
// wait for this process to end before it reads.
const readerPatience = 10 * time.Second

// patient writes to what may have a reader, and waits for it so long at a time.
type patient struct {
	file     *os.File
	patience time.Duration
}

func (p patient) Write(b []byte) (n int, err error) {
	for n < len(b) {
		fds := []unix.PollFd{{Fd: int32(p.file.Fd()), Events: unix.POLLOUT}}
		ready, err := unix.Poll(fds, int(p.patience.Milliseconds()))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return n, err
		case ready == 0:
			return n, fmt.Errorf("nobody has read it for %v, after %d bytes: read it while sbx runs, or use --report FILE", p.patience, n)
		}
		// A pipe that is ready takes PIPE_BUF bytes without a wait (pipe(7), poll(2)).
		m, err := p.file.Write(b[n:min(len(b), n+4096)])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *reportSink) close() {
	if s.dir != nil {
		_ = s.dir.Close()
	}
	if s.file != nil {
		_ = s.file.Close()
	}
}
