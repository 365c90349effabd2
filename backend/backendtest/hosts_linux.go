package backendtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandboxd/backend/backendtest/attempt"
)

// ear hears what reaches the host's listeners.
type ear struct {
	mu    sync.Mutex
	heard []string
	close []io.Closer
}

func (e *ear) hear(where, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, where+": "+text)
}

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
	for _, c := range e.close {
		_ = c.Close()
	}
}

// stream hears each connection, also one that says nothing.
func (e *ear) stream(network, address string) (net.Addr, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	e.close = append(e.close, l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetReadDeadline(time.Now().Add(time.Second))
				buf := make([]byte, 256)
				n, _ := c.Read(buf)
				e.hear(network+" "+address, string(buf[:n]))
			}()
		}
	}()
	return l.Addr(), nil
}

func (e *ear) packet(network, address string) (net.Addr, error) {
	c, err := net.ListenPacket(network, address)
	if err != nil {
		return nil, err
	}
	e.close = append(e.close, c)
	go func() {
		buf := make([]byte, 256)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			e.hear(network+" "+address, string(buf[:n]))
		}
	}()
	return c.LocalAddr(), nil
}

// victim is a process of the host that attempts are made on.
type victim struct {
	attempt.Ready
	cmd   *exec.Cmd
	stdin io.Closer

	mu      sync.Mutex
	signals []string
}

func startVictim(probe, held, dir string, env []string) (*victim, error) {
	v := &victim{cmd: exec.Command(probe, "-pause", held)}
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
		for {
			var got attempt.Received
			if dec.Decode(&got) != nil {
				return
			}
			v.mu.Lock()
			v.signals = append(v.signals, got.Signal)
			v.mu.Unlock()
		}
	}()
	return v, nil
}

func (v *victim) received() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.signals)
}

func (v *victim) Close() {
	_ = v.stdin.Close()
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}
