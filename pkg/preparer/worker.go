package preparer

import (
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

// kit is what the work for pods is done with. Nothing in it knows the Preparer.
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
	ready     chan struct{} // closed when disk and runtime have both been read
	prunable  wait.Signal   // other artifacts may be needed than before, or one could not be fetched
}

func (k *kit) podLog(id pod.Identity) obs.Logger { return k.log.WithField(obs.Pod, id.String()) }

// connectivityOf is what decides whether a pod may run. The caller is in pods.do.
func (k *kit) connectivityOf(e *entry, now proc.Moment) claim.Connectivity {
	t := k.contact.Connectivity(now)
	t.Agreed, t.Running, t.Lost, t.Waits = e.decided.verdict == Unchanged, anyAlive(e.procs), k.name.Lost(), e.rec.AwaitsIntent
	t.Outdated = e.decided.outdated
	if e.id.Local() { // its intent is on this node, and it runs on no other
		t.Serving, t.Unread, t.Lost, t.Waits = true, 0, false, false
	}
	return t
}

// worker brings one pod to what its record wants. A pod has at most one, and none while all is well.
type worker struct {
	*kit

	e      *entry
	buried func() // is told that the stop of a pod is on the disk, so that an intent that is gone already means more
}

// run reconciles the pod until there is nothing left to do.
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
			w.pods.do(func() { w.e.working, done = w.e.again, !w.e.again }) // unless something happened meanwhile
			if done {
				return
			}
			continue
		}
		if !errors.Is(err, context.Canceled) { // an interrupted installation is no failure
			w.limiter.Report(key, "pod cannot be reconciled, trying again", err)
		}
		if woken, err := wait.PauseUnless(ctx, w.e.wake, pace.NextBackOff()); err != nil {
			return
		} else if woken {
			pace.Reset()
		}
	}
}

// reconcile brings the pod closer to what its record wants. It starts from the record and from what the runtime has, never
// from what an earlier pass was about to do, so that it may be interrupted anywhere (P7).
func (w *worker) reconcile(ctx context.Context) error {
	rec, err := w.persist()
	switch {
	case rec.Intent.State != pod.Stopped:
	case err != nil: // a disk that takes nothing keeps nothing running; the stop is confirmed once it is recorded
		w.cannotSave(err)
		procs, endErr := w.processes.Of(ctx, w.e.id)
		runs := func(s runtime.Status) bool { return s.Phase != runtime.Stopped }
		if endErr == nil && slices.ContainsFunc(procs, runs) { // once: hooks are not run again and again
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
	if err != nil { // a full disk keeps new intents out, not the pod down
		w.cannotSave(err)
		return errors.Join(err, procsErr)
	}
	if !rec.upToDate() {
		// What keeps the old version from running must not keep the new one out.
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
	// What runs is as asked for, except perhaps for its name: a newer intent for the same digest installs nothing.
	if err := samePod(rec.Intent, rec.Installed.Decode()); err != nil {
		w.failed(err.Error(), err)
		return nil
	}
	w.At("", "")
	return nil
}

// persist saves what was accepted and what a restart must know. Nothing is started or reported that is not saved: when it
// fails, the record that it returns is the one on the disk. A stop is returned all the same.
func (w *worker) persist() (Record, error) {
	var want *pod.Intent
	var saved Record
	w.pods.do(func() { want, saved = w.e.want, w.e.rec })
	rec := saved
	if want != nil {
		rec = rec.accept(*want)
		defer w.During("writing the intent to the node's disk")()
	}
	if rec.UID == 0 && rec.Intent.State == pod.Running { // before the record that says so is saved
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
			w.pods.enter(w.e, ToldToStop)
		default:
			w.pods.enter(w.e, ToldToRun)
		}
	})
	if rec.Intent.Standby != saved.Intent.Standby {
		w.agent.Wake.Raise()
	}
	return rec, nil
}

// save makes a record durable, together with what others leave in the entry and at the agent, and then visible. A record
// that is saved already costs nothing.
func (w *worker) save(rec Record) (Record, error) {
	e, said, same := w.e, w.agent.Said(w.e.id), false
	w.pods.do(func() {
		rec.Service, rec.Standby, rec.Ready, rec.Counting = said.Service, said.Standby, e.readiness.ready, e.counting
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
		said = w.agent.Said(e.id)
		if rec.Service == said.Service && rec.Standby == said.Standby && rec.Counting == e.counting {
			e.saveBy = time.Time{}
		}
	})
	if said.Standby != rec.Intent.Standby {
		w.agent.Wake.Raise() // the name that it is to leave waits for this
	}
	w.prunable.Raise()
	w.pods.record.Raise()
	return rec, nil
}

// cannotSave says why an intent was not accepted.
func (w *worker) cannotSave(err error) {
	w.note(func() {
		w.e.activity = activity{state: pod.StateFailed, message: "the node cannot write to its disk: " + err.Error()}
	})
}

// note changes something that is observed.
func (w *worker) note(change func()) {
	w.pods.do(func() {
		change()
		w.pods.changed(w.e)
	})
}

// enter has the pod change its state.
func (w *worker) enter(on Event) { w.pods.do(func() { w.pods.enter(w.e, on) }) }

// At says in the pod's reality what is done for it. Once a newer intent is accepted, what is said about the earlier one is dropped.
func (w *worker) At(state pod.State, message string) {
	w.does(activity{state: state, message: message})
}

// failed says what keeps the worker from what it does.
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

// Failed logs what nothing depends on.
func (w *worker) Failed(message string, err error) {
	w.podLog(w.e.id).WithField(obs.Error, err).Warn(message)
}

// tellAfter is how long something takes before a reality says that it is waited for: what is over sooner is no news.
const tellAfter = time.Second

// During says in the pod's reality what its worker waits for, until over is called.
func (w *worker) During(doing string) (over func()) {
	ended := false // guarded as the entry is
	timer := time.AfterFunc(tellAfter, func() {
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

func (w *worker) procs() (procs []runtime.Status) {
	w.pods.do(func() { procs = w.e.procs })
	return procs
}

// stop carries out an accepted stop. That nothing of the pod runs is durably recorded before it is reported (P5).
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

// end ends what runs of the pod, and returns the processes of it that the runtime has.
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
	w.At(pod.StateStopping, stopText(procs, stop))
	if err := w.halt(ctx, rec, procs, stop, stopped); err != nil {
		w.At(pod.StateStopping, "not stopped yet: "+err.Error())
		return nil, err
	}
	return procs, nil
}

// clear takes away what a stopped pod left on the disk, once it has been stopped for long enough. Volumes stay.
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

// takeOut takes the pod's services away before its processes are stopped, and has it serve on for a while: whoever has just looked its
// address up comes all the same.
func (w *worker) takeOut(ctx context.Context) {
	drain := w.withdraw(ctx)
	if drain == 0 {
		return
	}
	w.cfg.Step("drain")
	if drain > tellAfter { // what all pods do is no news
		defer w.During("serving on after it was deregistered")()
	}
	_ = wait.Pause(ctx, drain) // whoever comes next sees that ctx has ended
}

// withdraw takes the pod's services away, and returns for how long it has clients yet.
func (w *worker) withdraw(ctx context.Context) (drain time.Duration) {
	var s register.Pod
	w.pods.do(func() {
		w.pods.enter(w.e, Replaced)
		s = w.e.servicePod(time.Now())
	})
	return w.agent.Withdraw(ctx, &s)
}

// halt stops processes, with the hooks of the versions that they belong to around it. Those that are given besides have
// stopped already; what follows a stop may not have been done for them. Hooks cannot keep anything from being stopped.
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

// stopAll stops processes, also those that have stopped: a command may still run beside one, and whatever was started in the pod is
// gone before its stop is confirmed (P5).
func (w *worker) stopAll(ctx context.Context, procs []runtime.Status, stop, stopped []string) error {
	all := slices.Concat(stop, stopped)
	if len(all) == 0 {
		return nil
	}
	defer w.During(stopText(procs, stop))()
	slices.Sort(all)
	return w.processes.Stop(ctx, slices.Compact(all))
}

// versionsOf returns the versions that some of the processes belong to, as far as they are known, the newest first.
func (w *worker) versionsOf(rec *Record, procs []runtime.Status, some []string) []*install.Version {
	var found []*install.Version
	for _, in := range rec.versions() {
		has := slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Spec.Revision == in.Revision && slices.Contains(some, s.Spec.ID) })
		if v := w.version(rec, in); has && v != nil {
			found = append(found, v)
		}
	}
	return found
}

// version returns a version that is in the pod's record, nil when its manifest is not known.
func (w *worker) version(rec *Record, in *install.Installed) *install.Version {
	return w.node.Version(w.e.id, rec.UID, in)
}

// stopIDs returns the ids of all processes that the pod has or may have, and apart those that have stopped already.
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

// stopText says which of the processes are to stop, and how long they may take.
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

// The names of log fields that only preparers write.
const (
	fieldRevision  = "revision"
	fieldDigest    = "digest"
	fieldAvailable = "available"
)

func (k *kit) logChange(e *entry, action string, fields obs.Fields) {
	k.podLog(e.id).WithFields(fields).WithField(obs.Action, action).Info("pod changed")
}
