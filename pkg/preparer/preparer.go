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

// Store reads the cluster's records for a preparer.
type Store interface {
	SignedManifest(ctx context.Context, digest string) (m *manifest.Manifest, signature string, err error)
	WatchIntents(
		ctx context.Context, node string, onError func(error), deliver func(store.Seen[pod.Intent]) error,
	) error
	// PullIntents has no standing query, but reads the intents each time that next returns.
	PullIntents(
		ctx context.Context, node string,
		next func(context.Context) error, onError func(error), deliver func(store.Seen[pod.Intent]) error,
	) error
	Epoch(ctx context.Context) (string, error) // of the cluster
	report.NodeReader
	WatchSchema(ctx context.Context, onError func(error), deliver func(store.Seen[store.Schema]) error) error
}

// Session writes a preparer's records to Consul under one session.
type Session interface {
	report.NodeWriter
	report.Realities
	reserver
	// Left returns for how much longer the session certainly lives, even if Consul does not answer.
	Left() time.Duration
}

// State keeps the pods' records on the node's disk.
type State interface {
	// Load returns the readable records, and one error for each unreadable one. The last error is about the disk
	// itself.
	Load() ([]Record, []error, error)
	// Save returns nil when the record survives a power failure.
	Save(rec Record) error
	// Forget removes the record with this install.FileName, if there is one.
	Forget(name string) error
}

// DefaultKeepStopped is how long the node keeps home, logs and versions of a stopped pod.
const DefaultKeepStopped = 24 * time.Hour

// DefaultPullEvery is how often a node reads its intents without a push. If a push is lost, the node sees the intent
// about this much later. After about this time, people would look for the cause of a delay. A thousand nodes make 17
// small reads a second.
const DefaultPullEvery = time.Minute

// Config is what New needs. setDefaults replaces zeros.
type Config struct {
	// Node describes the machine. Name and Address are required. The preparer sets host, epoch, incarnation and Consul
	// node.
	Node node.Node
	install.Host
	Store    Store
	Cache    Cache // nil: artifacts are neither fetched again nor removed
	Services register.Services
	State    State       // nil: NewDisk in Dir/pods
	Doors    claim.Doors // nil: the preparer does not check what pods can do in Consul
	// InUse returns the sorted ports that something other than pods holds; nil: ports are not checked.
	InUse   func(pods map[int]bool) ([]int, error)
	Strict  bool // accept no intents while pods can harm the node through Consul, or while this is unknown
	Log     obs.Logger
	Metrics *Metrics // nil: metrics are not published

	BusyPoll    time.Duration // between two reads of the local Consul agent while a pod is in transition
	IdlePoll    time.Duration // between two reads of the local Consul agent while no pod is in transition
	RelistEvery time.Duration // between two reads of the realities in Consul, which have no watch; spread by half
	RetryMin    time.Duration // first pause after an action on a pod failed; it doubles after each failure
	RetryMax    time.Duration // longest such pause
	PingEvery   time.Duration // between two pings of the supervisor
	SilentAfter time.Duration // how long the supervisor may take to answer before it is silent

	// Push: farms push to the node (ADR 26), and the node has no standing query for its intents. Without a push it
	// reads them every PullEvery, plus or minus half.
	Push      bool
	PullEvery time.Duration

	// TakeOver: the preparer takes the node's name over from another host, once.
	TakeOver bool
	// ConfirmLoss is the time between two reads of the node's record. If both show that another host took the name
	// over, the node's pods stop.
	ConfirmLoss time.Duration
	AskDoors    time.Duration // between two checks of what pods can do in Consul
	AskAgain    time.Duration // the same, while the result is unknown or keeps the node from accepting intents
	// LookAtGate is the time between two reads of the version gate while it is lower than this program's version; plus
	// or minus half.
	LookAtGate  time.Duration
	LookAtPorts time.Duration // shortest time between two checks of which ports are in use

	KeepStopped    time.Duration // how long the node keeps home, logs and versions of a stopped pod
	KeepTombstones time.Duration // how long the node keeps a tombstone that no intent names any more
	MaxTombstones  int           // beyond this number, the oldest are removed sooner, but none within a day
	CollectEvery   time.Duration // between two searches for directories and tombstones to remove

	PruneArtifacts time.Duration // between two searches for unneeded artifacts and images; other events start one too
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
	}{
		{"store", c.Store},
		{"artifacts", c.Artifacts},
		{"runtime", c.Runtime},
		{"services", c.Services},
		{"log", c.Log},
	} {
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
	c.PullDeadline = cmp.Or(c.PullDeadline, 15*time.Minute)
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
	enforces bool // see enforcesStopAfter; guarded by pods.mu
	silence  silence
}

// New reads all records of the node's disk. It moves unreadable records aside. If the disk cannot be read, New returns
// an error: without records it would not know which pods were stopped. Pods continue to run without a preparer.
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
		Node: cfg.Node.Name, Doors: cfg.Doors, Strict: cfg.Strict, Limiter: p.limiter,
		Every: cfg.AskDoors, Again: cfg.AskAgain, Unsecured: cfg.Metrics.unsecure,
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
		p.log.WithField(obs.Error, err).
			Error("pod record unreadable and set aside; its pod keeps running if the runtime has it")
	}
	numbers := make(map[pod.Identity]int, len(records))
	for _, rec := range records {
		p.pods.add(rec.Intent.Identity, rec)
		numbers[rec.Intent.Identity] = rec.UID
	}
	inbox, err := push.New(push.Config{
		Dir: cfg.Dir, Pull: cfg.Push, Every: cfg.PullEvery, Epoch: cfg.Store.Epoch,
	})
	if err != nil {
		p.log.WithField(obs.Error, err).Warn("pushes of farms from before cannot be read; " +
			"the next push of each controller is taken for its latest")
	}
	p.inbox = inbox
	p.node = install.New(install.Config{
		Host: cfg.Host, Node: cfg.Node.Name, Address: cfg.Node.Address,
		ContactNote: p.contact.Path(), Log: p.log, Limiter: p.limiter,
		HookFailed: cfg.Metrics.hookFailures.Inc, FetchFailed: p.prunable.Raise,
	}, numbers)
	p.agent, err = register.New(register.Config{
		Node: p.cfg.Node, Dir: cfg.Dir, Services: cfg.Services, Runtime: cfg.Runtime, Versions: p.node,
		Limiter: p.limiter, Log: p.log, Step: cfg.Step, BusyPoll: cfg.BusyPoll, IdlePoll: cfg.IdlePoll,
		Reach: p.reach, Pods: p.servicePods, Up: p.isUp, Changed: p.sawServices,
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

// Run supervises the local pods until ctx ends, and returns the cause. The pods continue to run.
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

// reach returns which services of the local Consul agent this preparer may change. Another preparer with the same node
// name has the same service ids, so a preparer that was refused the name changes none.
func (p *Preparer) reach() register.Reach {
	switch standing := p.name.Standing(); {
	case standing == claim.Unproven, standing == claim.Refused:
		return register.Nothing
	case standing == claim.Former, !p.contact.Locked():
		return register.Running // another host can have taken the name over meanwhile
	case p.contact.Informed():
		return register.All
	default:
		return register.Known
	}
}

func (p *Preparer) reconsider() { p.pods.do(p.decide) }

// buried is called when a stop is on the disk.
func (p *Preparer) buried() {
	p.reconsider()
	p.locals.wake.Raise()
}

// Scale carries out a request. A request with an epoch is a push: when Scale returns nil, the node has read its intents
// and decided about them. A request without an epoch is about a local service: when Scale returns nil, the request is
// on the disk, and after an error the service has not changed. Errors are of package scale, or about the node itself.
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

// decide compares the intents with the local pods. Call it only inside pods.do.
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
	_, intents.Shut = p.exposure.Answer()
	for _, d := range Decide(intents, local) {
		p.apply(d)
	}
	p.pods.seen.Raise()
}

func (p *Preparer) apply(d Decision) {
	e := p.pods.all[d.ID]
	if e == nil {
		if d.Verdict != Accept {
			return // only an accepted intent creates a pod on the node
		}
		e = p.pods.add(d.ID, Record{})
		p.agent.Know(d.ID, "", d.Intent.Standby) // it has no registered service yet
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
		p.podLog(d.ID).WithFields(obs.Fields{
			obs.Action: string(in.State), fieldRevision: in.Revision, fieldDigest: install.Short(in.Digest),
		}).Info("intent accepted")
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
		p.podLog(d.ID).WithFields(obs.Fields{
			obs.Reason: string(d.Verdict), fieldRevision: d.Intent.Revision,
		}).Info("verdict on pod changed")
	}
}

var errNotReady = errors.New("the preparer has not read both the node's disk and its supervisor yet")

// Ready returns nil when the preparer supervises the node's pods, and an error if the node's name belongs to another
// host. It does not need Consul.
func (p *Preparer) Ready() error {
	if !p.allKnown() {
		return errNotReady
	}
	return p.name.Refusal()
}

func (k *kit) allKnown() bool {
	select {
	case <-k.ready:
		return true
	default:
		return false
	}
}

func (k *kit) awaitReady(ctx context.Context) bool {
	select {
	case <-k.ready:
		return true
	case <-ctx.Done():
		return false
	}
}
