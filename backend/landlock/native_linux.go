package landlock

import (
	"errors"
	"fmt"
	"os"
	"slices"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/launch"
	"sandboxd/internal/rootfs"
	"sandboxd/internal/sys"
	"sandboxd/policy"
)

// staged is what gives one worker its namespaces, with what was made for it.
type staged struct {
	*sys.Stage
	alive    *os.File // that of the launch
	listener sys.Ref
	diag     sys.Ref
	ours     *os.File // the first process' end of alive
}

// makeStage makes the calls of a launch with namespaces of its own. They are those of
// docs/launch-order.md, in another process: where a thread was confined before it
// forked, it is the stage that is, after the tree was put together.
func (pr *prepared) makeStage(b *berth, dir, terminal *os.File) (*staged, error) {
	st := &staged{Stage: new(sys.Stage)}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	st.ours, st.alive = r, w
	if err := st.programs(pr, b, dir, terminal); err != nil {
		return nil, errors.Join(err, st.discard())
	}
	return st, nil
}

// stepFilter is the stage's last step.
const stepFilter = "seccomp"

// filterFailed tells whether a stage could not have its filter.
func filterFailed(err error) bool {
	var at *sys.ProgramError
	return errors.As(err, &at) && at.Step == stepFilter
}

func (st *staged) discard() error {
	_ = st.ours.Close()
	return st.alive.Close()
}

// begun lets go of what was needed until the worker started.
func (st *staged) begun() {
	_ = st.ours.Close()
}

func (st *staged) programs(pr *prepared, b *berth, dir, terminal *os.File) error {
	p := pr.plan
	uid, gid := p.user.ids()
	userNS := os.Geteuid() != 0
	st.Namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if p.policy.Net() != policy.NetHost {
		st.Namespaces |= unix.CLONE_NEWNET
	}
	if userNS {
		st.Namespaces |= unix.CLONE_NEWUSER
	}
	inodes := map[string]inode{}
	for i, r := range p.Rules {
		inodes[string(r.Path)] = b.slot.granted[i]
	}
	tree := *p.Tree
	if terminal != nil {
		// proc_pid_fd(5); a name that is none leads to no terminal.
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", terminal.Fd())); err == nil {
			tree = tree.WithTerminal(name)
		}
	}
	st.Init = tree.Program(rootfs.Host{
		Guarded: b.held.Places,
		Root:    b.slot.temp, Temp: b.slot.temp, Shm: b.slot.shm, UserNS: userNS, UID: uid, GID: gid,
		Inode:   func(path string) (dev, ino uint64, ok bool) { i, ok := inodes[path]; return i.dev, i.ino, ok },
		Ruleset: b.slot.ruleset, Rule: p.rightsIn,
	})
	st.Idle = rootfs.Idle(int(st.ours.Fd()), b.held.Places, idleCaps(userNS)...)

	e := new(sys.Program)
	if p.policy.Net() != policy.NetHost {
		e.Step("bringing up the loopback device")
		e.LoopbackUp(p.policy.Net() != policy.NetNone)
	}
	b.way.enter(e)
	if p.Supervise && p.policy.Net() != policy.NetHost {
		e.Step("asking for sockets")
		st.diag = e.AskSockets()
	}
	// 13: the directory is what the policy says, and the same as was looked at; or an
	// empty one in its place, where nothing of it is granted.
	e.Step("the working directory %q", p.policy.Cwd())
	var at unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &at); err != nil {
		return fmt.Errorf("the working directory: %w", err)
	}
	cwd := e.Open(sys.AtCwd, p.policy.Cwd(), unix.O_PATH|unix.O_DIRECTORY)
	if tree.Shows(p.policy.Cwd()) {
		e.Same(cwd, at.Dev, at.Ino)
	}
	e.Chdir(cwd)
	e.Close(cwd)
	// 7 and 8.
	e.Step("giving up privileges")
	bounding := userNS || sys.HaveCapability(unix.CAP_SETPCAP)
	if bounding {
		e.DropBounding()
	}
	if p.user != nil {
		e.Become(uid, gid, p.user.Groups)
	}
	e.DropCapabilities(false)
	e.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1)
	// 9 and 10, with the canary.
	e.Step("reading the canary")
	e.Close(e.Open(sys.AtCwd, rootfs.Canary, unix.O_RDONLY)) // so that it is the domain that refuses it
	e.Step("landlock")
	e.Restrict(sys.Domain{Ruleset: b.slot.ruleset, Flags: p.RestrictFlags})
	e.Step("landlock: the domain was accepted, but %q can still be read", rootfs.Canary)
	e.Refused(rootfs.Canary)
	e.Step(stepFilter)
	st.listener = e.Filter(pr.filterWith(b.thread.Token()), p.Supervise)
	st.Enter = e
	return errors.Join(st.Init.Err(), st.Idle.Err(), e.Err())
}

// rightsIn are those to what is the worker's own and not the host's.
func (p *Plan) rightsIn(e rootfs.Entry) (rights uint64) {
	switch e.Kind {
	case rootfs.Dir: // what stands in it is there by the policy's word
		if e.Path == "/" && p.readsTrees() {
			rights = ll.AccessFSReadDir & p.HandledFS
		}
	case rootfs.Proc, rootfs.Terminals:
		for _, g := range p.policy.Grants() {
			if g.Path == e.Path {
				rights |= rightsOf(g) & p.HandledFS
			}
		}
	case rootfs.Shm:
		rights = rightsOf(policy.Grant{Kind: policy.Tree, Access: policy.Read | policy.Write}) & p.HandledFS
	}
	return rights
}

// readsTrees tells whether each tree that is granted may be listed. Rights on the root
// count for all that is in it.
func (p *Plan) readsTrees() bool {
	return !slices.ContainsFunc(p.policy.Grants(), func(g policy.Grant) bool { return g.Kind == policy.Tree && !g.Access.Has(policy.Read) })
}

// startStaged is Start's last step for a plan with namespaces.
func (pr *prepared) startStaged(b *berth, places *taking, r launch.Request) (*launch.Process, error) {
	var terminal *os.File
	if r.Terminal {
		terminal = r.Stdio[0]
	}
	var st *staged
	err := places.into(b)
	if err == nil {
		st, err = pr.makeStage(b, r.Dir, terminal)
	}
	if err != nil {
		b.thread.Close()
		var known *backend.SetupError
		if !errors.As(err, &known) {
			err = &backend.SetupError{Step: "namespaces", Err: err}
		}
		return nil, err
	}
	r.Stage, r.Alive = st.Stage, st.alive
	proc, err := b.thread.Start(r)
	listener := st.Result(st.listener)
	if !pr.plan.Supervise {
		listener = -1
	}
	if werr := b.way.take(st.Stage, err == nil); err == nil && werr != nil {
		proc.Stop(0)
		_, _ = proc.Wait()
		err = &backend.SetupError{Step: "network", Err: werr}
	}
	diag := st.Result(st.diag)
	if err != nil {
		for _, fd := range []int{listener, diag} {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return nil, errors.Join(explainNamespaces(err), st.discard())
	}
	st.begun()
	if b.sup != nil {
		if diag >= 0 {
			b.sup.AskIn(diag)
		}
		b.sup.Attach(listener)
	}
	return proc, nil
}
