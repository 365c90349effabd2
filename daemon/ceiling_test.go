package daemon

import (
	"errors"
	"testing"

	"sandboxd/internal/proxy"
	"sandboxd/policy"
	"sandboxd/protocol"
)

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

// TestNetAllowCeiling: hosts are held to the administrator's list, and with one the
// network is never the host's.
func TestNetAllowCeiling(t *testing.T) {
	list, err := proxy.ParseRules([]string{"*.example.com:443", "10.1.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		c     Ceiling
		net   policy.Net
		allow []string
		field string // of the refusal; empty: none
	}{
		{Ceiling{NetAllow: list}, policy.NetProxy, []string{"www.example.com:443", "10.1.2.3"}, ""},
		{Ceiling{NetAllow: list}, policy.NetProxy, []string{"www.example.com"}, "net_allow"},
		{Ceiling{NetAllow: list}, policy.NetProxy, []string{"10.1.2.3", "10.0.0.0/8"}, "net_allow"},
		{Ceiling{NetAllow: list}, policy.NetProxy, []string{"example.org:443"}, "net_allow"},
		{Ceiling{NetAllow: list}, policy.NetProxy, nil, ""},
		{Ceiling{NetAllow: list}, policy.NetNone, nil, ""},
		{Ceiling{NetAllow: list}, policy.NetLoopback, nil, ""},
		{Ceiling{NetAllow: list}, policy.NetHost, nil, "net"},
		{Ceiling{NetAllow: list, Net: policy.NetLoopback}, policy.NetProxy, []string{"10.1.2.3"}, "net"},
		{Ceiling{Net: policy.NetProxy}, policy.NetProxy, []string{"example.org"}, ""},
		{Ceiling{Net: policy.NetProxy}, policy.NetHost, nil, "net"},
		{Ceiling{}, policy.NetProxy, []string{"example.org"}, ""},
	} {
		p, err := policy.New(policy.Spec{Mode: policy.WorkspaceWrite, Net: tt.net, NetAllow: tt.allow, Workspace: "/w", Cwd: "/w"})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		var refused *protocol.Error
		if err := tt.c.check(p, &protocol.Launch{}); errors.As(err, &refused) && refused.Code == protocol.Ceiling {
			got = refused.Field
		} else if err != nil {
			t.Fatal(err)
		}
		if got != tt.field {
			t.Errorf("%v with %s %v: refused for %q, want %q", tt.c.NetAllow.Strings(), tt.net, tt.allow, got, tt.field)
		}
	}
}

// TestPlacesAreCounted: launches whose protected places would take more handles than
// there may be are refused, and those of ended ones count no more.
func TestPlacesAreCounted(t *testing.T) {
	m := &Monitor{room: room{places: 10}}
	first, second := &launch{m: m}, &launch{m: m}
	if err := first.hold(7); err != nil {
		t.Fatal(err)
	}
	if err := second.hold(4); err != errPlaces {
		t.Errorf("more than there is room for: %v", err)
	}
	second.letGo() // of a launch that was refused: it holds none
	if err := second.hold(3); err != nil {
		t.Error(err)
	}
	first.letGo()
	second.letGo()
	if n := m.places.Load(); n != 0 {
		t.Errorf("%d are left", n)
	}
}
