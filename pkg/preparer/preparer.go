// Package preparer is the agent of one node: it makes the node's processes match the intents that the farm wrote.
//
// Run supervises the local pods for the life of the process and needs nothing of Consul's servers. Serve is what happens
// under one session: it holds the node's lock, takes new intents and reports. An intent goes one way: Decide, in decide.go, is the only place
// that turns it, or its absence, into a verdict; apply puts what was accepted into the pod's entry (pods.go); reconcile, in worker.go, brings the
// pod closer to its record, and may be interrupted anywhere; observe, in observe.go, derives what is reported. The states that a pod goes
// through, and why, are the table in state.go. Parts below this package do the rest, and call nobody here but by what they were given.
package preparer

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/push"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/report"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Store is what a preparer reads of the cluster; *store.Store is one.
type Store interface {
	SignedManifest(ctx context.Context, digest string) (m *manifest.Manifest, signature string, err error)
	WatchIntents(ctx context.Context, node string, onError func(error), deliver func(store.Seen[pod.Intent]) error) error
	// PullIntents is WatchIntents, which reads whenever next returns in place of a standing query.
	PullIntents(ctx context.Context, node string, next func(context.Context) error, onError func(error), deliver func(store.Seen[pod.Intent]) error) error
	Epoch(ctx context.Context) (string, error) // of the cluster
	report.NodeReader
	WatchSchema(ctx context.Context, onError func(error), deliver func(store.Seen[store.Schema]) error) error
}

// Session is what a preparer writes under one session; *store.NodeSession is one.
type Session interface {
	report.NodeWriter
	report.Realities
	reserver
	// Left returns for how long the session may be believed in from now on, if Consul does not answer.
	Left() time.Duration
}

// State is the node's own disk; what NewDisk returns is one.
type State interface {
	// Load returns all records, an error for each whose content is none, and one when not everything could be read.
	Load() ([]Record, []error, error)
	// Save returns nil when the record survives a power failure.
	Save(rec Record) error
	// Forget removes the record that has this name, which is install.FileName of its identity. One that is not there is fine.
	Forget(name string) error
}

// DefaultKeepStopped is how long home, logs and versions of a stopped pod stay.
const DefaultKeepStopped = 24 * time.Hour

// DefaultPullEvery is what a push that is lost costs: about what people wait before they look. A thousand nodes make 17 small reads a second
// of it.
const DefaultPullEvery = time.Minute

// Config is what New needs. Zero values mean the defaults that setDefaults has.
type Config struct {
	// Node says what the machine is. Name and Address are required; host, incarnation, Consul node, epoch and orphans are
	// filled in.
	Node node.Node
	install.Host
	Store    Store
	Cache    Cache // nil: artifacts are neither mended nor removed
	Services register.Services
	State    State       // nil: NewDisk in Dir/pods
	Doors    claim.Doors // nil: nobody asks what pods may do at Consul
	// InUse returns the ports, sorted, that something on the machine holds besides those of pods; nil: nobody asks.
	InUse   func(pods map[int]bool) ([]int, error)
	Strict  bool // no new intents while they may do anything, or nobody knows
	Log     obs.Logger
	Metrics *Metrics // nil: nobody sees them

	BusyPoll    time.Duration // between two looks at the local agent while a pod is in transition
	IdlePoll    time.Duration // between two looks when none is
	RelistEvery time.Duration // between two looks at the stored realities, which nothing watches; spread by half
	RetryMin    time.Duration // first pause after an act on a pod failed; it doubles from there
	RetryMax    time.Duration // bound of that doubling
	PingEvery   time.Duration // between two questions to the supervisor whether it answers
	SilentAfter time.Duration // how long it may take to answer

	// Push: farms tell the node of its intents (ADR 26), in place of a standing query; PullEvery is the time between two readings that
	// nobody asks for, give or take half.
	Push      bool
	PullEvery time.Duration

	// TakeOver takes the node's name over from another host, once.
	TakeOver bool
	// ConfirmLoss is the time between two answers of Consul that the name was taken over from this host, before its pods stop.
	ConfirmLoss time.Duration
	AskDoors    time.Duration // between two looks at what pods may do at Consul
	AskAgain    time.Duration // between two while nobody knows, or nothing is taken because of it
	LookAtGate  time.Duration // between two looks at the version gate, while it allows less than this program knows; spread by half
	LookAtPorts time.Duration // between two looks at which ports are in use, in the least

	KeepStopped    time.Duration // how long home, logs and versions of a stopped pod stay
	KeepTombstones time.Duration // how long it is remembered that a pod was stopped which no intent names any more
	MaxTombstones  int           // of those; beyond it the oldest go earlier, but none within a day
	CollectEvery   time.Duration // between two looks for what may go

	PruneArtifacts time.Duration // between two looks for artifacts that may go, besides when the pods need others
}

func (c *Config) validate() error {
	var errs field.Errors
	errs.CheckName("node.name", c.Node.Name)
	if c.Node.Address == "" {
		errs.Missing("node.address", "an address of this machine that its pods listen on")
	}
	if !filepath.IsAbs(c.Dir) {
		errs.Add("dir", c.Dir, "an absolute path")
	}
	for _, part := range []struct {
		name string
		is   any
	}{{"store", c.Store}, {"artifacts", c.Artifacts}, {"runtime", c.Runtime}, {"services", c.Services}, {"log", c.Log}} {
		if part.is == nil {
			errs.Missing(part.name, "an implementation")
		}
	}
	return errs.Err()
}

func (c *Config) setDefaults() {
	c.BusyPoll = cmp.Or(c.BusyPoll, 500*time.Millisecond)
	c.IdlePoll = cmp.Or(c.IdlePoll, 2*time.Second)
	c.RelistEvery = cmp.Or(c.RelistEvery, time.Minute)
	c.PullEvery = cmp.Or(c.PullEvery, DefaultPullEvery)
	c.RetryMin = cmp.Or(c.RetryMin, 250*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, time.Minute)
	c.PingEvery = cmp.Or(c.PingEvery, 5*time.Second)
	c.SilentAfter = cmp.Or(c.SilentAfter, 5*time.Second)
	c.LogBytes = cmp.Or(c.LogBytes, 10<<20)
	c.LogKeep = cmp.Or(c.LogKeep, 3)
	c.KeepStopped = cmp.Or(c.KeepStopped, DefaultKeepStopped)
	c.KeepTombstones = cmp.Or(c.KeepTombstones, 30*24*time.Hour)
	c.MaxTombstones = cmp.Or(c.MaxTombstones, 10_000)
	c.CollectEvery = cmp.Or(c.CollectEvery, 10*time.Minute)
	c.PruneArtifacts = cmp.Or(c.PruneArtifacts, time.Hour)
	c.ConfirmLoss = cmp.Or(c.ConfirmLoss, 5*time.Second)
	c.AskDoors = cmp.Or(c.AskDoors, 24*time.Hour)
	c.AskAgain = cmp.Or(c.AskAgain, time.Minute)
	c.LookAtGate = cmp.Or(c.LookAtGate, 10*time.Second)
	c.LookAtPorts = cmp.Or(c.LookAtPorts, 15*time.Second)
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if c.Step == nil {
		c.Step = func(string) {}
	}
}

// Preparer is the agent of one node.
type Preparer struct {
	kit

	exposure *claim.Exposure
	inbox    *push.Inbox
	locals   *locals
	enforces bool // see enforcesStopAfter; guarded as the pods are
	silence  silence
}

// New returns the agent with everything loaded that its disk knows. Unreadable records are set aside and logged. A disk that gives none
// is an error: a preparer that knows nothing of what it was told would rebuild all pods from the runtime, and forget what was stopped.
// Pods run on without it.
func New(cfg Config) (*Preparer, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.State == nil {
		disk, err := NewDisk(filepath.Join(cfg.Dir, "pods"))
		if err != nil {
			return nil, err
		}
		cfg.State = disk
	}
	p := new(Preparer)
	p.ready, p.board = make(chan struct{}), report.NewBoard()
	p.cfg, p.log, p.prunable = cfg, cfg.Log.WithField(obs.Node, cfg.Node.Name), wait.NewSignal()
	p.pods = newPods(p.log)
	p.limiter = loop.NewLogLimiter(p.log)
	p.processes = supervise.New(cfg.Runtime, cfg.Step)
	p.exposure = &claim.Exposure{
		Node: cfg.Node.Name, Doors: cfg.Doors, Strict: cfg.Strict, Limiter: p.limiter, Every: cfg.AskDoors, Again: cfg.AskAgain, Unsecured: cfg.Metrics.unsecure,
	}
	var err error
	if p.contact, err = claim.OpenContact(cfg.Dir); err != nil {
		return nil, err
	}
	if p.name, err = claim.OpenName(cfg.Dir, cfg.Node.Name, cfg.TakeOver, p.limiter); err != nil {
		return nil, err
	}
	p.cfg.Node.Host = p.name.Host()
	cfg.Metrics.refused(p.name.Lost())
	records, bad, err := cfg.State.Load()
	if err != nil {
		return nil, err
	}
	for _, err := range bad {
		p.log.WithField(obs.Error, err).Error("pod record unreadable and set aside; its pod keeps running if the runtime has it")
	}
	numbers := make(map[pod.Identity]int, len(records))
	for _, rec := range records {
		p.pods.add(rec.Intent.Identity, rec)
		numbers[rec.Intent.Identity] = rec.UID
	}
	inbox, err := push.New(push.Config{Dir: cfg.Dir, Pull: cfg.Push, Every: cfg.PullEvery, Epoch: cfg.Store.Epoch})
	if err != nil {
		p.log.WithField(obs.Error, err).Warn("what farms have pushed is not remembered; the next push of each controller is believed to be its last")
	}
	p.inbox = inbox
	p.node = install.New(install.Config{
		Host: cfg.Host, Node: cfg.Node.Name, Address: cfg.Node.Address, ContactNote: p.contact.Path(), Log: p.log, Limiter: p.limiter,
		HookFailed: cfg.Metrics.hookFailures.Inc, FetchFailed: p.prunable.Raise,
	}, numbers)
	p.agent, err = register.New(register.Config{
		Node: p.cfg.Node, Dir: cfg.Dir, Services: cfg.Services, Runtime: cfg.Runtime, Versions: p.node, Limiter: p.limiter, Log: p.log,
		Step: cfg.Step, BusyPoll: cfg.BusyPoll, IdlePoll: cfg.IdlePoll, Reach: p.reach, Pods: p.servicePods, Up: p.isUp, Changed: p.sawServices,
	})
	for id, e := range p.pods.all {
		p.agent.Know(id, e.rec.Service, e.rec.Standby)
	}
	p.inUse = &portLook{inUse: cfg.InUse, pods: p.pods, limiter: p.limiter}
	p.inUse.look()
	if err == nil {
		p.locals, err = openLocals(&p.kit, p.decide)
	}
	return p, err
}

// Run supervises the local pods until ctx ends, and returns its cause. Pods outlive it.
func (p *Preparer) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { p.watchRuntime(ctx) })
	parts.Go(func() { p.watchSilence(ctx) })
	parts.Go(func() {
		if p.awaitReady(ctx) {
			p.agent.Run(ctx)
		}
	})
	parts.Go(func() { (&observer{&p.kit, p.locals.wake}).run(ctx) })
	parts.Go(func() { p.watchConnectivity(ctx) })
	parts.Go(func() { (&collector{&p.kit}).run(ctx) })
	parts.Go(func() { p.node.DeleteRemoved(ctx, p.cfg.CollectEvery) })
	parts.Go(func() { (&collector{&p.kit}).pruneArtifacts(ctx) })
	parts.Go(func() { p.exposure.Watch(ctx, p.reconsider) })
	parts.Go(func() { p.inUse.watch(ctx, p.cfg.LookAtPorts) })
	parts.Go(func() { p.locals.watch(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-p.pods.queued:
			var queue []*entry
			p.pods.do(func() { queue, p.pods.queue = p.pods.queue, nil })
			for _, e := range queue {
				w := &worker{kit: &p.kit, e: e, buried: p.buried}
				parts.Go(func() { w.run(ctx) })
			}
		}
	}
	parts.Wait()
	return context.Cause(ctx)
}

// reach returns what of the local agent's services this preparer may touch: one that is refused its node's name has the
// same services as the preparer that has it.
func (p *Preparer) reach() register.Reach {
	switch standing := p.name.Standing(); {
	case standing == claim.Unproven, standing == claim.Refused:
		return register.Nothing
	case standing == claim.Former, !p.contact.Locked():
		return register.Running // the name may have become another's meanwhile
	case p.contact.Informed():
		return register.All
	default:
		return register.Known
	}
}

// reconsider decides anew about the intents that are known.
func (p *Preparer) reconsider() { p.pods.do(p.decide) }

// buried decides anew, and looks after local services, as a stop was confirmed.
func (p *Preparer) buried() {
	p.reconsider()
	p.locals.wake.Raise()
}

// Scale takes a request. When it returns, what one about a local service says is on the disk, or nothing has changed; and what one with an
// epoch speaks of has been read and decided upon. Its errors are those of package scale.
func (p *Preparer) Scale(ctx context.Context, r scale.Request) (scale.Response, error) {
	if r.Epoch == nil {
		return p.locals.scale(ctx, r)
	}
	answer := scale.Response{Service: r.Service}
	if err := p.inbox.Take(ctx, r); err != nil {
		return answer, err
	}
	p.pods.do(func() {
		for id, e := range p.pods.all {
			if id.RCID == r.Epoch.RCID && e.accepted().Intent.State == pod.Running {
				answer.Replicas++
			}
		}
	})
	answer.Success = true
	return answer, nil
}

// decide compares the intents with the local pods and applies every verdict. The caller is in pods.do.
func (p *Preparer) decide() {
	defer p.pods.record.Raise()
	own, local := map[pod.Identity]Local{}, make(map[pod.Identity]Local, len(p.pods.all))
	for id, e := range p.pods.all {
		rec := e.accepted()
		if id.Local() {
			own[id] = rec.local()
		} else {
			local[id] = rec.local()
		}
	}
	for _, d := range Decide(p.pods.local.intents, own) {
		p.apply(d)
	}
	if !p.contact.Informed() {
		return
	}
	intents := p.pods.intents
	_, intents.Shut = p.exposure.Said()
	for _, d := range Decide(intents, local) {
		p.apply(d)
	}
	p.pods.seen.Raise()
}

func (p *Preparer) apply(d Decision) {
	e := p.pods.all[d.ID]
	if e == nil {
		if d.Verdict != Accept {
			return // about a pod that is not here
		}
		e = p.pods.add(d.ID, Record{})
		p.agent.Know(d.ID, "", d.Intent.Standby) // it is found under no name yet
	}
	before := e.decided
	switch d.Verdict {
	case Ignore:
		return
	case Accept:
		in := d.Intent
		e.want = &in
		e.expect()
		e.interrupt()
		p.pods.changed(e)
		p.pods.enqueue(e)
		e.decided = decided{verdict: Unchanged, outdated: p.pods.outdated(&in)}
		p.podLog(d.ID).WithFields(obs.Fields{obs.Action: string(in.State), fieldRevision: in.Revision, fieldDigest: install.Short(in.Digest)}).Info("intent accepted")
		return
	case Unchanged:
		e.decided = decided{verdict: Unchanged, outdated: p.pods.outdated(&d.Intent)}
		if e.state == Suspended {
			p.pods.enqueue(e)
		}
	default:
		e.decided = decided{verdict: d.Verdict, revision: d.Intent.Revision}
	}
	if e.decided == before {
		return
	}
	p.pods.changed(e)
	if d.Verdict != Unchanged || before.verdict != "" {
		p.podLog(d.ID).WithFields(obs.Fields{obs.Reason: string(d.Verdict), fieldRevision: d.Intent.Revision}).Info("standing of pod changed")
	}
}

var errNotReady = errors.New("the node's disk and its supervisor have not both been read yet")

// Ready returns nil when the preparer supervises the node's pods, whether Consul answers or not, and the node's name is not
// known to be another host's.
func (p *Preparer) Ready() error {
	if !p.allKnown() {
		return errNotReady
	}
	return p.name.Refusal()
}

// allKnown reports whether every running pod is known.
func (k *kit) allKnown() bool {
	select {
	case <-k.ready:
		return true
	default:
		return false
	}
}

// awaitReady waits until every running pod is known. It returns false when ctx ends first.
func (k *kit) awaitReady(ctx context.Context) bool {
	select {
	case <-k.ready:
		return true
	case <-ctx.Done():
		return false
	}
}
