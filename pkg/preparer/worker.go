package preparer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/report"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// kit has the parts that workers, observer and collector share.
type kit struct {
	cfg       Config
	log       obs.Logger
	limiter   *loop.LogLimiter
	pods      *pods
	name      *claim.Name
	contact   *claim.Contact
	node      *install.Node
	processes *supervise.Processes
	agent     *register.Registrar
	board     *report.Board
	inUse     *portLook
	ready     chan struct{} // closed when both the disk and the runtime were read
	prunable  wait.Signal   // raised when other artifacts may be needed, or an artifact could not be fetched
}

func (k *kit) podLog(id pod.Identity) obs.Logger { return k.log.WithField(obs.Pod, id.String()) }

// connectivityOf: call it only inside pods.do.
func (k *kit) connectivityOf(e *entry, now proc.Moment) claim.Connectivity {
	c := k.contact.Connectivity(now)
	c.Agreed, c.Outdated = e.decided.verdict == Unchanged, e.decided.outdated
	c.Running, c.Lost, c.Waits = anyAlive(e.procs), k.name.Lost(), e.rec.AwaitsIntent
	if e.id.Local() { // the pod's intent is on this node's disk, and no other node can run the pod
		c.Serving, c.Unread, c.Lost, c.Waits = true, 0, false, false
	}
	return c
}

// worker reconciles one pod with its record. A pod has at most one worker, and none while there is nothing to do.
type worker struct {
	*kit

	e *entry
	// called when the stop is on the disk, because then the verdict on a missing intent changes
	buried func()
	// unstopped is why the last attempt to stop the pod failed. It stays in the report during the next attempt, which
	// can take long.
	unstopped string
}

func (w *worker) run(ctx context.Context) {
	pace := wait.NewPace(w.cfg.RetryMin, w.cfg.RetryMax)
	key := "pod " + w.e.id.String()
	for {
		w.pods.do(func() { w.e.again = false })
		err := w.reconcile(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			w.limiter.Over(key)
			pace.Reset()
			done := false
			w.pods.do(func() { w.e.working, done = w.e.again, !w.e.again }) // if again is set, there is new work
			if done {
				return
			}
			continue
		}
		if !errors.Is(err, context.Canceled) { // an interrupted installation has not failed
			w.limiter.Report(key, "pod cannot be reconciled, trying again", err)
		}
		if woken, err := wait.PauseUnless(ctx, w.e.wake, pace.NextBackOff()); err != nil {
			return
		} else if woken {
			pace.Reset()
		}
	}
}

// reconcile makes the pod's processes match its record. Each call starts from the record and the runtime's processes,
// and uses no plan of an earlier call. So it can be interrupted anywhere (P7).
func (w *worker) reconcile(ctx context.Context) error {
	rec, err := w.persist()
	switch {
	case rec.Intent.State != pod.Stopped:
	case err != nil: // the pod stops even if the disk fails; the stop is confirmed when it is on the disk
		w.cannotSave(err)
		procs, endErr := w.processes.Of(ctx, w.e.id)
		runs := func(s runtime.Status) bool { return s.Phase != runtime.Stopped }
		if endErr == nil && slices.ContainsFunc(procs, runs) { // only while something runs, so that hooks run once
			_, endErr = w.end(ctx, &rec)
		}
		return errors.Join(err, endErr)
	default:
		return w.stop(ctx, rec)
	}
	var procsErr error
	if rec.Installed != nil {
		rec, procsErr = w.reconcileProcs(ctx, rec)
	}
	if err != nil { // while the disk is full, the node accepts no intents, but the pod continues to run
		w.cannotSave(err)
		return errors.Join(err, procsErr)
	}
	if !rec.upToDate() {
		// The new version is installed even if the old one does not run.
		if rec, err = w.install(ctx, rec); err != nil {
			return errors.Join(err, procsErr)
		}
		_, procsErr = w.reconcileProcs(ctx, rec)
	}
	if errors.Is(procsErr, errSuspended) {
		return nil
	}
	if procsErr != nil {
		return procsErr
	}
	// For a newer intent with the same digest nothing was installed, so its pod id was not checked yet.
	if err := samePod(rec.Intent, rec.Installed.Decode()); err != nil {
		w.failed(err.Error(), err)
		return nil
	}
	w.At("", "")
	return nil
}

// persist saves the accepted intent and what the next preparer must know. If the save fails, it returns the record on
// the disk, because a worker must not start or report what is not saved. There is one exception: an accepted stop is in
// the returned record all the same.
func (w *worker) persist() (Record, error) {
	var want *pod.Intent
	var saved Record
	w.pods.do(func() { want, saved = w.e.want, w.e.rec })
	rec := saved
	if want != nil {
		rec = rec.accept(*want)
		defer w.During("writing the intent to the node's disk")()
	}
	if rec.UID == 0 && rec.Intent.State == pod.Running { // before the save, because the record includes the number
		rec.UID = w.node.Number(w.e.id, w.procs())
	}
	rec, err := w.save(rec)
	switch {
	case err != nil && rec.Intent.State == pod.Stopped:
		return rec, err
	case err != nil:
		return saved, err
	}
	w.pods.do(func() {
		if w.e.want == want {
			w.e.want = nil
		}
		switch {
		case want == nil:
		case rec.Intent.State == pod.Stopped:
			w.pods.enter(w.e, StopAccepted)
		default:
			w.pods.enter(w.e, RunAccepted)
		}
	})
	if rec.Intent.Standby != saved.Intent.Standby {
		w.agent.Wake.Raise()
	}
	return rec, nil
}

// save adds the present state of readiness and services. It does not write an unchanged record.
func (w *worker) save(rec Record) (Record, error) {
	e, agent, same := w.e, w.agent.StateOf(w.e.id), false
	w.pods.do(func() {
		rec.Service, rec.Standby, rec.Ready, rec.Counting = agent.Service, agent.Standby, e.readiness.ready, e.counting
		if rec.StoppedAt != nil {
			rec.Service, rec.Standby, rec.Ready, rec.Counting = "", false, "", nil
			e.served = false
		}
		rec.NeverAvailable = rec.NeverAvailable && !e.served
		same = !e.unsaved && reflect.DeepEqual(rec, e.rec)
	})
	if same {
		return rec, nil
	}
	w.cfg.Step("save")
	if err := w.cfg.State.Save(rec); err != nil {
		return rec, err
	}
	w.cfg.Step("save done")
	w.note(func() {
		e.rec, e.unsaved = rec, false
		agent = w.agent.StateOf(e.id)
		if rec.Service == agent.Service && rec.Standby == agent.Standby && rec.Counting == e.counting {
			e.saveBy = time.Time{}
		}
	})
	if agent.Standby != rec.Intent.Standby {
		w.agent.Wake.Raise() // the registrar renames the service only after this save
	}
	w.prunable.Raise()
	w.pods.record.Raise()
	return rec, nil
}

func (w *worker) cannotSave(err error) {
	w.note(func() {
		w.e.activity = activity{state: pod.StateFailed, message: "the node cannot write to its disk: " + err.Error()}
	})
}

// note changes something that observe reads.
func (w *worker) note(change func()) {
	w.pods.do(func() {
		change()
		w.pods.changed(w.e)
	})
}

func (w *worker) enter(on Event) { w.pods.do(func() { w.pods.enter(w.e, on) }) }

// At reports in the pod's reality what the worker does, unless a newer intent was accepted meanwhile.
func (w *worker) At(state pod.State, message string) {
	w.does(activity{state: state, message: message})
}

func (w *worker) failed(message string, err error) {
	w.does(activity{state: pod.StateFailed, message: message, hopeless: install.Hopeless(err)})
}

func (w *worker) does(next activity) {
	w.pods.do(func() {
		if w.e.want == nil && w.e.activity != next {
			w.e.activity = next
			w.pods.changed(w.e)
		}
	})
}

// Failed logs an error after which the work continues.
func (w *worker) Failed(message string, err error) {
	w.podLog(w.e.id).WithField(obs.Error, err).Warn(message)
}

const reportAfter = time.Second

// During reports in the pod's reality what the worker waits for, from reportAfter after the call until over is called.
func (w *worker) During(doing string) (over func()) {
	ended := false // guarded by pods.mu
	timer := time.AfterFunc(reportAfter, func() {
		w.pods.do(func() {
			if !ended {
				w.e.doing = doing
				w.pods.changed(w.e)
			}
		})
	})
	return func() {
		timer.Stop()
		w.pods.do(func() {
			if ended = true; w.e.doing != "" {
				w.e.doing = ""
				w.pods.changed(w.e)
			}
		})
	}
}

// Pulling reports in the pod's reality how far the pull of an image is. arrived adds to the time in which the pod's
// deadline does not run.
func (w *worker) Pulling(text string, arrived time.Duration) {
	w.pods.do(func() {
		w.e.pulled = w.e.pulled.plus(w.e.rec.Intent.Revision, arrived)
		if w.e.doing != text {
			w.e.doing = text
			w.pods.changed(w.e)
		}
	})
}

func (w *worker) procs() (procs []runtime.Status) {
	w.pods.do(func() { procs = w.e.procs })
	return procs
}

// stop carries out an accepted stop. The tombstone is on the disk before the stop is reported (P5).
func (w *worker) stop(ctx context.Context, rec Record) error {
	procs, err := w.end(ctx, &rec)
	if err != nil {
		return err
	}
	first := rec.StoppedAt == nil
	rec, err = w.save(rec.buried(thisInstant()))
	if err != nil {
		w.At(pod.StateStopping, "stopped, but the node cannot record it: "+err.Error())
		return err
	}
	if first {
		w.podLog(w.e.id).WithField(fieldRevision, rec.Intent.Revision).Info("pod stopped")
	}
	w.enter(Buried)
	w.At("", "")
	w.buried()
	var ids []string
	for _, status := range procs {
		ids = append(ids, status.Spec.ID)
	}
	return errors.Join(w.processes.Remove(ctx, ids), w.clear(&rec))
}

func (w *worker) end(ctx context.Context, rec *Record) ([]runtime.Status, error) {
	procs, err := w.processes.Of(ctx, w.e.id)
	if err != nil {
		w.At(pod.StateStopping, "the runtime does not answer: "+err.Error())
		return nil, err
	}
	if rec.StoppedAt != nil && len(procs) == 0 {
		return nil, nil
	}
	w.takeOut(ctx)
	stop, stopped := stopIDs(*rec, procs)
	w.At(pod.StateStopping, cmp.Or(w.unstopped, stopText(procs, stop)))
	if err := w.halt(ctx, rec, procs, stop, stopped); err != nil {
		w.unstopped = "not stopped yet: " + err.Error()
		w.At(pod.StateStopping, w.unstopped)
		return nil, err
	}
	w.unstopped = ""
	return procs, nil
}

func (w *worker) clear(rec *Record) error {
	err, on := error(nil), Littered
	if stoppedFor(rec, thisInstant()) >= w.cfg.KeepStopped {
		if err = w.node.Discard(w.e.id); err == nil {
			on = Cleared
		}
	}
	w.enter(on)
	return err
}

// takeOut deregisters the pod's services before its processes stop. Then it waits, because the pod still serves clients
// that have just looked up its address.
func (w *worker) takeOut(ctx context.Context) {
	drain := w.withdraw(ctx)
	if drain == 0 {
		return
	}
	w.cfg.Step("drain")
	if drain > reportAfter { // the usual drain is not worth a report
		defer w.During("serving on after it was deregistered")()
	}
	_ = wait.Pause(ctx, drain) // if ctx has ended, the next step notices
}

// withdraw returns how long clients can still connect to the pod.
func (w *worker) withdraw(ctx context.Context) (drain time.Duration) {
	var s register.Pod
	w.pods.do(func() {
		w.pods.enter(w.e, Replaced)
		s = w.e.servicePod(time.Now())
	})
	return w.agent.Withdraw(ctx, &s)
}

// halt stops the processes in stop, with the hooks before and after. The processes in stopped have stopped already, but
// perhaps their hooks did not run. A failed hook does not prevent the stop.
func (w *worker) halt(ctx context.Context, rec *Record, procs []runtime.Status, stop, stopped []string) error {
	for _, v := range w.versionsOf(rec, procs, stop) {
		if err := v.PrepareStop(ctx, w); err != nil {
			return err
		}
	}
	if err := w.stopAll(ctx, procs, stop, stopped); err != nil {
		return err
	}
	for _, v := range w.versionsOf(rec, procs, slices.Concat(stop, stopped)) {
		if err := v.FinishStop(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// stopAll also stops processes that have stopped already: a command may still run beside one, and a stop is confirmed
// only when everything that was started in the pod is gone (P5).
func (w *worker) stopAll(ctx context.Context, procs []runtime.Status, stop, stopped []string) error {
	all := slices.Concat(stop, stopped)
	if len(all) == 0 {
		return nil
	}
	defer w.During(stopText(procs, stop))()
	slices.Sort(all)
	return w.processes.Stop(ctx, slices.Compact(all))
}

// versionsOf returns the versions of the processes in some, the newest first, if their manifest is known.
func (w *worker) versionsOf(rec *Record, procs []runtime.Status, some []string) []*install.Version {
	var found []*install.Version
	for _, in := range rec.versions() {
		has := slices.ContainsFunc(procs, func(s runtime.Status) bool {
			return s.Spec.Revision == in.Revision && slices.Contains(some, s.Spec.ID)
		})
		if v := w.version(rec, in); has && v != nil {
			found = append(found, v)
		}
	}
	return found
}

// version returns nil if the manifest is not known.
func (w *worker) version(rec *Record, in *install.Installed) *install.Version {
	return w.node.Version(w.e.id, rec.UID, in)
}

// stopIDs returns the processes that run or may run, and those that have stopped.
func stopIDs(rec Record, procs []runtime.Status) (stop, stopped []string) {
	for _, status := range procs {
		if status.Phase == runtime.Stopped {
			stopped = append(stopped, status.Spec.ID)
		} else {
			stop = append(stop, status.Spec.ID)
		}
	}
	if rec.Installed != nil {
		for _, id := range install.SpecIDs(rec.Intent.Identity, rec.Installed) {
			if !slices.Contains(stopped, id) {
				stop = append(stop, id)
			}
		}
	}
	slices.Sort(stop)
	return slices.Compact(stop), stopped
}

func stopText(procs []runtime.Status, stop []string) string {
	var names []string
	for i := range procs {
		if s := &procs[i].Spec; slices.Contains(stop, s.ID) && s.Name != "" {
			names = append(names, fmt.Sprintf("%s to stop, its grace is %s", s.Name, s.StopGrace))
		}
	}
	if len(names) == 0 {
		return "making sure that nothing of it runs"
	}
	return "waiting for " + strings.Join(names, "; for ")
}

const (
	fieldRevision  = "revision"
	fieldDigest    = "digest"
	fieldAvailable = "available"
)

func (k *kit) logChange(e *entry, action string, fields obs.Fields) {
	k.podLog(e.id).WithFields(fields).WithField(obs.Action, action).Info("pod changed")
}
