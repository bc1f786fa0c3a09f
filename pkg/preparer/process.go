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
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
)

// reconcileProcs makes exactly the installed processes run. Processes that run already are left alone, whatever their
// specification says: a new version of the preparer must not restart pods.
func (w *worker) reconcileProcs(ctx context.Context, rec Record) (Record, error) {
	waits, err := w.mustNotRun(&rec)
	if !waits && err == nil && !rec.Installed.Known() {
		if rec, err = w.identify(ctx, rec); err != nil {
			return rec, err
		}
		waits, err = w.mustNotRun(&rec)
	}
	if waits && err == nil {
		err = w.suspend(ctx, &rec)
	}
	if err != nil {
		return rec, err
	}
	if rec.AwaitsIntent {
		rec.AwaitsIntent = false
		if rec, err = w.save(rec); err != nil {
			return rec, err
		}
	}
	wanted := install.SpecIDs(w.e.id, rec.Installed)
	procs := w.procs()
	plan := supervise.Compare(wanted, procs)
	if !plan.Empty() {
		if procs, err = w.processes.Of(ctx, w.e.id); err != nil { // the runtime's last report may be older than our last act
			w.procsFailed(&rec, fmt.Errorf("the runtime does not answer: %w", err))
			return rec, err
		}
		plan = supervise.Compare(wanted, procs)
	}
	now := Launched
	if len(plan.Start) > 0 && rec.spent() { // what the runtime has of it stays, as it says how it ended
		now, plan.Start = Ran, nil
		plan.Remove = slices.DeleteFunc(plan.Remove, func(id string) bool { return slices.Contains(wanted, id) })
	}
	if !plan.Empty() || rec.Installed.Launching {
		if rec, err = w.carryOut(ctx, rec, procs, plan); err != nil {
			w.procsFailed(&rec, err)
			return rec, err
		}
	}
	w.tidy(&rec)
	w.pods.do(func() {
		if !w.e.state.up() {
			w.agent.Wake.Raise()
		}
		w.pods.enter(w.e, now)
	})
	if err = w.mend(ctx, &rec); err != nil {
		w.procsFailed(&rec, err)
	}
	return rec, errors.Join(err, w.keepLimits(ctx, &rec), w.restartHung(ctx))
}

// restartHung has the processes of the installed version started again where the check has failed for restart_after,
// unless other processes run by now, or a newer intent says what becomes of them. While they run on it is done again.
func (w *worker) restartHung(ctx context.Context) error {
	hung := w.agent.Said(w.e.id).Hung
	var procs []runtime.Status
	var m *manifest.Manifest
	w.pods.do(func() {
		if running, missing := w.e.installedProcs(); w.e.want == nil && instances(running, missing) == hung.Runs {
			procs, m = running, w.e.manifest()
		}
	})
	if hung.Runs == "" || m == nil {
		return nil
	}
	reason, stable := fmt.Sprintf("its health check failed for %s", m.RestartAfter()), time.Duration(0)
	if hung.Never { // as long as a run like this one, and more
		stable = m.Health.InitialDelay.Or(0) + m.Health.PassesWithin() + 2*m.RestartAfter()
	}
	var errs []error // one that is not asked keeps no other from it
	for i := range procs {
		if procs[i].Phase != runtime.Running {
			continue
		}
		s := &procs[i]
		err := w.processes.Restart(ctx, runtime.RestartRequest{ID: s.Spec.ID, PID: s.PID, StartedAt: s.StartedAt, Reason: reason, Stable: stable})
		switch {
		case errors.Is(err, runtime.ErrTooOld):
			if w.e.unheard != hung.Runs {
				w.podLog(w.e.id).WithField(obs.Reason, reason).Warn("pod is to be restarted, which the node's supervisor is too old for; it runs on")
			}
			w.e.unheard = hung.Runs
			return nil
		case err != nil:
			errs = append(errs, err)
		default:
			w.logChange(w.e, "restart", obs.Fields{obs.Process: s.Spec.ID, obs.Reason: reason})
		}
	}
	return errors.Join(errs...)
}

// procsFailed reports what keeps the installed version from running, unless it is on its way out: what is reported under
// the accepted revision must be about the version that it asked for.
func (w *worker) procsFailed(rec *Record, err error) {
	if !rec.upToDate() || errors.Is(err, context.Canceled) {
		return
	}
	message := err.Error()
	if len(rec.Previous) > 0 {
		message += stays(rec.Previous[0])
	}
	w.failed(message, err)
}

// stays says that an earlier version is there to go back to.
func stays(in install.Installed) string {
	return fmt.Sprintf("; version %s stays installed", install.Short(in.Digest))
}

// tidy does, once for each version and each start of the preparer, what a crash may have left undone after the launch.
// Nothing depends on it that runs.
func (w *worker) tidy(rec *Record) {
	if w.e.tidied == rec.Installed.Revision {
		return
	}
	err := w.version(rec, rec.Installed).Switch()
	if err == nil {
		err = w.node.Prune(w.e.id, rec.versions())
	}
	if !w.limiter.Saw("versions of "+w.e.id.String(), "installed versions of a pod cannot be tidied up", err) {
		w.e.tidied = rec.Installed.Revision
	}
}

// carryOut follows the plan: what is superfluous goes first, then the installed version is launched. A newer intent
// interrupts the launch, whose hooks may take long, but no stop.
func (w *worker) carryOut(ctx context.Context, rec Record, procs []runtime.Status, plan supervise.Plan) (Record, error) {
	v := w.version(&rec, rec.Installed)
	launching, done := w.interruptible(ctx, rec.Intent.Revision)
	defer done()
	if len(plan.Start) > 0 { // before anything is stopped
		if err := v.Ensure(launching, w); err != nil {
			return rec, err
		}
	}
	if len(plan.Stop) > 0 {
		w.takeOut(ctx)
		w.logChange(w.e, "stop old version", obs.Fields{obs.Process: strings.Join(plan.Stop, " ")})
	}
	if err := w.halt(ctx, &rec, procs, plan.Stop, plan.Remove); err != nil {
		return rec, err
	}
	if err := w.processes.Remove(ctx, plan.Remove); err != nil {
		return rec, err
	}
	return w.launch(launching, rec, v, plan)
}

// launch switches to the version and starts what it lacks, with the hooks around it. What has to follow a start is noted
// before it, so that it is done after a crash too.
func (w *worker) launch(ctx context.Context, rec Record, v *install.Version, plan supervise.Plan) (Record, error) {
	if len(plan.Start) > 0 {
		if err := v.PrepareLaunch(ctx, w, plan.Others); err != nil {
			return rec, err
		}
		if !rec.Installed.Launching && v.LaunchHooks() {
			var err error
			if rec, err = w.saveLaunching(rec, true); err != nil {
				return rec, err
			}
		}
		if v.M.RunsOnce() { // if the note is there and the process is not, nobody knows how far it came
			var err error
			if rec, err = w.save(rec.ran(rec.Installed.Digest)); err != nil {
				return rec, err
			}
		}
		if err := w.startAll(ctx, &rec, v, plan.Start); err != nil {
			return rec, err
		}
	}
	if !rec.Installed.Launching {
		return rec, nil
	}
	if err := v.FinishLaunch(ctx, w); err != nil {
		return rec, err
	}
	return w.saveLaunching(rec, false)
}

func (w *worker) saveLaunching(rec Record, launching bool) (Record, error) {
	installed := *rec.Installed
	installed.Launching = launching
	rec.Installed = &installed
	return w.save(rec)
}

// startAll starts processes. When one is refused, those that were started along with it are stopped again: a pod's
// processes live together or not at all.
func (w *worker) startAll(ctx context.Context, rec *Record, v *install.Version, ids []string) error {
	if stopAfter(v.M) != proc.Never {
		if err := w.keepContact(rec); err != nil {
			return err
		}
	}
	var started []string
	for _, one := range rec.Installed.Processes {
		spec, err := v.Spec(one)
		if err == nil && slices.Contains(ids, spec.ID) {
			started = append(started, spec.ID) // the answer of one that was started may be lost
			if err = w.processes.Start(ctx, spec); err == nil {
				w.logChange(w.e, "start", obs.Fields{obs.Process: spec.ID, fieldDigest: install.Short(rec.Installed.Digest)})
			}
		}
		if err != nil {
			undo := w.processes.Stop(ctx, started)
			if undo == nil {
				undo = w.processes.Remove(ctx, started)
			}
			return errors.Join(err, undo)
		}
	}
	return nil
}

// keepContact makes sure that a pod with stop_after may still start, after all that came before, and has the note of the last contact say what
// is known: with an older one the supervisor would stop at once what is started.
func (w *worker) keepContact(rec *Record) error {
	suspended, err := w.mustNotRun(rec)
	if err == nil && suspended {
		err = errors.New("contact to Consul was lost while it was prepared")
	}
	return errors.Join(err, w.contact.Keep())
}

// mend has everything present again that the installed version is launched from, when a process cannot be started. The runtime tries again by
// itself.
func (w *worker) mend(ctx context.Context, rec *Record) error {
	broken := slices.DeleteFunc(slices.Clone(w.procs()), func(s runtime.Status) bool { return s.Phase != runtime.Backoff || s.Message == "" })
	v := w.version(rec, rec.Installed)
	if len(broken) == 0 || v == nil || w.cfg.Cache == nil {
		return nil
	}
	ctx, done := w.interruptible(ctx, rec.Intent.Revision)
	defer done()
	if err := v.Ensure(ctx, w); err != nil {
		return err
	}
	for _, one := range rec.Installed.Processes {
		a := v.M.LaunchableOf(one.Launchable).Artifact
		program := v.Path(one.Launchable, one.Path)
		missing := install.CheckProgram(program)
		if missing == nil || a.Kind != manifest.ArtifactTar {
			continue
		}
		w.Failed("a program is not there as it was unpacked; its artifact is fetched again", missing)
		err := w.cfg.Cache.Renew(ctx, a)
		if err == nil {
			err = install.CheckProgram(program)
		}
		if err != nil {
			return fmt.Errorf("the artifact of %s is not whole on the disk and cannot be fetched: %w", one.Launchable, err)
		}
		w.cfg.Metrics.artifactsRestored.Inc()
	}
	return nil
}
