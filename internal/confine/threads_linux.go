package confine

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/internal/sys"
)

// Threads reads the status of every thread of a process from outside, as the monitor
// does with the front. A thread that ends meanwhile is left out. An error names what
// could not be read or understood; no process of that number is an error.
func Threads(pid int) ([]Thread, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading threads: %w", err)
	}
	var all []Thread
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name(), "status"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading threads: %w", err)
		}
		t, err := parseStatus(string(text))
		if err != nil {
			return nil, fmt.Errorf("thread %s: %w", e.Name(), err)
		}
		all = append(all, t)
	}
	return all, nil
}

// parseStatus reads the text of /proc/PID/task/TID/status (proc_pid_status(5)).
func parseStatus(text string) (Thread, error) {
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.TrimSpace(value)
	}
	var t Thread
	var errs []error
	number := func(name string, base int) uint64 {
		n, err := strconv.ParseUint(lines[name], base, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %s: %w", name, err))
		}
		return n
	}
	list := func(name string) []int {
		ids := []int{}
		for f := range strings.FieldsSeq(lines[name]) {
			n, err := strconv.Atoi(f)
			if err != nil {
				errs = append(errs, fmt.Errorf("line %s: %w", name, err))
			}
			ids = append(ids, n)
		}
		return ids
	}
	four := func(name string) (ids [4]int) {
		if copy(ids[:], list(name)) != 4 {
			errs = append(errs, fmt.Errorf("line %s: %q", name, lines[name]))
		}
		return ids
	}
	t.TID = int(number("Pid", 10))
	t.NoNewPrivs = number("NoNewPrivs", 10) == 1
	t.Seccomp = int(number("Seccomp", 10))
	if _, ok := lines["Seccomp_filters"]; ok {
		t.Filters = int(number("Seccomp_filters", 10))
	}
	t.UID, t.GID, t.Groups = four("Uid"), four("Gid"), list("Groups")
	t.CapInh, t.CapPrm, t.CapEff = number("CapInh", 16), number("CapPrm", 16), number("CapEff", 16)
	t.CapBnd, t.CapAmb = number("CapBnd", 16), number("CapAmb", 16)
	return t, errors.Join(errs...)
}

// openStatuses opens what is read at the end: Landlock will refuse to open it, but not
// to read it again, and each reading from the start is of the present.
func (c *confinement) openStatuses() error {
	dir, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening /proc/self/task: %w", err)
	}
	c.tasks = dir
	tids, err := c.listTasks()
	if err != nil {
		return err
	}
	for _, tid := range tids {
		fd, err := unix.Openat(dir, strconv.Itoa(tid)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // it has ended
		}
		if err != nil {
			return fmt.Errorf("opening the status of thread %d: %w", tid, err)
		}
		c.statuses[tid] = fd
	}
	return nil
}

// listTasks returns the threads of the process, by the directory that is open.
func (c *confinement) listTasks() (tids []int, err error) {
	if _, err := unix.Seek(c.tasks, 0, unix.SEEK_SET); err != nil {
		return nil, fmt.Errorf("listing threads: %w", err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := unix.ReadDirent(c.tasks, buf)
		if err != nil {
			return nil, fmt.Errorf("listing threads: %w", err)
		}
		if n == 0 {
			return tids, nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			tid, err := strconv.Atoi(name)
			if err != nil {
				return nil, fmt.Errorf("listing threads: %w", err)
			}
			tids = append(tids, tid)
		}
	}
}

// readBack reads every thread that it can and holds it to what was applied.
func (c *confinement) readBack() error {
	buf := make([]byte, 16<<10)
	for _, tid := range slices.Sorted(maps.Keys(c.statuses)) {
		n, err := unix.Pread(c.statuses[tid], buf, 0)
		if errors.Is(err, unix.ESRCH) || err == nil && n == 0 {
			continue // it has ended
		}
		if err != nil {
			return fmt.Errorf("reading the status of thread %d: %w", tid, err)
		}
		t, err := parseStatus(string(buf[:n]))
		if err != nil {
			return fmt.Errorf("the status of thread %d: %w", tid, err)
		}
		c.posture.Threads = append(c.posture.Threads, t)
	}
	tids, err := c.listTasks()
	if err != nil {
		return err
	}
	for _, tid := range tids {
		if _, read := c.statuses[tid]; !read {
			c.posture.Later = append(c.posture.Later, tid)
		}
	}
	return c.judge()
}

// judge holds the threads to what was applied to them.
func (c *confinement) judge() error {
	errs := []error{CheckThreads(c.posture.Threads, Expect{
		User: c.o.User, Filter: c.posture.Filter.Name != "", Bounding: c.bounding, Capabilities: c.sets,
	})}
	if !c.sets && slices.ContainsFunc(c.posture.Threads, Thread.capable) {
		c.gap(GapCapabilities, sys.ErrForeignThreads.Error())
	}
	if c.posture.Dumpable {
		errs = append(errs, errors.New("the process is dumpable"))
	}
	// What was not applied must have been said.
	if c.posture.Landlock.ABI == 0 && !c.said(GapFiles) {
		errs = append(errs, errors.New("no Landlock domain"))
	}
	if c.posture.Filter.Name == "" && !c.said(GapCalls) {
		errs = append(errs, errors.New("no filter"))
	}
	return errors.Join(errs...)
}

func (c *confinement) said(what string) bool {
	return slices.ContainsFunc(c.posture.Gaps, func(g Gap) bool { return g.What == what })
}
