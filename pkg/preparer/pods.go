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

// pods are all pods of the node, and what the intents say of them.
type pods struct {
	queued wait.Signal // somebody is in queue
	seen   wait.Signal // something that observe reads has changed
	record wait.Signal // the node record may have changed
	log    obs.Logger

	mu      sync.Mutex // guards all below, and all of every entry but what says otherwise
	all     map[pod.Identity]*entry
	queue   []*entry  // that need a worker
	intents IntentSet // of the session that there is
	epoch   string    // that belongs to the intents
	silent  bool      // the supervisor does not answer: see Preparer.watchSilence
	local   desired   // what the node's own services shall be
}

func newPods(log obs.Logger) *pods {
	return &pods{queued: wait.NewSignal(), seen: wait.NewSignal(), record: wait.NewSignal(), log: log, all: map[pod.Identity]*entry{}}
}

// do runs f while nobody else looks at the pods or changes them. f waits for nothing; the methods below are for its use.
func (t *pods) do(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// knownEpoch returns the cluster's epoch that the intents belong to.
func (t *pods) knownEpoch() (epoch string) {
	t.do(func() { epoch = t.epoch })
	return epoch
}

// allSaid reports whether the board has what came of all pods that the node has. One that was never saved has not run: it
// matters only where Consul has it as available.
func (t *pods) allSaid(available func(pod.Identity) bool) (all bool) {
	all = true
	t.do(func() {
		for id, e := range t.all {
			all = all && (e.said || e.rec.Version == 0 && !available(id))
		}
	})
	return all
}

// add takes in a pod.
func (t *pods) add(id pod.Identity, rec Record) *entry {
	e := &entry{
		id: id, rec: rec, state: firstState(&rec), wake: wait.NewSignal(), readiness: readiness{ready: rec.Ready}, counting: rec.Counting,
	}
	e.served = rec.Version != 0 && rec.StoppedAt == nil && !rec.NeverAvailable
	e.readiness.keep(rec.Counting)
	t.all[id] = e
	return e
}

// enqueue makes sure that a worker looks at a pod after now.
func (t *pods) enqueue(e *entry) {
	e.again = true
	if !e.working {
		e.working = true
		t.queue = append(t.queue, e)
		t.queued.Raise()
	}
}

// changed has a pod observed. Whatever changes what observe reads calls it.
func (t *pods) changed(e *entry) {
	e.observed = false
	t.seen.Raise()
}

// enter has a pod change its state.
func (t *pods) enter(e *entry, on Event) {
	next, ok := e.state.After(on)
	if !ok {
		t.log.WithFields(obs.Fields{obs.Pod: e.id.String(), obs.Current: string(e.state), obs.Action: string(on)}).Error("state of a pod cannot follow; it stays")
	}
	if next != e.state {
		e.state = next
		t.changed(e)
	}
}

// orphans lists the pods that run without a matching intent, in order.
func (t *pods) orphans() (listed []pod.Orphan) {
	for _, e := range t.all {
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
	rec      Record      // as last saved; its version is zero before the first save
	unsaved  bool        // rec was rebuilt from the runtime and is not on the disk yet
	want     *pod.Intent // accepted and not saved yet
	decided  decided
	activity activity
	doing    string // what its worker has been waiting for a while; empty: nothing

	procs  []runtime.Status  // all that the runtime has of the pod
	seenAt map[run]time.Time // when this preparer first saw each of them, on the monotonic clock

	manifestOf *install.Installed // whose manifest, and ids of processes, these are
	parsed     *manifest.Manifest
	ids        []string

	readiness readiness
	counting  *Counting // what is saved of readiness while min_ready is awaited
	served    bool      // it has been available since it began with nothing on the node, as far as is known
	saveBy    time.Time // when what else is to be saved must be under way; zero: it is
	observed  bool      // nothing that observe reads has changed since
	due       time.Time // when time alone may change what is observed
	said      bool      // it was observed once, and the board has what came of that

	working bool // a worker is at it, or will be
	again   bool // something happened since that worker began its pass
	// Only the worker uses these.
	tidied  int64  // revision of the version after whose launch all was tidied up
	unheard string // the processes for which the log has said that the supervisor is too old to restart them

	wake   wait.Signal
	cancel context.CancelFunc // of the installation under way; nil when none is
}

// decided is the last verdict on a pod; the zero value means that its intent is not known.
type decided struct {
	verdict  Verdict
	revision int64 // of the intent
	outdated bool  // the accepted intent is of another epoch than it was read in
}

// activity is what a worker is doing, or what keeps it from it. The zero value means that there is nothing to say.
type activity struct {
	state    pod.State
	message  string
	hopeless bool // trying again mends nothing
}

// parse decodes the manifest of what is installed, once.
func (e *entry) parse() {
	if in := e.rec.Installed; e.manifestOf != in {
		e.manifestOf, e.parsed, e.ids = in, in.Decode(), nil
		if in != nil {
			e.ids = install.SpecIDs(e.id, in)
		}
	}
}

// manifest returns the manifest of what is installed, nil when it is not known.
func (e *entry) manifest() *manifest.Manifest {
	e.parse()
	return e.parsed
}

// installedProcs returns the processes of the installed version, which is known, and whether some are missing.
func (e *entry) installedProcs() (procs []runtime.Status, missing bool) {
	e.parse()
	for _, status := range e.procs {
		if slices.Contains(e.ids, status.Spec.ID) {
			procs = append(procs, status)
		}
	}
	return procs, len(procs) != len(e.ids)
}

// accepted is the record with what was accepted, saved or not.
func (e *entry) accepted() Record {
	if e.want != nil {
		return e.rec.accept(*e.want)
	}
	return e.rec
}

// expect replaces what was said about earlier intents: a failure that is reported under a revision must be its own.
func (e *entry) expect() {
	rec := e.accepted()
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
		return "waiting for what is being done for version " + install.Short(e.rec.Installed.Digest)
	default:
		return "manifest " + install.Short(e.want.Digest) + " is to be read from Consul"
	}
}

// interrupt ends an installation under way, because what it installs may not be wanted any more.
func (e *entry) interrupt() {
	if e.cancel != nil {
		e.cancel()
	}
	e.wake.Raise()
}

// orphan returns what farms must know of a pod that runs without a matching intent.
func (e *entry) orphan() (pod.Orphan, bool) {
	reason := map[Verdict]string{Orphan: pod.ReasonOrphaned, Ahead: pod.ReasonAhead}[e.decided.verdict]
	if reason == "" {
		return pod.Orphan{}, false
	}
	return e.described(reason)
}

// described returns what a pod of a controller takes of the node.
func (e *entry) described(reason string) (pod.Orphan, bool) {
	rec := e.accepted()
	if e.id.Local() || rec.Intent.State == pod.Stopped {
		return pod.Orphan{}, false
	}
	digest, ports := rec.runs()
	o := pod.Orphan{
		Identity: rec.Intent.Identity, PodID: rec.Intent.PodID, Digest: digest, Revision: rec.Intent.Revision, Ports: ports, Reason: reason,
		Runs: anyAlive(e.procs),
	}
	if m := e.manifest(); m != nil {
		res := m.Resources()
		o.CPU, o.Memory = res.CPU, res.Memory
	}
	return o, true
}

// outdated reports whether an intent names another epoch than it was read in. Then it says what was true once, and starts nothing.
func (t *pods) outdated(in *pod.Intent) bool {
	return in.Epoch != "" && t.epoch != "" && in.Epoch != t.epoch
}

// run is one run of a process.
type run struct {
	id      string
	pid     int
	started int64
}

func runOf(s *runtime.Status) run { return run{s.Spec.ID, s.PID, s.StartedAt.UnixNano()} }

// sawProcs notes what the runtime has of the pod, and since when this preparer knows of each run.
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

// rested reports whether the initial delay of the pod's health check is over: the check begins with the registration.
func (e *entry) rested(m *manifest.Manifest, now time.Time) bool {
	if m.Health == nil || m.Health.InitialDelay == nil {
		return true
	}
	delay, running := m.Health.InitialDelay.Or(0), false
	for i := range e.procs {
		if e.procs[i].Phase != runtime.Running {
			continue
		}
		// The clock may have been ahead when the process was started; the time since it was first seen is nobody's to set.
		if running = true; now.Before(e.procs[i].StartedAt.Add(delay)) && now.Before(e.seenAt[runOf(&e.procs[i])].Add(delay)) {
			return false
		}
	}
	return running
}

func anyAlive(procs []runtime.Status) bool {
	return slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Phase != runtime.Stopped })
}

// works reports whether all processes of the installed version run that have not done their work, and none ends again
// and again.
func (e *entry) works() bool {
	procs, missing := e.installedProcs()
	return instances(procs, missing) != "" && !slices.ContainsFunc(procs, crashLoops)
}

// servicePod returns what the services of a pod follow from.
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
