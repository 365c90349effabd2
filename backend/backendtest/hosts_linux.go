package backendtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend/backendtest/attempt"
)

// ear hears what reaches the host's listeners.
type ear struct {
	mu        sync.Mutex
	heard     []string
	listeners []listener
	talks     sync.WaitGroup // of connections
}

// listener is one of them. lastWord tells that it has heard all.
type listener struct {
	io.Closer
	addr     net.Addr
	lastWord chan struct{}
}

// lastWord is what the suite sends when all attempts have been made.
const lastWord = "the last word"

// settleTime bounds the wait for what is on its way to hosts.
const settleTime = 20 * time.Second

// all returns everything that was heard.
func (e *ear) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

// of returns what was heard that carries a token.
func (e *ear) of(token string) []string {
	return slices.DeleteFunc(e.all(), func(s string) bool { return !strings.HasSuffix(s, ": "+token) })
}

func (e *ear) Close() {
	for _, l := range e.listeners {
		_ = l.Close()
	}
}

// settle waits until everything that was sent has been heard: each listener
// hears in the order of sending, and is sent a last word.
func (e *ear) settle() error {
	for _, l := range e.listeners {
		if err := say(l.addr, lastWord); err != nil {
			return err
		}
	}
	limit := time.After(settleTime)
	for _, l := range e.listeners {
		select {
		case <-l.lastWord:
		case <-limit:
			return fmt.Errorf("%s %s hears nothing more", l.addr.Network(), l.addr)
		}
	}
	e.talks.Wait()
	return nil
}

func say(to net.Addr, word string) error {
	c, err := net.Dial(to.Network(), to.String())
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(word))
	return errors.Join(err, c.Close())
}

func (e *ear) add(c io.Closer, addr net.Addr) listener {
	l := listener{c, addr, make(chan struct{})}
	e.listeners = append(e.listeners, l)
	return l
}

// hears takes in a text, and tells whether it was the last word.
func (e *ear) hears(where, text string) (last bool) {
	if text == lastWord {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, where+": "+text)
	return false
}

// stream hears each connection, also one that says nothing.
func (e *ear) stream(network, address string) (net.Addr, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	this := e.add(l, l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.talks.Go(func() {
				defer c.Close()
				_ = c.SetReadDeadline(time.Now().Add(settleTime / 2))
				buf := make([]byte, 256)
				n, _ := c.Read(buf)
				if e.hears(network+" "+address, string(buf[:n])) {
					close(this.lastWord)
				}
			})
		}
	}()
	return l.Addr(), nil
}

func (e *ear) packet(network, address string) (net.Addr, error) {
	c, err := net.ListenPacket(network, address)
	if err != nil {
		return nil, err
	}
	this := e.add(c, c.LocalAddr())
	go func() {
		buf := make([]byte, 256)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if e.hears(network+" "+address, string(buf[:n])) {
				close(this.lastWord)
			}
		}
	}()
	return c.LocalAddr(), nil
}

// victim is a process of the host that attempts are made on.
type victim struct {
	attempt.Ready
	cmd   *exec.Cmd
	stdin io.Closer
	got   chan string // signals; closed when it has ended
}

// lastSignal is what the suite sends when all attempts have been made. Of
// signals that are pending the lowest is delivered first, and the attempts'
// (SIGUSR1) is lower.
const lastSignal = syscall.SIGUSR2

func startVictim(probe, held, dir string, env []string) (*victim, error) {
	v := &victim{cmd: exec.Command(probe, "-pause", held), got: make(chan string, 256)}
	v.cmd.Dir, v.cmd.Env = dir, env
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if v.stdin, err = v.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := v.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a host process: %w", err)
	}
	dec := json.NewDecoder(out)
	if err := dec.Decode(&v.Ready); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a host process: %w", err), v.cmd.Process.Kill(), v.cmd.Wait())
	}
	go func() {
		defer close(v.got)
		for {
			var got attempt.Received
			if dec.Decode(&got) != nil {
				return
			}
			v.got <- got.Signal
		}
	}()
	return v, nil
}

// settle returns the signals that have reached the process. It must live, and
// run, to answer.
func (v *victim) settle() (signals []string, err error) {
	if err := v.cmd.Process.Signal(lastSignal); err != nil {
		return nil, fmt.Errorf("the host process: %w", err)
	}
	limit := time.After(settleTime)
	for {
		select {
		case s, alive := <-v.got:
			switch {
			case !alive:
				return nil, errors.New("the host process has ended")
			case s == unix.SignalName(lastSignal):
				return signals, nil
			}
			signals = append(signals, s)
		case <-limit:
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.PID))
			return nil, fmt.Errorf("the host process does not answer: %s", stat)
		}
	}
}

func (v *victim) Close() {
	_ = v.stdin.Close()
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}
