package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/listen"
)

// managed starts a daemon as systemd does: with a socket of the manager's, a place to
// tell how it is, and a watchdog.
func managed(t *testing.T, mode os.FileMode, args ...string) (p *process, told <-chan string) {
	t.Helper()
	needLandlock(t)
	p = prepare(t, args...)
	p.cmd.Args = append(p.cmd.Args[:1], p.cmd.Args[3:]...) // no --socket
	must(t, os.Mkdir(filepath.Dir(p.socket), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, os.Chmod(p.socket, mode))
	file, err := l.File()
	must(t, err)
	_ = l.Close()
	t.Cleanup(func() { _ = file.Close() })
	notify := filepath.Join(p.dir, "notify")
	n, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { _ = n.Close() })
	heard := make(chan string, 100)
	go func() {
		for buf := make([]byte, 4096); ; {
			got, err := n.Read(buf)
			if err != nil {
				return
			}
			heard <- string(buf[:got])
		}
	}()
	// LISTEN_PID is the daemon's own, which only a shell in its place knows.
	p.cmd.ExtraFiles = []*os.File{file}
	p.cmd.Path, p.cmd.Args = "/bin/sh", append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, p.cmd.Path}, p.cmd.Args[1:]...)
	p.cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=sandboxd.socket", "NOTIFY_SOCKET="+notify, "WATCHDOG_USEC=200000")
	return p.start(), heard
}

func TestManager(t *testing.T) {
	config := filepath.Join(publicDir(t), "config.toml")
	must(t, os.WriteFile(config, nil, 0o600))
	p, told := managed(t, 0o600, "--config", config)
	want := func(state string) string {
		t.Helper()
		for {
			select {
			case got := <-told:
				if strings.HasPrefix(got, state) {
					return got
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s is not told", state)
			}
		}
	}
	want(listen.Ready)
	c := p.dial()
	// Nothing of the manager's reaches a worker.
	if r := c.run("sh", "-c", "env; ls /proc/self/fd"); r.status() != 0 || regexp.MustCompile(`LISTEN_|NOTIFY_|WATCHDOG_`).MatchString(r.out.String()) {
		t.Error(r)
	}
	want(listen.Alive)
	want(listen.Alive)
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	p.signal(unix.SIGHUP)
	reloading := want("RELOADING=1\n")
	var usec int64
	if _, err := fmt.Sscanf(reloading, "RELOADING=1\nMONOTONIC_USEC=%d", &usec); err != nil || usec < now.Nano()/1000 || usec > now.Nano()/1000+60e6 {
		t.Errorf("%q, %v; now %d", reloading, err, now.Nano()/1000)
	}
	want(listen.Ready)
	// A monitor that hangs is no longer told alive.
	p.signal(unix.SIGSTOP)
	for len(told) > 0 {
		<-told
	}
	select {
	case got := <-told:
		if got != listen.Alive { // one may have been on its way
			t.Errorf("stopped, it says %q", got)
		}
	case <-time.After(300 * time.Millisecond):
	}
	p.signal(unix.SIGCONT)
	want(listen.Alive)
	p.signal(unix.SIGTERM)
	want(listen.Stopping)
	if s := p.status(); s != 0 {
		t.Errorf("status %d", s)
	}
	// The socket is the manager's, and stays.
	if _, err := os.Lstat(p.socket); err != nil {
		t.Error(err)
	}
}

// TestManagerOpenSocket: systemd's default is a socket for everybody, and that is
// refused.
func TestManagerOpenSocket(t *testing.T) {
	p, _ := managed(t, 0o666)
	if s := p.status(); s != statusRefused || !strings.Contains(p.log.String(), "SocketMode=0600") {
		t.Errorf("status %d, %s", s, p.log.String())
	}
	q, _ := managed(t, 0o600, "--socket", "/nowhere/socket")
	if s := q.status(); s != statusRefused || !strings.Contains(q.log.String(), "--socket") {
		t.Errorf("status %d, %s", s, q.log.String())
	}
	if os.Geteuid() != 0 {
		return
	}
	g, _ := managed(t, 0o660, "--system", "--group", strconv.Itoa(users)) // and the socket's is root
	if s := g.status(); s != statusRefused || !strings.Contains(g.log.String(), "SocketGroup=") {
		t.Errorf("status %d, %s", s, g.log.String())
	}
}
