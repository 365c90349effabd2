package landlock

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"sandboxd/backend"
	"sandboxd/dialect"
	"sandboxd/internal/cgroup"
	"sandboxd/internal/quota"
	"sandboxd/policy"
)

// Name is this backend's word in --backend and in reports.
const Name = "landlock"

const fixNoLandlock = "boot a kernel of 5.13 or later that is built with CONFIG_SECURITY_LANDLOCK=y and has landlock in its lsm= list"

// Backend launches workers under Landlock and seccomp.
type Backend struct {
	facts  Facts
	reason string
	fix    string
	// tempBase is where private temporary directories are made.
	tempBase string
	// user is whom workers run as, when that is not the caller.
	user     *User
	watch    bool
	recheck  bool
	unusable *namespaceFault
	// warm is shared by the plans of this backend.
	warm *warmThread
}

// User is whom a worker runs as.
type User struct {
	UID, GID int
	Groups   []int
}

// Options configure a Backend.
type Options struct {
	// TempBase is the directory in which workers' private temporary
	// directories are made; empty means the system's.
	TempBase string
	// User is whom workers run as; nil means the caller. Only root may name
	// another.
	User *User
	// Watch has each worker's tree ended even if this process is killed, where no
	// cgroup is made for it whose end a guard (package guard) can see to: by a watchdog,
	// a process for each worker, which costs a fork of this one. Without one where it
	// is needed the result warns: Landlock scopes signals from ABI 6.
	Watch bool
	// Recheck has every granted path looked up again before each launch, for those who
	// share what is prepared between launches that are far apart. Where a path leads to
	// another file or directory by then, its rules are made anew; the policy is not.
	Recheck bool
	// Namespaces gives each worker namespaces of its own, with a tree of files in which
	// there is only what it is granted: the backend's name is [NativeName] then.
	Namespaces bool
	// Try makes such namespaces once, to see whether that can be done here. Without it
	// what the system says of itself is believed, and a launch tells what is wrong.
	Try bool
	// Facts overrides the probe of the host, for tests.
	Facts *Facts
}

// New probes the host and returns the backend.
func New(o Options) *Backend {
	b := &Backend{tempBase: o.TempBase, user: o.User, watch: o.Watch, recheck: o.Recheck, warm: new(warmThread)}
	if o.Facts != nil {
		b.facts = *o.Facts
	} else {
		b.facts, b.reason, b.fix = probe()
		b.facts.UserLimit = os.Getuid() > 0 // -1 on a system that has none
	}
	b.facts.Namespaces = b.facts.Namespaces || o.Namespaces
	if b.facts.Namespaces && b.facts.RootLinks == nil {
		b.facts.RootLinks = rootLinks()
	}
	if o.Namespaces {
		b.withNamespaces(o.Try)
	}
	if b.facts.Arch == "" {
		b.facts.Arch = runtime.GOARCH
	}
	return b
}

// Name is "landlock", or "native" with namespaces.
func (b *Backend) Name() string {
	if b.facts.Namespaces {
		return NativeName
	}
	return Name
}

// Rechecks tells whether prepared plans look at what they grant before each launch.
func (b *Backend) Rechecks() bool { return b.recheck }

// Begins tells that a launch's Begin is called: see backend.Beginner.
func (b *Backend) Begins() bool { return true }

// Facts are what the probe found.
func (b *Backend) Facts() Facts { return b.facts }

// Replan returns a backend whose plans avoid the cause of a failed start, where
// there is one: a listener that another filter of this tree holds already. Where this
// system turns out to refuse namespaces altogether it is one that says so of itself.
func (b *Backend) Replan(err error) (backend.Backend, bool) {
	var se *backend.SetupError
	if !errors.As(err, &se) {
		return nil, false
	}
	if b.facts.Notify && errors.Is(err, syscall.EBUSY) && (se.Step == "seccomp" || b.facts.Namespaces && filterFailed(err)) {
		return b.WithoutNotify("this process already runs under a seccomp notification listener, and the kernel allows one"), true
	}
	if fault := b.refuted(se); fault != nil {
		c := *b
		c.unusable = fault
		return &c, true
	}
	return nil, false
}

// WithoutNotify returns a copy that plans without a notification listener, for
// a host where installing one turned out to be impossible.
func (b *Backend) WithoutNotify(reason string) *Backend {
	c := *b
	c.facts.Notify, c.facts.NotifyReason = false, reason
	return &c
}

// Probe tells what this host can do.
func (b *Backend) Probe() backend.Capability {
	c := backend.Capability{Backend: b.Name(), Usable: b.facts.ABI >= 1, Reason: b.reason, Fix: b.fix, Facts: b.facts, Dialect: ownDialect()}
	if b.facts.Namespaces {
		c.Dialect = nativeDialect()
	}
	if c.Usable && b.unusable != nil {
		c.Usable, c.Reason, c.Fix = false, b.unusable.reason, b.unusable.fix
	}
	if !c.Usable {
		return c
	}
	c.DenialsCover = []string{"execution of the command itself (inferred)"}
	if b.facts.Notify {
		c.DenialsCover = append(c.DenialsCover, "calls that the supervisor answered: unix sockets, shared memory (observed)")
	}
	return c
}

// The dialects are one each for all reports, of which there may be many.
var (
	ownDialect = sync.OnceValue(func() *dialect.Dialect {
		d := dialect.Landlock()
		return &d
	})
	nativeDialect = sync.OnceValue(func() *dialect.Dialect {
		d := dialect.Native()
		return &d
	})
)

// Plan compiles a policy for this host.
func (b *Backend) Plan(p policy.Policy) (backend.Plan, error) {
	facts := b.facts
	groups := b.warm.takeGroups()
	facts.Groups = groups
	if p.Limits().Disk > 0 {
		disk := quota.Probe()
		facts.Disk = &disk
	}
	plan, err := Compile(p, facts)
	if err != nil {
		return nil, errors.Join(err, groups.Close())
	}
	plan.tempBase, plan.user, plan.watch, plan.recheck, plan.warm = b.tempBase, b.user, b.watch, b.recheck, b.warm
	// The first that is prepared gets the handles; a plan may never be.
	plan.groups.Store(groups)
	runtime.AddCleanup(plan, func(h *cgroup.Host) { _ = h.Close() }, groups)
	return plan, nil
}
