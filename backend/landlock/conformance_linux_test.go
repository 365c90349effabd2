package landlock

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/backend/backendtest"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/seccomp"
	"sandboxd/internal/supervise"
	"sandboxd/internal/sys"
	"sandboxd/policy"
)

// unconfinedVariable names a mutation under which TestConformance runs, and
// must then fail. Nothing but these tests reads it.
const unconfinedVariable = "SBX_TEST_UNCONFINED"

var mutationFlag = flag.Bool("mutation", false, "run TestMutation")

func usable(t *testing.T) *Backend {
	t.Helper()
	b := New(Options{Namespaces: native()})
	if c := b.Probe(); !c.Usable {
		t.Skipf("landlock: %s", c.Reason)
	}
	return b
}

func TestConformance(t *testing.T) {
	here := usable(t)
	var b backend.Backend = here
	if name := os.Getenv(unconfinedVariable); name != "" {
		m, ok := mutations()[name]
		if !ok {
			t.Fatalf("%s=%s is none of %v", unconfinedVariable, name, slices.Sorted(maps.Keys(mutations())))
		}
		t.Logf("mutation %s: %s; this test must fail", name, m.what)
		b = m.of(b)
	}
	errnos, skip := dialectOf(here.Facts())
	backendtest.Run(t, backendtest.Target{Backend: b, Errno: errnos, Skip: skip})
}

// TestConformanceWatched: the domain around the worker's, which a watchdog has, takes
// nothing away and gives nothing.
func TestConformanceWatched(t *testing.T) {
	b := usable(t)
	if !b.Watches() {
		t.Skip("Landlock scopes no signals here")
	}
	b.Prewarm(func() *cgroup.Host { return &cgroup.Host{} }, true)
	defer b.Discard()
	errnos, skip := dialectOf(b.Facts())
	backendtest.RunMode(t, backendtest.Target{Backend: b, Errno: errnos, Skip: skip, Control: backendtest.Outside(t)}, policy.WorkspaceWrite)
}

// TestConformanceOfOlderKernels plans as for hosts that can do less. What the
// report of such a plan claims must hold all the same. The plan is run on this
// kernel, so that only what the plan asks for is tested, not the older kernel.
func TestConformanceOfOlderKernels(t *testing.T) {
	now := usable(t).Facts()
	control := backendtest.Outside(t)
	for _, host := range []struct {
		abi    int
		notify bool
	}{{1, true}, {1, false}, {4, true}, {6, false}} {
		if host.abi > now.ABI || host.notify && !now.Notify {
			continue
		}
		t.Run(fmt.Sprintf("abi %d, notify %t", host.abi, host.notify), func(t *testing.T) {
			older := now
			older.ABI, older.Notify = host.abi, host.notify
			errnos, skip := dialectOf(older)
			target := backendtest.Target{Backend: New(Options{Facts: &older}), Errno: errnos, Skip: skip, Control: control}
			backendtest.RunMode(t, target, policy.WorkspaceWrite)
		})
	}
}

// dialectOf lists the rows whose errno is not the one that most backends give,
// and what does not work inside on hosts that can do less.
func dialectOf(host Facts) (errnos, skip map[string]string) {
	abi, notify := host.ABI, host.Notify
	errnos, skip = map[string]string{}, map[string]string{}
	each := func(to map[string]string, value string, rows ...string) {
		for _, r := range rows {
			to[r] = value
		}
	}
	if abi < 2 {
		each(skip, "before ABI 2 Landlock refuses every rename and link across directories",
			"rename across directories of the workspace", "link across directories of the workspace")
	}
	if abi < 3 {
		each(errnos, "ENOSYS", "openat2 create outside", "openat2 write outside", "openat2 for reading with O_TRUNC outside")
		each(skip, "before ABI 3 openat2 is closed", "openat2 in the workspace")
		each(skip, "before ABI 3 opening for reading with O_TRUNC is closed", "read-only O_TRUNC in the workspace")
	}
	if abi < 3 && !notify {
		each(skip, "before ABI 3 and without a listener truncate(2) is closed", "truncate in the workspace")
	}
	if abi < 5 {
		each(skip, "before ABI 5 ioctl on devices is a named gap", "ioctl on a device that may only be read")
	}
	if abi < 9 && notify {
		// The supervisor follows no magic link of /proc: what it means depends
		// on whose /proc it is.
		each(errnos, "ELOOP", "host stream socket by /proc/self/root")
		if !supervise.CanAskNames() {
			each(skip, "needs unix_diag: without it no abstract name is let through", "own abstract stream socket", "own abstract datagram socket")
		}
	}
	if abi < 9 && !notify {
		each(errnos, "EACCES", "abstract stream socket", "abstract seqpacket socket", "abstract datagram socket",
			"abstract datagram socket by sendto", "abstract datagram socket by sendmsg", "abstract datagram socket by sendmmsg")
		each(skip, "without a listener connect and datagram sockets are closed", "own stream socket", "own seqpacket socket",
			"own relative socket", "own datagram socket by sendto", "own datagram socket by sendmsg", "own datagram socket by sendmmsg",
			"own abstract stream socket", "own abstract datagram socket", "host stream socket with a long address",
			"socket that does not exist", "socket that is a file", "socket in no directory", "socket below a file")
	}
	if !notify {
		each(skip, "without a listener how others are scheduled is a named gap, but for the launcher", "priority of a host process",
			"processors of a host process", "policy of a host process", "parameters of a host process", "attributes of a host process",
			"I/O priority of a host process")
		each(skip, "without a listener the launcher's threads are known that were there at the launch", "scheduling of a thread of the launcher")
		each(skip, "without a listener nobody gives a private /dev/shm", "own shared memory segment", "own semaphore")
	}
	return errnos, skip
}

// mutation takes a part of the confinement away while the report goes on to
// claim it.
type mutation struct {
	what string
	of   func(backend.Backend) backend.Backend
	// red are effects of which rows must fail; rows are names of such rows.
	red  []policy.Effect
	rows []string
	// all: every row that wants a refusal must fail.
	all bool
}

func mutations() map[string]mutation {
	return map[string]mutation{
		"landlock": {
			what: "everything below / is granted",
			of: planned(func(p *Plan) {
				p.Rules = append(p.Rules, Rule{Path: "/", Kind: policy.Tree, Rights: p.HandledFS})
			}),
			red: []policy.Effect{policy.FSRead, policy.FSWrite, policy.FSExec, policy.FSTruncate, policy.FSIoctl},
		},
		"truncate": {what: "the right to truncate is not handled", of: unhandled(ll.AccessFSTruncate), red: []policy.Effect{policy.FSTruncate}},
		"ioctl":    {what: "ioctl on devices is not handled", of: unhandled(ll.AccessFSIoctlDev), red: []policy.Effect{policy.FSIoctl}},
		"execute":  {what: "the right to execute is not handled", of: unhandled(ll.AccessFSExecute), red: []policy.Effect{policy.FSExec}},
		"signals": {
			what: "signals are not scoped",
			of:   planned(func(p *Plan) { p.Scoped &^= ll.ScopeSignal }),
			red:  []policy.Effect{policy.ProcSignal},
		},
		"network": {
			what: "IP sockets are left alone by Landlock and by the filter",
			of: planned(func(p *Plan) {
				p.HandledNet, p.Filter.Net = 0, seccomp.NetHost
			}),
			red: []policy.Effect{policy.NetTCPConnect, policy.NetTCPBind, policy.NetUDP, policy.NetOther},
		},
		"supervise": {
			what: "nobody judges the addresses of unix sockets",
			of: planned(func(p *Plan) {
				p.Filter.Unix = seccomp.UnixKernel
				p.Scoped &^= ll.ScopeAbstractUnixSocket
				unhandle(p, ll.AccessFSResolveUnix)
			}),
			red: []policy.Effect{policy.NetUnixPath, policy.NetUnixAbstract},
		},
		"seccomp": {
			what: "the filter allows every call",
			of: prepares(func(pr *prepared) {
				pr.filter = []sys.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
			}),
			red: []policy.Effect{policy.NetUDP, policy.NetOther, policy.KernelIOUring, policy.KernelKeyring, policy.KernelMount,
				policy.KernelUserns, policy.TTYInject, policy.NetUnixPath},
			rows: []string{"host SysV shared memory", "host POSIX message queue", "i386 getpid", "perf_event_open", "userfaultfd",
				"personality READ_IMPLIES_EXEC", "limits of a host process", "scheduling of a thread of the launcher"},
		},
		"env": {what: "the worker gets the launcher's environment", of: withEnvironment, rows: []string{"variable of the launcher"}},
		"all": {
			what: "the worker is started as any program is",
			of:   func(b backend.Backend) backend.Backend { return backendtest.Unconfined{Backend: b} },
			all:  true,
			rows: []string{"inherited file", "inherited directory", "variable of the launcher", "execve can gain privileges",
				"no signal reaches the host process", "the host's listeners hear nothing"},
		},
	}
}

// mutant is this backend with plans and launches that a test changed.
type mutant struct {
	backend.Backend
	plan     func(*Plan)
	prepared func(*prepared)
}

func (m mutant) Plan(p policy.Policy) (backend.Plan, error) {
	plan, err := m.Backend.Plan(p)
	if err != nil {
		return nil, err
	}
	if m.plan != nil {
		m.plan(plan.(*Plan))
	}
	return mutantPlan{plan.(*Plan), m}, nil
}

type mutantPlan struct {
	*Plan
	mutant mutant
}

func (p mutantPlan) Prepare() (backend.Prepared, error) {
	pr, err := p.Plan.Prepare()
	if err == nil && p.mutant.prepared != nil {
		p.mutant.prepared(pr.(*prepared))
	}
	return pr, err
}

func planned(change func(*Plan)) func(backend.Backend) backend.Backend {
	return func(b backend.Backend) backend.Backend { return mutant{Backend: b, plan: change} }
}

func prepares(change func(*prepared)) func(backend.Backend) backend.Backend {
	return func(b backend.Backend) backend.Backend { return mutant{Backend: b, prepared: change} }
}

func unhandled(rights uint64) func(backend.Backend) backend.Backend {
	return planned(func(p *Plan) { unhandle(p, rights) })
}

// unhandle drops rights from the plan, and from its rules, which may not hold
// what is not handled.
func unhandle(p *Plan, rights uint64) {
	p.HandledFS &^= rights
	for i := range p.Rules {
		p.Rules[i].Rights &^= rights
	}
}

type environmentMutant struct{ backend.Backend }

func withEnvironment(b backend.Backend) backend.Backend { return environmentMutant{b} }

func (m environmentMutant) Plan(p policy.Policy) (backend.Plan, error) {
	spec := p.Spec()
	spec.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "=") }), spec.Env...)
	wider, err := policy.New(spec)
	if err != nil {
		return nil, err
	}
	return m.Backend.Plan(wider)
}

// TestMutation takes the confinement away, piece by piece, and wants the suite
// to notice: a suite that stays green proves nothing.
func TestMutation(t *testing.T) {
	if !*mutationFlag {
		t.Skip("takes a while: run with -mutation")
	}
	b := usable(t)
	errnos, skip := dialectOf(b.Facts())
	control := backendtest.Outside(t)
	for _, name := range slices.Sorted(maps.Keys(mutations())) {
		m := mutations()[name]
		t.Run(name, func(t *testing.T) {
			target := backendtest.Target{Backend: m.of(b), Errno: errnos, Skip: skip, Control: control}
			m.check(t, b, backendtest.Evaluate(t, target, policy.WorkspaceWrite))
		})
	}
}

func (m mutation) check(t *testing.T, b *Backend, verdicts []backendtest.Verdict) {
	t.Helper()
	redEffects, redRows := map[policy.Effect]int{}, map[string]bool{}
	for _, v := range verdicts {
		switch {
		case v.Failure != "":
			redEffects[v.Row.Effect]++
			redRows[v.Row.Name] = true
		case m.all && v.Denies() && v.Skip == "":
			t.Errorf("with %s, row %q stays green", m.what, v.Row.Name)
		}
	}
	for _, e := range m.red {
		if redEffects[e] == 0 && governs(b, e) {
			t.Errorf("with %s, no row of %s fails", m.what, e)
		}
	}
	for _, name := range m.rows {
		if !redRows[name] {
			t.Errorf("with %s, row %q does not fail", m.what, name)
		}
	}
	t.Logf("with %s, %d rows fail: %s", m.what, len(redRows), strings.Join(slices.Sorted(maps.Keys(redRows)), ", "))
}

// governs tells whether this kernel enforces the effect at all: what it does
// not govern cannot be taken away.
func governs(b *Backend, e policy.Effect) bool {
	return b.Probe().Effects[e].Status != backend.Unenforced
}
