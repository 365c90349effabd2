package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// command is what the tests run below abicap.
func command(args []string) {
	switch args[0] {
	case "attempts":
		if err := json.NewEncoder(os.Stdout).Encode(attempts()); err != nil {
			os.Exit(1)
		}
	case "exit":
		n, _ := strconv.Atoi(args[1])
		os.Exit(n)
	case "signal":
		n, _ := strconv.Atoi(args[1])
		_ = unix.Kill(os.Getpid(), syscall.Signal(n))
		select {}
	case "cat":
		n, _ := io.Copy(os.Stdout, os.Stdin)
		fmt.Fprintf(os.Stderr, "%d bytes", n)
	case "await":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
		fmt.Println()
		os.Exit(40 + int((<-signals).(syscall.Signal)))
	case "unprivileged":
		cmd := exec.Command("/proc/self/exe", "restrict")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprint(os.Stderr, err)
		}
	case "restrict":
		_, errno := restrict(0, unix.LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON)
		fmt.Print(errnoName(errno))
	}
}

func attempts() map[string]string {
	runtime.LockOSThread() // no_new_privs and the domains are this thread's
	made := map[string]string{}
	note := func(name string, n int, errno syscall.Errno) int {
		made[name] = "ok"
		if errno != 0 {
			made[name] = errnoName(errno)
			return -1
		}
		return n
	}
	ruleset := func(name string, size int, words ...uint64) int {
		attr := make([]uint64, 4096)
		copy(attr, words)
		n, errno := create(uintptr(unsafe.Pointer(&attr[0])), size, 0)
		return note(name, n, errno)
	}
	const read = unix.LANDLOCK_ACCESS_FS_READ_FILE

	for name, flags := range map[string]int{"version": unix.LANDLOCK_CREATE_RULESET_VERSION, "errata": unix.LANDLOCK_CREATE_RULESET_ERRATA, "version and errata": 3, "unknown create flag": 1 << 20} {
		n, errno := create(0, 0, flags)
		if note(name, n, errno); name == "version" && errno == 0 {
			made[name] = strconv.Itoa(n)
		}
	}
	attr := [6]uint64{read}
	n, errno := create(uintptr(unsafe.Pointer(&attr)), 8, unix.LANDLOCK_CREATE_RULESET_VERSION)
	note("version with an attr", n, errno)
	n, errno = create(0, 8, 0)
	note("no attr", n, errno)
	n, errno = create(4096, 8, 0)
	note("bad attr", n, errno)

	ruleset("attr of 4 bytes", 4, read)
	ruleset("attr of a page and more", os.Getpagesize()+8, read)
	ruleset("empty ruleset", 24)
	files := ruleset("file access", 8, read)
	ruleset("file access, 56 bytes", 56, read)
	ruleset("file access, a page", os.Getpagesize(), read)
	ruleset("file access, 56 bytes and more set", 56, read, 0, 0, 0, 0, 0, 1)
	ruleset("unknown file access", 8, 1<<63)
	ruleset("refer", 8, unix.LANDLOCK_ACCESS_FS_REFER)
	ruleset("truncate", 8, unix.LANDLOCK_ACCESS_FS_TRUNCATE)
	ruleset("ioctl", 8, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV)
	ruleset("unix sockets", 8, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX)
	ports := ruleset("tcp", 16, read, 3)
	ruleset("udp", 16, read, 12)
	ruleset("scopes", 24, read, 0, 3)
	quietFiles := ruleset("quiet", 48, read, 0, 0, read)

	path := func(access uint64) [12]byte { // struct landlock_path_beneath_attr is packed
		dir, err := unix.Open("/proc/self", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		var b [12]byte
		*(*uint64)(unsafe.Pointer(&b)) = access
		*(*int32)(unsafe.Pointer(&b[8])) = int32(dir)
		return b
	}
	rule := func(name string, fd, ruleType int, attr unsafe.Pointer, flags int) {
		n, errno := addRule(fd, ruleType, attr, flags)
		note(name, n, errno)
	}
	beneath, other := path(read), path(unix.LANDLOCK_ACCESS_FS_EXECUTE)
	port, noAccess := [2]uint64{1, 80}, [2]uint64{0, 80}
	rule("file rule", files, 1, unsafe.Pointer(&beneath), 0)
	rule("file rule with an access that is not handled", files, 1, unsafe.Pointer(&other), 0)
	rule("file rule with an unknown flag", files, 1, unsafe.Pointer(&beneath), 1<<20)
	rule("quiet file rule", max(quietFiles, files), 1, unsafe.Pointer(&beneath), unix.LANDLOCK_ADD_RULE_QUIET)
	rule("rule of type 0", files, 0, unsafe.Pointer(&beneath), 0)
	rule("rule of type 9", files, 9, unsafe.Pointer(&beneath), 0)
	rule("port rule, nothing handled", files, 2, unsafe.Pointer(&port), 0)
	rule("port rule, no access", files, 2, unsafe.Pointer(&noAccess), 0)
	rule("port rule, no descriptor", -1, 2, unsafe.Pointer(&port), 0)
	rule("port rule, no ruleset", 1, 2, unsafe.Pointer(&port), 0)
	rule("tcp rule", ports, 2, unsafe.Pointer(&port), 0)

	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	enforce := func(name string, fd, flags int) {
		n, errno := restrict(fd, flags)
		note(name, n, errno)
	}
	enforce("restrict with no descriptor", -1, 0)
	enforce("restrict with an unknown flag", files, 1<<20)
	enforce("restrict, log flag alone", -1, unix.LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF)
	enforce("restrict, log flags", files, 7)
	enforce("restrict, tsync", files, unix.LANDLOCK_RESTRICT_SELF_TSYNC)
	enforce("restrict", files, 0)
	for name, file := range map[string]string{"open what no rule allows": "/proc/version", "open what a rule allows": "/proc/self/stat"} {
		fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		errno, _ := err.(syscall.Errno)
		note(name, fd, errno)
	}

	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		panic(err)
	}
	ruleset("file access of a non-dumpable process", 8, read)
	ruleset("unknown file access of a non-dumpable process", 8, 1<<63)
	return made
}

// errnoName prefers the name that Landlock's documentation has: ENOTSUP is the same number.
func errnoName(errno syscall.Errno) string {
	if errno == unix.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(errno)
}

func create(attr uintptr, size, flags int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, attr, uintptr(size), uintptr(flags))
	return int(n), errno
}

func addRule(fd, ruleType int, attr unsafe.Pointer, flags int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(fd), uintptr(ruleType), uintptr(attr), uintptr(flags), 0, 0)
	return int(n), errno
}

func restrict(fd, flags int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), uintptr(flags), 0)
	return int(n), errno
}
