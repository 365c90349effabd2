package link

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestOutbox: who says something waits for nobody, what is said comes in its order
// with its descriptors, and who does not read is told apart from who reads slowly.
func TestOutbox(t *testing.T) {
	monitor, front := pair(t)
	failed := make(chan error, 1)
	o := NewOutbox(monitor, func(err error) { failed <- err })
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	const many = 2000 // far more than the socket takes
	payload := make([]byte, 8<<10)
	began := time.Now()
	for i := range many {
		if err := o.Put(&Started{Conn: Conn(i), Warnings: []string{}}, nil, null); err != nil {
			t.Fatal(err)
		}
		if err := o.Put(&Ended{Conn: Conn(i)}, payload); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(began); d > Patience/2 {
		t.Errorf("saying it took %v", d)
	}
	for i := range many {
		m, _, files, err := front.Receive()
		if s, ok := m.(*Started); !ok || err != nil || s.Conn != Conn(i) || len(files) != 1 {
			t.Fatalf("%d: %+v with %d files, %v", i, m, len(files), err)
		}
		CloseFiles(files)
		m, got, _, err := front.Receive()
		if e, ok := m.(*Ended); !ok || err != nil || e.Conn != Conn(i) || len(got) != len(payload) {
			t.Fatalf("%d: %+v of %d bytes, %v", i, m, len(got), err)
		}
	}
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors, were %d", now, before)
	}
	// One that does not read: by number, and by bytes, after one that is always taken.
	for _, size := range []int{0, 4 << 20} {
		err, taken := error(nil), 0
		for ; err == nil && taken < 2*outboxMessages; taken++ {
			err = o.Put(&Ended{}, make([]byte, size), nil...)
		}
		if !errors.Is(err, ErrBehind) || taken < 10 {
			t.Errorf("%d bytes each: %v after %d", size, err, taken)
		}
		for o.waiting() > 0 || size == 0 {
			if _, _, _, err := front.Receive(); err != nil {
				t.Fatal(err)
			}
			if o.waiting() == 0 {
				break
			}
		}
	}
	if err := o.Put(&Started{Warnings: []string{}}, nil, null); err != nil {
		t.Fatal(err)
	}
	_ = front.Close()
	_ = o.Put(&Stopping{}, nil)
	select {
	case <-failed:
	case <-time.After(time.Minute):
		t.Error("nobody tells of the end")
	}
	if err := o.Put(&Stopping{}, nil); err == nil {
		t.Error("it takes more")
	}
}

func (o *Outbox) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue)
}
