package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"testing"

	"sandboxd/protocol"
)

func mustJSON(m Message) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// verdict is what the ledger says of a message: "", "odd", or a code.
func verdict(t *testing.T, l *Ledger, m Message) string {
	t.Helper()
	err := l.Hear(m)
	var o *OddError
	var p *protocol.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &o):
		return "odd"
	case errors.As(err, &p):
		return string(p.Code)
	}
	t.Fatalf("%T: %v", m, err)
	return ""
}

func TestLedger(t *testing.T) {
	l := &Ledger{}
	step := func(want string, m Message) {
		t.Helper()
		if got := verdict(t, l, m); got != want {
			t.Errorf("%T %+v: %q, want %q", m, m, got, want)
		}
	}
	step("odd", &Launch{1, 1}) // before it is ready
	step("odd", &Hangup{1})
	step("", &Ready{})
	step("odd", &Ready{})
	step("odd", &Launch{1, 1}) // no such connection
	alice, bob, root := l.Accept(1000), l.Accept(1001), l.Accept(0)
	step("odd", &Launch{alice, 0})
	step("odd", &Launch{alice, -1})
	step("", &Launch{alice, 1})
	step("odd", &Launch{alice, 1}) // under way
	step("", &Launch{bob, 1})      // ids are a connection's
	step("not-found", &Signal{alice, 1, "w", "SIGHUP"})
	if !l.Start(alice, 1, "w") || l.Start(alice, 1, "x") || l.Start(bob, 1, "w") || l.Start(bob, 2, "y") || l.Start(99, 1, "z") {
		t.Error("not exactly the first start is taken")
	}
	step("", &Signal{alice, 1, "w", "SIGHUP"})
	step("not-found", &Signal{bob, 1, "w", "SIGHUP"})
	step("", &Signal{root, 1, "w", "SIGHUP"})
	step("not-found", &Signal{root, 1, "", "SIGHUP"})
	step("", &Cancel{alice, 1, 1, "", -1})
	step("", &Cancel{alice, 1, 0, "w", 0})
	step("not-found", &Cancel{bob, 1, 0, "w", 0})
	step("not-found", &Cancel{alice, 1, 2, "", 0})
	step("odd", &Cancel{alice, 1, 1, "w", 0})
	step("odd", &Cancel{alice, 1, 0, "", 0})
	step("odd", &Cancel{alice, 1, 1, "", -2})
	step("", &Resize{alice, 1, "w", 1, 1})
	step("odd", &Resize{alice, 1, "w", 0, 1})
	step("not-found", &Resize{bob, 1, "w", 1, 1})
	step("", &Features{alice, 1})
	step("odd", &Accepted{Conn: alice}) // the monitor's own
	step("", &Hangup{alice})
	step("odd", &Hangup{alice})
	step("odd", &Launch{alice, 2})
	step("odd", &Features{alice, 1})
	step("", &Signal{root, 1, "w", "SIGHUP"}) // its end is still to come
	if open, ran := l.End(alice, 1); open || !ran {
		t.Errorf("an end after the connection's: %v, %v", open, ran)
	}
	step("not-found", &Signal{root, 1, "w", "SIGHUP"})
	if open, ran := l.End(bob, 1); !open || ran {
		t.Errorf("an end before the start: %v, %v", open, ran)
	}
	if open, ran := l.End(bob, 1); open || ran {
		t.Error("a second end is taken")
	}
	step("", &Launch{bob, 1})
	if uid, ok := l.UID(bob); !ok || uid != 1001 || l.Open(1001) != 1 || l.Open(1000) != 0 {
		t.Errorf("uid %d %v, %d and %d connections", uid, ok, l.Open(1001), l.Open(1000))
	}
	for n := int64(2); n <= protocol.MaxRequests; n++ {
		step("", &Launch{bob, n})
	}
	step("odd", &Launch{bob, protocol.MaxRequests + 1})
}

// TestLedgerIsolates: whatever is asked in whatever order, only a worker's own user
// and root are let near it, and what has ended stays ended.
func TestLedgerIsolates(t *testing.T) {
	for seed := range int64(200) {
		rnd := rand.New(rand.NewSource(seed))
		l := &Ledger{}
		_ = l.Hear(&Ready{})
		open, uids, owner := []Conn{}, map[Conn]uint32{}, map[string]uint32{}
		type launch struct {
			c  Conn
			id int64
		}
		under := map[launch]string{}
		for n := range 300 {
			if len(open) == 0 || rnd.Intn(8) == 0 {
				uid := uint32(rnd.Intn(4))
				c := l.Accept(uid)
				open, uids[c] = append(open, c), uid
			}
			at := rnd.Intn(len(open))
			c := open[at]
			id := int64(1 + rnd.Intn(5))
			name := fmt.Sprint("w", rnd.Intn(n+1))
			switch rnd.Intn(6) {
			case 0:
				_, busy := under[launch{c, id}]
				if got := verdict(t, l, &Launch{c, id}); (got == "odd") != busy {
					t.Fatalf("seed %d: a launch under way %v: %q", seed, busy, got)
				}
				if !busy {
					under[launch{c, id}] = ""
				}
			case 1:
				mine := fmt.Sprint("w", n)
				if w, busy := under[launch{c, id}]; l.Start(c, id, mine) != (busy && w == "") {
					t.Fatalf("seed %d: a start of %q, under way %v", seed, w, busy)
				} else if busy && w == "" {
					under[launch{c, id}], owner[mine] = mine, uids[c]
				}
			case 2:
				w, busy := under[launch{c, id}]
				if open, ran := l.End(c, id); open != busy || ran != (w != "") {
					t.Fatalf("seed %d: an end of %q, under way %v: %v, %v", seed, w, busy, open, ran)
				}
				delete(under, launch{c, id})
				delete(owner, w)
			case 3:
				if got := verdict(t, l, &Hangup{c}); got != "" {
					t.Fatalf("seed %d: a hang-up: %q", seed, got)
				}
				open = append(open[:at], open[at+1:]...)
			default:
				uid, there := owner[name]
				want := "not-found"
				if there && (uid == uids[c] || uids[c] == 0) {
					want = ""
				}
				if got := verdict(t, l, &Signal{c, 1, name, "SIGHUP"}); got != want {
					t.Fatalf("seed %d: %d signals the worker of %d (there: %v): %q", seed, uids[c], uid, there, got)
				}
			}
		}
	}
}
