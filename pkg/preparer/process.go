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

// reconcileProcs makes the processes of the installed version run, and no others of the pod. It does not touch a
// running process of this version, even if its specification differs, because a new version of the preparer must not
// restart pods.
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
		// The runtime's last report may be older than this worker's last change.
		if procs, err = w.processes.Of(ctx, w.e.id); err != nil {
			w.procsFailed(&rec, fmt.Errorf("the runtime does not answer: %w", err))
			return rec, err
		}
		plan = supervise.Compare(wanted, procs)
	}
	now := Launched
	if len(plan.Start) > 0 && rec.spent() { // keep the runtime's records, which have how the processes ended
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

// restartHung asks the supervisor to restart the processes whose check has failed for restart_after, as long as they
// still run and no newer intent was accepted.
func (w *worker) restartHung(ctx context.Context) error {
	hung := w.agent.StateOf(w.e.id).Hung
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
	if hung.Never { // longer than such a run lasts, so that it counts as short
		stable = m.Health.InitialDelay.Or(0) + m.Health.PassesWithin() + 2*m.RestartAfter()
	}
	var errs []error // one failure does not stop the others
	for i := range procs {
		if procs[i].Phase != runtime.Running {
			continue
		}
		s := &procs[i]
		err := w.processes.Restart(ctx, runtime.RestartRequest{
			ID: s.Spec.ID, PID: s.PID, StartedAt: s.StartedAt, Reason: reason, Stable: stable,
		})
		switch {
		case errors.Is(err, runtime.ErrTooOld):
			if w.e.tooOldFor != hung.Runs {
				w.podLog(w.e.id).WithField(obs.Reason, reason).
					Warn("pod should be restarted, but the node's supervisor is too old for that; it runs on")
			}
			w.e.tooOldFor = hung.Runs
			return nil
		case err != nil:
			errs = append(errs, err)
		default:
			w.logChange(w.e, "restart", obs.Fields{obs.Process: s.Spec.ID, obs.Reason: reason})
		}
	}
	return errors.Join(errs...)
}

// procsFailed reports why the installed version does not run. If the accepted intent asks for another version, it
// reports nothing, because the report has the revision of that intent.
func (w *worker) procsFailed(rec *Record, err error) {
	if !rec.upToDate() || errors.Is(err, context.Canceled) {
		return
	}
	message := err.Error()
	if len(rec.Previous) > 0 {
		message += stillInstalled(rec.Previous[0])
	}
	w.failed(message, err)
}

// stillInstalled names the earlier version that a rollback can use.
func stillInstalled(in install.Installed) string {
	return fmt.Sprintf("; version %s stays installed", install.Short(in.Digest))
}

// tidy repeats the last steps of a launch, because a crash can have prevented them. It does so once for each version
// and each start of the preparer. No running process depends on these steps.
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

// carryOut stops and removes processes that are not wanted, then launches the installed version. A newer intent
// interrupts the launch, because the launch hooks can take long. It does not interrupt a stop.
func (w *worker) carryOut(
	ctx context.Context, rec Record, procs []runtime.Status, plan supervise.Plan,
) (Record, error) {
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

// launch starts the version's missing processes, with the hooks before and after the start. Before the start, it saves
// that the later steps are due, so that the next preparer takes them even after a crash.
func (w *worker) launch(ctx context.Context, rec Record, v *install.Version, plan supervise.Plan) (Record, error) {
	if len(plan.Start) > 0 {
		if err := v.PrepareLaunch(ctx, w, plan.Others); err != nil {
			return rec, err
		}
		if !rec.Installed.Launching && v.LaunchHooks() {
			var err error
			if rec, err = w.save(rec.launchBegun()); err != nil {
				return rec, err
			}
		}
		// Saved before the start, because after a crash the process may have run.
		if v.M.RunsOnce() {
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
	return w.save(rec.launchEnded())
}

// startAll starts all processes or none: if one does not start, it stops the others again.
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
			started = append(started, spec.ID) // even on an error: perhaps only the answer was lost
			if err = w.processes.Start(ctx, spec); err == nil {
				w.logChange(w.e, "start", obs.Fields{
					obs.Process: spec.ID, fieldDigest: install.Short(rec.Installed.Digest),
				})
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

// keepContact checks again, after the preparation of a pod with stop_after, that it may start. It writes the contact
// note, because with an older time in it the supervisor would stop the pod at once.
func (w *worker) keepContact(rec *Record) error {
	suspended, err := w.mustNotRun(rec)
	if err == nil && suspended {
		err = errors.New("contact to Consul was lost while it was prepared")
	}
	return errors.Join(err, w.contact.Keep())
}

// mend fetches the artifact again if a process cannot be started because its program is missing or damaged. The runtime
// retries the start.
func (w *worker) mend(ctx context.Context, rec *Record) error {
	broken := slices.DeleteFunc(slices.Clone(w.procs()), func(s runtime.Status) bool {
		return s.Phase != runtime.Backoff || s.Message == ""
	})
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
		if missing == nil || !a.IsFetched() {
			continue
		}
		w.Failed("a program of the pod is missing or damaged; its artifact is fetched again", missing)
		err := w.cfg.Cache.Renew(ctx, a)
		if err == nil {
			err = install.CheckProgram(program)
		}
		if err != nil {
			return fmt.Errorf("the artifact of %s is incomplete on the disk and cannot be fetched: %w",
				one.Launchable, err)
		}
		w.cfg.Metrics.artifactsRestored.Inc()
	}
	return nil
}
