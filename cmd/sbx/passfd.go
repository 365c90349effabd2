package main

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/policy"
)

// passedFiles reads --pass-fd N[:M].
func (f *runFlags) passedFiles() ([]backend.File, error) {
	var files []backend.File
	for _, spec := range f.passFD {
		const hint = "as in: sbx run --pass-fd 3 -- CMD 3<file, or --pass-fd 5:3 to make it descriptor 3 of the command"
		from, to, renamed := strings.Cut(spec, ":")
		n, err := strconv.Atoi(from)
		m := n
		if err == nil && renamed {
			m, err = strconv.Atoi(to)
		}
		if err != nil || n < 3 || m < 3 {
			return nil, refuse(hint, "--pass-fd %q: two numbers of 3 or more are needed; 0, 1 and 2 are passed anyway", spec)
		}
		if m > maxDescriptor {
			return nil, refuse(hint, "--pass-fd %q: the greatest number is %d", spec, maxDescriptor)
		}
		// What was inherited has survived an execve; sbx's own never would.
		flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			return nil, refuse(hint, "--pass-fd %q: sbx was not given a descriptor %d", spec, n)
		}
		for _, have := range files {
			if have.To == m {
				return nil, refuse("give each a number of its own", "--pass-fd: two descriptors are to be %d", m)
			}
		}
		// A file on a descriptor of its own: closing one does not close another.
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, refuse("", "--pass-fd %q: %v", spec, err)
		}
		files = append(files, backend.File{File: os.NewFile(uintptr(fd), "fd:"+from), To: m})
	}
	return files, nil
}

// maxDescriptor is below the limit of open files that processes usually have.
const maxDescriptor = 255

// weakening is what --pass-fd-unsafe means for the report.
func (f *runFlags) weakening() []policy.Weakening {
	if !f.passFDUnsafe || len(f.passFD) == 0 {
		return nil
	}
	return []policy.Weakening{{Flag: "--pass-fd-unsafe", Meaning: "the worker holds descriptors of its caller, whatever they lead to: " + strings.Join(f.passFD, ", ")}}
}
