package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestZeroValuesAreInvalid(t *testing.T) {
	for name, err := range map[string]error{
		"mode":   second(Mode(0).MarshalText()),
		"net":    second(Net(0).MarshalText()),
		"effect": second(Effect(0).MarshalText()),
		"access": second(Access(0).MarshalText()),
		"kind":   second(Kind(0).MarshalText()),
	} {
		if err == nil {
			t.Errorf("the zero %s was written", name)
		}
	}
	if Mode(0).Valid() || Mode(0).Confined() || Net(0).Valid() || Effect(0).Valid() || (Policy{}).Valid() {
		t.Error("a zero value is valid")
	}
	if _, err := New(Spec{Net: NetNone, Workspace: "/w"}); err == nil {
		t.Error("a policy without a mode")
	}
	if _, err := New(Spec{Mode: ReadOnly, Workspace: "/w"}); err == nil {
		t.Error("a policy without a network")
	}
}

func second(_ []byte, err error) error { return err }

func TestNamesRoundTrip(t *testing.T) {
	for _, e := range Effects() {
		got, err := ParseEffect(e.String())
		if err != nil || got != e {
			t.Errorf("%s: %v, %v", e, got, err)
		}
	}
	for _, m := range []Mode{ReadOnly, WorkspaceWrite, FullAccess} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("%s: %v, %v", m, got, err)
		}
	}
	if m, err := ParseMode("full-access"); err != nil || m != FullAccess {
		t.Errorf("the alias: %v, %v", m, err)
	}
	for _, bad := range []string{"", "unset", "Read-Only", "read-only ", "readonly"} {
		if _, err := ParseMode(bad); err == nil {
			t.Errorf("mode %q was accepted", bad)
		}
	}
	for _, bad := range []string{"", "fs", "fs.reads", "limits"} {
		if _, err := ParseEffect(bad); err == nil {
			t.Errorf("effect %q was accepted", bad)
		}
	}
}

func TestStricter(t *testing.T) {
	for _, tt := range []struct{ a, b, want Mode }{
		{ReadOnly, FullAccess, ReadOnly}, {FullAccess, WorkspaceWrite, WorkspaceWrite}, {WorkspaceWrite, WorkspaceWrite, WorkspaceWrite}, {0, FullAccess, 0},
	} {
		if got := tt.a.Stricter(tt.b); got != tt.want {
			t.Errorf("%s, %s: %s", tt.a, tt.b, got)
		}
		if got := tt.b.Stricter(tt.a); got != tt.want {
			t.Errorf("%s, %s: %s", tt.b, tt.a, got)
		}
	}
}

func TestWithinComparesComponents(t *testing.T) {
	for _, tt := range []struct {
		p, dir string
		want   bool
	}{
		{"/home/a", "/home/a", true}, {"/home/a/b", "/home/a", true}, {"/home/a.sshfoo", "/home/a.ssh", false},
		{"/home", "/home/a", false}, {"/x", "/", true}, {"/", "/", true}, {"/homework", "/home", false},
	} {
		if got := Within(tt.p, tt.dir); got != tt.want {
			t.Errorf("Within(%q, %q) = %v", tt.p, tt.dir, got)
		}
	}
}

func validSpec() Spec {
	return Spec{
		Mode: WorkspaceWrite, Net: NetNone, Workspace: "/w", Cwd: "/w",
		Grants: []Grant{{Path: "/w", Kind: Tree, Access: Read | Write, Reason: "workspace"}, {Path: "/etc/hosts", Kind: File, Access: Read, Reason: "names"}},
		Env:    []string{"A=1"},
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"relative workspace":       func(s *Spec) { s.Workspace = "w" },
		"unclean cwd":              func(s *Spec) { s.Cwd = "/w/../etc" },
		"no workspace":             func(s *Spec) { s.Workspace = "" },
		"relative deny":            func(s *Spec) { s.Deny = []string{".env"} },
		"relative grant":           func(s *Spec) { s.Grants[0].Path = "w" },
		"NUL in a grant":           func(s *Spec) { s.Grants[0].Path = "/w\x00" },
		"grant without access":     func(s *Spec) { s.Grants[0].Access = 0 },
		"grant of unknown access":  func(s *Spec) { s.Grants[0].Access = 0x80 },
		"grant without kind":       func(s *Spec) { s.Grants[0].Kind = 0 },
		"grant without reason":     func(s *Spec) { s.Grants[0].Reason = "" },
		"env without =":            func(s *Spec) { s.Env = []string{"A"} },
		"env without name":         func(s *Spec) { s.Env = []string{"=1"} },
		"env with NUL":             func(s *Spec) { s.Env = []string{"A=\x00"} },
		"temp variable outside":    func(s *Spec) { s.TempEnv = []TempVar{{"T", "../x"}} },
		"temp variable absolute":   func(s *Spec) { s.TempEnv = []TempVar{{"T", "/x"}} },
		"temp variable unnamed":    func(s *Spec) { s.TempEnv = []TempVar{{"", "."}} },
		"link without a target":    func(s *Spec) { s.Links = []Link{{"/bin", ""}} },
		"relative link":            func(s *Spec) { s.Links = []Link{{"bin", "x"}} },
		"hosts without a proxy":    func(s *Spec) { s.NetAllow = []string{"a.example"} },
		"guarded and relative":     func(s *Spec) { s.Guarded = []Guarded{{Path: ".git", Guard: GuardPinned}} },
		"guarded root":             func(s *Spec) { s.Guarded = []Guarded{{Path: "/", Guard: GuardShut}} },
		"guarded somehow":          func(s *Spec) { s.Guarded = []Guarded{{Path: "/w/a", Guard: "x"}} },
		"required and given up":    func(s *Spec) { s.Require, s.AllowGap = SetOf(FSRead), SetOf(FSRead) },
		"full and given up":        func(s *Spec) { s.RequireFull, s.AllowGap = true, SetOf(FSMetadata) },
		"required of full access":  func(s *Spec) { s.Mode, s.Require = FullAccess, SetOf(FSRead) },
		"full level of no sandbox": func(s *Spec) { s.Mode, s.RequireFull = FullAccess, true },
	} {
		s := validSpec()
		change(&s)
		if _, err := New(s); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := New(validSpec()); err != nil {
		t.Errorf("the valid spec: %v", err)
	}
}

// TestPolicyIsImmutable: neither the spec it was made of nor what its
// accessors return reaches into it. By reflection, so that a new slice field
// of Spec cannot be forgotten in clone.
func TestPolicyIsImmutable(t *testing.T) {
	s := validSpec()
	s.Deny, s.Protected, s.Create = []string{"/d"}, []string{".git/hooks"}, []string{"/c"}
	s.TempEnv, s.Weakened = []TempVar{{"T", "."}}, []Weakening{{"--x", "y"}}
	s.Links, s.Net, s.NetAllow = []Link{{"/bin", "usr/bin"}}, NetProxy, []string{"a.example:443"}
	s.Denied, s.DenyGaps = []Guarded{{Path: "/w/secret", Guard: GuardDenied}}, []string{"y"}
	s.Guarded, s.Unguarded = []Guarded{{Path: "/w/.git", Guard: GuardPinned}}, []string{"x"}
	p, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := json.Marshal(p.Spec())
	for _, spec := range []Spec{s, p.Spec()} {
		v := reflect.ValueOf(spec)
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice {
				if f.Len() == 0 {
					t.Fatalf("field %s is empty in this test", v.Type().Field(i).Name)
				}
				f.Index(0).SetZero()
			}
		}
	}
	if after, _ := json.Marshal(p.Spec()); string(after) != string(before) {
		t.Errorf("the policy changed:\n%s\n%s", before, after)
	}
}

func TestAllows(t *testing.T) {
	s := validSpec()
	s.Deny = []string{"/w/secret"}
	p, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		a    Access
		want bool
	}{
		{"/w/f", Read | Write, true}, {"/w", Write, true}, {"/w2", Read, false}, {"/w/secret", Read, false}, {"/w/secret/x", Read, false},
		{"/etc/hosts", Read, true}, {"/etc/hosts", Write, false}, {"/etc/hosts/x", Read, false}, {"/w/f", Exec, false},
	} {
		if got := p.Allows(tt.path, tt.a); got != tt.want {
			t.Errorf("Allows(%q, %s) = %v", tt.path, tt.a, got)
		}
	}
	if d, by, ok := p.DenyInsideGrant(); !ok || d != "/w/secret" || by.Path != "/w" {
		t.Errorf("DenyInsideGrant: %q %v %v", d, by, ok)
	}
}

func TestNeeded(t *testing.T) {
	s := validSpec()
	p, _ := New(s)
	if p.Needed() != Promise() {
		t.Errorf("without a word: %s", p.Needed())
	}
	s.AllowGap, s.Require = SetOf(NetUnixPath), SetOf(ProcSee)
	p, _ = New(s)
	if p.Needed().Has(NetUnixPath) || !p.Needed().Has(ProcSee) {
		t.Errorf("with words: %s", p.Needed())
	}
	s = validSpec()
	s.Net = NetHost
	p, _ = New(s)
	if p.Needed().Has(NetUDP) || !p.Needed().Has(NetUnixPath) {
		t.Errorf("with the host's network: %s", p.Needed())
	}
}

// TestDiskIsNeededPartly: what may be held in part is so only while nobody
// requires it.
func TestDiskIsNeededPartly(t *testing.T) {
	disk := SetOf(LimitsDisk)
	for name, c := range map[string]struct {
		change         func(*Spec)
		needed, partly bool
	}{
		"not asked for": {func(s *Spec) { s.Limits.Disk = 0 }, false, false},
		"asked for":     {func(*Spec) {}, true, true},
		"without a sandbox": {func(s *Spec) {
			*s = Spec{Mode: FullAccess, Net: NetHost, Cwd: "/", Limits: s.Limits}
		}, true, true},
		"a gap that is allowed": {func(s *Spec) { s.AllowGap = disk }, false, false},
		"required":              {func(s *Spec) { s.Require = disk }, true, false},
		"all is required":       {func(s *Spec) { s.RequireFull = true }, true, false},
	} {
		s := validSpec()
		s.Limits.Disk = MinDisk
		c.change(&s)
		p, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		if p.Requested().Has(LimitsDisk) != (s.Limits.Disk > 0) || p.Needed().Has(LimitsDisk) != c.needed || (p.NeededPartly() == disk) != c.partly {
			t.Errorf("%s: needed %s, partly %s", name, p.Needed(), p.NeededPartly())
		}
	}
	for _, size := range []int64{-1, 1, MinDisk - 1} {
		s := validSpec()
		s.Limits.Disk = size
		if _, err := New(s); err == nil {
			t.Errorf("a limit of %d is accepted", size)
		}
	}
}

func TestRawKeepsEveryByte(t *testing.T) {
	for _, s := range []string{"", "plain", "späce d", "new\nline", "\xff\xfe", "a\x00b", `{"base64":"AA=="}`} {
		b, err := json.Marshal(Raw(s))
		if err != nil {
			t.Fatal(err)
		}
		var back Raw
		if err := json.Unmarshal(b, &back); err != nil || string(back) != s {
			t.Errorf("%q became %q by %s (%v)", s, string(back), b, err)
		}
	}
}

func TestPrintableHidesNothingAndForgesNothing(t *testing.T) {
	for _, s := range []string{"plain", "with space", "späce", "日本"} {
		if Printable(s) != s {
			t.Errorf("%q was changed to %q", s, Printable(s))
		}
	}
	for _, s := range []string{"a\nsbx: forged", "\x1b[2J", "\u202egnp.exe", "\xff", "a\rb", "\u200b"} {
		p := Printable(s)
		if p == s || strings.ContainsAny(p, "\n\r\x1b\u202e\u200b") || !utf8.ValidString(p) {
			t.Errorf("%q is shown as %q", s, p)
		}
	}
}

func FuzzRaw(f *testing.F) {
	f.Add("x")
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(Raw(s))
		if err != nil {
			t.Fatal(err)
		}
		var back Raw
		if err := json.Unmarshal(b, &back); err != nil || string(back) != s {
			t.Errorf("%q became %q", s, string(back))
		}
		_ = Printable(s)
	})
}
