package sys

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestKillScopeOutsideOfADomain: without a domain that scopes signals nothing is
// killed. It runs in a PID namespace of its own, which is all that it could reach.
func TestKillScopeOutsideOfADomain(t *testing.T) {
	if os.Getenv("SYS_TEST_IN_NAMESPACE") != "" {
		if KillScope() {
			t.Error("everything was to be killed")
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a PID namespace")
	}
	const script = `sleep 300 & "$0" -test.run='^TestKillScopeOutsideOfADomain$'; kill $! && echo alive.`
	c := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, os.Args[0])
	c.Env = append(os.Environ(), "SYS_TEST_IN_NAMESPACE=1")
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") || !strings.Contains(string(out), "alive.") {
		t.Errorf("%v\n%s", err, out)
	}
}
