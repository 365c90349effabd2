package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestDataIsSound(t *testing.T) {
	all, e := data(t)
	ci, err := pick(all, "ci", nil)
	if err != nil || len(ci) != 3 {
		t.Errorf("the set ci has %d machines (%v)", len(ci), err)
	}
	for _, f := range hostFakes {
		if _, err := e.want("host", f, "workspace-write", "user"); err != nil {
			t.Errorf("--host asks for ABI %s: %v", f, err)
		}
	}
}

func data(t *testing.T) ([]machine, *expectations) {
	t.Helper()
	all, err := machines(machinesTOML)
	if err != nil {
		t.Fatal(err)
	}
	e, err := parseExpectations(expectTOML, all)
	if err != nil {
		t.Fatal(err)
	}
	return all, e
}

func TestMachinesAreRefused(t *testing.T) {
	const good = "[[machine]]\nname = \"a\"\nseries = [\"6.1\"]\n"
	if all, err := machines([]byte(good)); err != nil || all[0].Arch != amd64 {
		t.Fatal(all, err)
	}
	if all, err := machines([]byte(good + "arch = \"arm64\"\n")); err != nil || all[0].Arch != arm64 {
		t.Fatal(all, err)
	}
	for text, want := range map[string]string{
		good + "arch = \"riscv64\"\n":                 "none of amd64, arm64",
		good + "arch = \"arm64\"\nci = true\n":        "is of amd64",
		"":                                            "no machine",
		good + "serie = [\"6.2\"]\n":                  "serie",
		good + good:                                   "twice",
		"[[machine]]\nname = \"a\"\n":                 "no series",
		strings.Replace(good, "6.1", "6", 1):          `"6"`,
		strings.Replace(good, `"a"`, `"../a"`, 1):     "lower-case",
		good + "parameters = [\"a=1 init=/x\"]\n":     "kernel parameter",
		good + "sysctls = { \"kernel/x\" = \"1\" }\n": "kernel parameter",
		good + "fakes = [\"12\"]\n":                   "abicap",
		good + "ci = \"yes\"\n":                       "line 4",
	} {
		if _, err := machines([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestPick(t *testing.T) {
	all := []machine{
		{Name: "6.12", Arch: amd64, Series: []string{"6.12"}, CI: true}, {Name: "6.12-off", Arch: amd64, Series: []string{"6.12"}},
		{Name: "7.3", Arch: amd64, Series: []string{"7.3", "7.4"}}, {Name: "arm", Arch: arm64, Series: []string{"6.12"}},
	}
	for _, c := range []struct {
		set  string
		only []string
		want string
	}{
		{"all", nil, "6.12 6.12-off 7.3"}, {"ci", nil, "6.12"}, {"all", []string{"6.12"}, "6.12"},
		{"all", []string{"6.12*"}, "6.12 6.12-off"}, {"all", []string{"7.4"}, "7.3"}, {"ci", []string{"7.3", "6.12"}, "6.12 7.3"},
		{"all", []string{"6.12-off", "7.3"}, "6.12-off 7.3"}, {"most", nil, ""}, {"all", []string{"6.13"}, ""},
		{"arm64", nil, "arm"}, {"all", []string{"arm"}, "arm"},
	} {
		got, err := pick(all, c.set, c.only)
		var names []string
		for _, m := range got {
			names = append(names, m.Name)
		}
		if strings.Join(names, " ") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s %v: got %v, %v", c.set, c.only, names, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	m := machine{Parameters: []string{"lsm=lockdown,yama"}, Sysctls: map[string]string{"user.max_user_namespaces": "0"}}
	if got := m.commandLine(); !slices.Equal(got, []string{"lsm=lockdown,yama", "sysctl.user.max_user_namespaces=0"}) {
		t.Errorf("got %q", got)
	}
}

func TestExpectationsAreRefused(t *testing.T) {
	all := []machine{{Name: "a"}}
	const good = `
[not-requested]
read-only = ["limits.cpu"]
[every.danger-full-access]
level = "none"
[abi.2.read-only]
level = "full"
[abi.2.workspace-write]
level = "partial"
partial = ["fs.ioctl"]
[machine.a]
abi = 2
`
	if _, err := parseExpectations([]byte(good), all); err != nil {
		t.Fatal(err)
	}
	for change, want := range map[[2]string]string{
		{"partial = [", "parital = ["}:                                                             "parital",
		{"abi = 2", "abi = 3"}:                                                                     "[abi.3]",
		{"[machine.a]", "[machine.b]"}:                                                             `"a"`,
		{"abi = 2", "abi = 2\n[machine.b]\nabi = 2"}:                                               `"b"`,
		{"level = \"full\"", ""}:                                                                   "no level",
		{"level = \"full\"", "refused = true\nlevel = \"full\""}:                                   "refused and",
		{"level = \"full\"", "level = \"full\"\npartial = [\"x\"]\nunenforced = [\"x\"]"}:          "x is partial and unenforced",
		{"level = \"full\"", "level = \"full\"\npartial = [\"limits.cpu\"]"}:                       "limits.cpu",
		{"[every.danger-full-access]", "[every.workspace-write]"}:                                  "danger-full-access",
		{"abi = 2", "abi = 3\n[abi.3]\nas = \"2\"\nbackend = \"x\""}:                               "of its own",
		{"abi = 2", "abi = 3\n[abi.3]\nas = \"4\""}:                                                `as "4"`,
		{"[machine.a]", "[[skip]]\ntest = \"x\"\n[machine.a]"}:                                     "reason",
		{"[machine.a]", "[[skip]]\ntest = \"x\"\nreason = \"y\"\nmachines = [\"z\"]\n[machine.a]"}: `"z"`,
		{"[machine.a]", "[[case]]\nid = \"x\"\n[machine.a]"}:                                       "reason",
	} {
		_, err := parseExpectations([]byte(strings.Replace(good, change[0], change[1], 1)), all)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", change[1], err, want)
		}
	}
}

// TestNamesAreTests: what the packages' patterns and the data name is there, or
// it would not run, or not be allowed to skip, without a word.
func TestNamesAreTests(t *testing.T) {
	all, e := data(t)
	sources, subject := map[string]string{}, ""
	for _, p := range testPackages {
		files, err := filepath.Glob("../../" + p.path + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			sources[p.path] += string(text)
		}
		subject += sources[p.path]
	}
	name := regexp.MustCompile(`Test\w+`)
	for _, p := range testPackages {
		for _, n := range name.FindAllString(p.run+" "+p.skip, -1) {
			if !strings.Contains(sources[p.path], "\nfunc "+n+"(t *testing.T)") {
				t.Errorf("%s has no %s", p.path, n)
			}
		}
	}
	named := slices.Clone(e.RunsHere)
	for _, s := range e.Skips {
		named = append(named, s.Test)
	}
	for _, n := range name.FindAllString(strings.Join(named, " "), -1) {
		if !strings.Contains(subject, "\nfunc "+n+"(t *testing.T)") {
			t.Errorf("expect.toml names %s, which no package has", n)
		}
	}
	for _, m := range all {
		for _, j := range jobsOf(m) {
			if j.Package == "internal/cgroup" && (m.commandLine() != nil || j.Delegate != (j.UID != 0)) {
				t.Errorf("on %s: %+v", m.Name, j)
			}
		}
	}
}

func TestSkipCovers(t *testing.T) {
	s := allowedSkip{Test: "*/x32-*", Says: "no x32", Machines: []string{"6.1"}, User: "user"}
	for _, c := range []struct {
		machine, test, says, user string
		want                      bool
	}{
		{"6.1", "TestConformance/read-only/x32-getpid", "there is no x32 ABI", "user", true},
		{"6.1", "TestConformance/read-only/x32-getpid", "another reason", "user", false},
		{"6.1", "TestConformance/read-only/x32-getpid", "there is no x32 ABI", "root", false},
		{"6.12", "TestConformance/read-only/x32-getpid", "there is no x32 ABI", "user", false},
		{"6.1", "x32-getpid", "there is no x32 ABI", "user", false},
	} {
		if got := s.covers(c.machine, c.test, c.says, c.user); got != c.want {
			t.Errorf("%v: got %v", c, got)
		}
	}
}
