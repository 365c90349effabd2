package landlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/policy"
)

// bound is a claim about a worker's tree as a whole, with a command that shows
// whether it holds.
type bound struct {
	effect policy.Effect
	limits policy.Limits
	script string
	// breach says in what the claim did not hold, after the worker's end.
	breach func(ws string) error
}

var bounds = []bound{
	{
		effect: policy.TreeKill,
		script: "setsid sh -c 'echo $$ > pid; exec sleep 300' & while ! [ -s pid ]; do sleep 0.01; done",
		breach: func(ws string) error {
			n, err := readNumber(filepath.Join(ws, "pid"))
			if err != nil {
				return err
			}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
			if err == nil && !strings.Contains(string(stat), ") Z ") { // whoever reaps it may be slow
				return fmt.Errorf("process %d lives on", n)
			}
			return nil
		},
	},
	{
		// Each process starts the next and ends.
		effect: policy.TreeKill,
		script: "c() { : >beat; c & }; c; while ! [ -e beat ]; do sleep 0.01; done; sleep 0.1",
		breach: func(ws string) error {
			beat := filepath.Join(ws, "beat")
			if err := os.Remove(beat); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
			if _, err := os.Stat(beat); err == nil {
				return errors.New("processes go on starting each other")
			}
			return nil
		},
	},
	{
		effect: policy.LimitsPids,
		limits: policy.Limits{Pids: 20},
		script: "n=1; while [ $n -lt 60 ]; do sleep 300 & n=$((n+1)); echo $n > n; done",
		breach: func(ws string) error {
			n, err := readNumber(filepath.Join(ws, "n"))
			if err == nil && n > 20 {
				err = fmt.Errorf("there were %d processes", n)
			}
			return err
		},
	},
	{
		effect: policy.LimitsMemory,
		limits: policy.Limits{Memory: 16 << 20},
		// tail keeps all of what it will print.
		script: "yes | head -c 40000000 | tail -c 30000000 | wc -c > n",
		breach: func(ws string) error {
			n, err := readNumber(filepath.Join(ws, "n"))
			if err == nil && n > 16<<20 {
				err = fmt.Errorf("a process had %d bytes", n)
			}
			return err
		},
	},
}

func readNumber(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// try launches the command, with parts taken away if mutate is given, and returns
// what the report claims, and the breach of it.
func (x bound) try(t *testing.T, mutate func(*prepared)) (claimed backend.State, breach error) {
	t.Helper()
	ws := realTemp(t)
	b := requireLandlock(t)
	plan, err := b.Plan(testPolicy(t, ws, func(s *policy.Spec) {
		s.Limits = x.limits
		s.AllowGap = policy.SetOf(policy.LimitsMemory, policy.LimitsPids)
	}))
	if err != nil {
		t.Fatal(err)
	}
	pr, err := plan.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	if mutate != nil {
		mutate(pr.(*prepared))
	}
	// A launcher of several workers: nothing but the cgroup holds the tree.
	w := launchIn(t, pr, ws, backend.Command{}, "sh", "-c", x.script)
	res := w.Wait()
	if err := pr.Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(10 * time.Millisecond)
	breach = x.breach(ws)
	endIn(ws)
	return res.Enforcement.State(x.effect), breach
}

// endIn ends what runs in a directory: what the controls leave.
func endIn(dir string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && cwd == dir {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// TestTreeIsBounded: what is claimed of the tree as a whole holds; without limits
// the same commands go beyond them.
func TestTreeIsBounded(t *testing.T) {
	for _, x := range bounds {
		t.Run(x.effect.String(), func(t *testing.T) {
			claimed, breach := x.try(t, nil)
			if claimed.Status != backend.Enforced {
				t.Skipf("it is not enforced here: %s", strings.Join(claimed.Gaps, "; "))
			}
			if breach != nil {
				t.Errorf("by %v, and %v", claimed.By, breach)
			}
			if x.limits != (policy.Limits{}) {
				x.limits = policy.Limits{}
				if _, breach := x.try(t, nil); breach == nil {
					t.Error("the control stays within the limit")
				}
			}
		})
	}
}

// TestMutationOfBounds takes the cgroups away, while the report goes on to claim
// what they hold: it must show.
func TestMutationOfBounds(t *testing.T) {
	if !*mutationFlag {
		t.Skip("takes a while: run with -mutation")
	}
	for _, x := range bounds {
		t.Run(x.effect.String(), func(t *testing.T) {
			claimed, breach := x.try(t, func(pr *prepared) {
				_ = pr.groups.Close()
				pr.groups = &cgroup.Host{}
			})
			if claimed.Status == backend.Enforced && breach == nil {
				t.Error("nothing shows that the cgroup is missing")
			}
			t.Logf("without a cgroup: %v", breach)
		})
	}
}
