package landlock

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strconv"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/sys"
	"sandboxd/policy"
)

// rightsTerminal lets a program reopen the terminal that it was handed.
const rightsTerminal = ll.AccessFSIoctlDev

// makeRuleset builds the kernel object: each granted path is opened once, by a
// name that must hold no symbolic link, and the rule is bound to that handle.
// Opening them is half of what a launch costs, so it is done in two halves side
// by side; the order of rules means nothing to the kernel.
func (s *slot) makeRuleset(p *Plan, extra []fdRule) (err error) {
	defer func() {
		if err != nil {
			err = &backend.SetupError{Step: "ruleset", Err: err, Hint: rulesetHint(err)}
		}
	}()
	fd, err := sys.CreateRuleset(sys.RulesetAttr{HandledFS: p.HandledFS, HandledNet: p.HandledNet, Scoped: p.Scoped}, p.AttrSize)
	if err != nil {
		return err
	}
	s.ruleset = fd
	half := len(p.Rules) / 2
	s.granted = make([]inode, len(p.Rules))
	others := make(chan error, 1)
	go func() { others <- addPaths(fd, p.Rules[half:], s.granted[half:]) }()
	err = addPaths(fd, p.Rules[:half], s.granted[:half])
	if err := cmp.Or(err, <-others); err != nil {
		return err
	}
	own := policy.Grant{Kind: policy.Tree, Access: policy.Read | policy.Write | policy.Exec}
	if p.policy.Spec().ExecOnly {
		own.Access &^= policy.Exec // or what is copied there could be run
	}
	if err := addRule(fd, int(s.tempFile.Fd()), rightsOf(own)&p.HandledFS); err != nil {
		return fmt.Errorf("granting the private temp: %w", err)
	}
	runtime.KeepAlive(s.tempFile)
	for _, r := range extra {
		if err := addDescriptor(fd, r, p.HandledFS); err != nil {
			return err
		}
	}
	return nil
}

// makesFiles tells whether the worker may make files beneath the rule.
func (r Rule) makesFiles() bool {
	return r.Kind == policy.Tree && r.Rights&ll.AccessFSMakeReg != 0
}

// inode is what a rule is bound to. The kernel keeps it as long as the ruleset is
// there (landlock_object), so that no other gets its number.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{uint64(st.Dev), st.Ino} }

// stands tells whether each granted path leads to what the ruleset grants. By which
// way does not matter: it is the same file, and the policy names what it grants.
func (s *slot) stands(p *Plan) bool {
	for i, r := range p.Rules {
		var st unix.Stat_t
		if unix.Lstat(string(r.Path), &st) != nil || inodeOf(&st) != s.granted[i] {
			return false
		}
	}
	return true
}

// addPaths notes in granted what each rule is bound to.
func addPaths(ruleset int, rules []Rule, granted []inode) (err error) {
	for i, r := range rules {
		if granted[i], err = addPath(ruleset, r); err != nil {
			return err
		}
	}
	return nil
}

func addPath(ruleset int, r Rule) (inode, error) {
	handle, err := sys.OpenRealFD(string(r.Path))
	if err != nil {
		return inode{}, fmt.Errorf("granting a path: %w", err)
	}
	defer unix.Close(handle)
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return inode{}, fmt.Errorf("granting %q: %w", r.Path, err)
	}
	if isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; isDir != (r.Kind == policy.Tree) {
		return inode{}, fmt.Errorf("granting %q: it is no longer a %s", r.Path, r.Kind)
	}
	if err := addRule(ruleset, handle, r.Rights); err != nil {
		return inode{}, fmt.Errorf("granting %q: %w", r.Path, err)
	}
	return inodeOf(&st), nil
}

// addDescriptor grants the file behind an open descriptor. Pipes and sockets
// are not files that Landlock governs (EBADFD) and need no rule.
func addDescriptor(ruleset int, r fdRule, handledFS uint64) error {
	handle, err := unix.Open("/proc/self/fd/"+strconv.Itoa(r.fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("granting descriptor %d: %w", r.fd, err)
	}
	defer unix.Close(handle)
	err = addRule(ruleset, handle, r.rights&handledFS&rightsFile)
	if err != nil && !errors.Is(err, unix.EBADFD) {
		return fmt.Errorf("granting descriptor %d: %w", r.fd, err)
	}
	return nil
}

func addRule(ruleset, handle int, rights uint64) error {
	if rights == 0 {
		return nil // an empty rule is ENOMSG
	}
	attr := ll.PathBeneathAttr{AllowedAccess: rights, ParentFd: handle}
	return ll.LandlockAddPathBeneathRule(ruleset, &attr, 0)
}

// fdRights are the rights that a descriptor already gives. A handle (O_PATH)
// gives none, nor does access mode 3, which is for ioctl alone (open(2)).
func fdRights(fd int) uint64 {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_PATH != 0 {
		return 0
	}
	switch flags & unix.O_ACCMODE {
	case unix.O_RDONLY:
		return ll.AccessFSReadFile
	case unix.O_WRONLY:
		return ll.AccessFSWriteFile | ll.AccessFSTruncate
	case unix.O_RDWR:
		return ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
	}
	return 0
}

// scopeSignals puts the calling thread in a domain that keeps it from signalling what
// is not in it, and from nothing else.
func scopeSignals() error {
	// Any domain refuses to link or move a file to another directory
	// (landlock(7), LANDLOCK_ACCESS_FS_REFER), unless a rule grants it.
	attr := sys.RulesetAttr{HandledFS: ll.AccessFSRefer, Scoped: ll.ScopeSignal}
	ruleset, err := sys.CreateRuleset(attr, attrSize(6)) // with the member that ABI 6 has added
	if err != nil {
		return err
	}
	defer unix.Close(ruleset)
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the root directory: %w", err)
	}
	defer unix.Close(root)
	if err := addRule(ruleset, root, ll.AccessFSRefer); err != nil {
		return fmt.Errorf("granting the root directory: %w", err)
	}
	if err := ll.LandlockRestrictSelf(ruleset, 0); err != nil {
		return fmt.Errorf("restricting the thread: %w", err)
	}
	return nil
}

// restrict confines the calling thread.
func (s *slot) restrict(flags uint32) error {
	err := ll.LandlockRestrictSelf(s.ruleset, flags)
	switch {
	case errors.Is(err, unix.E2BIG):
		return &backend.SetupError{
			Step: "landlock", Err: fmt.Errorf("16 Landlock domains are stacked already, the kernel's limit: %w", err),
			Hint: "start it outside of the sandboxes around this process",
		}
	case err != nil:
		return fmt.Errorf("restricting the thread: %w", err)
	}
	return nil
}
