package link

import (
	"fmt"

	"sandboxd/protocol"
)

// Ledger is what the monitor knows of what it has told the front and heard from
// it. It says what may be asked now:
//
//	request   who asks             in which state                       how often
//	Ready     the front            before anything else                 once
//	Launch    an open connection   its id is no launch's under way      many, MaxRequests at once
//	Cancel    an open connection   the worker is its user's             many
//	Signal    an open connection   the worker is its user's             many
//	Resize    an open connection   the worker is its user's             many
//	Policy    an open connection   the worker is its user's             many
//	Features  an open connection   any                                  many
//	Hangup    an open connection   any                                  once
//
// An [*OddError] is what an honest front never asks: the monitor ends it. What an
// honest front may ask too late, of a worker that has ended meanwhile, is a
// [*protocol.Error], which is the answer. The zero value is the beginning. It is
// for one goroutine.
type Ledger struct {
	ready bool
	last  Conn
	conns map[Conn]*conn
	// launches and workers are those under way, also of connections that have ended.
	launches map[key]*owner
	workers  map[string]*owner
}

type key struct {
	conn   Conn
	launch int64
}

type conn struct {
	uid      uint32
	launches int // under way
}

type owner struct {
	uid    uint32
	worker string // "" until it has one
}

// OddError is something that an honest front does not do.
type OddError struct{ what string }

func (e *OddError) Error() string { return "the front " + e.what }

// Odd makes one, for what only the monitor can see.
func Odd(format string, args ...any) error { return odd(format, args...) }

func odd(format string, args ...any) error { return &OddError{fmt.Sprintf(format, args...)} }

// Accept opens a connection of a user.
func (l *Ledger) Accept(uid uint32) Conn {
	l.last++
	if l.conns == nil {
		l.conns, l.launches, l.workers = map[Conn]*conn{}, map[key]*owner{}, map[string]*owner{}
	}
	l.conns[l.last] = &conn{uid: uid}
	return l.last
}

// Ready tells whether the front has said that it is.
func (l *Ledger) Ready() bool { return l.ready }

// Open counts a user's connections.
func (l *Ledger) Open(uid uint32) (n int) {
	for _, c := range l.conns {
		if c.uid == uid {
			n++
		}
	}
	return n
}

// UID is the user of an open connection.
func (l *Ledger) UID(c Conn) (uint32, bool) {
	if open, ok := l.conns[c]; ok {
		return open.uid, true
	}
	return 0, false
}

// Hear takes a message of the front into account, or says what is wrong with it.
func (l *Ledger) Hear(m Message) error {
	if _, is := m.(*Ready); is == l.ready {
		return odd("said %T, and had said Ready: %v", m, l.ready)
	}
	switch m := m.(type) {
	case *Ready:
		l.ready = true
		return nil
	case *Launch:
		c, err := l.open(m.Conn)
		switch {
		case err != nil:
			return err
		case m.Launch < 1 || m.Launch > protocol.MaxInteger:
			return odd("launches with the id %d", m.Launch)
		case l.launches[key{m.Conn, m.Launch}] != nil:
			return odd("launches %d of connection %d twice at a time", m.Launch, m.Conn)
		case c.launches >= protocol.MaxRequests:
			return odd("has more than %d launches of connection %d", protocol.MaxRequests, m.Conn)
		}
		c.launches++
		l.launches[key{m.Conn, m.Launch}] = &owner{uid: c.uid}
		return nil
	case *Cancel:
		c, err := l.open(m.Conn)
		switch {
		case err != nil:
			return err
		case (m.Launch == 0) == (m.Worker == "") || m.Grace < -1:
			return odd("cancels launch %d, worker %.40q, with a grace of %d ms", m.Launch, m.Worker, m.Grace)
		case m.Launch != 0 && l.launches[key{m.Conn, m.Launch}] == nil:
			return protocol.Errorf(protocol.NotFound, "launch %d has ended, or there was none", m.Launch)
		case m.Launch != 0:
			return nil
		}
		return l.mayTouch(c, m.Worker)
	case *Signal:
		c, err := l.open(m.Conn)
		if err != nil {
			return err
		}
		return l.mayTouch(c, m.Worker)
	case *Resize:
		c, err := l.open(m.Conn)
		switch {
		case err != nil:
			return err
		case m.Rows == 0 || m.Cols == 0:
			return odd("makes a terminal of %d lines and %d columns", m.Rows, m.Cols)
		}
		return l.mayTouch(c, m.Worker)
	case *Policy:
		c, err := l.open(m.Conn)
		if err != nil {
			return err
		}
		return l.mayTouch(c, m.Worker)
	case *Features:
		_, err := l.open(m.Conn)
		return err
	case *Hangup:
		if _, err := l.open(m.Conn); err != nil {
			return err
		}
		delete(l.conns, m.Conn)
		return nil
	}
	return odd("says %T, which is the monitor's", m)
}

func (l *Ledger) open(c Conn) (*conn, error) {
	if open := l.conns[c]; open != nil {
		return open, nil
	}
	return nil, odd("speaks for connection %d, which is not open", c)
}

// mayTouch: a worker is its user's and root's. To others there is none.
func (l *Ledger) mayTouch(c *conn, worker string) error {
	if o := l.workers[worker]; o != nil && (o.uid == c.uid || c.uid == 0) {
		return nil
	}
	return protocol.Errorf(protocol.NotFound, "no such worker, or it has ended")
}

// Start notes that a launch has a worker; false if the launch is not under way.
func (l *Ledger) Start(c Conn, launch int64, worker string) bool {
	o := l.launches[key{c, launch}]
	if o == nil || o.worker != "" || worker == "" || l.workers[worker] != nil {
		return false
	}
	o.worker = worker
	l.workers[worker] = o
	return true
}

// End notes that a launch has ended. It tells whether its connection is open, and
// whether it had a worker.
func (l *Ledger) End(c Conn, launch int64) (open, ran bool) {
	o := l.launches[key{c, launch}]
	if o == nil {
		return false, false
	}
	delete(l.launches, key{c, launch})
	delete(l.workers, o.worker)
	if l.conns[c] != nil {
		open = true
		l.conns[c].launches--
	}
	return open, o.worker != ""
}
