package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// attempt is something that the confined process must not be able to do. try makes it
// for real, in a way that does no harm if it works, and answers nil then.
type attempt struct {
	name string
	try  func() error
}

const openRoot = "open /"

// filesOnly is what Landlock alone refuses.
var filesOnly = []attempt{
	{openRoot, func() error {
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}},
}

// everything is what the filter refuses. Where the kernel itself would find fault
// with the arguments, its complaint counts as allowed: the call came through.
var everything = append(filesOnly[:len(filesOnly):len(filesOnly)],
	attempt{"socket AF_INET", func() error { return trySocket(unix.AF_INET) }},
	attempt{"socket AF_UNIX", func() error { return trySocket(unix.AF_UNIX) }},
	attempt{"execve /proc/self/exe", func() error { return unless(sys.TryExec([]byte("/proc/self/exe\x00")), unix.EFAULT) }},
	attempt{"clone of a process", func() error {
		// CLONE_THREAD without CLONE_SIGHAND is EINVAL (clone(2)), so that no child
		// comes of it.
		_, _, errno := unix.RawSyscall(unix.SYS_CLONE, unix.CLONE_THREAD|uintptr(unix.SIGCHLD), 0, 0)
		return unless(errno, unix.EINVAL)
	}},
	attempt{"kill", func() error { return unix.Kill(os.Getpid(), 0) }},
	attempt{"executable memory", func() error {
		m, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			_ = unix.Munmap(m)
		}
		return err
	}},
)

func trySocket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// unless is nil if the call failed in the way that it was made to.
func unless(got, made unix.Errno) error {
	if got == made || got == 0 {
		return nil
	}
	return got
}

// tryAll makes the attempts on this thread and on a fresh one. It is an error if one
// was not refused, unless that is a gap already.
func (c *confinement) tryAll(after string, attempts []attempt) error {
	if omitted != nil && omitted("canaries") {
		return nil
	}
	try := func(thread string) error {
		var errs []error
		for _, a := range attempts {
			err := a.try()
			k := Canary{After: after, Thread: thread, Attempt: a.name, Answer: "allowed"}
			if err != nil {
				k.Answer = err.Error()
			}
			k.Refused = errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
			c.posture.Canaries = append(c.posture.Canaries, k)
			// Without Landlock nothing confines to the store: a gap, and said.
			open := a.name == openRoot && c.store != nil && c.posture.Landlock.ABI == 0 && c.said(GapFiles)
			if !k.Refused && !open {
				errs = append(errs, fmt.Errorf("%s (%s thread) is not refused: %s", a.name, thread, k.Answer))
			}
		}
		return errors.Join(errs...)
	}
	return errors.Join(try("calling"), c.onFreshThread(func() error { return try("fresh") }))
}

// onFreshThread runs f on a thread that does not exist yet: it takes up idle threads
// until the runtime has to make one.
func (c *confinement) onFreshThread(f func() error) error {
	old, err := c.listTasks()
	if err != nil {
		return err
	}
	release := make(chan struct{})
	defer close(release)
	for range 4 * (len(old) + 16) {
		answer := make(chan error, 1)
		ran := make(chan bool, 1)
		go func() {
			// Held while others are tried, and then given back.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if slices.Contains(old, unix.Gettid()) {
				ran <- false
				<-release
				return
			}
			answer <- f()
			ran <- true
		}()
		if <-ran {
			return <-answer
		}
	}
	return errors.New("the runtime made no new thread to try it on")
}

// tryStore makes sure that what was to stay usable is: a file is made and removed.
func (c *confinement) tryStore() error {
	if c.store == nil {
		return nil
	}
	name := filepath.Join(c.o.Store, ".confine-"+strconv.Itoa(os.Getpid()))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("the store cannot be used: %w", err)
	}
	_, err = f.Write([]byte{1})
	return errors.Join(err, f.Close(), os.Remove(name))
}
