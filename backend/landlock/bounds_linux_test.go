package landlock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		// dd has a buffer of one block, which one read(2) fills.
		script: "echo 0 > n; dd if=/dev/zero of=/dev/null bs=30000000 count=1 && echo 30000000 > n",
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

// noGroups makes a plan one of a host without cgroups for this user.
func noGroups(p *Plan) {
	if groups := p.groups.Swap(&cgroup.Host{}); groups != nil {
		_ = groups.Close()
	}
	p.Facts.Groups = &cgroup.Host{}
	p.enforcement = p.enforcement.With(policy.TreeKill, p.stateTree())
}

// try launches the command, as another plan if adjust is given, with parts taken
// away if mutate is given, and returns what the report claims, and the breach of it.
func (x bound) try(t *testing.T, adjust func(*Plan), mutate func(*prepared)) (claimed backend.State, breach error) {
	t.Helper()
	ws := realTemp(t)
	b := requireLandlock(t)
	plan, err := b.Plan(testPolicy(t, ws, func(s *policy.Spec) {
		s.Limits = x.limits
		s.AllowGap = policy.SetOf(policy.LimitsMemory, policy.LimitsPids)
		s.Grants = append(s.Grants, policy.Grant{Path: "/dev/zero", Kind: policy.File, Access: policy.Read, Reason: "what fills memory"})
	}))
	if err != nil {
		t.Fatal(err)
	}
	if adjust != nil {
		adjust(plan.(*Plan))
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
			claimed, breach := x.try(t, nil, nil)
			if claimed.Status != backend.Enforced {
				t.Skipf("it is not enforced here: %s", strings.Join(claimed.Gaps, "; "))
			}
			if breach != nil {
				t.Errorf("by %v, and %v", claimed.By, breach)
			}
			if x.limits != (policy.Limits{}) {
				x.limits = policy.Limits{}
				if _, breach := x.try(t, nil, nil); breach == nil {
					t.Error("the control stays within the limit")
				}
			}
		})
	}
}

func needScope(t *testing.T) {
	t.Helper()
	if abi := requireLandlock(t).Facts().ABI; abi < 6 {
		t.Skipf("Landlock ABI %d scopes no signals", abi)
	}
}

// TestTreeIsEndedByScope: without cgroups the tree is ended by what the launch
// thread's domain lets it signal.
func TestTreeIsEndedByScope(t *testing.T) {
	needScope(t)
	for _, x := range bounds {
		if x.effect != policy.TreeKill {
			continue
		}
		claimed, breach := x.try(t, noGroups, nil)
		if claimed.Status != backend.Enforced || !slices.Equal(claimed.By, []string{"landlock"}) || breach != nil {
			t.Errorf("%+v, and %v", claimed, breach)
		}
	}
}

// TestTreeOfTheFirstProcess: the first process of a PID namespace, as a container's,
// has no parent that could be tried as a proof of the scope.
func TestTreeOfTheFirstProcess(t *testing.T) {
	needScope(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a PID namespace")
	}
	out, err := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", os.Args[0], "-test.run=^TestTreeIsEndedByScope$", "-test.v").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestTreeIsEndedByScope")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMutationOfBounds takes the cgroups away, or the scope where that ends the tree,
// while the report goes on to claim what they hold: it must show.
func TestMutationOfBounds(t *testing.T) {
	if !*mutationFlag {
		t.Skip("takes a while: run with -mutation")
	}
	for _, x := range bounds {
		t.Run(x.effect.String(), func(t *testing.T) {
			claimed, breach := x.try(t, nil, func(pr *prepared) {
				_ = pr.groups.Close()
				pr.groups = &cgroup.Host{}
			})
			// Where it is not the cgroup that holds it, nothing was taken away.
			if claimed.Status == backend.Enforced && breach == nil && !slices.Equal(claimed.By, []string{"landlock"}) {
				t.Errorf("nothing shows that the cgroup is missing, by %v", claimed.By)
			}
			t.Logf("without a cgroup: %v", breach)
			if x.effect != policy.TreeKill {
				return
			}
			needScope(t)
			claimed, breach = x.try(t, noGroups, func(pr *prepared) { pr.plan.Scoped = 0 })
			if claimed.Status == backend.Enforced && breach == nil {
				t.Error("nothing shows that the domain ends nothing")
			}
			t.Logf("without a scope: %v", breach)
		})
	}
}
