package cgroup

import (
	"encoding/json"
	"errors"
	"os"
	"path"
	"testing"

	"golang.org/x/sys/unix"
)

// stored is the mark after a file.
func stored(t *testing.T, m Mark) Mark {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var back Mark
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	return back
}

// forget is what a launcher's sudden end does to a group.
func (g *Group) forget() {
	for _, d := range g.dirs {
		closeAll(&d.fd, &d.tasks)
	}
	closeAll(&g.kill, &g.pids)
	g.dirs = nil
}

func TestRemoveMarked(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	for _, ahead := range []bool{false, true} {
		id := newID()
		m := h.Mark(id)
		g, err := New(h, id, everything(h))
		if err != nil {
			t.Fatal(err)
		}
		if !ahead {
			if m = g.Mark(); len(m.Dirs) != len(g.dirs) || m.Dirs[0].Inode == 0 {
				t.Errorf("the mark is %+v", m)
			}
		}
		token := newID()
		w := start(t, g, "tree", "20", token)
		w.ready(t)
		other := m
		other.Boot = "another"
		if err := RemoveMarked(h, other); err != nil {
			t.Errorf("of another boot: %v", err)
		}
		if n := len(alive(t, token)); n != 21 {
			t.Errorf("of another boot: %d processes are left", n)
		}
		g.forget()
		if err := RemoveMarked(h, stored(t, m)); err != nil {
			t.Error(err)
		}
		_ = w.Wait()
		if left := alive(t, token); len(left) > 0 {
			t.Errorf("alive: %v", left)
		}
		if err := RemoveMarked(h, stored(t, m)); err != nil {
			t.Errorf("again: %v", err)
		}
	}
}

// TestRecycledMark: a group at the marked path that is not the marked one, or
// another user's, is left alone.
func TestRecycledMark(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	id := newID()
	first, err := New(h, id, everything(h))
	if err != nil {
		t.Fatal(err)
	}
	m := first.Mark()
	end(t, first)
	second, err := New(h, id, everything(h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, second) })
	w := start(t, second, "sleep")
	w.ready(t)
	if err := RemoveMarked(h, m); !errors.Is(err, ErrNotMarked) {
		t.Errorf("another group at the path: %v", err)
	}
	if got := second.Procs(); len(got) != 1 {
		t.Errorf("processes of the other group: %v", got)
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, d := range second.dirs {
		if err := unix.Fchownat(d.fd, ".", 1000, 1000, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []Mark{second.Mark(), h.Mark(id)} {
		if err := RemoveMarked(h, m); !errors.Is(err, ErrNotMarked) {
			t.Errorf("another user's group: %v", err)
		}
	}
	if got := second.Procs(); len(got) != 1 {
		t.Errorf("processes of the other user's group: %v", got)
	}
}

// TestForgedMark: a mark is read from a file, and can say anything.
func TestForgedMark(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	g := group(t, h, Limits{})
	own := g.tree.h.path
	name := g.tree.h.name()
	for _, p := range []string{
		own, "", "/", g.Name(), path.Join(own, "x"), own + "/../" + g.Name(), own + "//" + g.Name(), path.Join(own, g.Name()) + "/",
		path.Join(own, g.Name()) + "/../" + g.Name(), path.Join(own, "sbx-short"), path.Join(own, "sbx-"), "/." + path.Join(own, g.Name()),
	} {
		if err := RemoveMarked(h, Mark{Boot: bootID(), Dirs: []MarkDir{{name, p, 0}}}); !errors.Is(err, ErrNotMarked) {
			t.Errorf("%q: %v", p, err)
		}
	}
	if err := RemoveMarked(h, Mark{Boot: bootID(), Dirs: []MarkDir{{"cgroup1:nothing", path.Join(own, g.Name()), 0}}}); err == nil {
		t.Error("an unknown hierarchy is no error")
	}
	if _, err := g.Empty(); err != nil || unix.Faccessat(g.tree.h.dir, g.Name(), unix.F_OK, 0) != nil {
		t.Error("the group is gone: ", err)
	}
	// This process sits in what is marked.
	inner := *g.tree.h
	inner.path = path.Join(own, g.Name(), "deeper")
	inside := Host{state: &state{mounts: h.state.mounts, all: []*hierarchy{&inner}}}
	if err := RemoveMarked(inside, g.Mark()); !errors.Is(err, ErrNotMarked) {
		t.Errorf("of this process' own cgroup: %v", err)
	}
}

// TestInodeIsIdentity pins what a mark rests on: no inode number is used again.
func TestInodeIsIdentity(t *testing.T) {
	h := probe(t)
	need(t, "kill", h.Kill)
	seen := map[uint64]bool{}
	for range 50 {
		g := group(t, h, Limits{})
		ino := g.Mark().Dirs[0].Inode
		if seen[ino] {
			t.Fatalf("inode %d is used again", ino)
		}
		seen[ino] = true
		end(t, g)
	}
}
