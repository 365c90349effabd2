package daemon

import "testing"

// TestCeilingOf: exactly one ceiling holds: a user's own, else the first group's, else
// that of everybody.
func TestCeilingOf(t *testing.T) {
	c := Ceilings{
		Default: Ceiling{Workers: 1},
		Users:   map[int]Ceiling{7: {Workers: 2}},
		Groups:  []GroupCeiling{{100, Ceiling{Workers: 3}}, {200, Ceiling{Workers: 4}}},
	}
	for _, x := range []struct {
		who  identity
		want int
	}{
		{identity{uid: 5, gid: 5}, 1},
		{identity{uid: 7, gid: 100, groups: []int{200}}, 2},
		{identity{uid: 5, gid: 200, groups: []int{100}}, 3},
		{identity{uid: 5, gid: 200}, 4},
		{identity{uid: 5, gid: 5, groups: []int{300, 200}}, 4},
		{identity{uid: 100, gid: 5}, 1},
	} {
		if got := c.For(x.who); got.Workers != x.want {
			t.Errorf("%+v has ceiling %d, want %d", x.who, got.Workers, x.want)
		}
	}
}
