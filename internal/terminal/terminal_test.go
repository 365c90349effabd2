package terminal

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// Behaviour is tested where it is used, in cmd/sbx. Here is what no command can
// make happen there.

func TestMain(m *testing.M) {
	if how := os.Getenv("TERMINAL_PANICS"); how != "" {
		panics(how)
	}
	os.Exit(m.Run())
}

// panics is a launcher that does so while its caller's terminal is raw.
func panics(how string) {
	t, err := Open(os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer t.Close()
	fmt.Println("raw")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	switch how {
	case "in the caller":
		panic("as the test wants it")
	case "in a goroutine":
		go func() {
			defer t.rescue()
			panic("as the test wants it")
		}()
		select {}
	}
}

func TestPanicGivesTheTerminalBack(t *testing.T) {
	for _, how := range []string{"in the caller", "in a goroutine"} {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "TERMINAL_PANICS="+how)
		master, worker, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		before := settings(t, worker)
		c.Stdin, c.Stdout, c.Stderr = worker, worker, worker
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() }).Stop()
		out := bufio.NewReader(master)
		if line, err := out.ReadString('\n'); strings.TrimSpace(line) != "raw" {
			t.Fatalf("%s: %q, %v", how, line, err)
		}
		if now := settings(t, worker); now.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 || now.Oflag&unix.OPOST != 0 {
			t.Errorf("%s: the terminal is not raw: %+v", how, now)
		}
		if _, err := master.WriteString("x"); err != nil {
			t.Fatal(err)
		}
		said := make(chan string, 1)
		go func() { // what it says must not fill the terminal
			var b strings.Builder
			for line, err := out.ReadString('\n'); err == nil; line, err = out.ReadString('\n') {
				b.WriteString(line)
			}
			said <- b.String()
		}()
		_ = c.Wait()
		now := settings(t, worker)
		_ = worker.Close()
		if text := <-said; !strings.Contains(text, "as the test wants it") {
			t.Errorf("%s: it said %q", how, text)
		}
		if now != before {
			t.Errorf("%s: the terminal is %+v, was %+v", how, now, before)
		}
	}
}

func settings(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

// TestCloseBeforeStart: a launch that failed leaves no goroutine and no
// descriptor.
func TestCloseBeforeStart(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := descriptors(t)
	var all []*Terminal // or the collector closes what they have
	defer func() { runtime.KeepAlive(all) }()
	for range 3 {
		own, err := Open(null, null, null)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, own)
		own.Output.Discard()
		own.Close()
		own.Close()
	}
	for deadline := time.Now().Add(time.Minute); descriptors(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, were %d", descriptors(t), before)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}
