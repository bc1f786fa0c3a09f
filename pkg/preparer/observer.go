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

// saveWithin is how long it may take until it is saved that a count of min_ready has begun.
const saveWithin = time.Second

// observeAllEvery is how often pods are observed of which nothing is known to have changed.
const observeAllEvery = time.Minute

// observer derives what is reported about the pods, whenever something about them has changed.
type observer struct {
	*kit
	localNews wait.Signal // is raised when a pod of a local service has news
}

// run observes pods when something about them has changed, or time alone changes it.
func (ob *observer) run(ctx context.Context) {
	wait.Each(ctx, ob.pods.seen, func() time.Duration {
		now := time.Now()
		return ob.observeDue(now).Sub(now)
	})
}

// observeDue observes the pods that have changed, or whose time has come, and returns when to look again.
func (ob *observer) observeDue(now time.Time) (next time.Time) {
	next = now.Add(observeAllEvery)
	if !ob.allKnown() || !ob.agent.Asked() {
		return next
	}
	tails := map[string]pod.Reality{} // that wait for the end of the log in this file, which is read when nobody waits for the pods
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
		again[r.Identity] = ob.say(r, now)
	}
	ob.pods.do(func() {
		for id, at := range again {
			if e := ob.pods.all[id]; e != nil {
				ob.noteSaid(e)
				e.due = sooner(e.due, at)
				next = sooner(next, e.due)
			}
		}
		ob.count()
	})
	return next
}

// noteSaid notes that the board has what came of a pod. That may complete it.
func (ob *observer) noteSaid(e *entry) {
	if !e.said {
		e.said = true
		ob.board.Changed.Raise()
	}
}

func (ob *observer) observeOne(e *entry, now time.Time, tails map[string]pod.Reality) (due time.Time) {
	said := ob.agent.Said(e.id)
	o := observation{
		node: ob.cfg.Node.Name, rec: e.rec, decided: e.decided, activity: e.activity, doing: e.doing, spent: e.state == Spent,
		standby: said.Standby, unlisted: !said.Known, check: said.Check, complaint: said.Complaint, silent: ob.pods.silent,
	}
	if o.rec.Version == 0 {
		return time.Time{} // nothing is reported that is not saved
	}
	erase := e.decided.verdict == Forgotten && o.rec.StoppedAt != nil
	silent := o.rec.StoppedAt != nil && (erase || e.decided.verdict == "")
	if ob.board.Erase(e.id, erase, silent); silent {
		ob.noteSaid(e)
		return time.Time{}
	}
	m := e.manifest()
	if m != nil && o.rec.Installed.Known() {
		o.procs, o.missing = e.installedProcs()
	} else {
		m = nil
		o.procs = e.procs
		o.missing = len(o.procs) == 0
	}
	before := e.readiness
	o.available, o.unhealthy, due = e.readiness.update(now, instances(o.procs, o.missing), said.Health, m, slices.ContainsFunc(o.procs, crashLoops))
	e.noteCount(now, before.passing)
	if o.available && !e.served {
		e.served = true
		ob.pods.enqueue(e) // a restart must know
	}
	o.served = e.served
	if e.readiness.ready != before.ready {
		ob.pods.enqueue(e) // a restart must know
	}
	if said.Hung.Runs != "" {
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
	again := ob.say(r, now)
	ob.noteSaid(e)
	return sooner(due, again)
}

// say puts a reality in line for writing, and returns when to come again.
func (ob *observer) say(r pod.Reality, now time.Time) (again time.Time) {
	cut := r.Fit()
	news, again := ob.board.Say(r, now)
	if len(cut) > 0 && news {
		ob.cfg.Metrics.cutRealities.Inc()
		ob.podLog(r.Identity).WithField("cut", cut).Warn("farms would refuse some of what is reported of the pod; that is cut")
	}
	if news {
		if r.Local() {
			ob.localNews.Raise()
		}
		ob.podLog(r.Identity).WithFields(obs.Fields{
			obs.Action: "observe", obs.Current: string(r.State), fieldAvailable: r.Available, fieldRevision: r.Revision, fieldDigest: install.Short(r.Digest), obs.Reason: r.Message,
		}).Info("pod changed")
	}
	return again
}

// noteCount has a count of min_ready saved that has begun anew: a restart goes on with it. One that is over need not be, as it is about
// processes that are gone, or about what is known to be available.
func (e *entry) noteCount(now, before time.Time) {
	r := &e.readiness
	switch {
	case !r.counts():
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

// sooner returns the sooner of two times. The zero time means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// count publishes what the node has. The caller is in pods.do.
func (ob *observer) count() {
	states, restarts, starved, hung := ob.board.Count()
	orphans := 0
	for _, e := range ob.pods.all {
		_, is := e.orphan()
		if _, said := ob.board.Reality(e.id); is && said {
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
