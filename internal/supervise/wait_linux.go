package supervise

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// errLater ends an attempt that would block. Nothing of it is kept but what has
// been sent, and a duplicate of the socket where its readiness can be polled: the
// next attempt reads and judges everything anew.
var errLater = errors.New("the call would block")

// waiting is what is known of a call between two attempts.
type waiting struct {
	next  time.Time     // not before this
	until time.Time     // the end of SO_SNDTIMEO
	late  syscall.Errno // the answer at that time
	pause time.Duration
	watch int    // a duplicate of the socket to poll for room, or -1
	full  string // the connect's target, so that one attempt stands for all
	// giveUp is the answer of the last attempt, should that one block too.
	giveUp syscall.Errno
	// What has been done already: bytes of a stream's message, and whole messages.
	sent, msgs uint64
	// started: this call has begun a connect that completes by itself.
	started bool
}

// later is called by an attempt that would block. Polling helps with streams
// only: a datagram socket without a peer is writable although the receiver is
// full, and an unconnected stream always.
func (c *call) later(sock socket, poll bool, late syscall.Errno) error {
	if c.giveUp != 0 {
		return c.giveUp
	}
	now := time.Now()
	if c.until.IsZero() {
		c.until = now.Add(sendTimeout(sock.fd))
	}
	c.late = late
	if poll && c.watch < 0 && c.s.watched < c.s.limits.watched {
		if i := slices.Index(c.held, sock.fd); i >= 0 {
			c.held = slices.Delete(c.held, i, i+1)
			c.watch = sock.fd
			c.s.watched++
			_ = c.s.ready.add(c.watch, unix.EPOLLONESHOT) // to be armed when it is due
		}
	}
	if c.watch < 0 || c.pause > 0 {
		// Many waiting calls are tried less often.
		longest := watchEvery / 4 * time.Duration(1+len(c.s.waits)/32)
		c.pause = min(max(2*c.pause, 100*time.Microsecond), longest)
	}
	c.next = now.Add(c.pause)
	if c.pause == 0 { // from now on it has been polled once
		c.pause = 50 * time.Microsecond
	}
	return errLater
}

// progress resets the pause, as the peer reads.
func (c *call) progress() { c.pause = 0 }

// unwatch lets go of the socket.
func (c *call) unwatch() {
	if c.watch >= 0 {
		c.s.ready.remove(c.watch)
		unix.Close(c.watch)
		c.watch = -1
		c.s.watched--
	}
}

// park adds a call to those that wait. The list is bounded; what is beyond gets
// the answer of a socket that does not block.
func (s *Supervisor) park(c *call) bool {
	if len(s.waits) >= maxWaiting {
		return false
	}
	s.waits = append(s.waits, c)
	return true
}

// interrupted ends the wait of a call whose thread makes another: a signal has
// ended it. What it has sent by then is known when it is made again.
func (s *Supervisor) interrupted(tid uint32) {
	for i, c := range s.waits {
		if c.n.PID == tid {
			s.waits = slices.Delete(s.waits, i, i+1)
			s.forget(c)
			return
		}
	}
}

func (s *Supervisor) forget(c *call) {
	c.unwatch()
	if c.sent > 0 || c.msgs > 0 {
		s.lost.put(c.n, lostResult{sent: c.sent, msgs: c.msgs, resume: true})
	}
}

// drop ends all waits, for the supervisor ends.
func (s *Supervisor) drop() {
	for _, c := range s.waits {
		c.unwatch()
		sys.NotifSend(s.listener, c.n.ID, 0, unix.EINTR)
	}
	s.waits = nil
	s.stats.inFlight.Store(0)
}

// statusPerTick bounds how many waiting threads are asked for signals at once.
const statusPerTick = 32

// poll waits for a notification, the end, or a waiting call that is due. It
// returns false at the end.
func (s *Supervisor) poll() (notified, ok bool) {
	var until time.Time
	if len(s.waits) > 0 {
		now := time.Now()
		d := s.tick.Add(watchEvery).Sub(now)
		for _, c := range s.waits {
			d = min(d, c.until.Sub(now))
			switch wait := c.next.Sub(now); {
			case c.watch < 0 || wait > 0:
				d = min(d, wait)
			default:
				s.ready.arm(c.watch)
			}
		}
		until = now.Add(max(d, 0))
	}
	state, ok := s.ready.wait(s.listener, until)
	switch {
	case !ok:
		return false, false
	case state&unix.EPOLLIN != 0:
		return true, true
	case state != 0: // EPOLLHUP: nobody is left under the filter
		return false, false
	}
	return false, true
}

// retry makes the attempts that are due, oldest first.
func (s *Supervisor) retry() {
	if len(s.waits) == 0 {
		return
	}
	now := time.Now()
	tick := now.Sub(s.tick) >= watchEvery
	if tick {
		s.tick = now
	}
	full := map[string]time.Time{}
	list := s.waits
	s.waits = make([]*call, 0, len(list))
	for i, c := range list {
		due := !now.Before(c.next) && (c.watch < 0 || s.ready.is(c.watch))
		if tick {
			ask := (i+s.asked)%len(list) < statusPerTick
			if gone, handler := c.over(ask); gone {
				s.forget(c)
				continue
			} else if handler {
				c.giveUp, due = unix.EINTR, true
			}
		}
		if c.giveUp == 0 && !now.Before(c.until) {
			c.giveUp, due = c.late, true
		}
		if next, ok := full[c.full]; ok && c.giveUp == 0 && c.full != "" {
			c.next = next
			due = false
		}
		if !due {
			s.waits = append(s.waits, c)
			continue
		}
		if s.attempt(c) {
			continue
		}
		if c.full != "" {
			full[c.full] = c.next
		}
		s.waits = append(s.waits, c)
	}
	if tick {
		s.asked += statusPerTick
	}
}

// over tells whether nobody waits for the call any more, or a handler of the
// worker is due, which would end the call in the kernel.
func (c *call) over(ask bool) (gone, handler bool) {
	if !sys.NotifValid(c.s.listener, c.n.ID) {
		return true, false
	}
	if !ask {
		return false, false
	}
	st, err := c.status()
	return false, err == nil && st.interrupted()
}

func sendTimeout(fd int) time.Duration {
	tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil || tv.Nano() <= 0 {
		return 100 * 365 * 24 * time.Hour
	}
	return time.Duration(tv.Nano())
}
