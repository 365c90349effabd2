package proxy

import (
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A copy in one direction begins with a small buffer. Once bulkAfter bytes went
// through it, the kernel moves the rest from socket to socket, where it can
// (splice(2)), and where it cannot fewer and larger reads are what makes bulk fast. So
// few directions of a worker have a pipe or a large buffer that they hold no more than
// 12 MiB: a pipe of 1 MiB counts against what its user may have (pipe(7),
// pipe-user-pages-soft).
const (
	copyBuffer  = 32 << 10
	bulkBuffer  = 512 << 10
	bulkAfter   = 1 << 20
	maxBulk     = 16
	maxSplice   = 4
	spliceChunk = 16 << 20 // bytes, until they count
)

var (
	buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}
	large   = sync.Pool{New: func() any { return new([bulkBuffer]byte) }}
)

// brokenGrace is how long the other direction may go on after one has failed: what
// a host said last may still be on its way.
const brokenGrace = 2 * time.Second

// tunnel copies both ways until both have ended, and closes neither. early is what
// the worker, and earlyUp what the host, sent already.
func (s *Server) tunnel(down, up net.Conn, early, earlyUp []byte) {
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	if idle := s.opts.IdleTimeout; idle > 0 {
		stop := s.watchIdle(idle, &last, down, up)
		defer stop()
	}
	ended := make(chan error, 2)
	go func() { ended <- s.pump(up, down, early, &s.fromWorker, &last) }()
	go func() { ended <- s.pump(down, up, earlyUp, &s.toWorker, &last) }()
	if err := <-ended; err != nil {
		until := time.Now().Add(brokenGrace)
		_ = down.SetDeadline(until)
		_ = up.SetDeadline(until)
	}
	<-ended
}

// pump copies one direction to its end and hands that on.
func (s *Server) pump(to, from net.Conn, early []byte, count, last *atomic.Int64) error {
	err := s.copyAll(to, from, early, count, last)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	if half, ok := from.(interface{ CloseRead() error }); ok && err != nil {
		_ = half.CloseRead()
	}
	return err
}

func (s *Server) copyAll(to, from net.Conn, early []byte, count, last *atomic.Int64) error {
	moved := func(n int64) {
		if n > 0 {
			count.Add(n)
			last.Store(time.Now().UnixNano())
		}
	}
	if len(early) > 0 {
		n, err := to.Write(early)
		moved(int64(n))
		if err != nil {
			return err
		}
	}
	small := buffers.Get().(*[copyBuffer]byte)
	done, err := copyWith(small[:], bulkAfter, to, from, moved)
	buffers.Put(small)
	if done || err != nil {
		return err
	}
	if to, from, ok := bothTCP(to, from); ok {
		select {
		case s.splices <- struct{}{}:
			defer func() { <-s.splices }()
			return splice(to, from, moved)
		default:
		}
	}
	select {
	case s.bulk <- struct{}{}:
		defer func() { <-s.bulk }()
		buf := large.Get().(*[bulkBuffer]byte)
		defer large.Put(buf)
		_, err = copyWith(buf[:], math.MaxInt64, to, from, moved)
	default:
		buf := buffers.Get().(*[copyBuffer]byte)
		defer buffers.Put(buf)
		_, err = copyWith(buf[:], math.MaxInt64, to, from, moved)
	}
	return err
}

// atOnce is how much is written before it counts: a reader that takes a large buffer
// slowly is not idle.
const atOnce = 128 << 10

// copyWith copies until the end, which is done, or until it was so much.
func copyWith(buf []byte, most int64, to io.Writer, from io.Reader, moved func(int64)) (done bool, err error) {
	for total := int64(0); total < most; {
		n, err := from.Read(buf)
		total += int64(n)
		for part := range slices.Chunk(buf[:n], atOnce) {
			w, werr := to.Write(part)
			moved(int64(w))
			if werr != nil {
				return false, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// bothTCP are two connections that package net splices.
func bothTCP(to, from net.Conn) (t, f *net.TCPConn, ok bool) {
	if runtime.GOOS != "linux" {
		return nil, nil, false
	}
	t, ok = to.(*net.TCPConn)
	if ok {
		f, ok = from.(*net.TCPConn)
	}
	return t, f, ok
}

// splice copies until the end. What moved counts late: see touched.
func splice(to, from *net.TCPConn, moved func(int64)) error {
	for {
		n, err := to.ReadFrom(io.LimitReader(from, spliceChunk))
		moved(n)
		if err != nil || n < spliceChunk {
			return err
		}
	}
}

// watchIdle closes both ends when nothing went either way for longer than idle.
func (s *Server) watchIdle(idle time.Duration, last *atomic.Int64, conns ...net.Conn) (stop func()) {
	ended := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(idle / 2)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			if time.Since(time.Unix(0, last.Load())) > idle && !slices.ContainsFunc(conns, func(c net.Conn) bool { return touched(c) <= idle }) {
				for _, c := range conns {
					_ = c.Close()
				}
				return
			}
		}
	}()
	return func() {
		close(ended)
		<-gone
	}
}
