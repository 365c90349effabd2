//go:build linux || darwin

package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// firstHandedIn is SD_LISTEN_FDS_START, maxHandedIn more than any unit has.
const (
	firstHandedIn = 3
	maxHandedIn   = 64
)

// Inherited is a socket that a service manager made.
type Inherited struct {
	Name     string // FileDescriptorName= of systemd.socket(5), or empty
	Listener *Listener
}

// FromManager returns the sockets that systemd made for this process
// (sd_listen_fds(3)), none if it made none. It is to be called once and early:
// it takes LISTEN_PID, LISTEN_PIDFDID, LISTEN_FDS and LISTEN_FDNAMES out of the
// environment, so that no child takes them for its own, and marks the descriptors
// close-on-exec.
//
// Each must be a listening stream socket of AF_UNIX with a path: an abstract one
// has no mode. If one is not, none is used, and the error says what it is. Its
// mode is the unit's to set, and systemd's default is 0666: a unit of the
// system needs SocketMode=0660 and SocketGroup=.
func FromManager() ([]Inherited, error) {
	env := map[string]string{}
	for _, name := range []string{"LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		env[name] = os.Getenv(name)
		_ = os.Unsetenv(name)
	}
	return fromManager(env["LISTEN_PID"], env["LISTEN_FDS"], env["LISTEN_FDNAMES"], firstHandedIn)
}

func fromManager(pid, count, names string, first int) ([]Inherited, error) {
	if pid == "" && count == "" {
		return nil, nil
	}
	p, err := strconv.Atoi(pid)
	if err != nil {
		return nil, fmt.Errorf("LISTEN_PID=%q: not a number", pid)
	}
	if p != os.Getpid() { // meant for another process, which passed its environment on
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxHandedIn {
		return nil, fmt.Errorf("LISTEN_FDS=%q: not a number from 0 to %d", count, maxHandedIn)
	}
	var name []string
	if names != "" {
		if name = strings.Split(names, ":"); len(name) != n {
			return nil, fmt.Errorf("LISTEN_FDNAMES has %d names for %d descriptors", len(name), n)
		}
	}
	// All are looked at before one is taken: a descriptor that is no socket may be
	// one of Go's own, if the environment lies, and stays as it is.
	paths := make([]string, n)
	for i := range n {
		if paths[i], err = handedIn(first + i); err != nil {
			return nil, fmt.Errorf("descriptor %d from the service manager: %w", first+i, err)
		}
	}
	all := make([]Inherited, 0, n)
	for i := range n {
		file := os.NewFile(uintptr(first+i), paths[i])
		sock, err := net.FileListener(file)
		_ = file.Close() // FileListener has its own
		if err != nil {
			for _, in := range all {
				_ = in.Listener.Close()
			}
			return nil, fmt.Errorf("descriptor %d from the service manager: %w", first+i, err)
		}
		in := Inherited{Listener: &Listener{sock: sock.(*net.UnixListener), path: paths[i], spare: openSpare()}}
		if name != nil {
			in.Name = name[i]
		}
		all = append(all, in)
	}
	return all, nil
}

// handedIn checks a descriptor, marks it close-on-exec and returns its path.
func handedIn(fd int) (string, error) {
	st, err := fstat(fd)
	if err != nil {
		return "", err
	}
	if st.kind() != unix.S_IFSOCK {
		return "", fmt.Errorf("%s, not a socket", kindName(st))
	}
	unix.CloseOnExec(fd)
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return "", fmt.Errorf("its address: %w", err)
	}
	at, ok := addr.(*unix.SockaddrUnix)
	if !ok {
		return "", errors.New("not a unix socket")
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return "", fmt.Errorf("its type: %w", err)
	}
	if kind != unix.SOCK_STREAM {
		return "", errors.New("not a stream socket")
	}
	listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return "", fmt.Errorf("whether it listens: %w", err)
	}
	if listening == 0 {
		return "", errors.New("not a listening socket")
	}
	if !strings.HasPrefix(at.Name, "/") {
		return "", fmt.Errorf("its address %q is no path, so that no mode protects it", at.Name)
	}
	return at.Name, nil
}

// notifyWait bounds what a service manager that does not read costs.
const notifyWait = 2 * time.Second

// Notify tells the service manager (sd_notify(3)): [Ready], [Stopping], [Alive],
// [Status], or several lines of them. It is false without an error if there is
// no manager to tell, that is no NOTIFY_SOCKET. A daemon does not depend on
// being heard: the error is for its log.
//
// The variable stays, as it is asked for each time: workers must not get it.
func Notify(state string) (bool, error) {
	to := os.Getenv("NOTIFY_SOCKET")
	if to == "" {
		return false, nil
	}
	if state == "" || strings.ContainsRune(state, 0) {
		return false, fmt.Errorf("notifying: %q is no state", state)
	}
	if err := notify(to, state); err != nil {
		return false, fmt.Errorf("notifying %q: %w", to, err)
	}
	return true, nil
}

// NotifyReloading tells the service manager that a reload begins.
func NotifyReloading() (bool, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return false, fmt.Errorf("notifying: the monotonic clock: %w", err)
	}
	return Notify(Reloading(now.Nano() / 1000))
}

func notify(to, state string) error {
	if to[0] != '/' && to[0] != '@' || len(to) < 2 { // vsock: is a virtual machine's
		return errors.New("neither a path nor an abstract name")
	}
	release := func() {}
	if len(to) > maxAddress && to[0] == '/' {
		short, done, err := shorten(to)
		if err != nil {
			return err
		}
		to, release = short, done
	}
	defer release()
	ctx, cancel := context.WithTimeout(context.Background(), notifyWait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unixgram", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(notifyWait))
	_, err = conn.Write([]byte(state))
	return err
}

// WatchdogTimeout is how long the service manager waits for [Alive] before it
// ends this process (sd_watchdog_enabled(3)), 0 if it does not. Half of it is a
// good time between two. It is asked of WATCHDOG_USEC, in microseconds, and of
// WATCHDOG_PID, which must be this process' if it is set.
func WatchdogTimeout() (time.Duration, error) {
	text := os.Getenv("WATCHDOG_USEC")
	if text == "" {
		return 0, nil
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" {
		p, err := strconv.Atoi(pid)
		if err != nil {
			return 0, fmt.Errorf("WATCHDOG_PID=%q: not a number", pid)
		}
		if p != os.Getpid() {
			return 0, nil
		}
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64(1<<63-1)/int64(time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC=%q: not a number of microseconds", text)
	}
	return time.Duration(usec) * time.Microsecond, nil
}
