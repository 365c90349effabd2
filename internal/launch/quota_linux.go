package launch

import (
	"time"

	"sandboxd/backend"
	"sandboxd/internal/quota"
)

// quotaWatch is a quota and who looks after it.
type quotaWatch struct {
	*Quota
	watch *quota.Watch
	over  quota.Look // why the worker was ended, if it was
}

// watchQuota makes the watch of a quota, which begins when the worker runs.
func (p *Process) watchQuota(q *Quota) {
	if q == nil {
		return
	}
	w := &quotaWatch{Quota: q}
	w.watch = quota.NewWatch(q.Meter, q.Limits.Disk, func(l quota.Look) {
		grace := q.Limits.Grace
		if l.Far(q.Limits.Disk) { // it is not going to be asked
			grace = 0
		}
		if p.stopBy(byQuota, grace) {
			w.over = l
		}
	})
	p.quota = w
}

// beginQuota lets the watch begin.
func (p *Process) beginQuota() {
	if p.quota != nil {
		p.quota.watch.Begin()
	}
}

// dropQuota ends the watch of a worker that never ran.
func (p *Process) dropQuota() {
	if p.quota != nil {
		p.quota.watch.End()
		p.quota = nil
	}
}

// endQuota says what came of the quota. Whatever a worker that was asked to end
// for it did, it had too much.
func (p *Process) endQuota(o *backend.Outcome) {
	if p.quota == nil {
		return
	}
	seen := p.quota.watch.End()
	p.total.PeakTemp = &seen.Peak
	p.mu.Lock()
	ended := p.cause == byQuota && (o.Kind == backend.Exited || o.Kind == backend.Signaled)
	p.mu.Unlock()
	if ended {
		*o = backend.Outcome{Kind: backend.LimitHit, Which: "disk", Reason: p.quota.Quota.over(p.quota.over)}
		p.warnings = append(p.warnings, o.Reason)
	}
	p.warnings = append(p.warnings, p.quota.warnings(seen, ended)...)
}

// Who ended a worker: the first one counts.
const (
	byCaller = "caller"
	byQuota  = "quota"
)

func (p *Process) stopBy(cause string, grace time.Duration) (alive bool) {
	alive = p.stop(grace)
	p.mu.Lock()
	defer p.mu.Unlock()
	if alive && p.cause == "" {
		p.cause = cause
	}
	return alive
}
