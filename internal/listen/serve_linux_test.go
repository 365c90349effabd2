package listen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestServe(t *testing.T) {
	noLeak(t)
	l := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	echo := func(c *net.UnixConn) { defer c.Close(); _, _ = io.Copy(c, c) }
	for round := range 3 { // it can be served again after a stop
		done := make(chan error, 1)
		go func() { done <- l.Serve(ctx, echo) }()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				c, err := Dial(context.Background(), l.Path())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = c.Write([]byte("x"))
				if n, err := c.Read(make([]byte, 1)); n != 1 {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if round == 2 {
			must(t, l.Close())
			if err := <-done; err != nil {
				t.Errorf("closed: %v", err)
			}
			break
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		if err := l.Serve(ctx, echo); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled before: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
	}
	cancel()
	if s := l.Stats(); s.Accepted != 60 || s.Refused != 0 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestServeFailures: what passes is waited out and counted, what does not is
// returned; no failure makes it spin.
func TestServeFailures(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO, unix.EPERM} {
		t.Run(errno.Error(), func(t *testing.T) {
			noLeak(t)
			l := open(t)
			calls := 0
			accept := func() (*net.UnixConn, error) {
				if calls++; calls == 5 {
					return nil, net.ErrClosed
				}
				return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", errno)}
			}
			start := time.Now()
			if err := l.serve(t.Context(), accept, nil); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < 4*firstPause || took > 5*time.Second {
				t.Errorf("four pauses took %v", took)
			}
			if s := l.Stats(); s.Failed != 4 || s.Accepted != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
	l := open(t)
	for _, errno := range []unix.Errno{unix.EBADF, unix.EINVAL, unix.ENOTSOCK, unix.EOPNOTSUPP} {
		err := l.serve(t.Context(), func() (*net.UnixConn, error) { return nil, os.NewSyscallError("accept4", errno) }, nil)
		if !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	// A long pause ends with its context.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := l.serve(ctx, func() (*net.UnixConn, error) { return nil, unix.ENOBUFS }, nil)
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
		t.Errorf("%v after %v", err, took)
	}
	if s := l.Stats(); s.Failed > 12 {
		t.Errorf("it spun: %+v", s)
	}
}

func init() {
	// crowded serves with few descriptors, holds what it accepts until it is told
	// to let go, and says what it counted.
	children["crowded"] = func(args []string) string {
		l, err := Open(Options{Path: args[0]})
		if err != nil {
			return err.Error()
		}
		must := func(err error) {
			if err != nil {
				panic(err)
			}
		}
		var mu sync.Mutex
		var held []*net.UnixConn
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		// Go opens what it needs to wait before the limit falls.
		must(l.sock.SetDeadline(time.Now().Add(time.Millisecond)))
		_, _ = l.Accept()
		must(l.sock.SetDeadline(time.Time{}))
		must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 40, Max: 40}))
		go func() {
			done <- l.Serve(ctx, func(c *net.UnixConn) {
				mu.Lock() // who heard that it is in is let go with the others
				held = append(held, c)
				mu.Unlock()
				_, _ = c.Write([]byte("in"))
			})
		}()
		fmt.Println("ready")
		in := bufio.NewReader(os.Stdin)
		for {
			if _, err := in.ReadString('\n'); err != nil {
				break
			}
			mu.Lock()
			for _, c := range held {
				_ = c.Close()
			}
			held = nil
			mu.Unlock()
			fmt.Println("let go")
		}
		cancel()
		var usage unix.Rusage
		must(unix.Getrusage(unix.RUSAGE_SELF, &usage))
		s := l.Stats()
		return fmt.Sprintf("%v %d %d %d %d", <-done, s.Accepted, s.Refused, s.Failed, time.Duration(usage.Utime.Nano()+usage.Stime.Nano()).Milliseconds())
	}
}

// TestCrowd: a daemon without descriptors tells each client so by an end, goes on
// when there are some again, and does not spin meanwhile.
func TestCrowd(t *testing.T) {
	noLeak(t)
	path := tempDir(t) + "/d.sock"
	cmd := child(t, "crowded", path)
	in, out, err := os.Pipe()
	must(t, err)
	defer in.Close()
	defer out.Close()
	cmd.Stdin = in
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	d := &running{Cmd: cmd, out: bufio.NewReader(stdout)}
	defer d.kill()
	line := func() string {
		s, _ := d.out.ReadString('\n')
		return strings.TrimSpace(s)
	}
	if got := line(); got != "ready" {
		t.Fatal(got)
	}
	const clients = 120
	knock := func(n int) (in, out int) {
		var conns []*net.UnixConn
		for range n {
			c, err := Dial(contextFor(t, 10*time.Second), path)
			must(t, err)
			defer c.Close()
			conns = append(conns, c)
		}
		for _, c := range conns {
			must(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			buf := make([]byte, 2)
			k, err := io.ReadFull(c, buf)
			switch {
			case k == 2:
				in++
			case errors.Is(err, os.ErrDeadlineExceeded):
				t.Fatal("a client hangs")
			default:
				out++
			}
		}
		return in, out
	}
	first, refused := knock(clients)
	if first == 0 || refused == 0 || first+refused != clients {
		t.Errorf("%d in, %d out", first, refused)
	}
	if _, err := out.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if got := line(); got != "let go" {
		t.Fatal(got)
	}
	if again, refused := knock(5); again != 5 || refused != 0 {
		t.Errorf("afterwards %d in, %d out", again, refused)
	}
	// What waits while nothing can be taken costs no time.
	_ = out.Close()
	var reason string
	var accepted, out2, failed, ms int
	text := line()
	if n, err := fmt.Sscanf(strings.Replace(text, "context canceled", "canceled", 1), "%s %d %d %d %d", &reason, &accepted, &out2, &failed, &ms); n != 5 {
		t.Fatalf("%q: %v", text, err)
	}
	if reason != "canceled" || accepted != first+5 || out2 != refused || failed == 0 || failed > 60 || ms > 2000 {
		t.Errorf("%s, of %d in and %d out", text, first, refused)
	}
}
