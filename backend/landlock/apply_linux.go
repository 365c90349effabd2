package landlock

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/launch"
	"sandboxd/internal/quota"
	"sandboxd/internal/scratch"
	"sandboxd/internal/seccomp"
	"sandboxd/internal/supervise"
	"sandboxd/internal/sys"
	"sandboxd/policy"
)

// prepared launches workers under one plan. What launches can share (the
// filter, the ruleset with its private temp) is kept in slots and reused once
// a worker's tree is known to be gone.
type prepared struct {
	plan   *Plan
	filter []sys.SockFilter
	env    []string
	groups *cgroup.Host

	mu       sync.Mutex
	idle     []*slot
	ahead    []chan *berth
	launches int
	closed   bool
	grouped  int // berths whose cgroup needs the handles of groups
	retiring sync.WaitGroup
}

// Prepare loads the filter and makes the directories of the caches. Each launch
// makes or reuses its own ruleset; see docs/launch-order.md.
func (p *Plan) Prepare() (backend.Prepared, error) {
	insns, err := seccomp.Load(p.Facts.Arch, p.Filter)
	if err != nil {
		return nil, &backend.SetupError{Step: "filter", Err: err}
	}
	pr := &prepared{plan: p, filter: sockFilter(insns, 0), env: p.policy.Env()}
	if pr.groups = p.groups.Swap(nil); pr.groups == nil {
		groups := cgroup.Probe()
		pr.groups = &groups
	}
	for _, dir := range p.policy.Spec().Create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, &backend.SetupError{Step: "cache", Err: err, Hint: "use --cache private to keep caches in the worker's own temporary directory"}
		}
	}
	return pr, nil
}

// filterWith is the filter of one launch, which lets its thread start the worker
// in a cgroup.
func (pr *prepared) filterWith(token sys.Token) []sys.SockFilter {
	prologue := seccomp.Admit(pr.plan.Facts.Arch, nil, token)
	return append(sockFilter(prologue, len(pr.filter)), pr.filter...)
}

func sockFilter(insns []seccomp.Insn, room int) []sys.SockFilter {
	f := make([]sys.SockFilter, len(insns), len(insns)+room)
	for i, in := range insns {
		f[i] = sys.SockFilter{Code: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return f
}

func (pr *prepared) Close() error {
	pr.mu.Lock()
	idle, ahead := pr.idle, pr.ahead
	pr.idle, pr.ahead, pr.closed = nil, nil, true
	pr.mu.Unlock()
	var errs []error
	for _, next := range ahead {
		if b := <-next; b != nil {
			errs = append(errs, b.discard())
		}
	}
	for _, s := range idle {
		errs = append(errs, s.discard())
	}
	pr.retiring.Wait()
	return errors.Join(append(errs, pr.closeGroups())...)
}

// closeGroups closes the handles of the cgroups when the last that needs them is
// gone: a worker may outlive Close.
func (pr *prepared) closeGroups() error {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if !pr.closed || pr.grouped > 0 {
		return nil
	}
	return pr.groups.Close()
}

// bind makes a berth's cgroup.
func (pr *prepared) bind(b *berth) (err error) {
	pr.mu.Lock()
	pr.grouped++
	pr.mu.Unlock()
	b.unbind = sync.OnceValue(func() error {
		err := b.bounds.Discard()
		pr.mu.Lock()
		pr.grouped--
		pr.mu.Unlock()
		return errors.Join(err, pr.closeGroups())
	})
	b.bounds, err = launch.Bound(pr.plan.policy.Limits(), launch.Host{Groups: pr.groups, UserLimit: pr.plan.Facts.UserLimit}, pr.plan.user != nil)
	return err
}

func (pr *prepared) take() *slot {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if n := len(pr.idle); n > 0 {
		s := pr.idle[n-1]
		pr.idle = pr.idle[:n-1]
		return s
	}
	return nil
}

// giveBack keeps a slot whose worker left no process and no trace.
func (pr *prepared) giveBack(s *slot) error {
	if s.reset(pr.plan) {
		pr.mu.Lock()
		keep := !pr.closed
		if keep {
			pr.idle = append(pr.idle, s)
		}
		pr.mu.Unlock()
		if keep {
			return nil
		}
	}
	return s.discard()
}

// berth is a confined thread with all that its worker will own, ready for one
// launch.
type berth struct {
	thread  *launch.Thread
	slot    *slot
	denials *denialLog
	sup     *supervise.Supervisor
	bounds  *launch.Bounds
	unbind  func() error // ends them; nil before there are any
}

// Start launches one worker. The steps have the numbers of
// docs/launch-order.md; 5, 6 and 12 to 16 are in package launch.
func (pr *prepared) Start(cmd backend.Command) (backend.Worker, error) {
	stdio := [3]*os.File{cmd.Stdin, cmd.Stdout, cmd.Stderr}
	if u := pr.plan.user; u != nil && cmd.Terminal {
		// As grantpt(3) does for whom it is called, or the worker could not open
		// its terminal by name.
		if err := cmd.Stdin.Chown(u.UID, -1); err != nil {
			return nil, &backend.SetupError{Step: "terminal", Err: fmt.Errorf("giving the terminal to the worker's user: %w", err)}
		}
	}
	// 1: descriptors are named by the caller and must not smuggle.
	extra, err := stdioRules(stdio, pr.plan.policy.Net())
	if err != nil {
		return nil, err
	}
	given, err := launch.Descriptors(cmd.Files, cmd.UnsafeFiles)
	if err != nil {
		return nil, err
	}
	for i, f := range cmd.Files {
		extra = append(extra, ruleFor(int(f.File.Fd()), given[i].Kind)...)
	}
	b, err := pr.berthFor(extra)
	if err != nil {
		return nil, err
	}
	proc, err := b.thread.Start(launch.Request{
		Bounds: b.bounds, Path: cmd.Path, Argv: cmd.Argv, Env: append(slices.Clone(pr.env), b.slot.env...), Dir: cmd.Dir,
		Stdio: stdio, Files: cmd.Files, Terminal: cmd.Terminal, OwnTree: cmd.OwnTree, Scoped: pr.plan.endsByScope(), Quota: b.slot.quota(pr.plan.policy.Limits()),
	})
	if err != nil {
		b.thread = nil // it is gone
		return nil, errors.Join(err, b.discard())
	}
	pr.makeAhead()
	return &worker{pr: pr, berth: b, proc: proc, ownTree: cmd.OwnTree, given: given}, nil
}

// aheadBerths is how many berths are kept ready or in the making: two, so that
// the making of one has a whole launch's time and no launch waits for it.
const aheadBerths = 2

// berthFor takes a berth that was made ahead, or makes one.
func (pr *prepared) berthFor(extra []fdRule) (*berth, error) {
	if len(extra) == 0 {
		pr.mu.Lock()
		pending := len(pr.ahead) > 0
		var next chan *berth
		if pending {
			next, pr.ahead = pr.ahead[0], pr.ahead[1:]
		}
		pr.mu.Unlock()
		if pending {
			if b := <-next; b != nil {
				return b, nil
			}
		}
	}
	return pr.newBerth(extra)
}

// makeAhead makes berths for the next workers while the present one runs, from
// the second launch on: building a domain and a filter costs the kernel about
// half of a process start.
func (pr *prepared) makeAhead() {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.launches++
	if pr.launches < 2 || pr.closed {
		return
	}
	for len(pr.ahead) < aheadBerths {
		next := make(chan *berth, 1)
		pr.ahead = append(pr.ahead, next)
		go func() {
			b, err := pr.newBerth(nil)
			if err != nil {
				b = nil // the next launch tries again and tells why
			}
			next <- b
		}()
	}
}

// newBerth carries out steps 2 to 11. The thread, the ruleset and the
// supervisor's threads and handles need nothing of each other: they are made
// side by side.
func (pr *prepared) newBerth(extra []fdRule) (_ *berth, err error) {
	b := &berth{denials: newDenialLog(pr.plan.policy)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.discard())
		}
	}()
	if len(extra) == 0 {
		b.slot = pr.take()
	}
	if b.slot == nil {
		if b.slot, err = newSlot(pr.plan); err != nil {
			return nil, err
		}
	}
	// A limit on temporary directories begins anew with each worker.
	b.slot.shared = len(extra) == 0 && pr.plan.policy.Limits().Disk == 0
	supervised := make(chan error, 1)
	if pr.plan.Supervise {
		go func() { supervised <- pr.makeSupervisor(b) }()
	} else {
		supervised <- nil
	}
	err = pr.bind(b)
	// 4: the ruleset.
	if err == nil && b.slot.ruleset < 0 {
		err = b.slot.makeRuleset(pr.plan, extra)
	}
	var threadErr error
	b.thread, threadErr = pr.plan.warm.take(pr.plan.user)
	if err = errors.Join(err, <-supervised, threadErr); err != nil {
		return nil, err
	}
	listener := -1
	if err = b.thread.Do(func() (err error) {
		listener, err = pr.confine(b.slot, b.thread.Token())
		return err
	}); err != nil {
		if listener >= 0 {
			_ = unix.Close(listener)
		}
		return nil, err
	}
	// 11: the supervisor answers before the worker can ask.
	if b.sup != nil {
		b.sup.Attach(listener)
	}
	return b, nil
}

// warmThread is a launch thread that was made before its policy was known.
type warmThread struct {
	mu     sync.Mutex
	ch     chan warmed
	groups chan *cgroup.Host
}

// takeGroups returns what was found out of cgroups, or finds out.
func (w *warmThread) takeGroups() *cgroup.Host {
	w.mu.Lock()
	found := w.groups
	w.groups = nil
	w.mu.Unlock()
	if found != nil {
		return <-found
	}
	h := cgroup.Probe()
	return &h
}

type warmed struct {
	thread *launch.Thread
	err    error
}

// Prewarm makes the next launch's thread now, beside whatever the caller still
// has to do before the launch: steps 5 to 8 are the same for every policy. groups
// is what the caller has found out of cgroups, or nil: then that is done as well.
func (b *Backend) Prewarm(groups *cgroup.Host) {
	ch := make(chan warmed, 1)
	found := make(chan *cgroup.Host, 1)
	b.warm.mu.Lock()
	b.warm.ch, b.warm.groups = ch, found
	b.warm.mu.Unlock()
	if groups != nil {
		found <- groups
	} else {
		go func() {
			h := cgroup.Probe()
			found <- &h
		}()
	}
	if b.facts.Notify {
		supervise.Prepare()
	}
	go func() {
		t, err := newThread(b.user)
		ch <- warmed{t, err}
	}()
}

// take returns the prewarmed thread, or a new one.
func (w *warmThread) take(u *User) (*launch.Thread, error) {
	if w == nil { // a plan that was compiled without a backend
		return newThread(u)
	}
	w.mu.Lock()
	ch := w.ch
	w.ch = nil
	w.mu.Unlock()
	if ch == nil {
		return newThread(u)
	}
	got := <-ch
	return got.thread, got.err
}

// newThread makes a launch thread and drops its privileges.
func newThread(u *User) (*launch.Thread, error) {
	t, err := launch.NewThread()
	if err != nil {
		return nil, err
	}
	if err := t.Do(func() error { return dropPrivileges(u) }); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// discard frees a berth that served no launch.
func (b *berth) discard() error {
	if b.thread != nil {
		b.thread.Close()
	}
	b.stopSupervisor()
	var err error
	if b.unbind != nil {
		err = b.unbind()
	}
	if b.slot != nil {
		err = errors.Join(err, b.slot.discard())
	}
	return err
}

func (b *berth) stopSupervisor() {
	if b.sup != nil {
		_ = b.sup.Close()
	}
}

// rootDir is the canary: no plan grants listing "/" unless a grant names it.
var rootDir = []byte("/\x00")

// dropPrivileges is the first half of turning the locked thread into the
// worker's. Order is the security here and in confine; after editing run
// `make test-mutation` as root and as another user.
func dropPrivileges(u *User) error {
	// 7: identity and capabilities go first, while they may still be changed;
	// the bounding set before the uid, which takes CAP_SETPCAP along.
	if err := sys.DropBoundingSet(); err != nil {
		return &backend.SetupError{Step: "capabilities", Err: err}
	}
	if u != nil {
		if err := sys.SetIDs(u.UID, u.GID, u.Groups); err != nil {
			return &backend.SetupError{Step: "identity", Err: err}
		}
	}
	if err := sys.DropCapabilities(); err != nil {
		return &backend.SetupError{Step: "capabilities", Err: err}
	}
	// 8: no_new_privs: without it and without CAP_SYS_ADMIN neither Landlock
	// nor seccomp may be applied, and a set-user-ID program would regain what
	// step 7 gave up.
	if err := sys.SetNoNewPrivs(); err != nil {
		return &backend.SetupError{Step: "no_new_privs", Err: err}
	}
	return nil
}

// confine is the second half: from its first call on this thread is confined. It
// returns the listener, -1 if the plan has none.
func (pr *prepared) confine(s *slot, token sys.Token) (listener int, err error) {
	// 9: Landlock before seccomp, as the filter may refuse what this needs.
	if err := s.restrict(pr.plan.RestrictFlags); err != nil {
		var known *backend.SetupError
		if errors.As(err, &known) {
			return -1, known
		}
		return -1, &backend.SetupError{Step: "landlock", Err: err}
	}
	if !pr.plan.grantsRoot() && !sys.DeniesOpen(rootDir) {
		return -1, &backend.SetupError{Step: "landlock", Err: errors.New("the domain was accepted, but \"/\" can still be listed")}
	}
	// 10: seccomp last. The listener's descriptor is close-on-exec.
	listener, err = sys.InstallFilter(pr.filterWith(token), pr.plan.Supervise)
	if err != nil {
		return -1, &backend.SetupError{Step: "seccomp", Err: err}
	}
	if !sys.FilterActive() {
		return listener, &backend.SetupError{Step: "seccomp", Err: errors.New("the filter was accepted, but is not in force")}
	}
	return listener, nil
}

func (p *Plan) grantsRoot() bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Path == "/" })
}

// worker is one launched worker.
type worker struct {
	pr *prepared
	*berth
	proc    *launch.Process
	ownTree bool
	given   []backend.Descriptor
}

// makeSupervisor makes the berth's supervisor, which does not answer yet.
func (pr *prepared) makeSupervisor(b *berth) error {
	cfg := supervise.Config{
		Unix:          pr.plan.Filter.Unix == seccomp.UnixSupervised,
		Truncate:      pr.plan.Filter.Truncate,
		WritableRoots: b.slot.writable,
		Shm:           b.slot.shm,
		UID:           os.Geteuid(),
		GID:           os.Getegid(),
		DropCaps:      true,
		OnEvent:       b.denials.add,
	}
	if pr.plan.Filter.Net == seccomp.NetNone {
		// The worker cannot make such a socket, but may have been handed one.
		cfg.Inet = func(string, netip.AddrPort) syscall.Errno { return syscall.EACCES }
	}
	if u := pr.plan.user; u != nil {
		cfg.UID, cfg.GID, cfg.Groups = u.UID, u.GID, u.Groups
	} else if groups, err := os.Getgroups(); err == nil {
		cfg.Groups = groups
	}
	sup, err := supervise.New(cfg)
	if err != nil {
		return &backend.SetupError{Step: "supervisor", Err: err}
	}
	b.sup = sup
	return nil
}

func (w *worker) PID() int { return w.proc.PID() }

func (w *worker) Signal(sig os.Signal) error { return w.proc.Signal(sig) }

func (w *worker) Stop(grace time.Duration) bool { return w.proc.Stop(grace) }

func (w *worker) Wait() backend.Result {
	outcome, survivors := w.proc.Wait()
	// 17: nobody is left who could ask; then the private directories go. Only
	// a supervisor that was asked may still have something to tell.
	asked := w.sup != nil && w.sup.Stats().Calls > 0
	if asked = asked || w.slot.fs != nil; asked { // it holds a file system with its handles
		w.stopSupervisor()
	}
	r := backend.Result{Outcome: outcome, Survivors: survivors, Enforcement: w.enforcement(survivors), Descriptors: w.given}
	r.Denials, r.DenialsLost = w.denials.list()
	r.Usage, r.Warnings = w.proc.Usage(), w.proc.Warnings()
	if w.slot.exposed {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the private temporary directory lay in the granted tree of %q, where other workers reach it", w.slot.base))
	}
	w.pr.retiring.Go(func() {
		if !asked {
			w.stopSupervisor()
		}
		_ = w.unbind() // its cgroup is empty, and in the lease if it stays
	})
	// A temp that a survivor may still hold must not become another worker's.
	var err error
	if w.ownTree && len(survivors) == 0 && w.slot.shared {
		err = w.pr.giveBack(w.slot)
	} else {
		err = w.slot.discard()
	}
	if err != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("removing the private directories: %v", err))
	}
	return r
}

// enforcement is the plan's, corrected by what this launch turned out to be.
func (w *worker) enforcement(survivors []int) backend.Enforcement {
	e := w.pr.plan.Enforcement().WithDescriptors(w.given)
	if w.pr.plan.endsByScope() && !w.proc.Scoped() {
		e = e.With(policy.TreeKill, partial(gapTree, "subreaper"))
	}
	switch {
	case len(survivors) > 0:
		e = e.With(policy.TreeKill, unenforced(fmt.Sprintf("%d processes of the tree survived", len(survivors))))
	case !w.ownTree && e.State(policy.TreeKill).Status != backend.Enforced:
		e = e.With(policy.TreeKill, unenforced(gapTreeShared))
	}
	for effect, gap := range w.denials.gapsFound() {
		// The calls were refused, so that the effect holds; what did not work
		// for the worker is told.
		s := e.State(effect)
		s.Gaps = append(slices.Clone(s.Gaps), gap)
		e = e.With(effect, s)
	}
	return e
}

// stdioRules returns the rules that let a worker reopen what it was handed
// (/dev/stdout, /proc/self/fd/1): exactly the rights that the descriptor has.
// Without a network a socket of another family than AF_UNIX is refused: one
// that is not connected can send or listen, and one that is can be made so
// again (connect(2), AF_UNSPEC), past every rule on making sockets.
func stdioRules(stdio [3]*os.File, net policy.Net) ([]fdRule, error) {
	var rules []fdRule
	for i, f := range stdio {
		if f == nil {
			return nil, &backend.SetupError{Step: "descriptors", Err: fmt.Errorf("descriptor %d is not set", i)}
		}
		fd := int(f.Fd())
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, &backend.SetupError{Step: "descriptors", Err: fmt.Errorf("descriptor %d: %w", i, err),
				Hint: "a closed standard descriptor can be replaced: </dev/null >/dev/null 2>&1"}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFSOCK:
			domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
			if err == nil && domain == unix.AF_UNIX || net == policy.NetHost {
				continue
			}
			return nil, &backend.SetupError{Step: "descriptors", Err: fmt.Errorf("descriptor %d is a network socket, and the worker has no network", i),
				Hint: "give the worker a pipe instead, as in: cat | sbx run -- CMD | cat"}
		case unix.S_IFREG:
			rules = append(rules, ruleFor(fd, backend.DescriptorFile)...)
		case unix.S_IFCHR:
			if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
				rules = append(rules, ruleFor(fd, backend.DescriptorTerminal)...)
			}
		}
	}
	return rules, nil
}

func ruleFor(fd int, kind backend.DescriptorKind) []fdRule {
	switch kind {
	case backend.DescriptorFile:
		return []fdRule{{fd, fdRights(fd)}}
	case backend.DescriptorTerminal:
		return []fdRule{{fd, fdRights(fd) | rightsTerminal}}
	}
	return nil
}

type fdRule struct {
	fd     int
	rights uint64
}

// slot is what one worker at a time owns.
type slot struct {
	ruleset  int
	base     string // where its directories are
	temp     string
	tempFile *os.File
	shm      string
	env      []string
	writable []string
	shared   bool
	// Where temporary directories are limited: the file system that they are in,
	// or what they are measured with.
	fs   *quota.FS
	tree *quota.Tree
	// exposed tells that a grant covers the temp, so that other workers with
	// that grant reach it.
	exposed bool
}

// newSlot makes a slot that has no ruleset yet.
func newSlot(p *Plan) (s *slot, err error) {
	s = &slot{ruleset: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard())
		}
	}()
	// 2: the private temporary directory.
	if err := s.makeTemp(p); err != nil {
		return nil, &backend.SetupError{Step: "temp", Err: err, Hint: "set TMPDIR to a directory that you can write"}
	}
	// 3: the private stand-in for /dev/shm.
	if p.Filter.Shm {
		if err := s.makeShm(p.user); err != nil {
			return nil, &backend.SetupError{Step: "shm", Err: err}
		}
	}
	if p.enforcement.State(policy.LimitsDisk).Status == backend.Partial {
		if err := s.measure(p.policy.Limits().Disk); err != nil {
			return nil, &backend.SetupError{Step: "temp", Err: err}
		}
	}
	for _, r := range p.Rules {
		if r.makesFiles() {
			s.writable = append(s.writable, string(r.Path))
		}
	}
	s.writable = append(s.writable, s.temp)
	return s, nil
}

// rulesetHint says what helps against each way in which a ruleset fails.
func rulesetHint(err error) string {
	switch {
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		return "raise the limit on open files: ulimit -n"
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
		return "allow openat2 and the landlock calls in the seccomp profile around this process"
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR):
		return "a granted path changed since it was resolved; run again"
	}
	return ""
}

func (s *slot) makeTemp(p *Plan) error {
	s.base, s.exposed = tempBase(p.tempBase, p.policy)
	var err error
	if p.enforcement.State(policy.LimitsDisk).Status == backend.Enforced {
		err = s.mountTemp(p)
	} else {
		err = s.mkdirTemp(p)
	}
	if err != nil {
		return err
	}
	for _, v := range p.policy.Spec().TempEnv {
		s.env = append(s.env, v.Name+"="+filepath.Join(s.temp, v.Sub))
	}
	return s.makeSubs(p)
}

func (s *slot) mkdirTemp(p *Plan) (err error) {
	if s.temp, err = scratch.Mine().Mkdir(s.base); err != nil {
		return err
	}
	if s.tempFile, err = sys.OpenReal(s.temp); err != nil {
		return fmt.Errorf("opening the new directory: %w", err)
	}
	return chown(s.temp, p.user)
}

// mountTemp makes it in a file system of its own, by whose handle it is granted
// in step 4. It is not the root: beside it is room for what stands for /dev/shm,
// which counts with it and is not granted.
func (s *slot) mountTemp(p *Plan) (err error) {
	uid, gid := p.user.ids()
	if s.fs, err = quota.Mount(s.base, p.policy.Limits().Disk, uid, gid); err != nil {
		return err
	}
	s.temp, s.tempFile, err = s.fs.Mkdir("tmp", uid, gid)
	return err
}

// ids are the user's, or this process' own.
func (u *User) ids() (uid, gid int) {
	if u == nil {
		return os.Geteuid(), os.Getegid()
	}
	return u.UID, u.GID
}

func (s *slot) measure(size int64) (err error) {
	dirs := []string{s.temp}
	if s.shm != "" {
		dirs = append(dirs, s.shm)
	}
	s.tree, err = quota.Measure(size, dirs...)
	return err
}

// quota is what a launch needs to know of the limit on the directories.
func (s *slot) quota(l policy.Limits) *launch.Quota {
	q := &launch.Quota{Limits: l, Dir: s.temp}
	switch {
	case s.fs != nil:
		q.Meter = s.fs
	case s.tree != nil:
		q.Meter = s.tree
	default:
		return nil
	}
	return q
}

// makeSubs makes the directories that variables of the worker point to.
func (s *slot) makeSubs(p *Plan) error {
	for _, v := range p.policy.Spec().TempEnv {
		if v.Sub == "." {
			continue
		}
		dir := filepath.Join(s.temp, v.Sub)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for ; dir != s.temp; dir = filepath.Dir(dir) {
			if err := chown(dir, p.user); err != nil {
				return err
			}
		}
	}
	return nil
}

func chown(path string, u *User) error {
	if u == nil {
		return nil
	}
	return os.Lchown(path, u.UID, u.GID)
}

// tempBase is where the private temp is made: the directory asked for or that
// of TMPDIR, but rather /tmp or /var/tmp than a directory that a grant covers,
// for there other workers with that grant would reach it. A worker always has a
// temp, whatever its caller's variable says.
func tempBase(want string, p policy.Policy) (base string, shared bool) {
	usable := ""
	for _, dir := range []string{want, os.Getenv("TMPDIR"), "/tmp", "/var/tmp"} {
		if dir == "" || !filepath.IsAbs(dir) {
			continue
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || unix.Faccessat(unix.AT_FDCWD, real, unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
			continue
		}
		if !covered(p, real) {
			return real, false
		}
		if usable == "" {
			usable = real
		}
	}
	if usable == "" {
		return "/tmp", covered(p, "/tmp") // fails with the system's own words
	}
	return usable, true
}

func covered(p policy.Policy, dir string) bool {
	return slices.ContainsFunc(p.Grants(), func(g policy.Grant) bool { return g.Covers(dir) })
}

func (s *slot) makeShm(u *User) (err error) {
	if s.fs != nil {
		uid, gid := u.ids()
		dir, handle, err := s.fs.Mkdir(scratch.NewName(), uid, gid)
		if err == nil {
			s.shm = dir
			err = handle.Close()
		}
		return err
	}
	for _, base := range []string{"/dev/shm", s.base} {
		if s.shm, err = scratch.Mine().Mkdir(base); err == nil {
			return chown(s.shm, u)
		}
	}
	return err
}

// reset tells whether the slot is as it was made, and so may serve its next
// worker. Nothing is removed and made again: on a disk that would cost more
// than the launch, and whatever a worker left makes the slot unfit.
func (s *slot) reset(p *Plan) bool {
	children := map[string]int{s.temp: 0}
	for _, v := range p.policy.Spec().TempEnv {
		for dir := filepath.Join(s.temp, v.Sub); dir != s.temp; dir = filepath.Dir(dir) {
			if _, counted := children[dir]; counted {
				break
			}
			children[dir] = 0
		}
	}
	for dir := range children {
		if dir != s.temp {
			children[filepath.Dir(dir)]++
		}
	}
	for dir, n := range children {
		if !pristine(dir, n) {
			return false
		}
	}
	return s.shm == "" || pristine(s.shm, 0)
}

// pristine tells whether dir is as it was made: a directory of mode 0700 with
// so many entries (which are checked by themselves), without an ACL or another
// attribute that could open it to others.
func pristine(dir string, entries int) bool {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode != unix.S_IFDIR|0o700 {
		return false
	}
	if n, err := unix.Flistxattr(fd, nil); err == nil && n > 0 {
		return false
	}
	var buf [2048]byte
	n, err := unix.ReadDirent(fd, buf[:])
	if err != nil {
		return false
	}
	_, count, _ := unix.ParseDirent(buf[:n], -1, nil)
	return count == entries
}

// discard frees everything that the slot owns.
func (s *slot) discard() error {
	var errs []error
	if s.ruleset >= 0 {
		_ = unix.Close(s.ruleset)
		s.ruleset = -1
	}
	if s.tempFile != nil {
		_ = s.tempFile.Close()
	}
	if s.tree != nil {
		s.tree.Close()
	}
	if s.fs != nil { // both are in it
		errs = append(errs, s.fs.Remove())
		s.fs, s.temp, s.shm = nil, "", ""
	}
	for _, dir := range []string{s.temp, s.shm} {
		if dir != "" {
			errs = append(errs, scratch.Mine().Remove(dir))
		}
	}
	s.temp, s.shm = "", ""
	return errors.Join(errs...)
}

// denialLog keeps what the supervisor refused: deduplicated and bounded, for a
// worker may try for ever.
type denialLog struct {
	policy policy.Policy
	mu     sync.Mutex
	byKey  map[string]*backend.Denial
	order  []string
	lost   int
	gaps   map[policy.Effect]string
}

const maxDenials = 200

func newDenialLog(p policy.Policy) *denialLog {
	return &denialLog{policy: p, byKey: map[string]*backend.Denial{}, gaps: map[policy.Effect]string{}}
}

func (l *denialLog) add(ev supervise.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ev.Gap != "" {
		for _, e := range effectsOf(ev) {
			if l.gaps[e] == "" { // the first of each says enough
				l.gaps[e] = ev.Gap
			}
		}
		if ev.Errno == 0 {
			return
		}
	}
	d := denialOf(ev)
	key := d.Operation + "\x00" + string(d.Path) + "\x00" + d.Address + "\x00" + d.Errno
	if have := l.byKey[key]; have != nil {
		have.Count++
		return
	}
	if len(l.order) >= maxDenials {
		l.lost++
		return
	}
	l.byKey[key] = &d
	l.order = append(l.order, key)
}

func (l *denialLog) list() (all []backend.Denial, lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.order {
		all = append(all, *l.byKey[k])
	}
	return all, l.lost
}

// gapsFound are what could not be judged, by the effect that it concerns.
func (l *denialLog) gapsFound() map[policy.Effect]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.gaps)
}

// effectsOf says what an event is about.
func effectsOf(ev supervise.Event) []policy.Effect {
	switch ev.Kind {
	case supervise.KindUnixPath:
		if ev.Op == "bind" {
			return []policy.Effect{policy.FSWrite}
		}
		return []policy.Effect{policy.NetUnixPath}
	case supervise.KindUnixAbstract:
		return []policy.Effect{policy.NetUnixAbstract}
	case supervise.KindInet:
		if ev.Op == "bind" {
			return []policy.Effect{policy.NetTCPBind}
		}
		return []policy.Effect{policy.NetTCPConnect}
	case supervise.KindFile:
		if ev.Op == "truncate" {
			return []policy.Effect{policy.FSTruncate}
		}
		return []policy.Effect{policy.FSWrite}
	}
	return []policy.Effect{policy.NetOther}
}

func denialOf(ev supervise.Event) backend.Denial {
	d := backend.Denial{
		Effect: effectsOf(ev)[0], Operation: ev.Op, Path: policy.Raw(ev.Path), Address: policy.Printable(ev.Address),
		Errno: unix.ErrnoName(ev.Errno), Certainty: backend.Observed, Source: "seccomp-notify", Count: 1,
	}
	switch d.Effect {
	case policy.NetUnixPath, policy.NetUnixAbstract:
		d.Rule = "sockets that the worker did not bind itself are not granted"
	case policy.FSWrite, policy.FSTruncate:
		d.Rule = "no writable grant covers the path"
	default:
		d.Rule = "no network is granted"
	}
	if ev.PID != 0 {
		d.Process = &backend.Process{PID: ev.PID, Exe: policy.Raw(ev.Exe)}
	}
	return d
}
