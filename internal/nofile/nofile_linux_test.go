package nofile_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sandboxd/internal/nofile"
)

// TestAtStart starts this test again with a soft limit below the hard one: the
// child must know both, although package syscall has raised the first by then.
func TestAtStart(t *testing.T) {
	if os.Getenv("NOFILE_CHILD") != "" {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
			t.Fatal(err)
		}
		l, ok := nofile.AtStart()
		fmt.Println("knows", ok, l.Cur, l.Max, now.Cur > l.Cur)
		return
	}
	cmd := exec.Command("/bin/sh", "-c", `ulimit -Sn 100 && ulimit -Hn 200 && exec "$0" -test.run=TestAtStart -test.v`, os.Args[0])
	cmd.Env = append(os.Environ(), "NOFILE_CHILD=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "knows true 100 200 true\n") {
		t.Fatalf("%v: %s", err, out)
	}
}
