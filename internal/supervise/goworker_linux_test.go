package supervise

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
)

// goWorker is a Go program under supervision: its runtime sends itself SIGURG,
// and package net reads addresses back.
func goWorker() {
	name := os.Getenv("SUPERVISE_GO_WORKER")
	l, err := net.Listen("unix", name)
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	spin := make(chan struct{})
	for range 2 { // keep the preemption signals coming
		go func() {
			for n := 0; ; n++ {
				select {
				case <-spin:
					return
				default:
				}
			}
		}()
	}
	var wg sync.WaitGroup
	failed := make(chan error, 1000)
	for range 8 {
		wg.Go(func() {
			for range 25 {
				c, err := net.Dial("unix", name)
				if err != nil {
					failed <- err
					return
				}
				fmt.Fprint(c, "x")
				var b [1]byte
				if _, err := io.ReadFull(c, b[:]); err != nil {
					failed <- err
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	close(spin)
	close(failed)
	for err := range failed {
		fmt.Println(err)
	}
	l.Close()
	_, err = os.Stat(name)
	fmt.Println("done", os.IsNotExist(err))
}

func TestGoWorker(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			w := newWorld(t, modes()[0])
			w.plain = plain
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := w.command(exe)
			cmd.Env = append(cmd.Env, "SUPERVISE_GO_WORKER=go.sock")
			want(t, "go worker", strings.TrimSpace(w.finish(cmd)), "done true")
			t.Logf("%+v", w.s.Stats())
		})
	}
}
