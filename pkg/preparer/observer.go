package preparer

import (
	"context"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const saveWithin = time.Second

// observeAllEvery is how often pods are observed even if nothing is known to have changed.
const observeAllEvery = time.Minute

type observer struct {
	*kit
	localNews wait.Signal // raised when the reality of a local service's pod has changed
}

// run observes pods after each change, and when a reality changes only because time passes.
func (ob *observer) run(ctx context.Context) {
	wait.Each(ctx, ob.pods.seen, func() time.Duration {
		now := time.Now()
		return ob.observeDue(now).Sub(now)
	})
}

func (ob *observer) observeDue(now time.Time) (next time.Time) {
	next = now.Add(observeAllEvery)
	if !ob.allKnown() || !ob.agent.Asked() {
		return next
	}
	// tails has the realities that need the end of a log file, by its path. The files are read later, without the lock.
	tails := map[string]pod.Reality{}
	ob.pods.do(func() {
		for _, e := range ob.pods.all {
			if !e.observed || !now.Before(e.due) {
				e.observed, e.due = true, now.Add(observeAllEvery)
				if due := ob.observeOne(e, now, tails); due.After(now) && due.Before(e.due) {
					e.due = due
				}
			}
			if !e.saveBy.IsZero() && !now.Before(e.saveBy) {
				e.saveBy = time.Time{}
				ob.pods.enqueue(e)
			}
			if due := sooner(e.due, e.saveBy); due.Before(next) {
				next = due
			}
		}
	})
	again := map[pod.Identity]time.Time{}
	for path, r := range tails {
		r.LogTail = lastOf(path)
		again[r.Identity] = ob.report(r, now)
	}
	ob.pods.do(func() {
		for id, at := range again {
			if e := ob.pods.all[id]; e != nil {
				ob.noteReported(e)
				e.due = sooner(e.due, at)
				next = sooner(next, e.due)
			}
		}
		ob.count()
	})
	return next
}

func (ob *observer) noteReported(e *entry) {
	if !e.reported {
		e.reported = true
		ob.board.Changed.Raise()
	}
}

func (ob *observer) observeOne(e *entry, now time.Time, tails map[string]pod.Reality) (due time.Time) {
	agent := ob.agent.StateOf(e.id)
	o := observation{
		node: ob.cfg.Node.Name, rec: e.rec, decided: e.decided, activity: e.activity, doing: e.doing,
		spent: e.state == Spent, standby: agent.Standby, unlisted: !agent.Known,
		check: agent.Check, complaint: agent.Complaint, silent: ob.pods.silent,
		pulled: e.pulled.seconds(e.rec.Intent.Revision, ob.cfg.PullDeadline),
	}
	if o.rec.Version == 0 {
		return time.Time{} // a pod without a saved record is not reported
	}
	switch {
	case o.rec.StoppedAt != nil && e.decided.verdict == Forgotten:
		ob.board.Erase(e.id)
		ob.noteReported(e)
		return time.Time{}
	case o.rec.StoppedAt != nil && e.decided.verdict == "":
		ob.board.Silence(e.id)
		ob.noteReported(e)
		return time.Time{}
	}
	ob.board.Keep(e.id)
	m := e.manifest()
	if m != nil && o.rec.Installed.Known() {
		o.procs, o.missing = e.installedProcs()
	} else {
		m = nil
		o.procs = e.procs
		o.missing = len(o.procs) == 0
	}
	before := e.readiness
	o.available, o.unhealthy, due = e.readiness.update(
		now, instances(o.procs, o.missing), agent.Health, m, slices.ContainsFunc(o.procs, crashLoops))
	e.noteCount(now, before.passing)
	if o.available && !e.served {
		e.served = true
		ob.pods.enqueue(e) // the worker saves this for the next preparer
	}
	o.served = e.served
	if e.readiness.ready != before.ready {
		ob.pods.enqueue(e) // the worker saves this for the next preparer
	}
	if agent.Hung.Runs != "" {
		ob.pods.enqueue(e)
	}
	r := observe(o)
	if path := tailOf(&r, o.procs); path != "" {
		last, _ := ob.board.Reality(e.id)
		if r.LogTail = keptTail(&last, &r); r.LogTail == "" {
			tails[path] = r
			return due
		}
	}
	again := ob.report(r, now)
	ob.noteReported(e)
	return sooner(due, again)
}

func (ob *observer) report(r pod.Reality, now time.Time) (again time.Time) {
	cut := r.Fit()
	news, again := ob.board.Say(r, now)
	if len(cut) > 0 && news {
		ob.cfg.Metrics.cutRealities.Inc()
		ob.podLog(r.Identity).WithField("cut", cut).Warn("farms would refuse parts of the pod's report; they are cut")
	}
	if news {
		if r.Local() {
			ob.localNews.Raise()
		}
		ob.podLog(r.Identity).WithFields(obs.Fields{
			obs.Action: "observe", obs.Current: string(r.State), obs.Reason: r.Message,
			fieldAvailable: r.Available, fieldRevision: r.Revision, fieldDigest: install.Short(r.Digest),
		}).Info("pod changed")
	}
	return again
}

// noteCount schedules the save of a new count of min_ready, because the next preparer continues it. The end of a count
// needs no save: either the processes have ended, or their availability is saved.
func (e *entry) noteCount(now, before time.Time) {
	r := &e.readiness
	switch {
	case !r.counting():
		e.counting = nil
	case !r.passing.Equal(before) && !r.passing.Equal(r.kept):
		at, err := proc.Now()
		if err != nil {
			return
		}
		e.counting = &Counting{Processes: r.procs, Since: at}
		e.saveBy = sooner(e.saveBy, now.Add(saveWithin))
	}
}

// sooner returns the earlier of two times. Zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// count publishes metrics. Call it only inside pods.do.
func (ob *observer) count() {
	states, restarts, starved, hung := ob.board.Count()
	orphans := 0
	for _, e := range ob.pods.all {
		_, is := e.orphan()
		if _, reported := ob.board.Reality(e.id); is && reported {
			orphans++
		}
	}
	m := ob.cfg.Metrics
	for _, state := range podStates {
		m.pods.WithLabelValues(string(state)).Set(float64(states[state]))
	}
	m.orphans.Set(float64(orphans))
	m.restarts.Add(float64(restarts))
	m.starved.Add(float64(starved))
	m.hung.Add(float64(hung))
	m.known(ob.contact.Locked(), ob.contact.Informed())
}
