package landlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/internal/sys"
)

// A namespaceFault is why a worker can have no namespaces here, and what helps.
type namespaceFault struct{ reason, fix string }

// namespacesForbidden looks at what this system says of itself. What it does not say
// only a try tells: see tryNamespaces.
func namespacesForbidden(root string, user bool) *namespaceFault {
	knob := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, "proc/sys", name))
		if err != nil {
			return "" // this kernel does not have it
		}
		return strings.TrimSpace(string(text))
	}
	if knob("user/max_mnt_namespaces") == "0" || knob("user/max_pid_namespaces") == "0" {
		return &namespaceFault{"mount or PID namespaces are switched off (user.max_mnt_namespaces or user.max_pid_namespaces is 0)",
			"sysctl user.max_mnt_namespaces=10000 user.max_pid_namespaces=10000"}
	}
	switch {
	case !user:
		return nil
	case knob("kernel/unprivileged_userns_clone") == "0": // Debian's
		return &namespaceFault{"user namespaces are for root only (kernel.unprivileged_userns_clone is 0)", "sysctl kernel.unprivileged_userns_clone=1"}
	case knob("user/max_user_namespaces") == "0":
		return &namespaceFault{"user namespaces are switched off (user.max_user_namespaces is 0)", "sysctl user.max_user_namespaces=10000"}
	case knob("kernel/apparmor_restrict_unprivileged_userns") == "1" && !ownProfile(root):
		return &namespaceFault{"AppArmor takes all rights in a new user namespace from programs without a profile (kernel.apparmor_restrict_unprivileged_userns is 1)",
			"give this program an AppArmor profile that has `userns,`, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"}
	}
	return nil
}

// ownProfile tells whether AppArmor has a profile for this process: apparmor(7).
func ownProfile(root string) bool {
	for _, file := range []string{"proc/self/attr/apparmor/current", "proc/self/attr/current"} {
		if text, err := os.ReadFile(filepath.Join(root, file)); err == nil {
			return !strings.HasPrefix(string(text), "unconfined")
		}
	}
	return false
}

// The steps of the programs that make namespaces; see [sys.Program.Step].
const (
	stepUserNS  = "the user namespace"
	stepPrivate = "mounts that nobody else takes part in"
	stepProc    = "proc"
	stepRoot    = "another root"
	stepTried   = "all of it"
)

// tryNamespaces makes the namespaces of a worker, and mounts in them, and starts
// nothing. It takes about as long as a launch.
func tryNamespaces() error {
	st := &sys.Stage{Namespaces: unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET}
	p := new(sys.Program)
	if uid := os.Geteuid(); uid != 0 {
		st.Namespaces |= unix.CLONE_NEWUSER
		p.Step(stepUserNS)
		p.MapUser(uid, os.Getegid())
	}
	p.Step(stepPrivate)
	p.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	p.Step("tmpfs")
	p.Restrain(p.NewMount("tmpfs"), unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID)
	p.Step(stepProc)
	p.NewMount("proc")
	p.Step(stepRoot)
	p.Mount("sbx", os.TempDir(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=4k")
	root := p.Open(sys.AtCwd, os.TempDir(), unix.O_PATH|unix.O_DIRECTORY)
	p.Pivot(root)
	p.Close(root)
	st.Init, st.Idle = p, new(sys.Program)
	st.Enter = new(sys.Program)
	st.Enter.Step(stepTried)
	st.Enter.Fail()
	done := make(chan error, 1)
	sys.OnOwnThread(func() {
		_, _, err := (&sys.Child{Path: "/", Argv: []string{""}, Cgroup: -1, Stage: st}).Start()
		done <- err
	})
	err := <-done
	var at *sys.ProgramError
	if errors.As(err, &at) && at.Step == stepTried {
		return nil
	}
	if err == nil {
		err = errors.New("nothing was tried")
	}
	return err
}

// namespaceHint says what helps against a failure to make namespaces.
func namespaceHint(err error) string {
	if f := namespacesForbidden("/", os.Geteuid() != 0); f != nil {
		return f.fix
	}
	var at *sys.ProgramError
	if !errors.As(err, &at) {
		return ""
	}
	switch {
	case strings.HasPrefix(at.Step, stepProc+" ") || at.Step == stepProc:
		// mount_too_revealing: a new /proc would show what is masked in this one.
		return "unmask /proc in the container around this process (docker run --security-opt systempaths=unconfined), or use --backend landlock"
	case at.Step == stepRoot && at.Errno == unix.EINVAL:
		return "mount a file system and switch_root(8) to it, for the kernel's first one cannot be exchanged (pivot_root(2)); or use --backend landlock"
	case at.Errno == unix.ENOSPC || at.Errno == unix.EUSERS:
		return "raise the limits of namespaces: sysctl user.max_user_namespaces user.max_net_namespaces (user_namespaces(7))"
	case at.Errno == unix.ENOSYS:
		return "boot Linux 5.12 or later, which has mount_setattr, or use --backend landlock"
	case at.Errno == unix.EPERM || at.Errno == unix.EACCES:
		return "allow namespaces and mounts to this process: a container's seccomp or AppArmor profile may refuse them, or use --backend landlock"
	case at.Errno == unix.ESTALE:
		return "a granted path changed since it was resolved; run again"
	}
	return ""
}

// withNamespaces adds to a probe what workers with namespaces need.
func (b *Backend) withNamespaces(try bool) {
	if b.facts.ABI == 0 {
		return // its reason stands
	}
	fault := namespacesForbidden("/", os.Geteuid() != 0)
	// Who is in a sandbox or a container already may most often make none.
	if fault == nil && (try || sys.FilterActive() || onFirstRoot()) {
		fault = triedNamespaces()
	}
	if fault != nil {
		b.unusable = fault
	}
}

func triedNamespaces() *namespaceFault {
	if err := tryNamespaces(); err != nil {
		return &namespaceFault{fmt.Sprintf("namespaces cannot be made: %v", err), namespaceHint(err)}
	}
	return nil
}

// onFirstRoot tells whether "/" may be the file system that the kernel starts with,
// which pivot_root(2) does not exchange. It is one in memory.
func onFirstRoot() bool {
	var at unix.Statfs_t
	return unix.Statfs("/", &at) == nil && (at.Type == unix.RAMFS_MAGIC || at.Type == unix.TMPFS_MAGIC)
}

// refuted tells whether a start failed for what this system refuses to every worker,
// and not for what was asked for: it tries again without that.
func (b *Backend) refuted(se *backend.SetupError) *namespaceFault {
	if !b.facts.Namespaces || se.Step != "namespaces" {
		return nil
	}
	return triedNamespaces()
}

// explainNamespaces adds what helps to an error of a launch.
func explainNamespaces(err error) error {
	var se *backend.SetupError
	if errors.As(err, &se) && se.Step == "namespaces" && se.Hint == "" {
		se.Hint = namespaceHint(se.Err)
	}
	return err
}
