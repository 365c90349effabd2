package confine

import (
	"slices"
	"testing"
)

// TestCheckThreads changes each value of a good thread: each change must be found, and
// the good ones must pass.
func TestCheckThreads(t *testing.T) {
	user := &IDs{UID: 5, GID: 6}
	good := func(tid int) Thread {
		return Thread{TID: tid, NoNewPrivs: true, Seccomp: 2, Filters: 1, UID: [4]int{5, 5, 5, 5}, GID: [4]int{6, 6, 6, 6}}
	}
	want := Expect{User: user, Filter: true, Bounding: true, Capabilities: true}
	if err := CheckThreads([]Thread{good(1), good(2), good(3)}, want); err != nil {
		t.Error(err)
	}
	if CheckThreads(nil, want) == nil {
		t.Error("no thread at all passed")
	}
	for name, change := range map[string]func(*Thread){
		"no_new_privs": func(t *Thread) { t.NoNewPrivs = false },
		"seccomp":      func(t *Thread) { t.Seccomp = 0 },
		"strict":       func(t *Thread) { t.Seccomp = 1 },
		"filters":      func(t *Thread) { t.Filters = 2 },
		"real uid":     func(t *Thread) { t.UID[0] = 0 },
		"file uid":     func(t *Thread) { t.UID[3] = 0 },
		"saved gid":    func(t *Thread) { t.GID[2] = 0 },
		"groups":       func(t *Thread) { t.Groups = []int{6} },
		"inheritable":  func(t *Thread) { t.CapInh = 1 },
		"permitted":    func(t *Thread) { t.CapPrm = 1 << 40 },
		"effective":    func(t *Thread) { t.CapEff = 1 },
		"ambient":      func(t *Thread) { t.CapAmb = 1 },
		"bounding":     func(t *Thread) { t.CapBnd = 1 },
	} {
		for at := range 3 {
			all := []Thread{good(1), good(2), good(3)}
			change(&all[at])
			if CheckThreads(all, want) == nil {
				t.Errorf("%s of thread %d was not found", name, at)
			}
			// Without a user all must be alike.
			alike := slices.Contains([]string{"real uid", "file uid", "saved gid", "groups", "filters"}, name)
			if err := CheckThreads(all, Expect{}); (err == nil) == (alike || name == "no_new_privs") {
				t.Errorf("%s of thread %d, nobody expected: %v", name, at, err)
			}
		}
	}
}
