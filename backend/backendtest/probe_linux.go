package backendtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
)

// probeVariable names a probe that was built before.
const probeVariable = "SBX_TEST_PROBE"

const probePackage = "sandboxd/backend/backendtest/probe"

// probeSource finds or builds the probe once for all tests of a binary.
var probeSource = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv(probeVariable); path != "" {
		return os.ReadFile(path)
	}
	if self, err := os.Executable(); err == nil {
		if b, err := os.ReadFile(filepath.Join(filepath.Dir(self), "probe")); err == nil {
			return b, nil
		}
	}
	dir, err := os.MkdirTemp("", "sbx-probe-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "probe")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, probePackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the probe (or set %s to one): %w\n%s", probeVariable, err, out)
	}
	return os.ReadFile(path)
})

// InstallProbe puts the probe at path.
func InstallProbe(path string) error {
	b, err := probeSource()
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o755)
}

// attemptNames asks a probe what it can attempt.
func attemptNames(probe string) ([]string, error) {
	out, err := exec.Command(probe, "-ops").Output()
	if err != nil {
		return nil, fmt.Errorf("asking the probe: %w", err)
	}
	var names []string
	if err := json.Unmarshal(out, &names); err != nil {
		return nil, fmt.Errorf("asking the probe: %w", err)
	}
	slices.Sort(names)
	return names, nil
}
