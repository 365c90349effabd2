package landlock

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"sandboxd/backend"
	"sandboxd/policy"
)

var update = flag.Bool("update", false, "write the golden files")

func planPolicy(t *testing.T, change func(*policy.Spec)) policy.Policy {
	t.Helper()
	s := policy.Spec{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: "/w", Cwd: "/w",
		Grants: []policy.Grant{
			{Path: "/w", Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Exec, Reason: "workspace"},
			{Path: "/usr", Kind: policy.Tree, Access: policy.Read | policy.Exec, Reason: "system"},
			{Path: "/etc/passwd", Kind: policy.File, Access: policy.Read, Reason: "users"},
			{Path: "/dev/null", Kind: policy.File, Access: policy.Read | policy.Write | policy.Ioctl, Reason: "sink"},
			{Path: "/dev/pts", Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Ioctl, Reason: "terminals"},
		},
	}
	if change != nil {
		change(&s)
	}
	p, err := policy.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlanByABI: what each kernel is told, and what is claimed for it. The
// table is written by hand from the kernel's documentation, not from abiLevels.
func TestPlanByABI(t *testing.T) {
	const fs1 = 0x1fff
	for _, tt := range []struct {
		abi                  int
		fs, net, scope       uint64
		size                 int
		flags                uint32
		filter               string
		unenforced, notFully string
	}{
		{1, fs1, 0, 0, 8, 0, "none-supervised-shm-truncate", "fs.metadata fs.protected proc.signal proc.see", "fs.ioctl"},
		{2, 0x3fff, 0, 0, 8, 0, "none-supervised-shm-truncate", "fs.metadata fs.protected proc.signal proc.see", "fs.ioctl"},
		{3, 0x7fff, 0, 0, 8, 0, "none-supervised-shm", "fs.metadata fs.protected proc.signal proc.see", "fs.ioctl"},
		{4, 0x7fff, 3, 0, 16, 0, "none-supervised-shm", "fs.metadata fs.protected proc.signal proc.see", "fs.ioctl"},
		{5, 0xffff, 3, 0, 16, 0, "none-supervised-shm", "fs.metadata fs.protected proc.signal proc.see", ""},
		{6, 0xffff, 3, 3, 24, 0, "none-supervised-shm", "fs.metadata fs.protected proc.see", ""},
		{7, 0xffff, 3, 3, 24, 0, "none-supervised-shm", "fs.metadata fs.protected proc.see", ""},
		{8, 0xffff, 3, 3, 24, 0, "none-supervised-shm", "fs.metadata fs.protected proc.see", ""},
		{9, 0x1ffff, 3, 3, 24, 0, "none-kernel-shm", "fs.metadata fs.protected proc.see", ""},
		{10, 0x1ffff, 15, 3, 48, 0, "none-kernel-shm", "fs.metadata fs.protected proc.see", ""},
		{11, 0x1ffff, 15, 3, 48, 1 << 4, "none-kernel-shm", "fs.metadata fs.protected proc.see", ""},
		{12, 0x1ffff, 15, 3, 48, 1 << 4, "none-kernel-shm", "fs.metadata fs.protected proc.see", ""}, // unknown: as the newest known
	} {
		t.Run(fmt.Sprint(tt.abi), func(t *testing.T) {
			plan, err := Compile(planPolicy(t, nil), Facts{ABI: tt.abi, Notify: true, Arch: "amd64"})
			if err != nil {
				t.Fatal(err)
			}
			if plan.HandledFS != tt.fs || plan.HandledNet != tt.net || plan.Scoped != tt.scope || plan.AttrSize != tt.size || plan.RestrictFlags != tt.flags {
				t.Errorf("got fs %#x net %#x scope %#x size %d flags %#x", plan.HandledFS, plan.HandledNet, plan.Scoped, plan.AttrSize, plan.RestrictFlags)
			}
			if plan.FilterName != tt.filter {
				t.Errorf("filter %s, want %s", plan.FilterName, tt.filter)
			}
			if missing := plan.Enforcement().Missing(plan.policy); missing != 0 {
				t.Errorf("the promise is lost: %s", missing)
			}
			for effect, s := range plan.Enforcement().Map() {
				want := slices.Contains(strings.Fields(tt.unenforced), effect.String())
				if got := s.Status == backend.Unenforced; got != want {
					t.Errorf("%s is %s", effect, s.Status)
				}
				if slices.Contains(strings.Fields(tt.notFully), effect.String()) && s.Status != backend.Partial {
					t.Errorf("%s is %s, want partial", effect, s.Status)
				}
			}
			for _, r := range plan.Rules {
				if r.Rights&^plan.HandledFS != 0 {
					t.Errorf("rule %s has rights %#x that the ruleset does not handle (EINVAL)", r.Path, r.Rights)
				}
				if r.Kind == policy.File && r.Rights&^(ll.AccessFSExecute|ll.AccessFSReadFile|ll.AccessFSWriteFile|ll.AccessFSTruncate|ll.AccessFSIoctlDev) != 0 {
					t.Errorf("rule on file %s has directory rights %#x (EINVAL)", r.Path, r.Rights)
				}
			}
		})
	}
}

func TestNoLandlockIsRefused(t *testing.T) {
	_, err := Compile(planPolicy(t, nil), Facts{ABI: 0, Arch: "amd64"})
	var refusal *backend.RefusalError
	if !errors.As(err, &refusal) || refusal.Hint == "" {
		t.Errorf("got %v", err)
	}
}

// TestWithoutListener: where no supervisor can be had, sockets are closed by
// the filter, and what cannot be closed is said.
func TestWithoutListener(t *testing.T) {
	for _, tt := range []struct {
		abi     int
		net     policy.Net
		filter  string
		missing string
	}{
		{2, policy.NetNone, "none-closed-truncate", ""},
		{7, policy.NetNone, "none-closed", ""},
		{9, policy.NetNone, "none-kernel", ""},
		{2, policy.NetHost, "host-kernel", "fs.truncate,net.unix.path,net.unix.abstract"},
		{7, policy.NetHost, "host-kernel", "net.unix.path"},
		{9, policy.NetHost, "host-kernel", ""},
	} {
		p := planPolicy(t, func(s *policy.Spec) { s.Net = tt.net })
		plan, err := Compile(p, Facts{ABI: tt.abi, Arch: "amd64"})
		if err != nil {
			t.Fatal(err)
		}
		if !plan.Filter.Valid() || plan.FilterName != tt.filter || plan.Enforcement().Missing(p).String() != tt.missing {
			t.Errorf("ABI %d, net %s: filter %s, missing %q; want %s, %q", tt.abi, tt.net, plan.FilterName, plan.Enforcement().Missing(p), tt.filter, tt.missing)
		}
		if plan.Supervise {
			t.Error("a supervisor without a listener")
		}
	}
}

// TestEveryFactHasAFilter: no combination of facts asks for a filter that does
// not exist.
func TestEveryFactHasAFilter(t *testing.T) {
	for abi := 1; abi <= MaxABI; abi++ {
		for _, notify := range []bool{false, true} {
			for _, net := range []policy.Net{policy.NetNone, policy.NetHost} {
				p := planPolicy(t, func(s *policy.Spec) { s.Net = net })
				plan, err := Compile(p, Facts{ABI: abi, Notify: notify, Arch: "arm64"})
				if err != nil || !plan.Filter.Valid() || plan.Supervise != plan.Filter.Notifies() {
					t.Errorf("ABI %d notify %v net %s: %+v, %v", abi, notify, net, plan.Filter, err)
				}
			}
		}
	}
}

func TestWhatLandlockCannotExpress(t *testing.T) {
	facts := Facts{ABI: MaxABI, Notify: true, Arch: "amd64"}
	for name, change := range map[string]func(*policy.Spec){
		"loopback":            func(s *policy.Spec) { s.Net = policy.NetLoopback },
		"proxy":               func(s *policy.Spec) { s.Net = policy.NetProxy },
		"deny inside a grant": func(s *policy.Spec) { s.Deny = []string{"/w/.env"} },
		"deny above a grant":  func(s *policy.Spec) { s.Deny = []string{"/"} },
		"full access":         func(s *policy.Spec) { s.Mode = policy.FullAccess },
	} {
		if _, err := Compile(planPolicy(t, change), facts); err == nil {
			t.Errorf("%s was compiled", name)
		}
	}
	if _, err := Compile(planPolicy(t, func(s *policy.Spec) { s.Deny = []string{"/home/u/.ssh"} }), facts); err != nil {
		t.Errorf("a deny that no grant covers holds by itself: %v", err)
	}
	if _, err := Compile(policy.Policy{}, facts); err == nil {
		t.Error("the zero policy was compiled")
	}
}

func TestReadOnlyWritesNothing(t *testing.T) {
	p := planPolicy(t, func(s *policy.Spec) {
		s.Mode = policy.ReadOnly
		s.Grants[0].Access = policy.Read | policy.Exec
	})
	plan, err := Compile(p, Facts{ABI: 7, Notify: true, Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range plan.Rules {
		if r.Rights&ll.AccessFSMakeReg != 0 || r.Rights&ll.AccessFSWriteFile != 0 && !strings.HasPrefix(string(r.Path), "/dev/") {
			t.Errorf("%s may be written: %v", r.Path, rightNames(r.Rights))
		}
	}
	if s := plan.Enforcement().State(policy.FSProtected); s.Status != backend.Enforced {
		t.Errorf("nothing can be written, yet fs.protected is %s", s.Status)
	}
}

func TestPlanGolden(t *testing.T) {
	for _, abi := range []int{1, 2, 7, 11} {
		plan, err := Compile(planPolicy(t, nil), Facts{ABI: abi, Errata: 7, Notify: true, Arch: "amd64"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(struct {
			Plan    any                             `json:"plan"`
			Effects map[policy.Effect]backend.State `json:"effects"`
		}{plan, plan.Enforcement().Map()}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", fmt.Sprintf("plan-abi%d.json", abi))
		if *update {
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(want)) != string(got) {
			t.Errorf("ABI %d: the plan differs from %s (run with -update and read the diff)", abi, file)
		}
	}
}

func TestConstantsAreTheKernels(t *testing.T) {
	if rightsWrite&(ll.AccessFSMakeChar|ll.AccessFSMakeBlock) != 0 {
		t.Error("device nodes can be made in a writable grant")
	}
	if MaxABI != abiLevels[len(abiLevels)-1].abi {
		t.Error("MaxABI is not the last row")
	}
	for i, l := range abiLevels {
		if l.abi != i+1 || l.kernel == "" || l.adds == "" {
			t.Errorf("row %d: %+v", i, l)
		}
	}
	if len(fsRightNames) != 17 || 1<<(len(fsRightNames)-1) != ll.AccessFSResolveUnix {
		t.Error("a file right has no name")
	}
}

// TestTerminalsByGrant: tty.inject is enforced where no grant leads to a terminal
// of somebody else's, and nowhere else.
func TestTerminalsByGrant(t *testing.T) {
	for at, open := range map[string]bool{
		"": false, "/dev/tty": false, "/dev/null": false, "/srv": false,
		"/dev/pts": true, "/dev/pts/5": true, "/dev": true, "/": true,
	} {
		for abi := 1; abi <= MaxABI; abi++ {
			p := planPolicy(t, func(s *policy.Spec) {
				s.Grants = slices.DeleteFunc(s.Grants, func(g policy.Grant) bool { return g.Path == "/dev/pts" })
				if at != "" && at != "/dev/null" {
					s.Grants = append(s.Grants, policy.Grant{Path: policy.Raw(at), Kind: policy.Tree, Access: policy.Read, Reason: "test"})
				}
			})
			plan, err := Compile(p, Facts{ABI: abi, Notify: true, Arch: "amd64"})
			if err != nil {
				t.Fatal(err)
			}
			want := backend.Enforced
			if open {
				want = backend.Partial
			}
			if s := plan.Enforcement().State(policy.TTYInject); s.Status != want || open != slices.Contains(s.Gaps, gapTerminals) {
				t.Errorf("ABI %d, a grant of %q: %+v", abi, at, s)
			}
		}
	}
}

// TestBestIsNotExceeded: no plan for any kernel enforces more than a backend says of
// itself that it could at best, and on the best kernel it does.
func TestBestIsNotExceeded(t *testing.T) {
	limits := policy.SetOf(policy.LimitsMemory, policy.LimitsPids, policy.LimitsCPU, policy.LimitsDisk, policy.LimitsTime)
	for _, namespaces := range []bool{false, true} {
		for _, mode := range []policy.Mode{policy.ReadOnly, policy.WorkspaceWrite} {
			for _, network := range []policy.Net{policy.NetNone, policy.NetLoopback, policy.NetProxy, policy.NetHost} {
				for variant := range 8 {
					p := planPolicy(t, func(s *policy.Spec) {
						s.Mode, s.Net, s.ExecOnly = mode, network, variant&1 != 0
						if mode == policy.ReadOnly {
							s.Grants = slices.DeleteFunc(s.Grants, func(g policy.Grant) bool { return g.Path == "/w" })
						}
						if variant&2 != 0 {
							s.Guarded = []policy.Guarded{{Path: "/w/.vscode", Guard: policy.GuardMissing}}
						}
						if variant&4 != 0 {
							s.Unguarded = []string{"a gap"}
						}
						s.Grants = slices.DeleteFunc(s.Grants, func(g policy.Grant) bool { return g.Path == "/dev/pts" })
					})
					reached := policy.EffectSet(0)
					best := New(Options{Facts: &Facts{ABI: MaxABI, Namespaces: namespaces}}).Best(p)
					for abi := 1; abi <= MaxABI; abi++ {
						for _, notify := range []bool{false, true} {
							plan, err := Compile(p, Facts{ABI: abi, Errata: -1, Notify: notify, Arch: "amd64", Namespaces: namespaces, RootLinks: []policy.Link{}})
							if err != nil {
								continue
							}
							held := plan.Enforcement().Held() & p.Requested()
							if more := held.Minus(best); more != 0 {
								t.Fatalf("namespaces %t, %s, %s, variant %d, ABI %d: %s is enforced as well", namespaces, mode, network, variant, abi, more)
							}
							reached |= held
						}
					}
					if less := best.Minus(reached).Minus(limits); less != 0 {
						t.Errorf("namespaces %t, %s, %s, variant %d: %s is never enforced", namespaces, mode, network, variant, less)
					}
				}
			}
		}
	}
}
