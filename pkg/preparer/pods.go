package preparer

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

type pods struct {
	queued wait.Signal // queue is not empty
	seen   wait.Signal // something that observe reads has changed
	record wait.Signal // the node's record may have changed
	log    obs.Logger

	// mu guards the fields below, and the fields of every entry except as noted there.
	mu      sync.Mutex
	all     map[pod.Identity]*entry
	queue   []*entry  // pods that need a worker
	intents IntentSet // as read under the present session
	epoch   string    // of the store when the intents were read
	silent  bool      // the supervisor does not answer: see Preparer.watchSilence
	local   desired   // desired state of the node's own services
}

func newPods(log obs.Logger) *pods {
	return &pods{
		queued: wait.NewSignal(), seen: wait.NewSignal(), record: wait.NewSignal(),
		log: log, all: map[pod.Identity]*entry{},
	}
}

// do runs f while it holds the lock on all pods. f must not wait, and must not call do.
func (p *pods) do(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *pods) knownEpoch() (epoch string) {
	p.do(func() { epoch = p.epoch })
	return epoch
}

// allReported reports whether the board has a reality of every pod. A pod whose record was never saved has not run, so
// its reality matters only if Consul has the pod as available.
func (p *pods) allReported(available func(pod.Identity) bool) (all bool) {
	all = true
	p.do(func() {
		for id, e := range p.all {
			all = all && (e.reported || e.rec.Version == 0 && !available(id))
		}
	})
	return all
}

func (p *pods) add(id pod.Identity, rec Record) *entry {
	e := &entry{
		id: id, rec: rec, state: firstState(&rec), wake: wait.NewSignal(),
		readiness: readiness{ready: rec.Ready}, counting: rec.Counting,
	}
	e.served = rec.Version != 0 && rec.StoppedAt == nil && !rec.NeverAvailable
	e.readiness.keep(rec.Counting)
	p.all[id] = e
	return e
}

// enqueue makes sure that a worker reconciles the pod after this call.
func (p *pods) enqueue(e *entry) {
	e.again = true
	if !e.working {
		e.working = true
		p.queue = append(p.queue, e)
		p.queued.Raise()
	}
}

// changed must be called after a change of something that observe reads.
func (p *pods) changed(e *entry) {
	e.observed = false
	p.seen.Raise()
}

func (p *pods) enter(e *entry, on Event) {
	next, ok := e.state.After(on)
	if !ok {
		p.log.WithFields(obs.Fields{
			obs.Pod: e.id.String(), obs.Current: string(e.state), obs.Action: string(on),
		}).Error("pod has an event that its state does not allow; the state is unchanged")
	}
	if next != e.state {
		e.state = next
		p.changed(e)
	}
}

func (p *pods) orphans() (listed []pod.Orphan) {
	for _, e := range p.all {
		if o, is := e.orphan(); is {
			listed = append(listed, o)
		}
	}
	slices.SortFunc(listed, func(a, b pod.Orphan) int { return a.Compare(b.Identity) })
	return listed
}

// entry is everything about one identity. Only its worker changes rec and state.
type entry struct {
	id       pod.Identity
	state    PodState
	rec      Record      // as last saved; rec.Version is zero before the first save
	unsaved  bool        // rec was rebuilt from the runtime and is not on the disk yet
	want     *pod.Intent // accepted and not saved yet
	decided  decided
	activity activity
	doing    string // what the worker has waited for, if longer than reportAfter; else empty
	pulled   pulled

	procs  []runtime.Status  // all processes of the pod that the runtime has
	seenAt map[run]time.Time // when this preparer first saw each process, on the monotonic clock

	manifestOf *install.Installed // the version from which parsed and ids come
	parsed     *manifest.Manifest
	ids        []string

	readiness readiness
	counting  *Counting // while the pod waits for min_ready: the part of readiness that is saved
	served    bool      // known to have been available since it began with nothing on the node
	saveBy    time.Time // when a worker must save changes of rec; zero: nothing to save, or a worker will save it
	observed  bool      // observed since the last change of something that observe reads
	due       time.Time // when the pod must be observed again even if nothing changes
	reported  bool      // observed once, and the board has the reality

	working bool // the pod has a worker, or is in the queue for a worker
	again   bool // the worker must reconcile once more
	// Only the worker uses the next two fields.
	tidied    int64  // revision of the version for which tidy has succeeded
	tooOldFor string // the processes in the last warning that the supervisor is too old to restart them

	wake   wait.Signal
	cancel context.CancelFunc // ends the installation under way; nil if there is none
}

// decided is the last verdict on a pod. Zero: its intent is not known.
type decided struct {
	verdict  Verdict
	revision int64 // of the intent
	outdated bool  // when the intents were read, the intent's epoch was not the cluster's
}

// pulled is for how long the images of a revision have arrived.
type pulled struct {
	revision int64
	time     time.Duration
}

func (p pulled) plus(revision int64, more time.Duration) pulled {
	if p.revision != revision {
		p = pulled{revision: revision}
	}
	p.time += more
	return p
}

// pulledStep is how precisely a pod's report has the time that its images have arrived, because the farm writes a
// status at each change.
const pulledStep = 10 * time.Second

// seconds is for the report of a revision. It is rounded up, so that the time is enough until the next step. A pod that
// pulls again and again gets no more time than most.
func (p pulled) seconds(revision int64, most time.Duration) int64 {
	if p.revision != revision {
		return 0
	}
	return int64(min((p.time+pulledStep-1)/pulledStep*pulledStep, most) / time.Second)
}

// activity is what a worker does, or why it cannot continue. Zero: nothing to report.
type activity struct {
	state    pod.State
	message  string
	hopeless bool // trying again does not help
}

func (e *entry) parse() {
	if in := e.rec.Installed; e.manifestOf != in {
		e.manifestOf, e.parsed, e.ids = in, in.Decode(), nil
		if in != nil {
			e.ids = install.SpecIDs(e.id, in)
		}
	}
}

// manifest returns nil if it is not known.
func (e *entry) manifest() *manifest.Manifest {
	e.parse()
	return e.parsed
}

// installedProcs: the caller knows the installed version.
func (e *entry) installedProcs() (procs []runtime.Status, missing bool) {
	e.parse()
	for _, status := range e.procs {
		if slices.Contains(e.ids, status.Spec.ID) {
			procs = append(procs, status)
		}
	}
	return procs, len(procs) != len(e.ids)
}

// accepted returns the record with the accepted intent, even if it is not saved yet.
func (e *entry) accepted() Record {
	if e.want != nil {
		return e.rec.accept(*e.want)
	}
	return e.rec
}

// expect clears the activity when an intent is accepted, because a report with a revision must show only failures of
// that revision.
func (e *entry) expect() {
	rec := e.accepted()
	e.activity = activity{}
	if rec.Intent.State == pod.Running && !rec.upToDate() {
		e.activity = activity{state: pod.StatePending, message: e.pendingText()}
	}
}

func (e *entry) pendingText() string {
	switch {
	case e.rec.Intent.State == pod.Stopped && e.rec.StoppedAt == nil && e.rec.Version != 0:
		return "waiting for the stop of revision " + strconv.FormatInt(e.rec.Intent.Revision, 10) + " to end"
	case e.working && e.rec.Installed != nil:
		return "waiting until the node has finished its work on version " + install.Short(e.rec.Installed.Digest)
	default:
		return "manifest " + install.Short(e.want.Digest) + " is to be read from Consul"
	}
}

func (e *entry) interrupt() {
	if e.cancel != nil {
		e.cancel()
	}
	e.wake.Raise()
}

func (e *entry) orphan() (pod.Orphan, bool) {
	reason := map[Verdict]string{Orphan: pod.ReasonOrphaned, Ahead: pod.ReasonAhead}[e.decided.verdict]
	if reason == "" {
		return pod.Orphan{}, false
	}
	return e.described(reason)
}

// described returns what a controller's pod takes of the node's capacity; false if it is local or must stop.
func (e *entry) described(reason string) (pod.Orphan, bool) {
	rec := e.accepted()
	if e.id.Local() || rec.Intent.State == pod.Stopped {
		return pod.Orphan{}, false
	}
	digest, ports := rec.runs()
	o := pod.Orphan{
		Identity: rec.Intent.Identity, PodID: rec.Intent.PodID, Digest: digest, Revision: rec.Intent.Revision,
		Ports: ports, Reason: reason, Runs: anyAlive(e.procs),
	}
	if m := e.manifest(); m != nil {
		res := m.Resources()
		o.CPU, o.Memory = res.CPU, res.Memory
	}
	return o, true
}

// outdated: the node starts no process for such an intent, because the intent may be wrong by now.
func (p *pods) outdated(in *pod.Intent) bool {
	return in.Epoch != "" && p.epoch != "" && in.Epoch != p.epoch
}

type run struct {
	id      string
	pid     int
	started int64
}

func runOf(s *runtime.Status) run { return run{s.Spec.ID, s.PID, s.StartedAt.UnixNano()} }

func (e *entry) sawProcs(procs []runtime.Status, now time.Time) {
	before := e.seenAt
	e.procs, e.seenAt = procs, make(map[run]time.Time, len(procs))
	for i := range procs {
		key := runOf(&procs[i])
		if e.seenAt[key] = now; !before[key].IsZero() {
			e.seenAt[key] = before[key]
		}
	}
}

// rested reports whether the initial delay of the health check is over. The service is registered only then, because
// the check begins with the registration.
func (e *entry) rested(m *manifest.Manifest, now time.Time) bool {
	if m.Health == nil || m.Health.InitialDelay == nil {
		return true
	}
	delay, running := m.Health.InitialDelay.Or(0), false
	for i := range e.procs {
		if e.procs[i].Phase != runtime.Running {
			continue
		}
		// StartedAt is too late if the wall clock was ahead at the start of the process. seenAt is on a clock that
		// cannot be set.
		running = true
		if now.Before(e.procs[i].StartedAt.Add(delay)) && now.Before(e.seenAt[runOf(&e.procs[i])].Add(delay)) {
			return false
		}
	}
	return running
}

func anyAlive(procs []runtime.Status) bool {
	return slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Phase != runtime.Stopped })
}

func (e *entry) works() bool {
	procs, missing := e.installedProcs()
	return instances(procs, missing) != "" && !slices.ContainsFunc(procs, crashLoops)
}

func (e *entry) servicePod(now time.Time) register.Pod {
	m := e.manifest()
	s := register.Pod{
		ID: e.id, Installed: e.rec.Installed, Manifest: m, UID: e.rec.UID, Standby: e.rec.Intent.Standby,
		Up: e.state.up(), Alive: anyAlive(e.procs), Rested: m != nil && e.rested(m, now), Noted: e.rec.Service,
	}
	s.Works = s.Up && m != nil && e.works()
	if s.Up && m != nil && m.Health != nil && (m.Health.Script != nil || m.RestartAfter() > 0) {
		procs, missing := e.installedProcs()
		s.Runs = instances(procs, missing)
		if m.Health.Script != nil && !missing {
			s.Procs, s.Available = procs, s.Runs != "" && s.Runs == e.readiness.ready
		}
	}
	return s
}
