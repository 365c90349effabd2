package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sandboxd/protocol"
)

// maxEvents is how many events wait for [Subscription.Next]. Of those beyond it the
// oldest are lost, and counted.
const maxEvents = 1024

// Subscription gives events as they come.
type Subscription struct {
	c  *Client
	id int64

	mu     sync.Mutex
	queue  []*protocol.Event
	lost   int64 // before the first of queue
	err    error // no event comes any more
	ready  chan struct{}
	opened chan error
}

// Subscribe asks for events of the given kinds, from now on; kinds are protocol's Event
// constants, and those that the daemon does not know mean nothing to it.
func (c *Client) Subscribe(ctx context.Context, kinds ...string) (*Subscription, error) {
	s := &subscription{&Subscription{c: c, ready: make(chan struct{}, 1), opened: make(chan error, 1)}}
	id, err := c.open(s, true)
	if err != nil {
		return nil, err
	}
	s.id = id
	if err := c.send(&protocol.Subscribe{ID: id, Events: kinds}, nil); err != nil {
		c.drop(id)
		return nil, err
	}
	select {
	case err := <-s.opened:
		if err != nil {
			return nil, err
		}
		return s.Subscription, nil
	case <-ctx.Done():
		go func() { // should it still be opened
			if err := <-s.opened; err == nil {
				_ = s.Close(context.Background())
			}
		}()
		return nil, ctx.Err()
	}
}

// Next waits for the next event. Its Lost counts the events before it that were lost, as
// the daemon or the caller was too slow. The error is
// [ErrUnsubscribed] after [Subscription.Close], and the connection's after its end.
func (s *Subscription) Next(ctx context.Context) (*protocol.Event, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			e := s.queue[0]
			s.queue = s.queue[1:]
			e.Lost += s.lost
			s.lost = 0
			s.mu.Unlock()
			return e, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ErrUnsubscribed is the end of a subscription that was closed.
var ErrUnsubscribed = errors.New("the subscription has ended")

// Close ends the subscription. Events that have come can still be had.
func (s *Subscription) Close(ctx context.Context) error {
	_, err := ask[*protocol.UnsubscribeResult](ctx, s.c, func(id int64) protocol.Message {
		return &protocol.Unsubscribe{ID: id, Subscription: s.id}
	})
	return err
}

// subscription is the side of the goroutine that reads.
type subscription struct{ *Subscription }

func (s *subscription) answer(m protocol.Message) error {
	switch m := m.(type) {
	case *protocol.Subscribed:
		select {
		case s.opened <- nil:
		default:
			return fmt.Errorf("a second subscribed for %d", m.ID)
		}
	case *protocol.Event:
		s.add(m)
	case *protocol.SubscribeResult:
		s.finish(ErrUnsubscribed)
	case *protocol.Error:
		s.lost(m)
	default:
		return fmt.Errorf("%s as an answer to subscribe", m.Type())
	}
	return nil
}

func (s *subscription) add(e *protocol.Event) {
	s.mu.Lock()
	if len(s.queue) == maxEvents {
		first := s.queue[0]
		s.queue = s.queue[1:]
		s.Subscription.lost += first.Lost + 1
	}
	s.queue = append(s.queue, e)
	s.mu.Unlock()
	s.wake()
}

func (s *subscription) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *subscription) finish(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.wake()
}

func (s *subscription) lost(err error) {
	select {
	case s.opened <- err:
	default: // it was open
	}
	s.finish(err)
}
