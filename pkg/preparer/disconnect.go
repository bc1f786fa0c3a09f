package preparer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// stopAfter returns how long the pod may run without contact, and proc.Never when its manifest does not say.
func stopAfter(m *manifest.Manifest) time.Duration {
	if m == nil || m.Disconnect == nil || m.Disconnect.StopAfter == nil {
		return proc.Never
	}
	return m.Disconnect.StopAfter.Or(proc.Never)
}

// watchConnectivity stops pods that do not run without Consul, and keeps the note of the last contact fresh for their sake. Without such pods there
// is nothing to do and nothing is written.
func (p *Preparer) watchConnectivity(ctx context.Context) {
	const key = "contact"
	wait.Each(ctx, p.contact.Changed, func() time.Duration {
		next, err := p.checkConnectivity()
		if !p.limiter.Failed(ctx, key, "time of last contact with Consul cannot be noted; pods with disconnect.stop_after stop when that is over, whether Consul is in touch or not", err) && next == proc.Never {
			next = time.Hour // nothing is due; a change wakes this
		}
		return next
	})
}

// checkConnectivity does what is due, and returns when something is due again.
func (p *Preparer) checkConnectivity() (due time.Duration, err error) {
	now, err := proc.Now()
	if err != nil {
		return claim.MinNoteEvery, err
	}
	shortest, due := p.stopSilent(now)
	if shortest == proc.Never {
		return proc.Never, nil
	}
	again, err := p.contact.Note(now, shortest)
	return min(due, again), err
}

// stopSilent has those stopped that have been without Consul for too long. It returns the shortest time that a pod allows, and when the next
// one is to be stopped if the silence goes on.
func (p *Preparer) stopSilent(now proc.Moment) (shortest, due time.Duration) {
	shortest, due = proc.Never, proc.Never
	p.pods.do(func() {
		for _, e := range p.pods.all {
			shortest = min(shortest, watched(e.procs))
			after := stopAfter(e.manifest())
			if after == proc.Never || e.rec.Intent.State == pod.Stopped {
				continue
			}
			shortest = min(shortest, after)
			switch conn := p.connectivityOf(e, now); {
			case conn.Serving:
			case conn.MayRun(after):
				due = min(due, conn.NextLook(after))
			case conn.Running:
				p.pods.enqueue(e)
			}
		}
	})
	return shortest, due
}

// watched returns the shortest time after which the supervisor stops one of the processes that run, proc.Never where it stops none. What the pod
// was told, and what its manifest says by now, does not matter: one that is to stop runs on while it is drained.
func watched(procs []runtime.Status) time.Duration {
	shortest := proc.Never
	for i := range procs {
		if dog := procs[i].Spec.Watchdog; dog != nil && procs[i].Phase != runtime.Stopped && procs[i].Phase != runtime.Exited {
			shortest = min(shortest, dog.Timeout)
		}
	}
	return shortest
}

// mustNotRun reports whether the pod must not run, because its manifest says that it does not without Consul or because the
// node's name is lost, and says so.
func (w *worker) mustNotRun(rec *Record) (suspended bool, err error) {
	after := stopAfter(rec.Installed.Decode())
	now, err := proc.Now()
	w.pods.do(func() { // all of it at once, so that an intent that is read now either decides or finds it suspended
		if after != proc.Never || w.nameless(rec) || w.e.decided.outdated {
			if err != nil {
				return
			}
			w.contact.Changed.Raise() // the note of the last contact may be needed from now on
			suspended = !w.connectivityOf(w.e, now).MayRun(after)
		}
		if err = nil; !suspended {
			w.pods.enter(w.e, Freed)
			return
		}
		if w.e.state != Suspended {
			w.logChange(w.e, "hold back "+w.without(rec, w.e.decided.outdated), obs.Fields{fieldRevision: w.e.rec.Intent.Revision})
		}
		w.pods.enter(w.e, Barred)
	})
	return suspended, err
}

// nameless reports whether the pod is one that the loss of the node's name has stopped, or is to.
func (w *worker) nameless(rec *Record) bool {
	return !w.e.id.Local() && (w.name.Lost() || rec.AwaitsIntent)
}

// without says what a pod that is suspended lacks.
func (w *worker) without(rec *Record, outdated bool) string {
	switch {
	case w.nameless(rec):
		return "without the node's name"
	case outdated:
		return "without an intent of this epoch"
	default:
		return "without contact to Consul"
	}
}

// enforcesStopAfter reports whether whatever runs here of pods with stop_after, and what is started next, is stopped by its supervisor too. The
// caller is in pods.do.
func (p *Preparer) enforcesStopAfter(procs []runtime.Status) bool {
	if !p.allKnown() || !p.cfg.Runtime.Watchdogs() || slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Phase == runtime.Unknown }) {
		return false // what is unknown may be of any pod
	}
	for _, e := range p.pods.all {
		for i := range e.procs {
			if !e.id.Local() && !enforced(&e.procs[i]) {
				return false
			}
		}
	}
	return true
}

// sayEnforces has the node's record say whether its supervisor enforces stop_after. One that does not answer may not run. The caller is in pods.do.
func (p *Preparer) sayEnforces(enforces bool) {
	if p.enforces != enforces {
		p.enforces = enforces
		p.pods.record.Raise()
	}
}

// enforced reports whether a process stops by itself if it must: it was started so, does not run, or is of a pod that may run on. What it was
// started from may not be known.
func enforced(s *runtime.Status) bool {
	if s.Phase == runtime.Stopped || s.Phase == runtime.Exited {
		return true
	}
	return s.Spec.Watchdog != nil || !s.Spec.StartSuspended // who has stop_after is started so
}

// errSuspended says that a pod does not run, and that nothing needs to be done about it.
var errSuspended = errors.New("suspended until Consul is in touch")

// suspend stops what runs of a pod that must not, and returns errSuspended when nothing runs.
func (w *worker) suspend(ctx context.Context, rec *Record) error {
	nameless, outdated := w.nameless(rec), false
	w.pods.do(func() { outdated = w.e.decided.outdated })
	message := fmt.Sprintf("does not run without contact to Consul (disconnect.stop_after: %s); starts when its intent is read again", stopAfter(rec.Installed.Decode()))
	if outdated {
		message = "its intent is of another epoch, and it may run elsewhere; starts when its owner has made sure of that and told it anew"
	}
	var noted error
	if nameless {
		message = "stopped when the node's name was taken over from this host; starts when its intent is read again"
		// A successor must know, also when the name is ours again. A disk that does not take it keeps nothing running.
		rec.AwaitsIntent = true
		var saved Record
		if saved, noted = w.save(*rec); noted == nil {
			*rec = saved
		}
	}
	w.At(pod.StatePending, message)
	procs, err := w.processes.Of(ctx, w.e.id)
	if err != nil {
		return errors.Join(err, noted)
	}
	alive, _ := stopIDs(Record{}, procs)
	if len(alive) > 0 {
		w.withdraw(ctx)
		w.logChange(w.e, "stop "+w.without(rec, outdated), obs.Fields{obs.Process: strings.Join(alive, " ")})
		if err := w.halt(ctx, rec, procs, alive, nil); err != nil {
			return errors.Join(err, noted)
		}
	}
	if noted != nil {
		return noted
	}
	return errSuspended
}
