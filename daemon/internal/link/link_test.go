package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns both ends.
func pair(t testing.TB) (monitor, front *Link) {
	t.Helper()
	monitor, file, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if front, err = Front(file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = monitor.Close()
		_ = front.Close()
	})
	return monitor, front
}

// every has a message of each kind, with nothing left at its zero value.
var every = []struct {
	m       Message
	payload string
	files   int
}{
	{&Ready{"confined"}, "", 0},
	{&Launch{1, 7}, `{"type":"launch"}`, 2},
	{&Launch{1, 8}, strings.Repeat("x", maxRequest), maxFiles},
	{&Cancel{1, 2, 7, "", 2000}, "", 0},
	{&Signal{1, 3, "w", "SIGHUP"}, "", 0},
	{&Resize{1, 4, "w", 24, 80}, "", 0},
	{&Features{1, 5}, "", 0},
	{&Policy{1, 2, "w"}, "", 0},
	{&Planned{1, 2}, "{}", 0},
	{&Hangup{1}, "", 0},
	{&Accepted{1, 1000, 100, 99, 31}, "", 1},
	{&Started{1, 7, "w", 4711, "abc", "landlock", "full", "read-only", "none", []string{"<&>", "\u2028"}, true, true, true}, "", 3},
	{&Ended{1, 7, "w", "no", "try"}, `{"schema":1}`, 0},
	{&Ended{1, 7, "w", "no", "try"}, strings.Repeat("y", maxReport), 0},
	{&Refused{1, 7, "ceiling", "no", "ask", "mode"}, "", 0},
	{&Answer{1, 5, "not-found", "no", "look"}, "{}", 0},
	{&Stopping{}, "", 0},
	{&Check{"audit", false, "no", "look"}, "", 0},
}

func TestMessagesArrive(t *testing.T) {
	kinds := map[kind]bool{}
	for _, e := range every {
		monitor, front := pair(t)
		from, to := front, monitor
		if _, ok := toMonitor(e.m.kind()); !ok {
			from, to = monitor, front
		}
		kinds[e.m.kind()] = true
		var files []*os.File
		for range e.files {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files = append(files, f)
		}
		sent := make(chan error, 1)
		go func() { sent <- from.Send(e.m, []byte(e.payload), files...) }()
		m, payload, got, err := to.Receive()
		if serr := <-sent; err != nil || serr != nil {
			t.Errorf("%T: %v, %v", e.m, err, serr)
			continue
		}
		if !reflect.DeepEqual(m, e.m) || string(payload) != e.payload || len(got) != e.files {
			t.Errorf("%T: got %+v with %d bytes and %d files", e.m, m, len(payload), len(got))
		}
		for _, f := range got {
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("a descriptor would pass an execve: %v", err)
			}
		}
		CloseFiles(got)
		// Nobody takes what is his own to say.
		go func() { sent <- to.Send(e.m, nil) }()
		if m, _, _, err := from.Receive(); err == nil {
			t.Errorf("the wrong half takes %T", m)
		}
		<-sent
	}
	for k := kindReady; k <= lastKind; k++ {
		if !kinds[k] {
			t.Errorf("kind %d is not tried", k)
		}
	}
}

func head(k kind, files byte, body string, payload int) []byte {
	h := make([]byte, headLen)
	h[0], h[1] = byte(k), files
	binary.BigEndian.PutUint32(h[4:], uint32(len(body)))
	binary.BigEndian.PutUint32(h[8:], uint32(payload))
	return append(h, body...)
}

// rawFront is a front that says what it likes.
func rawFront(t *testing.T) (monitor *Link, raw *net.UnixConn) {
	t.Helper()
	monitor, front := pair(t)
	return monitor, front.conn
}

func TestOddMessagesEndTheLink(t *testing.T) {
	const hangup = `{"conn":1}`
	long := head(kindLaunch, 0, `{"conn":1,"launch":7}`, maxRequest+1)
	reserved := head(kindHangup, 0, hangup, 0)
	reserved[2] = 1
	tooLong := head(kindHangup, 0, "", 0)
	binary.BigEndian.PutUint32(tooLong[4:], 1<<31)
	for name, sent := range map[string][]byte{
		"kind 0":                   head(0, 0, "{}", 0),
		"unknown kind":             head(99, 0, "{}", 0),
		"the monitor's own":        head(kindStopping, 0, "{}", 0),
		"unknown member":           head(kindHangup, 0, `{"conn":1,"more":1}`, 0),
		"member twice":             head(kindHangup, 0, `{"conn":2,"conn":1}`, 0),
		"other letters":            head(kindHangup, 0, `{"Conn":1}`, 0),
		"missing member":           head(kindHangup, 0, `{}`, 0),
		"white space":              head(kindHangup, 0, `{"conn": 1}`, 0),
		"another form":             head(kindHangup, 0, `{"conn":1.0}`, 0),
		"a negative number":        head(kindHangup, 0, `{"conn":-1}`, 0),
		"null":                     head(kindHangup, 0, `null`, 0),
		"an array":                 head(kindHangup, 0, `[1]`, 0),
		"no JSON":                  head(kindHangup, 0, `conn`, 0),
		"nothing":                  head(kindHangup, 0, ``, 0),
		"two values":               head(kindHangup, 0, hangup+hangup, 0),
		"an escape":                head(kindSignal, 0, `{"conn":1,"ask":1,"worker":"\u0077","signal":"SIGHUP"}`, 0),
		"a payload without a use":  append(head(kindHangup, 0, hangup, 1), 'x'),
		"too long a payload":       long,
		"too long a body":          tooLong,
		"reserved bytes":           reserved,
		"descriptors that are not": head(kindLaunch, 1, `{"conn":1,"launch":7}`, 0),
		"cut in the head":          head(kindHangup, 0, hangup, 0)[:5],
		"cut in the body":          head(kindHangup, 0, hangup, 0)[:headLen+4],
	} {
		monitor, raw := rawFront(t)
		if _, err := raw.Write(sent); err != nil {
			t.Fatal(err)
		}
		_ = raw.CloseWrite()
		if m, _, _, err := monitor.Receive(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	// The control: what they differ from is taken.
	monitor, raw := rawFront(t)
	if _, err := raw.Write(head(kindHangup, 0, hangup, 0)); err != nil {
		t.Fatal(err)
	}
	_ = raw.Close()
	if m, _, _, err := monitor.Receive(); err != nil || m.(*Hangup).Conn != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, _, _, err := monitor.Receive(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted here: %v", err)
	}
	return len(list)
}

// TestOddDescriptorsAreClosed: those that come with what is refused do not stay.
func TestOddDescriptorsAreClosed(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	with := func(n int) []byte {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = int(null.Fd())
		}
		return unix.UnixRights(fds...)
	}
	launch := head(kindLaunch, 1, `{"conn":1,"launch":7}`, 0)
	for name, send := range map[string]func(*net.UnixConn) error{
		"with a message that has none": func(c *net.UnixConn) error {
			_, _, err := c.WriteMsgUnix(head(kindHangup, 1, `{"conn":1}`, 0), with(1), nil)
			return err
		},
		"more than told": func(c *net.UnixConn) error {
			_, _, err := c.WriteMsgUnix(launch, with(2), nil)
			return err
		},
		"more than may": func(c *net.UnixConn) error {
			launch := head(kindLaunch, maxFiles+1, `{"conn":1,"launch":7}`, 0)
			_, _, err := c.WriteMsgUnix(launch, with(maxFiles+1), nil)
			return err
		},
		"with the body": func(c *net.UnixConn) error {
			if _, err := c.Write(head(kindLaunch, 0, `{"conn":1,"launch":7}`, 0)[:headLen]); err != nil {
				return err
			}
			_, _, err := c.WriteMsgUnix(launch[headLen:], with(1), nil)
			return err
		},
	} {
		monitor, raw := rawFront(t)
		before := descriptors(t)
		if err := send(raw); err != nil {
			t.Fatal(err)
		}
		if m, _, _, err := monitor.Receive(); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
		if now := descriptors(t); now != before {
			t.Errorf("%s: %d descriptors, were %d", name, now, before)
		}
	}
}

// TestMemoryGrowsWithWhatComes: a length alone takes no memory.
func TestMemoryGrowsWithWhatComes(t *testing.T) {
	monitor, front := pair(t)
	if _, err := monitor.conn.Write(head(kindEnded, 0, `{"conn":1,"launch":7,"worker":"w","message":"","hint":""}`, maxReport)); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		_ = monitor.Close()
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, _, err := front.Receive()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; err == nil || grown > 256<<10 {
		t.Errorf("%d bytes were allocated, %v", grown, err)
	}
}

func FuzzReceive(f *testing.F) {
	for _, e := range every {
		body := strings.TrimSuffix(string(mustJSON(e.m)), "\n")
		if len(e.payload) < 100 {
			f.Add(append(head(e.m.kind(), 0, body, len(e.payload)), e.payload...))
		}
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		monitor, front := pair(t)
		go func() {
			_, _ = front.conn.Write(sent)
			_ = front.conn.Close()
		}()
		var l Ledger
		l.Accept(1)
		for {
			m, payload, files, err := monitor.Receive()
			if err != nil {
				return
			}
			CloseFiles(files)
			_ = l.Hear(m)
			// What was taken is what would be sent.
			if again := append(head(m.kind(), byte(len(files)), string(mustJSON(m)), len(payload)), payload...); !bytes.Contains(sent, again) {
				t.Fatalf("%q is taken for %q", sent, again)
			}
		}
	})
}
