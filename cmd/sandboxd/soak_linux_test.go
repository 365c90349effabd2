package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

// number is how often a long test does what it does: a variable's value, or less.
func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// TestClientInPython: the client that was written from docs/protocol.md finds that the
// daemon does what the page says.
func TestClientInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	if exec.Command(python, "-c", "import socket; socket.send_fds").Run() != nil {
		t.Skip("needs python3 of 3.9 or later")
	}
	p := serving(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-B", "../../test/pyclient/check.py", p.socket)
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "ok "); err != nil || n < 20 {
		t.Errorf("%d checks, %v\n%s", n, err, out)
	}
}

// memory is a process' resident memory in KiB.
func memory(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			must(t, err)
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func openFiles(pid int) int { return len(filesOf(pid)) }

// filesOf are what a process has open, as far as this one may see.
func filesOf(pid int) (list []string) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, _ := os.ReadDir(dir)
	for _, e := range all {
		target, _ := os.Readlink(filepath.Join(dir, e.Name()))
		list = append(list, e.Name()+" "+target)
	}
	return list
}

// TestSoak: many launches, some of which are canceled, whose clients die or read
// slowly: no report is lost, and nothing stays. SBX_TEST_SOAK is their number.
func TestSoak(t *testing.T) {
	n := number(t, "SBX_TEST_SOAK", 2000)
	p := serving(t)
	pid, front := p.cmd.Process.Pid, p.front()
	for c, i := p.dial(), 0; i < 100; i++ { // what is made once is made
		if r := c.run("true"); r.status() != 0 {
			t.Fatal(r)
		}
	}
	files, frontFiles, began := openFiles(pid), openFiles(front), memory(t, pid)
	left := atomic.Int64{}
	left.Store(int64(n))
	var done, canceled, died, slow atomic.Int64
	var clients sync.WaitGroup
	begin := time.Now()
	for range 8 {
		clients.Go(func() {
			var c *client
			for left.Add(-1) >= 0 {
				if c == nil {
					conn, err := listen.Dial(context.Background(), p.socket)
					if err == nil {
						c, err = greet(t, conn, t.TempDir())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				switch kind := rand.IntN(10); kind {
				case 0: // canceled at some moment
					id := c.launch(nil, "sleep", "3600")
					time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
					grace := int64(0)
					c.say(&protocol.Cancel{ID: c.id(), Launch: id, Grace: &grace})
					if r, err := c.tryFinish(id); err != nil || r.failure == nil && r.report.ID == "" || r.failure != nil && r.failure.Code != protocol.Canceled {
						t.Errorf("canceled: %v, %v", r, err)
						return
					}
					canceled.Add(1)
				case 1: // the client dies
					c.launch(nil, "sh", "-c", "setsid sleep 3600 & sleep 3600")
					time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
					_ = c.conn.Close()
					c = nil
					died.Add(1)
				case 2: // it reads when it likes
					id := c.launch(func(m *protocol.Launch) { m.OutputWindow = 8192 }, "seq", "20000")
					time.Sleep(20 * time.Millisecond)
					if r, err := c.tryFinish(id); err != nil || r.status() != 0 || r.out.Len() != 108894 {
						t.Errorf("slow: %d bytes, %v, %v", r.out.Len(), r.failure, err)
						return
					}
					slow.Add(1)
				default:
					want := rand.IntN(100)
					id := c.launch(nil, "sh", "-c", fmt.Sprintf("echo %d; exit %d", want, want))
					if r, err := c.tryFinish(id); err != nil || r.status() != want || r.out.String() != fmt.Sprintln(want) {
						t.Errorf("want %d: %v, %v", want, r, err)
						return
					}
					done.Add(1)
				}
			}
			if c != nil {
				_ = c.conn.Close()
			}
		})
	}
	clients.Wait()
	took := time.Since(begin)
	if sum := done.Load() + canceled.Load() + died.Load() + slow.Load(); sum != int64(n) {
		t.Errorf("%d of %d launches are accounted for", sum, n)
	}
	waitFor(t, "the end of all workers", func() bool {
		c := p.dial()
		defer c.conn.Close()
		c.say(&protocol.List{ID: c.id()})
		l, err := until[*protocol.ListResult](c)
		return err == nil && len(l.Workers) == 0
	})
	defer func() {
		if t.Failed() {
			t.Logf("open in the monitor: %v; in the front: %v", filesOf(pid), filesOf(front))
		}
	}()
	waitFor(t, "closed descriptors", func() bool { return openFiles(pid) <= files+8 && openFiles(front) <= frontFiles+8 })
	waitFor(t, "the end of all processes", func() bool { return childrenOf(pid) <= 2 }) // the front and the guard
	t.Logf("%d launches in %v (%.0f a second): %d done, %d canceled, %d clients died, %d slow; the monitor has %d KiB (%d before) and %d files (%d), the front %d KiB and %d files (%d)",
		n, took.Round(time.Millisecond), float64(n)/took.Seconds(), done.Load(), canceled.Load(), died.Load(), slow.Load(), memory(t, pid), began, openFiles(pid), files, memory(t, front), openFiles(front), frontFiles)
	if now := memory(t, pid); now > began+64<<10 {
		t.Errorf("the monitor has grown from %d to %d KiB", began, now)
	}
	if p.front() != front {
		t.Error("the front is another one")
	}
}

// childrenOf counts a process' children.
func childrenOf(pid int) (n int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		n += len(strings.Fields(string(text)))
	}
	return n
}

// TestHostile: what strangers send ends their own connections, and the daemon serves
// on. SBX_TEST_HOSTILE is how many there are.
func TestHostile(t *testing.T) {
	n := number(t, "SBX_TEST_HOSTILE", 300)
	p := serving(t)
	pid, front := p.cmd.Process.Pid, p.front()
	good := p.dial()
	frame := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	hello := frame(`{"type":"hello","versions":[1],"client":{"name":"t","version":""}}`)
	after := func(texts ...string) []byte {
		b := append([]byte(nil), hello...)
		for _, s := range texts {
			b = append(b, frame(s)...)
		}
		return b
	}
	attacks := map[string][]byte{
		"zero length":     {0, 0, 0, 0},
		"a gigabyte":      {0x40, 0, 0, 0, 'x'},
		"the most":        {0xff, 0xff, 0xff, 0xff},
		"little endian":   {5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'},
		"half a length":   {0, 0},
		"cut":             hello[:20],
		"no JSON":         frame("hello"),
		"noise":           []byte(strings.Repeat("\xff\x00", 4096)),
		"HTTP":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"no hello":        frame(`{"type":"ping","id":1}`),
		"unknown version": frame(strings.Replace(string(hello[4:]), "[1]", "[99]", 1)),
		"trailing bytes":  after(`{"type":"ping","id":1}{}`),
		"unknown field":   after(`{"type":"ping","id":1,"x":1}`),
		"duplicate field": after(`{"type":"ping","id":1,"id":2}`),
		"no UTF-8":        after("{\"type\":\"launch\",\"id\":1,\"argv\":[\"\xff\"]}"),
		"NUL":             after(`{"type":"launch","id":1,"argv":["a\u0000b"]}`),
		"NUL in a path":   after(`{"type":"launch","id":1,"argv":["a"],"dir":"/\u0000"}`),
		"deep":            after(`{"type":"ping","id":1,"x":` + strings.Repeat("[", 4000) + strings.Repeat("]", 4000) + `}`),
		"a long launch":   after(`{"type":"launch","id":1,"argv":["` + strings.Repeat("x", 200<<10) + `"]}`),
		"many words":      after(`{"type":"launch","id":1,"argv":[` + strings.Repeat(`"",`, 100000) + `""]}`),
		"credit for none": after(`{"type":"credit","id":7,"stream":"stdout","bytes":1}`),
		"stdin for none":  after(`{"type":"stdin","id":7,"offset":0,"data":"AAAA"}`),
		"many requests": after(func() (all []string) {
			for i := range 100 {
				all = append(all, fmt.Sprintf(`{"type":"subscribe","id":%d,"events":["worker-started"]}`, i+1))
			}
			return all
		}()...),
		"gone while it runs": after(`{"type":"launch","id":1,"argv":["sleep","3600"],"dir":"/tmp"}`),
	}
	var names []string
	for name := range attacks {
		names = append(names, name)
	}
	before := memory(t, front)
	var strangers sync.WaitGroup
	left := atomic.Int64{}
	left.Store(int64(n))
	begin := time.Now()
	for range 16 {
		strangers.Go(func() {
			for i := left.Add(-1); i >= 0; i = left.Add(-1) {
				conn, err := listen.Dial(context.Background(), p.socket)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = conn.Write(attacks[names[int(i)%len(names)]])
				switch i % 3 {
				case 0: // wait for the answer
					_ = conn.CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
				case 1: // read a little
					_ = conn.CloseWrite()
					_, _ = conn.Read(make([]byte, 3))
				}
				_ = conn.Close()
			}
		})
	}
	var worst time.Duration
	stop := make(chan struct{})
	go func() { strangers.Wait(); close(stop) }()
	for ended := false; !ended; {
		worst = max(worst, good.healthy())
		select {
		case <-stop:
			ended = true
		case <-time.After(time.Millisecond):
		}
	}
	t.Logf("%d connections in %v; health took %v at most meanwhile; the front has %d KiB (%d before), the monitor %d", n, time.Since(begin).Round(time.Millisecond), worst, memory(t, front), before, memory(t, pid))
	if r := good.run("echo", "served"); r.out.String() != "served\n" {
		t.Error(r)
	}
	waitFor(t, "the end of all workers", func() bool { return childrenOf(pid) <= 2 })
	if p.front() != front || childrenOf(pid) != 2 {
		t.Error("the front is another one")
	}
	if now := memory(t, front); now > 200<<10 {
		t.Errorf("the front has %d KiB", now)
	}
}

// TestHalfOpen: connections that say nothing keep no other out, not even one of the
// same user, and are closed.
func TestHalfOpen(t *testing.T) {
	p := serving(t)
	var all []net.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	for range 300 {
		c, err := listen.Dial(context.Background(), p.socket) // which waits where there is a queue
		must(t, err)
		_, _ = c.Write([]byte{0, 0})
		all = append(all, c)
	}
	begin := time.Now()
	if r := p.place().run("echo", "alive"); r.out.String() != "alive\n" {
		t.Error(r)
	}
	if took := time.Since(begin); took > 5*time.Second { // less than it takes until a hello is too late
		t.Errorf("it took %v", took)
	}
	closed := 0
	for _, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != len(all) {
		t.Errorf("%d of %d are closed", closed, len(all))
	}
}

// TestBurst: as many connections as a user may have, all at once and all with a hello,
// are all served, however late the front comes to read them.
func TestBurst(t *testing.T) {
	p := serving(t)
	hello := `{"type":"hello","versions":[1],"client":{"name":"t","version":""}}`
	front := p.front()
	must(t, syscall.Kill(front, syscall.SIGSTOP))
	goOn := sync.OnceFunc(func() { _ = syscall.Kill(front, syscall.SIGCONT) })
	defer goOn()
	var all []*net.UnixConn
	for range protocol.MaxConnections {
		c, err := listen.Dial(context.Background(), p.socket)
		must(t, err)
		defer c.Close()
		_, err = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(hello))), hello...))
		must(t, err)
		all = append(all, c)
	}
	goOn()
	for i, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		frame, err := protocol.NewReader(c, protocol.MaxAnswer).ReadFrame()
		must(t, err)
		m, err := protocol.ParseAnswer(frame)
		must(t, err)
		if _, ok := m.(*protocol.DaemonHello); !ok {
			t.Errorf("connection %d: %+v", i, m)
		}
	}
}
