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
	"sandboxd/internal/hold"
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
	if create := p.policy.Spec().Create; len(create) > 0 {
		if err := p.user.makeDirs(create); err != nil {
			return nil, &backend.SetupError{Step: "cache", Err: err, Hint: "use --cache private to keep caches in the worker's own temporary directory"}
		}
	}
	return pr, nil
}

// Discard lets go of what a plan holds that is not prepared.
func (p *Plan) Discard() error {
	if groups := p.groups.Swap(nil); groups != nil {
		return groups.Close()
	}
	return nil
}

// filterWith is the filter of one launch, which lets its thread start the worker
// in a cgroup. Where nobody judges the worker's calls it keeps the worker from
// changing how the launcher's threads are scheduled; newBerth has seen to it that
// hardly one is made later.
func (pr *prepared) filterWith(token sys.Token) []sys.SockFilter {
	arch := pr.plan.Facts.Arch
	var prologue []seccomp.Insn
	if !pr.plan.Supervise {
		prologue = seccomp.Spare(arch, nil, launch.OwnTasks())
	}
	prologue = seccomp.Admit(arch, prologue, token)
	return append(sockFilter(prologue, len(pr.filter)), pr.filter...)
}

func sockFilter(insns []seccomp.Insn, room int) []sys.SockFilter {
	f := make([]sys.SockFilter, len(insns), len(insns)+room)
	for i, in := range insns {
		f[i] = sys.SockFilter{Code: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return f
}

// makeDirs makes directories as the user: what root made through the links of a
// user would be where that user may make none, and root's.
func (u *User) makeDirs(dirs []string) (err error) {
	make := func() {
		for _, dir := range dirs {
			if err = os.MkdirAll(dir, 0o700); err != nil {
				return
			}
		}
	}
	if u == nil {
		make()
		return err
	}
	if uerr := sys.AsUser(u.UID, u.GID, u.Groups, make); uerr != nil {
		return uerr
	}
	return err
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

// take takes a slot. One for a berth that is made ahead is looked at when that is
// used, and not now as well.
func (pr *prepared) take(ahead bool) *slot {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	for n := len(pr.idle); n > 0; n-- {
		s := pr.idle[n-1]
		pr.idle = pr.idle[:n-1]
		if ahead || !pr.plan.recheck || s.stands(pr.plan) {
			return s
		}
		pr.retiring.Go(func() { _ = s.discard() })
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
	way     *way         // of the worker's to the network; nil: it has none
	held    *hold.Set    // what is protected; nil for nothing
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
	places := pr.plan.takePlaces()
	b, err := pr.berthFor(extra)
	if err != nil {
		return nil, errors.Join(err, places.drop())
	}
	start := b.thread.Start
	if pr.plan.Tree != nil {
		start = func(r launch.Request) (*launch.Process, error) { return pr.startStaged(b, places, r) }
	}
	proc, err := start(launch.Request{
		Bounds: b.bounds, Path: cmd.Path, Argv: cmd.Argv, Env: slices.Concat(pr.env, b.slot.env, b.way.env()), Dir: cmd.Dir,
		Stdio: stdio, Files: cmd.Files, Terminal: cmd.Terminal, OwnTree: cmd.OwnTree, Scoped: pr.plan.endsByScope(), Quota: b.slot.quota(pr.plan.policy.Limits()), Begin: cmd.Begin,
		// The same rules once more, so that what is the worker's is within what is
		// this thread's, and the worker does not reach it.
		Domain: &sys.Domain{Ruleset: b.slot.ruleset, Flags: pr.plan.RestrictFlags},
	})
	if err != nil {
		b.thread = nil // it is gone
		return nil, errors.Join(err, b.discard())
	}
	w := &worker{pr: pr, berth: b, proc: proc, ownTree: cmd.OwnTree, given: given}
	w.ahead = pr.launched()
	return w, nil
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
			b := <-next
			if b != nil && (!pr.plan.recheck || b.slot.stands(pr.plan)) {
				return b, nil
			}
			if b != nil { // and so are all others that were made ahead
				pr.retiring.Go(func() { _ = b.discard() })
				return pr.berthFor(extra)
			}
		}
	}
	return pr.newBerth(extra, false)
}

// aheadAfter is how long a worker runs before berths are made beside it. Most end
// earlier, and would wait for a processor that makes them.
const aheadAfter = 20 * time.Millisecond

// launched counts a launch. From the second one on the next one's berth is made
// ahead, once this one's worker has ended or has run for a while: building a domain
// and a filter costs the kernel about half of a process start. The timer is nil if
// nothing is.
func (pr *prepared) launched() *time.Timer {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.launches++; pr.launches < 2 {
		return nil
	}
	return time.AfterFunc(aheadAfter, pr.makeAhead)
}

// makeAhead makes berths for the next workers.
func (pr *prepared) makeAhead() {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.closed {
		return
	}
	for len(pr.ahead) < aheadBerths {
		next := make(chan *berth, 1)
		pr.ahead = append(pr.ahead, next)
		go func() {
			b, err := pr.newBerth(nil, true)
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
func (pr *prepared) newBerth(extra []fdRule, ahead bool) (_ *berth, err error) {
	b := &berth{denials: newDenialLog(pr.plan.policy)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.discard())
		}
	}()
	if len(extra) == 0 {
		b.slot = pr.take(ahead)
	}
	if b.slot == nil {
		if b.slot, err = newSlot(pr.plan); err != nil {
			return nil, err
		}
	}
	// A limit on temporary directories begins anew with each worker.
	// And a ruleset with rules for what was one worker's only is no other's.
	b.slot.shared = len(extra) == 0 && pr.plan.Tree == nil && pr.plan.policy.Limits().Disk == 0
	supervised := make(chan error, 1)
	if pr.plan.Supervise {
		go func() { supervised <- pr.makeSupervisor(b) }()
	} else {
		supervised <- nil
		<-sys.SpareThreads(0) // see filterWith
	}
	err = pr.bind(b)
	// 4: the ruleset.
	if err == nil && b.slot.ruleset < 0 {
		err = b.slot.makeRuleset(pr.plan, extra)
	}
	var threadErr error
	if pr.plan.Tree != nil { // it is the stage that is confined
		b.thread, threadErr = launch.NewThread()
	} else {
		b.thread, threadErr = pr.plan.warm.take(pr.plan.user, pr.plan.watch && !b.bounds.Grouped())
	}
	if err = errors.Join(err, <-supervised, threadErr); err != nil {
		return nil, err
	}
	if pr.plan.Tree != nil {
		b.way, err = newWay(pr.plan.policy, b.denials)
		return b, err
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
		if pr.plan.scopesSignals() {
			b.sup.Scope(b.thread.Reach)
		}
		b.sup.Attach(listener)
	}
	return b, nil
}

// warmThread is a launch thread that was made before its policy was known.
type warmThread struct {
	mu      sync.Mutex
	ch      chan warmed
	groups  func() *cgroup.Host
	watched bool // whether launches get a watchdog
}

// takeGroups returns what was found out of cgroups, or finds out.
func (w *warmThread) takeGroups() *cgroup.Host {
	w.mu.Lock()
	known := w.groups
	w.groups = nil
	w.mu.Unlock()
	if known != nil {
		return known()
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
// gives what the caller finds out of cgroups, to the first plan. If watch is set,
// and [Backend.Watches], the workers' trees are ended even if this process is killed.
func (b *Backend) Prewarm(groups func() *cgroup.Host, watch bool) {
	if b.facts.Namespaces { // it is a process that will be confined, made at the launch
		b.warm.mu.Lock()
		b.warm.groups = groups
		b.warm.mu.Unlock()
		if b.facts.Notify {
			supervise.Prepare()
		}
		return
	}
	ch := make(chan warmed, 1)
	watched := watch && b.Watches()
	b.warm.mu.Lock()
	b.warm.ch, b.warm.groups, b.warm.watched = ch, groups, watched
	b.warm.mu.Unlock()
	if b.facts.Notify {
		supervise.Prepare()
	}
	go func() {
		t, err := newThread(b.user, watched)
		ch <- warmed{t, err}
	}()
}

// Watches tells whether a worker's tree is ended even if this process is killed: by a
// watchdog, for which Landlock has to scope signals; or by the first process of its PID
// namespace, which ends once this process is gone.
func (b *Backend) Watches() bool { return b.facts.ABI >= 6 || b.facts.Namespaces }

// Discard lets go of what [Backend.Prewarm] made, if no launch has taken it.
func (b *Backend) Discard() {
	b.warm.mu.Lock()
	ch := b.warm.ch
	b.warm.ch = nil
	b.warm.mu.Unlock()
	if ch == nil {
		return
	}
	if got := <-ch; got.err == nil {
		got.thread.Close()
	}
}

// take returns the prewarmed thread, or a new one.
func (w *warmThread) take(u *User, watch bool) (*launch.Thread, error) {
	if w == nil { // a plan that was compiled without a backend
		return newThread(u, watch)
	}
	w.mu.Lock()
	ch, watched := w.ch, w.watched
	w.ch = nil
	w.mu.Unlock()
	if ch == nil {
		return newThread(u, watched || watch)
	}
	got := <-ch
	return got.thread, got.err
}

// newThread makes a launch thread and drops its privileges.
func newThread(u *User, watched bool) (*launch.Thread, error) {
	return launch.NewThreadDoing(func(t *launch.Thread) error {
		if err := launch.Become((*launch.User)(u)); err != nil || !watched { // 7 and 8
			return err
		}
		// 8a: a watchdog, in a domain of its own around the worker's.
		t.Watch(scopeSignals)
		return nil
	})
}

// discard frees a berth that served no launch.
func (b *berth) discard() error {
	if b.thread != nil {
		b.thread.Close()
	}
	b.stopSupervisor()
	err := b.way.close()
	if b.unbind != nil {
		err = errors.Join(err, b.unbind())
	}
	_, lerr := b.leavePlaces()
	err = errors.Join(err, lerr)
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

// confine follows launch.Become: from its first call on this thread is confined. It
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
	ahead   *time.Timer // makes berths for the next workers; nil: nothing does
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
		OwnPIDs:       pr.plan.Tree != nil,
		OwnNet:        pr.plan.Tree != nil && pr.plan.policy.Net() != policy.NetHost,
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
	unproxied := w.way.close()
	r := backend.Result{Outcome: outcome, Survivors: survivors, Enforcement: w.enforcement(survivors), Descriptors: w.given}
	if w.held != nil {
		gaps, denyGaps := w.held.Gaps, w.held.DenyGaps
		changed, err := w.leavePlaces()
		r.Enforcement = w.pr.plan.outcomeOfPlaces(r.Enforcement, gaps, denyGaps, changed)
		if err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("removing placeholders: %v", err))
		}
	}
	r.Denials, r.DenialsLost = w.denials.list()
	r.Usage, r.Warnings = w.proc.Usage(), append(w.proc.Warnings(), r.Warnings...)
	if unproxied != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("ending the proxy: %v", unproxied))
	}
	if w.slot.exposed {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the private temporary directory lay in the granted tree of %q, where other workers reach it", w.slot.base))
	}
	grouped := w.bounds.Grouped() // before it is given up
	w.pr.retiring.Go(func() {
		if !asked {
			w.stopSupervisor()
		}
		_ = w.unbind() // its cgroup is empty, and in the lease if it stays
	})
	// A temp that a survivor may still hold must not become another worker's.
	var err error
	// Both are waited for to the last process: one that was only sent a SIGKILL could
	// still make a file in what is the next worker's by then.
	ended := w.ownTree || w.pr.plan.recheck && grouped
	if ended && len(survivors) == 0 && w.slot.shared {
		err = w.pr.giveBack(w.slot)
	} else {
		err = w.slot.discard()
	}
	if err != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("removing the private directories: %v", err))
	}
	if w.ahead != nil && w.ahead.Stop() {
		w.pr.makeAhead()
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
	granted  []inode // what its rules are bound to, in the plan's order
	base     string  // where its directories are
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
	if p.Filter.Shm || p.Tree != nil { // which has a place for it
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
		at := s.temp
		if p.Tree != nil {
			at = string(p.Tree.TempAt)
		}
		s.env = append(s.env, v.Name+"="+filepath.Join(at, v.Sub))
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
	l.noteLocked(denialOf(ev))
}

// note keeps a denial.
func (l *denialLog) note(d backend.Denial) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLocked(d)
}

func (l *denialLog) noteLocked(d backend.Denial) {
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
	case supervise.KindSchedule:
		return []policy.Effect{policy.ProcSee}
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
	case policy.ProcSee:
		d.Rule = "only the worker's own processes may be scheduled by it"
	default:
		d.Rule = "no network is granted"
	}
	if ev.PID != 0 {
		d.Process = &backend.Process{PID: ev.PID, Exe: policy.Raw(ev.Exe)}
	}
	return d
}
