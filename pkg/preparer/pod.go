package preparer

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// entry is everything about one identity. Preparer.mu guards it; only the identity's worker changes rec.
type entry struct {
	id       pod.Identity
	rec      Record      // as last saved; its version is zero before the first save
	unsaved  bool        // rec was rebuilt from the runtime and is not on the disk yet
	want     *pod.Intent // accepted and not saved yet
	standing standing
	activity activity
	doing    string            // what its worker has been waiting for a while; empty: nothing
	procs    []runtime.Status  // all that the runtime has of the pod
	seenAt   map[run]time.Time // when this preparer first saw each of them, on the monotonic clock
	parsed   *manifest.Manifest
	parsedOf *install.Installed // whose manifest is parsed
	ids      []string           // of the processes of idsOf
	idsOf    *install.Installed

	tidied    int64     // revision of the version after whose launch all was tidied up; only the worker uses it
	collected bool      // what a stopped pod leaves behind is gone
	heldBack  bool      // it must not run while Consul is out of touch
	spent     bool      // it runs once, was started before, and the runtime does not have how it ended
	up        bool      // the installed processes were started, so the service may be registered
	saveBy    time.Time // when what else is to be saved must be under way; zero: it is
	readiness readiness
	counting  *Counting // what is saved of readiness while min_ready is awaited

	observed bool      // nothing that observe reads has changed since
	due      time.Time // when time alone may change what is observed

	working  bool // a worker is at it, or will be
	again    bool // something happened since that worker began its pass
	commands supervise.Commands

	wake   loop.Signal
	cancel context.CancelFunc // of the installation under way; nil when none is
}

// standing is what the intents say about a pod besides what it accepted; the zero value means that they are not known.
type standing struct {
	verdict  Verdict
	revision int64 // of the intent
}

// activity is what a worker is doing, or what keeps it from it. The zero value means that there is nothing to say.
type activity struct {
	state    pod.State
	message  string
	hopeless bool // trying again mends nothing
}

func newEntry(rec Record) *entry {
	e := &entry{
		id: rec.Intent.Identity, rec: rec, wake: loop.NewSignal(),
		readiness: readiness{ready: rec.Ready}, counting: rec.Counting,
	}
	e.readiness.keep(rec.Counting)
	return e
}

// manifest returns the manifest of what is installed, nil when it is not known. The caller holds p.mu.
func (e *entry) manifest() *manifest.Manifest {
	if e.parsedOf != e.rec.Installed {
		e.parsedOf, e.parsed = e.rec.Installed, e.rec.Installed.Decode()
	}
	return e.parsed
}

// local is what decisions are made from: what was accepted, saved or not.
func (e *entry) local() Local {
	rec := e.rec
	if e.want != nil {
		rec = rec.accept(*e.want)
	}
	return rec.local()
}

// expect replaces what was said about earlier intents: a failure that is reported under a revision must be its own.
func (e *entry) expect() {
	rec := e.rec.accept(*e.want)
	e.activity = activity{}
	if rec.Intent.State == pod.Running && !rec.upToDate() {
		e.activity = activity{state: pod.StatePending, message: e.pendingText()}
	}
}

// pendingText says what an accepted intent waits for. It is part of the report that says pending, and costs none of its own.
func (e *entry) pendingText() string {
	switch {
	case e.rec.Intent.State == pod.Stopped && e.rec.StoppedAt == nil && e.rec.Version != 0:
		return "waiting for the stop of revision " + strconv.FormatInt(e.rec.Intent.Revision, 10) + " to end"
	case e.working && e.rec.Installed != nil:
		return "waiting for what is being done for version " + short(e.rec.Installed.Digest)
	default:
		return "manifest " + short(e.want.Digest) + " is to be read from Consul"
	}
}

// interrupt ends an installation under way, because what it installs may not be wanted any more.
func (e *entry) interrupt() {
	if e.cancel != nil {
		e.cancel()
	}
	e.wake.Raise()
}

// enqueue makes sure that a worker looks at the entry after now. The caller holds p.mu.
func (p *Preparer) enqueue(e *entry) {
	e.again = true
	if !e.working {
		e.working = true
		p.queue = append(p.queue, e)
		p.queued.Raise()
	}
}

// work settles one pod until there is nothing left to do. A pod has at most one worker, and none while all is well.
func (p *Preparer) work(ctx context.Context, e *entry) {
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = p.cfg.RetryMin, p.cfg.RetryMax
	key := "pod " + e.id.String()
	for {
		p.mu.Lock()
		e.again = false
		p.mu.Unlock()
		err := p.settle(ctx, e)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			p.trouble.Over(key)
			pace.Reset()
			if p.rest(e) {
				return
			}
			continue
		}
		if !errors.Is(err, context.Canceled) { // an interrupted installation is no trouble
			p.trouble.Report(key, "pod cannot be settled, trying again", err)
		}
		if woken, err := loop.PauseUnless(ctx, e.wake, pace.NextBackOff()); err != nil {
			return
		} else if woken {
			pace.Reset()
		}
	}
}

// rest ends the worker's job unless something happened meanwhile.
func (p *Preparer) rest(e *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.working = e.again
	return !e.working
}

// settle brings one pod closer to what its record wants. It starts from the record and from what the runtime has, never
// from what an earlier pass was about to do, so that it may be interrupted anywhere (P7).
func (p *Preparer) settle(ctx context.Context, e *entry) error {
	rec, err := p.persist(e)
	if rec.Intent.State == pod.Stopped {
		return errors.Join(err, p.stop(ctx, e, rec))
	}
	var keepErr error
	if rec.Installed != nil {
		rec, keepErr = p.keep(ctx, e, rec)
	}
	if err != nil { // a full disk keeps new intents out, not the pod down
		p.cannotSave(e, err)
		return errors.Join(err, keepErr)
	}
	if !rec.upToDate() {
		// What keeps the old version from running must not keep the new one out.
		if rec, err = p.install(ctx, e, rec); err != nil {
			return errors.Join(err, keepErr)
		}
		_, keepErr = p.keep(ctx, e, rec)
	}
	if errors.Is(keepErr, errHeldBack) {
		return nil
	}
	if keepErr != nil {
		return keepErr
	}
	// What runs is as asked for, except perhaps for its name: a newer intent for the same digest installs nothing.
	if err := samePod(rec.Intent, rec.Installed.Decode()); err != nil {
		p.setFailed(e, err.Error(), err)
		return nil
	}
	p.setActivity(e, "", "")
	return nil
}

// persist saves what was accepted and what a restart must know. Nothing is done or reported that is not saved: when it
// fails, the record that it returns is the one on the disk.
func (p *Preparer) persist(e *entry) (Record, error) {
	p.mu.Lock()
	want, saved := e.want, e.rec
	p.mu.Unlock()
	rec := saved
	if want != nil {
		rec = rec.accept(*want)
		defer p.during(e, "writing the intent to the node's disk")()
	}
	if rec.UID == 0 && rec.Intent.State == pod.Running { // before the record that says so is saved
		rec.UID = p.node.Number(e.id, p.procsOf(e))
	}
	rec, err := p.save(e, rec)
	if err != nil {
		return saved, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.want == want {
		e.want = nil
	}
	if rec.Intent.Standby != saved.Intent.Standby {
		p.agent.Wake.Raise()
	}
	return rec, nil
}

// save makes a record durable, together with the fingerprints that others leave in the entry, and then visible. A record
// that is saved already costs nothing.
func (p *Preparer) save(e *entry, rec Record) (Record, error) {
	said := p.agent.Said(e.id)
	p.mu.Lock()
	rec.Service, rec.Standby, rec.Ready, rec.Counting = said.Service, said.Standby, e.readiness.ready, e.counting
	if rec.StoppedAt != nil {
		rec.Service, rec.Standby, rec.Ready, rec.Counting = "", false, "", nil
	}
	same := !e.unsaved && reflect.DeepEqual(rec, e.rec)
	p.mu.Unlock()
	if same {
		return rec, nil
	}
	p.step("save")
	if err := p.cfg.State.Save(rec); err != nil {
		return rec, err
	}
	p.step("save done")
	p.mu.Lock()
	defer p.mu.Unlock()
	e.rec, e.unsaved = rec, false
	said = p.agent.Said(e.id)
	if said.Standby != rec.Intent.Standby {
		p.agent.Wake.Raise() // the name that it is to leave waits for this
	}
	if rec.Service == said.Service && rec.Standby == said.Standby && rec.Counting == e.counting {
		e.saveBy = time.Time{}
	}
	p.changed(e)
	p.prunable.Raise()
	p.record.Raise()
	return rec, nil
}

func (p *Preparer) cannotSave(e *entry, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.activity = activity{state: pod.StateFailed, message: "the node cannot write to its disk: " + err.Error()}
	p.changed(e)
}

// setActivity says what a worker does. Once a newer intent is accepted, what is said about the earlier one is dropped.
func (p *Preparer) setActivity(e *entry, state pod.State, message string) {
	p.does(e, activity{state: state, message: message})
}

// setFailed says what keeps a worker from what it does.
func (p *Preparer) setFailed(e *entry, message string, err error) {
	p.does(e, activity{state: pod.StateFailed, message: message, hopeless: install.Hopeless(err)})
}

func (p *Preparer) does(e *entry, next activity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.want == nil && e.activity != next {
		e.activity = next
		p.changed(e)
	}
}

// stop carries out an accepted stop. That nothing of the pod runs is durably recorded before it is reported (P5).
func (p *Preparer) stop(ctx context.Context, e *entry, rec Record) error {
	procs, err := p.processes.Of(ctx, e.id)
	if err != nil {
		p.setActivity(e, pod.StateStopping, "the runtime does not answer: "+err.Error())
		return err
	}
	if rec.StoppedAt == nil || len(procs) > 0 {
		p.takeOut(ctx, e)
		stop, stopped := stopIDs(rec, procs)
		p.setActivity(e, pod.StateStopping, stopText(procs, stop))
		if err := p.halt(ctx, e, &rec, procs, stop, stopped); err != nil {
			p.setActivity(e, pod.StateStopping, "not stopped yet: "+err.Error())
			return err
		}
	}
	first := rec.StoppedAt == nil
	rec, err = p.save(e, rec.buried(time.Now()))
	if err != nil {
		p.setActivity(e, pod.StateStopping, "stopped, but the node cannot record it: "+err.Error())
		return err
	}
	if first {
		p.podLog(e.id).WithField(fieldRevision, rec.Intent.Revision).Info("pod stopped")
	}
	p.setActivity(e, "", "")
	p.reconsider() // an intent that is gone already means more now
	var ids []string
	for _, status := range procs {
		ids = append(ids, status.Spec.ID)
	}
	return errors.Join(p.processes.Remove(ctx, ids), p.removeDirs(e, &rec))
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

// The names of log fields that only preparers write.
const (
	fieldRevision  = "revision"
	fieldDigest    = "digest"
	fieldAvailable = "available"
)

func (p *Preparer) logChange(e *entry, action string, fields obs.Fields) {
	p.podLog(e.id).WithFields(fields).WithField(obs.Action, action).Info("pod changed")
}
