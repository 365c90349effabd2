package confine

import (
	"errors"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// maxABI is the newest Landlock ABI whose rights are known here.
const maxABI = 11

// tsyncABI is the first that restricts all threads at once.
const tsyncABI = 8

// erratumThreads is bit 2 of the mask of fixed errata: threads of one process may
// signal each other although they are in different domains
// (https://docs.kernel.org/userspace-api/landlock.html, "Landlock errata").
const erratumThreads = 1 << 1

// handledAt is everything that a kernel of the ABI can govern.
func handledAt(abi, errata int) sys.RulesetAttr {
	var a sys.RulesetAttr
	for _, l := range []struct {
		abi            int
		fs, net, scope uint64
	}{
		{1, 1<<13 - 1, 0, 0},
		{2, ll.AccessFSRefer, 0, 0},
		{3, ll.AccessFSTruncate, 0, 0},
		{4, 0, ll.AccessNetBindTCP | ll.AccessNetConnectTCP, 0},
		{5, ll.AccessFSIoctlDev, 0, 0},
		{6, 0, 0, ll.ScopeAbstractUnixSocket | ll.ScopeSignal},
		{9, ll.AccessFSResolveUnix, 0, 0},
		{10, 0, ll.AccessNetBindUDP | ll.AccessNetConnectSendUDP, 0},
	} {
		if l.abi <= abi {
			a.HandledFS |= l.fs
			a.HandledNet |= l.net
			a.Scoped |= l.scope
		}
	}
	// Below ABI 8 each thread has a domain of its own. Go's runtime preempts a
	// goroutine by a signal to its thread, and does not look whether it went out:
	// scoped, it would wait for ever. The filter keeps signals within the process.
	if abi < tsyncABI && errata&erratumThreads == 0 {
		a.Scoped &^= ll.ScopeSignal
	}
	return a
}

// attrSize is the size of struct landlock_ruleset_attr that a kernel of the ABI knows.
func attrSize(abi int) int {
	switch {
	case abi >= 10:
		return 48
	case abi >= 6:
		return 24
	case abi >= 4:
		return 16
	}
	return 8
}

// storeRights are what a database needs of its directory: no execution, and no
// sockets, devices, pipes or symbolic links.
const storeRights = ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSTruncate |
	ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSRemoveFile | ll.AccessFSRemoveDir | ll.AccessFSRefer

// probe asks for the kernel's ABI, 0 if there is none, and which errata are fixed.
func probe(limit int) (abi, errata int, why string) {
	if limit < 0 {
		return 0, 0, "Landlock is not to be used"
	}
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0, 0, fmt.Sprintf("this kernel offers no Landlock: %v", err)
	}
	if limit == 0 || limit > maxABI {
		limit = maxABI
	}
	// Fails on kernels that cannot tell (before 6.15): none is known to be fixed.
	errata, err = ll.LandlockGetErrata()
	if err != nil {
		errata = 0
	}
	return min(abi, limit), errata, ""
}

// makeRuleset returns the descriptor of a ruleset that handles everything and grants
// the store, if there is one.
func makeRuleset(abi, errata int, store *os.File) (int, error) {
	attr := handledAt(abi, errata)
	fd, err := sys.CreateRuleset(attr, attrSize(abi))
	if err != nil || store == nil {
		return fd, err
	}
	rule := ll.PathBeneathAttr{AllowedAccess: storeRights & attr.HandledFS, ParentFd: int(store.Fd())}
	if err := ll.LandlockAddPathBeneathRule(fd, &rule, 0); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("granting %q: %w", store.Name(), err)
	}
	return fd, nil
}

// restrictAll is replaced by tests, which confine too few threads.
var restrictAll = sys.RestrictAll

// landlock confines all threads, or records that it cannot.
func (c *confinement) landlock() error {
	if c.abi == 0 {
		return nil // a gap since the preparation
	}
	defer unix.Close(c.ruleset)
	err := restrictAll(c.ruleset, c.abi >= tsyncABI)
	switch {
	case errors.Is(err, sys.ErrForeignThreads):
		c.gap(GapFiles, fmt.Sprintf("Landlock ABI %d restricts one thread at a time (8 does all): %v", c.abi, err))
		return nil
	case errors.Is(err, unix.E2BIG):
		c.gap(GapFiles, "16 Landlock domains are stacked already, the kernel's limit")
		return nil
	case err != nil:
		return err
	}
	l := &c.posture.Landlock
	l.ABI, l.Threads = c.abi, "each"
	if c.abi >= tsyncABI {
		l.Threads = "shared"
	}
	l.Signals = handledAt(c.abi, c.errata).Scoped&ll.ScopeSignal != 0
	return c.tryAll("landlock", filesOnly)
}
