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

// stopAfter returns how long the pod may run without contact to Consul; proc.Never: without limit.
func stopAfter(m *manifest.Manifest) time.Duration {
	if m == nil || m.Disconnect == nil || m.Disconnect.StopAfter == nil {
		return proc.Never
	}
	return m.Disconnect.StopAfter.Or(proc.Never)
}

// watchConnectivity stops pods with stop_after that have been without Consul for too long, and renews the contact note.
// On a node without such pods it writes nothing.
func (p *Preparer) watchConnectivity(ctx context.Context) {
	const key = "contact"
	wait.Each(ctx, p.contact.Changed, func() time.Duration {
		next, err := p.checkConnectivity()
		failed := p.limiter.Failed(ctx, key, "time of the last contact with Consul cannot be written to the disk; "+
			"pods stop after disconnect.stop_after even if Consul answers", err)
		if !failed && next == proc.Never {
			next = time.Hour // nothing is due until a change wakes this loop
		}
		return next
	})
}

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

// stopSilent stops the pods that have been without Consul for too long. shortest is the shortest time that any pod may
// be without Consul. due is the time until the next pod must stop if Consul stays silent.
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

// watched returns the shortest watchdog timeout of the processes, or proc.Never. It does not use the present intent,
// because a pod with an accepted stop continues to run for a while.
func watched(procs []runtime.Status) time.Duration {
	shortest := proc.Never
	for i := range procs {
		if dog := procs[i].Spec.Watchdog; dog != nil && !over(&procs[i]) {
			shortest = min(shortest, dog.Timeout)
		}
	}
	return shortest
}

func over(s *runtime.Status) bool { return s.Phase == runtime.Stopped || s.Phase == runtime.Exited }

// mustNotRun reports whether the pod must not run, and changes its state accordingly. Connectivity.MayRun decides.
func (w *worker) mustNotRun(rec *Record) (suspended bool, err error) {
	after := stopAfter(rec.Installed.Decode())
	now, err := proc.Now()
	// Decide and change the state under one lock. So an intent that is read meanwhile comes before the decision, or
	// after the pod was suspended.
	w.pods.do(func() {
		if after != proc.Never || w.nameless(rec) || w.e.decided.outdated {
			if err != nil {
				return
			}
			w.contact.Changed.Raise() // from now on the contact note may be needed
			suspended = !w.connectivityOf(w.e, now).MayRun(after)
		}
		if err = nil; !suspended {
			w.pods.enter(w.e, Freed)
			return
		}
		if w.e.state != Suspended {
			w.logChange(w.e, "hold back "+w.without(rec, w.e.decided.outdated), obs.Fields{
				fieldRevision: w.e.rec.Intent.Revision,
			})
		}
		w.pods.enter(w.e, Barred)
	})
	return suspended, err
}

func (w *worker) nameless(rec *Record) bool {
	return !w.e.id.Local() && (w.name.Lost() || rec.AwaitsIntent)
}

// without returns what a suspended pod lacks, for logs.
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

// enforcesStopAfter reports whether the supervisor, without a preparer, stops each process of pods with stop_after,
// also processes that start later. Call it only inside pods.do.
func (p *Preparer) enforcesStopAfter(procs []runtime.Status) bool {
	unknown := func(s runtime.Status) bool { return s.Phase == runtime.Unknown }
	if !p.allKnown() || !p.cfg.Runtime.Features().Watchdogs || slices.ContainsFunc(procs, unknown) {
		return false // an unknown process may belong to any pod
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

// setEnforces stores what enforcesStopAfter returned. If the supervisor does not answer, the caller passes false,
// because perhaps no supervisor runs. Call it only inside pods.do.
func (p *Preparer) setEnforces(enforces bool) {
	if p.enforces != enforces {
		p.enforces = enforces
		p.pods.record.Raise()
	}
}

// enforced reports whether the supervisor alone stops the process in time: it has a watchdog, does not run any more, or
// its pod has no stop_after. The manifest may be unknown, so enforced uses the specification.
func enforced(s *runtime.Status) bool {
	return over(s) || s.Spec.Watchdog != nil || !s.Spec.StartSuspended // processes with stop_after start suspended
}

// errSuspended means that no process of the suspended pod runs, and its worker has nothing to do.
var errSuspended = errors.New("suspended until Consul answers")

// suspend stops the processes of a pod that must not run. It returns errSuspended when none runs.
func (w *worker) suspend(ctx context.Context, rec *Record) error {
	nameless, outdated := w.nameless(rec), false
	w.pods.do(func() { outdated = w.e.decided.outdated })
	message := fmt.Sprintf("does not run without contact to Consul (disconnect.stop_after: %s); "+
		"starts when its intent is read again", stopAfter(rec.Installed.Decode()))
	if outdated {
		message = "its intent is of another epoch, and it may run elsewhere; " +
			"starts when its owner has ruled that out and writes a new intent"
	}
	var noted error
	if nameless {
		message = "stopped when the node's name was taken over from this host; starts when its intent is read again"
		// The next preparer must know this, even if the node has its name back by then. If the save fails, the pod
		// stops nevertheless.
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
