package launch

import (
	"fmt"

	"sandboxd/backend"
	"sandboxd/internal/quota"
	"sandboxd/policy"
)

const (
	gapMeasured = "measured, not held: what is written between two looks is there, and what is deleted and still open, or cannot be listed, is not seen"
	gapInMemory = "what the private temporary directories hold is memory, and counts for --memory"
)

// diskState says what a host holds of the limit on temporary directories.
func diskState(l policy.Limits, host *quota.Host) backend.State {
	var h quota.Host
	if host != nil {
		h = *host
	}
	lacks := h.Lacks(l.Disk, l.Memory)
	switch {
	case lacks == "" && l.Memory > 0:
		return backend.State{Status: backend.Enforced, By: []string{"tmpfs"}, Gaps: []string{gapInMemory}}
	case lacks == "":
		return backend.State{Status: backend.Enforced, By: []string{"tmpfs"}}
	case h.Measures:
		return backend.State{Status: backend.Partial, By: []string{"watcher"}, Gaps: []string{gapMeasured, "no file system holds it: " + lacks}}
	}
	return backend.State{Status: backend.Unenforced, Gaps: []string{lacks}}
}

// Quota is the limit on what a worker's private temporary directories hold.
type Quota struct {
	// Limits are the worker's: of them Disk and Grace.
	Limits policy.Limits
	// Dir is what the worker knows as TMPDIR.
	Dir string
	// Meter looks at the directories. It is the caller's, and must work until
	// Wait has returned.
	Meter quota.Meter
}

// describe is the subject of what is told of the directories.
func (q *Quota) describe() string {
	return fmt.Sprintf("the private temporary directory %q (%s limit)", q.Dir, sizeText(q.Limits.Disk))
}

// over is why a worker was ended.
func (q *Quota) over(l quota.Look) string {
	if l.Bytes <= q.Limits.Disk {
		return fmt.Sprintf("%s is full: it held %d files and directories, and may have %d", q.describe(), l.Files, quota.MaxFiles(q.Limits.Disk))
	}
	return fmt.Sprintf("%s is full: it held %d bytes; give it more with --disk", q.describe(), l.Bytes)
}

// warnings are sentences about what was seen, but for the end of the worker.
func (q *Quota) warnings(seen quota.Seen, ended bool) (list []string) {
	switch {
	case ended:
	case seen.Full:
		list = append(list, fmt.Sprintf("%s is full: what does not fit fails with \"No space left on device\"; give it more with --disk", q.describe()))
	case seen.Last.Over(q.Limits.Disk):
		list = append(list, q.over(seen.Last)+"; the command had ended before it was seen")
	}
	if seen.Cut {
		list = append(list, q.describe()+" could not be looked at as a whole: it may have held more than is known")
	}
	return list
}

// sizeText is a number of bytes in the largest unit that has it whole.
func sizeText(n int64) string {
	unit := 0
	for ; n >= 1024 && n%1024 == 0 && unit < 4; unit++ {
		n /= 1024
	}
	return fmt.Sprintf("%d%s", n, []string{" bytes", "K", "M", "G", "T"}[unit])
}
