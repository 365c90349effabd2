package launch

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// messageQueue makes a POSIX message queue: mq_overview(7).
func messageQueue(t *testing.T) int {
	t.Helper()
	name, err := unix.BytePtrFromString("sbx-test-" + rand.Text())
	if err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600, 0, 0, 0)
	if errno == unix.ENOSYS {
		t.Skip("this kernel has no POSIX message queues")
	}
	if errno != 0 {
		t.Fatal("mq_open:", errno)
	}
	t.Cleanup(func() {
		if _, _, errno := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
			t.Error("mq_unlink:", errno)
		}
	})
	return int(fd)
}

// TestKinds: what only holds bytes may be passed; what the kernel makes up may not,
// though much of it says that it is a regular file.
func TestKinds(t *testing.T) {
	dir := t.TempDir()
	opened := func(path string, flags int) func(*testing.T) (int, error) {
		return func(*testing.T) (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0o600) }
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		open    func(*testing.T) (int, error)
		want    backend.DescriptorKind
		regular bool // fstat(2) says so; of the others kernels differ
	}{
		"file":        {opened(file, unix.O_RDWR), backend.DescriptorFile, true},
		"shared":      {opened("/dev/shm", unix.O_TMPFILE|unix.O_RDWR), backend.DescriptorFile, true},
		"memfd":       {func(*testing.T) (int, error) { return unix.MemfdCreate("x", unix.MFD_CLOEXEC) }, backend.DescriptorFile, true},
		"fifo":        {opened(fifo, unix.O_RDWR), backend.DescriptorPipe, false},
		"pipe":        {func(t *testing.T) (int, error) { return onePipe(t) }, backend.DescriptorPipe, false},
		"null":        {opened("/dev/null", unix.O_RDWR), backend.DescriptorDevice, false},
		"directory":   {opened(dir, unix.O_RDONLY), backend.DescriptorDirectory, false},
		"handle":      {opened(file, unix.O_PATH), backend.DescriptorOther, true},
		"queue":       {func(t *testing.T) (int, error) { return messageQueue(t), nil }, backend.DescriptorOther, true},
		"memory":      {opened("/proc/self/mem", unix.O_RDONLY), backend.DescriptorOther, true},
		"status":      {opened("/proc/self/status", unix.O_RDONLY), backend.DescriptorOther, true},
		"setting":     {opened("/proc/sys/kernel/ostype", unix.O_RDONLY), backend.DescriptorOther, true},
		"namespace":   {opened("/proc/self/ns/uts", unix.O_RDONLY), backend.DescriptorOther, true},
		"event":       {func(*testing.T) (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) }, backend.DescriptorOther, false},
		"process":     {func(*testing.T) (int, error) { return unix.PidfdOpen(os.Getpid(), 0) }, backend.DescriptorOther, false},
		"unix socket": {func(*testing.T) (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }, backend.DescriptorUnix, false},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			fd, err := c.open(t)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), name)
			defer f.Close()
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || c.regular && st.Mode&unix.S_IFMT != unix.S_IFREG {
				t.Errorf("mode %#o, %v", st.Mode, err)
			}
			files := []backend.File{{File: f, To: 3}}
			if got, err := Descriptors(files, true); err != nil || len(got) != 1 || got[0].Kind != c.want {
				t.Errorf("%+v, %v; it is of kind %q", got, err, c.want)
			}
			_, err = Descriptors(files, false)
			var setup *backend.SetupError
			if c.want.Safe() != (err == nil) || err != nil && !errors.As(err, &setup) {
				t.Errorf("passed without a word: %v", err)
			}
		})
	}
}

func onePipe(t *testing.T) (int, error) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, err
	}
	t.Cleanup(func() { _ = unix.Close(p[1]) })
	return p[0], nil
}
