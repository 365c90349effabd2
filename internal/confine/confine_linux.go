package confine

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
	"sandboxd/internal/sys"
)

// confinement is the work of [Self], from step to step.
type confinement struct {
	o       Options
	posture Posture

	abi, errata int
	store       *os.File // a handle (O_PATH)
	ruleset     int
	filter      []sys.SockFilter
	variant     seccomp.Variant
	bounding    bool // the bounding set must come out empty
	sets        bool // and the other sets of capabilities
	tasks       int  // /proc/self/task
	statuses    map[int]int
}

// omitted, set by tests only, leaves steps out, to see that it is noticed.
var omitted func(step string) bool

// done keeps Self from running twice: the filter would refuse the steps.
var done atomic.Bool

// Self confines this process, all of its threads, and reads back what it can. After
// an error the process must exit: it may be confined in part. What the system cannot
// do is a gap in the posture, with [Options.Require] an error. [Self] runs once.
func Self(o Options) (Posture, error) {
	if done.Swap(true) {
		return Posture{}, errors.New("confining the front: it is confined already")
	}
	// The calls for one thread and those for all are made on the same.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &confinement{o: o, ruleset: -1, tasks: -1, statuses: map[int]int{}}
	c.posture.PID, c.posture.Store, c.posture.Dumpable = os.Getpid(), o.Store, true
	c.bounding, c.sets = sys.HaveCapability(unix.CAP_SETPCAP), true
	defer c.close()
	for _, s := range []struct {
		name string
		do   func() error
	}{
		// Nothing of these is possible any more later on.
		{"preparation", c.prepare},
		{"place", c.place},
		{"limits", c.limits},
		// The bounding set needs CAP_SETPCAP, the change of user CAP_SETUID, and both
		// clear or keep capabilities by rules of their own: so they come before the end
		// of all capabilities.
		{"bounding", c.dropBounding},
		{"user", c.becomeUser},
		{"capabilities", c.dropCapabilities},
		// A condition of Landlock and of the filter without CAP_SYS_ADMIN.
		{"no_new_privs", c.noNewPrivs},
		// The change of user sets it anew.
		{"undumpable", c.undumpable},
		// Landlock will refuse to open them.
		{"statuses", c.openStatuses},
		{"landlock", c.landlock},
		// Last, as it refuses most of the steps above.
		{"filter", c.install},
		{"read-back", c.readBack},
		{"store", c.tryStore},
	} {
		if omitted != nil && omitted(s.name) {
			continue
		}
		if err := s.do(); err != nil {
			return c.posture, fmt.Errorf("confining the front: %s: %w", s.name, err)
		}
	}
	if gaps := c.posture.Gaps; o.Require && len(gaps) > 0 {
		var all []string
		for _, g := range gaps {
			all = append(all, g.What+": "+g.Why)
		}
		return c.posture, fmt.Errorf("confining the front: required, but %s", strings.Join(all, "; "))
	}
	return c.posture, nil
}

func (c *confinement) gap(what, why string) {
	c.posture.Gaps = append(c.posture.Gaps, Gap{What: what, Why: why})
}

// close leaves nothing open of what Self needed.
func (c *confinement) close() {
	if c.store != nil {
		_ = c.store.Close()
	}
	if c.tasks >= 0 {
		_ = unix.Close(c.tasks)
	}
	for _, fd := range c.statuses {
		_ = unix.Close(fd)
	}
}

// prepare makes what needs files or rights that will be gone.
func (c *confinement) prepare() error {
	if u := c.o.User; u != nil && (u.UID <= 0 || u.GID <= 0) {
		return fmt.Errorf("user %d and group %d are not somebody else than root", u.UID, u.GID)
	}
	if c.o.User == nil && (os.Getuid() == 0 || os.Geteuid() == 0) {
		c.gap(GapRoot, "the front stays root: no other user was named")
	}
	// Before anything is opened here.
	if err := c.listDescriptors(); err != nil {
		return err
	}
	if err := c.openStore(); err != nil {
		return err
	}
	var why string
	c.abi, c.errata, why = probe(c.o.MaxABI)
	if c.abi == 0 {
		c.gap(GapFiles, why)
	} else {
		fd, err := makeRuleset(c.abi, c.errata, c.store)
		if err != nil {
			return err
		}
		c.ruleset = fd
	}
	c.variant = seccomp.Variant{Front: seccomp.FrontBare}
	if c.store != nil {
		c.variant.Front = seccomp.FrontStore
	}
	prog, err := seccomp.Load(runtime.GOARCH, c.variant)
	if err != nil {
		c.gap(GapCalls, err.Error())
		return nil
	}
	for _, in := range seccomp.Pin(runtime.GOARCH, prog, os.Getpid()) {
		c.filter = append(c.filter, sys.SockFilter(in))
	}
	return nil
}

func (c *confinement) openStore() error {
	if c.o.Store == "" {
		return nil
	}
	if !filepath.IsAbs(c.o.Store) || filepath.Clean(c.o.Store) == "/" {
		return fmt.Errorf("the store %q is not an absolute path below /", c.o.Store)
	}
	store, err := sys.OpenReal(c.o.Store)
	if err != nil {
		return err
	}
	c.store = store
	if info, err := store.Stat(); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("the store %q is not a directory", c.o.Store)
	}
	return nil
}

// listDescriptors records what is open. What nobody named is a gap: no rule of
// Landlock and no filter takes an open file away.
func (c *confinement) listDescriptors() error {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing descriptors: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return fmt.Errorf("listing descriptors: %w", err)
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // that of the listing itself
		}
		if err != nil {
			return fmt.Errorf("listing descriptors: %w", err)
		}
		c.posture.Descriptors = append(c.posture.Descriptors, Descriptor{FD: fd, Target: target})
		if fd > 2 && !slices.Contains(c.o.Keep, fd) && !runtimes(fd, target) {
			c.gap(GapDescriptor, fmt.Sprintf("descriptor %d is open: %s", fd, target))
		}
	}
	return nil
}

// runtimes tells whether Go's runtime opened the descriptor: the netpoller's, and the
// control group's limit of processor time, which it reads from time to time.
func runtimes(fd int, target string) bool {
	switch target {
	case "anon_inode:[eventpoll]", "anon_inode:[eventfd]":
		return true
	}
	switch filepath.Base(target) {
	case "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us":
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		return err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY
	}
	return false
}

// place leaves no directory in use, and makes files private.
func (c *confinement) place() error {
	unix.Umask(0o077)
	return unix.Chdir("/")
}

// limits are lowered. RLIMIT_NPROC is left alone: it counts the threads of all
// processes of a user, and Go dies if it cannot make one; the filter makes threads
// of this process all that can be made.
func (c *confinement) limits() error {
	if err := setLimit("RLIMIT_CORE", unix.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if c.o.Files > 0 {
		if err := setLimit("RLIMIT_NOFILE", unix.RLIMIT_NOFILE, c.o.Files); err != nil {
			return err
		}
	}
	if c.o.FileSize > 0 {
		signal.Ignore(unix.SIGXFSZ)
		return setLimit("RLIMIT_FSIZE", unix.RLIMIT_FSIZE, c.o.FileSize)
	}
	return nil
}

// setLimit sets both halves, and never raises the hard one.
func setLimit(name string, resource int, value uint64) error {
	var now unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &now); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	value = min(value, now.Max)
	if err := unix.Prlimit(0, resource, &unix.Rlimit{Cur: value, Max: value}, nil); err != nil {
		return fmt.Errorf("%s of %d: %w", name, value, err)
	}
	return nil
}

func (c *confinement) dropBounding() error {
	if !c.bounding {
		return nil // without CAP_SETPCAP it stays, and with no_new_privs means nothing
	}
	err := sys.DropBoundingSetAll()
	if errors.Is(err, sys.ErrForeignThreads) {
		c.bounding = false
		return nil
	}
	return err
}

// becomeUser is package syscall's, which makes each call on all threads, with cgo too.
func (c *confinement) becomeUser() error {
	u := c.o.User
	if u == nil {
		return nil
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leaving the supplementary groups: %w", err)
	}
	if err := syscall.Setresgid(u.GID, u.GID, u.GID); err != nil {
		return fmt.Errorf("becoming group %d: %w", u.GID, err)
	}
	if err := syscall.Setresuid(u.UID, u.UID, u.UID); err != nil {
		return fmt.Errorf("becoming user %d: %w", u.UID, err)
	}
	return nil
}

func (c *confinement) dropCapabilities() error {
	err := sys.DropCapabilitiesAll()
	if errors.Is(err, sys.ErrForeignThreads) {
		// A thread that changed from root to another user has none left
		// (capabilities(7)); what is read back decides, and is a gap.
		c.sets = false
		return nil
	}
	return err
}

func (c *confinement) noNewPrivs() error {
	err := sys.SetNoNewPrivsAll()
	if errors.Is(err, sys.ErrForeignThreads) {
		return sys.SetNoNewPrivs() // the filter takes it to the other threads
	}
	return err
}

func (c *confinement) undumpable() error {
	if err := sys.SetUndumpable(); err != nil {
		return err
	}
	got, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	c.posture.Dumpable = got != 0
	if err != nil || got != 0 {
		return fmt.Errorf("dumpable reads back as %d (%v)", got, err)
	}
	return nil
}

// installAll is replaced by tests, which confine too few threads.
var installAll = sys.InstallFilterAll

// install puts the filter on all threads, or records that it cannot.
func (c *confinement) install() error {
	if c.filter == nil {
		return nil // a gap since the preparation
	}
	err := installAll(c.filter)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		c.gap(GapCalls, fmt.Sprintf("this kernel has no seccomp filters: %v", err))
		return nil
	}
	if err != nil {
		return err
	}
	c.posture.Filter = Filter{Name: c.variant.String(), Instructions: len(c.filter)}
	return c.tryAll("filter", everything)
}
