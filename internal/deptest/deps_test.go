// Package deptest holds the floors of docs/architecture.md: a package imports
// only packages of floors below its own.
package deptest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// floors is the house. A package that is not here fails the test: whoever adds
// one decides where it stands.
var floors = map[string]int{
	"policy":           0,
	"protocol":         0,
	"dialect":          0,
	"internal/sys":     0,
	"internal/nofile":  0,
	"internal/mounts":  0,
	"internal/scratch": 0,
	"internal/stream":  0,
	"internal/logfile": 0,

	"internal/seccomp":     1,
	"internal/seccomp/gen": 2,
	"backend":              1,
	"capture":              1,
	"internal/audit":       1,
	"internal/cli":         1,
	"internal/guard":       3,
	"internal/cgroup":      1,
	"internal/listen":      1,
	"internal/proxy":       1,
	"internal/quota":       1,
	"profiles":             2,
	"internal/hold":        1,

	"internal/confine":   2,
	"internal/rootfs":    2,
	"report":             2,
	"internal/launch":    2,
	"internal/supervise": 2,

	"backend/landlock":            3,
	"backend/backendtest":         2,
	"backend/backendtest/attempt": 1,
	"backend/backendtest/probe":   2,

	"internal/run":      4,
	"internal/features": 4,
	"internal/canary":   4,
	"internal/deptest":  4,

	"internal/terminal": 4,

	"daemon/internal/link": 2,
	"daemon":               5,
	"client":               2,
	"daemon/daemontest":    6,

	"cmd/sandboxd":     6,
	"cmd/sbx":          5,
	"bench":            6,
	"test/skipcheck":   0,
	"test/integration": 5,
	"test/pyclient":    5,

	"test/kernels":        5,
	"test/kernels/abicap": 5,
	"test/kernels/guest":  5,
	"test/kernels/wire":   0,
}

// standardOnly are packages that import the standard library alone.
var standardOnly = []string{"policy", "dialect", "protocol"}

// rawOnly may use package unsafe; every raw system call goes through them.
// The probe's attempts are raw on purpose: nothing may fall back silently.
var rawOnly = map[string]bool{"internal/sys": true, "backend/backendtest": true, "backend/backendtest/attempt": true, "backend/backendtest/probe": true,
	"test/kernels/abicap": true, "test/kernels/guest": true}

// forbidden names what must not be linked into the commands, with the reason.
var forbidden = map[string]string{
	"net/http": "a launcher has no business with HTTP",
	"testing":  "test code in what users install",
	"plugin":   "loads code at run time",
}

type goPackage struct {
	ImportPath, Name  string
	Imports, Deps     []string
	Standard, ForTest bool
}

func list(t *testing.T, args ...string) []goPackage {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Name,Imports,Deps,Standard"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

const module = "sandboxd/"

func TestFloors(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, module+"...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		floor, known := floors[name]
		if !known {
			t.Errorf("package %s has no floor: add it to the table and to docs/architecture.md", name)
			continue
		}
		seen[name] = true
		for _, imp := range p.Imports {
			if imp == "unsafe" && !rawOnly[name] {
				t.Errorf("%s imports unsafe, which is internal/sys' alone", name)
			}
			below, ours := strings.CutPrefix(imp, module)
			if ours && floors[below] >= floor {
				t.Errorf("%s (floor %d) imports %s (floor %d)", name, floor, below, floors[below])
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d packages were seen", len(seen))
	}
}

func TestVocabularyIsPlain(t *testing.T) {
	for _, name := range standardOnly {
		for _, p := range list(t, module+name) {
			for _, imp := range p.Imports {
				if strings.Contains(imp, ".") || strings.HasPrefix(imp, module) || imp == "os" || imp == "net" {
					t.Errorf("%s imports %s", name, imp)
				}
			}
		}
	}
}

func TestBackendsDoNotKnowEachOther(t *testing.T) {
	for _, p := range list(t, module+"backend/...") {
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module+"backend/") && !strings.HasPrefix(p.ImportPath, module+"backend/backendtest") && imp != p.ImportPath {
				t.Errorf("%s imports %s: composition goes through package backend", p.ImportPath, imp)
			}
		}
	}
}

func TestForbiddenInCommand(t *testing.T) {
	for _, name := range []string{"cmd/sbx", "cmd/sandboxd"} {
		pkgs := list(t, module+name)
		if len(pkgs) != 1 || len(pkgs[0].Deps) < 50 {
			t.Fatalf("go list gave %d packages", len(pkgs))
		}
		for _, dep := range pkgs[0].Deps {
			if why, bad := forbidden[dep]; bad {
				t.Errorf("%s links %s: %s", name, dep, why)
			}
		}
	}
}
