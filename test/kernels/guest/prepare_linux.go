package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// searchPath is the jobs' PATH, and init's own.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ordinaryUser is the uid and gid of the user beside root.
const ordinaryUser = 1000

type mount struct {
	fs, dir string
	flags   uintptr
	data    string
}

const hardened = unix.MS_NOSUID | unix.MS_NODEV

// mounts are in an order in which each finds its directory. Nothing may hide a
// part of /proc: the kernel refuses a new proc in a user namespace then.
var mounts = []mount{
	{"proc", "/proc", hardened | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", hardened | unix.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", unix.MS_NOSUID, ""},
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=666,mode=620"},
	{"tmpfs", "/dev/shm", hardened, "mode=1777"},
	{"tmpfs", "/tmp", hardened, "mode=1777"},
	{"tmpfs", "/var/tmp", hardened, "mode=1777"},
	{"tmpfs", "/run", hardened, "mode=755"},
	{"securityfs", "/sys/kernel/security", hardened | unix.MS_NOEXEC, ""},
	{"cgroup2", "/sys/fs/cgroup", hardened | unix.MS_NOEXEC, ""},
}

// prepare makes the machine what a job expects. What fails is noted: the jobs
// that do not need it still count.
func prepare(t *troubles) {
	unix.Umask(0o022)
	t.add("setting PATH", os.Setenv("PATH", searchPath)) // exec looks a job's program up here
	for _, m := range mounts {
		err := os.MkdirAll(m.dir, 0o755)
		if err == nil {
			err = unix.Mount(m.fs, m.dir, m.fs, m.flags, m.data)
		}
		t.add("mounting "+m.dir, err)
	}
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		t.add("linking", os.Symlink("/proc/self/fd"+target, "/dev/"+name))
	}
	t.add("quieting the kernel", os.WriteFile("/proc/sys/kernel/printk", []byte("1"), 0))
	t.add("setting the hostname", unix.Sethostname([]byte("guest")))
	t.add("bringing lo up", loopbackUp())
	for _, file := range modules("/modules", t) {
		t.add("loading "+file, loadModule(file))
	}
	t.add("making /root", makeOwned("/root", 0, 0o700))
	t.add("making the home directory", makeOwned(homes[ordinaryUser], ordinaryUser, 0o700))
	installBusybox(t)
}

// makeOwned makes a directory if need be, and gives it to a user.
func makeOwned(dir string, uid int, mode os.FileMode) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(os.Chown(dir, uid, uid), os.Chmod(dir, mode))
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// modules are the uncompressed modules in a directory, in the order of their
// names, which the host chose so that each finds what it needs.
func modules(dir string, t *troubles) (files []string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.add("listing modules", err)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".ko" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// installBusybox gives the guest the commands that the host did not put there.
func installBusybox(t *troubles) {
	const busybox = "/bin/busybox"
	if !exists(busybox) {
		return
	}
	t.add("making /usr", os.MkdirAll("/usr", 0o755))
	for _, dir := range []string{"/sbin", "/usr/bin", "/usr/sbin"} {
		if !exists(dir) {
			t.add("linking", os.Symlink("/bin", dir))
		}
	}
	list, err := exec.Command(busybox, "--list").Output()
	t.add("asking busybox for its commands", err)
	err = linkCommands(strings.Fields(string(list)), busybox, filepath.SplitList(searchPath), "/bin", "/usr/bin")
	t.add("linking", err)
}

// linkCommands makes commands available in each of dirs, as scripts name either,
// but hides none that is in the search path already.
func linkCommands(commands []string, busybox string, path []string, dirs ...string) error {
	for _, c := range commands {
		target := busybox
		for _, dir := range path {
			if file := filepath.Join(dir, c); exists(file) {
				target = file
				break
			}
		}
		for _, dir := range dirs { // one may be a link to another
			if file := filepath.Join(dir, c); !exists(file) {
				if err := os.Symlink(target, file); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// exists tells whether a path can be used, by whatever links.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
