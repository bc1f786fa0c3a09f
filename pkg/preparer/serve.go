package preparer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/push"
	"github.com/rcfarm/rcfarm/pkg/preparer/report"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

type session struct {
	kit    *kit
	decide func() // applies the verdicts on the intents; called in pods.do
	inbox  *push.Inbox
	keeper *report.Keeper
	doubt  func()        // called when the node's lock was taken or lost
	locked chan struct{} // closed when the node's lock was taken
	asked  chan struct{} // closed when the intents were read, or the read failed

	relist  wait.Signal // raised when the realities in Consul must be read again
	renewed wait.Signal // raised when writes can succeed again, after the lock was taken or an epoch was seen

	lockedOnce, askedOnce sync.Once

	epochs epochs
}

// Serve accepts intents and writes reports under one session. Call it only while Run runs. It returns store.ErrLost if
// the session is gone, store.ErrWentBack if the store went back in time, and the cause if ctx ends. The end of Serve
// changes no pod.
func (p *Preparer) Serve(ctx context.Context, writes Session) error {
	s := &session{
		kit: &p.kit, decide: p.decide, inbox: p.inbox, locked: make(chan struct{}), asked: make(chan struct{}),
		relist: wait.NewSignal(), renewed: wait.NewSignal(), epochs: epochs{known: wait.NewSignal()},
	}
	pace := func() *backoff.ExponentialBackOff {
		return wait.NewPace(p.cfg.RetryMin, min(p.cfg.RetryMax, 5*time.Second))
	}
	publisher := &report.Publisher{
		Board: p.board, Store: writes, Limiter: p.limiter, Log: p.log, Wrote: p.cfg.Metrics.written.Inc,
		Epoch: p.pods.knownEpoch, Complete: p.pods.allReported, Confirmed: p.pods.record.Raise,
		RelistEvery: p.cfg.RelistEvery, NewPace: pace, Relist: s.relist, Renewed: s.renewed,
	}
	s.keeper = &report.Keeper{
		Node: p.cfg.Node.Name, Reader: p.cfg.Store,
		Writer: &claimsFirst{NodeWriter: writes, book: p.locals.bookAgain},
		Name:   p.name, Contact: p.contact, Limiter: p.limiter, Log: p.log,
		Says:     func() (node.Node, []pod.Orphan, bool) { return p.nodeRecord(publisher.WrittenIn) },
		Locked:   func(locked bool) { s.setLocked(locked); p.locals.wake.Raise(); p.agent.Wake.Raise() },
		NameLost: p.endAll, Cut: p.cfg.Metrics.cutFields, Refused: p.cfg.Metrics.refused,
		ConfirmLoss: p.cfg.ConfirmLoss, RelistEvery: p.cfg.RelistEvery, LookAtGate: p.cfg.LookAtGate,
		NewPace: pace, Changed: p.pods.record, Recheck: wait.NewSignal(),
	}
	publisher.Lost, s.doubt = s.keeper.Recheck, publisher.Doubt
	p.forgetIntents()
	defer p.forgetIntents()
	p.inbox.Open(s.renew)
	defer p.inbox.Close()
	claims := reserver(writes)
	p.locals.session.Store(&claims)
	defer p.locals.session.Store(nil)
	p.contact.Begin(writes.Left)
	p.contact.SetServing(p.name.Refusal() == nil)
	defer p.contact.SetServing(false)
	parts, ctx := errgroup.WithContext(ctx)
	after := func(begun <-chan struct{}, part func(context.Context) error) {
		parts.Go(func() error {
			select {
			case <-begun:
				return part(ctx)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	parts.Go(func() error { return s.keeper.Run(ctx) })
	after(s.locked, s.keeper.Watch)
	after(s.locked, s.keeper.FollowGate)
	after(s.locked, s.watchSchema)
	after(s.locked, s.watchIntents)
	after(s.asked, publisher.Run)
	return parts.Wait()
}

// nodeRecord returns the node's record. knows is true if the intents are known, and all realities were written under
// the present epoch. Only then the record has the epoch, and nodeRecord returns the orphans: farms trust the realities
// of a node whose record has their epoch.
func (p *Preparer) nodeRecord(written func(epoch string) bool) (n node.Node, orphans []pod.Orphan, knows bool) {
	n = p.cfg.Node
	n.Epoch = ""
	n.Anonymous, n.Shut = p.exposure.Answer()
	n.PortsInUse = p.inUse.inUseNow()
	p.pods.do(func() {
		n.EnforcesStopAfter, n.SupervisorSilent = p.enforces, p.pods.silent
		n.WentBack = p.name.WentBackAt(p.pods.epoch)
		if knows = p.contact.Informed() && written(p.pods.epoch); knows {
			n.Epoch, orphans = p.pods.epoch, p.pods.orphans()
		}
	})
	return n, orphans, knows
}

// endAll enqueues all pods, because no controller's pod may run after the node's name was lost.
func (p *Preparer) endAll() {
	p.pods.do(func() {
		for _, e := range p.pods.all {
			p.pods.enqueue(e)
			e.interrupt()
		}
	})
}

// forgetIntents makes the node accept no intents. It keeps the verdict on each pod.
func (p *Preparer) forgetIntents() {
	p.pods.do(func() {
		p.contact.SetLocked(false)
		p.learn(IntentSet{}, "")
		p.cfg.Metrics.lockLost()
	})
}

// learn stores the intents that were read, and their epoch; zero: not known. Call it only inside pods.do.
func (k *kit) learn(intents IntentSet, epoch string) {
	k.pods.intents, k.pods.epoch = intents, epoch
	known := report.Intents{Stops: intents.Stops}
	if intents.Known && k.contact.Informed() {
		known.Named = map[pod.Identity]bool{}
		maps.Copy(known.Named, intents.Unreadable)
		for id := range intents.Intents {
			known.Named[id] = true
		}
		for id := range k.pods.all {
			known.Named[id] = true
		}
	}
	k.board.SetIntents(known)
}

// setLocked stores whether the session holds the node's lock. When the lock is taken, the intents are read again,
// because the node accepts intents only under the lock.
func (s *session) setLocked(locked bool) {
	s.kit.pods.do(func() {
		if !s.kit.contact.SetLocked(locked) {
			return
		}
		s.doubt()
		s.kit.learn(IntentSet{}, s.kit.pods.epoch)
		s.kit.cfg.Metrics.lockChanged(locked)
		if locked {
			s.epochs.renew()
		}
	})
	if !locked {
		s.inbox.Pause()
	}
	if locked {
		s.lockedOnce.Do(func() { close(s.locked) })
		s.renewed.Raise()
	}
}

func (s *session) watchSchema(ctx context.Context) error {
	const key = "schema"
	onError := func(err error) {
		s.kit.limiter.Report(key, "schema cannot be read; the node cannot echo its epoch", err)
		s.epochs.miss()
	}
	return s.kit.cfg.Store.WatchSchema(ctx, onError, func(seen store.Seen[store.Schema]) error {
		if seen.WentBack {
			return s.kit.name.WentBack()
		}
		if len(seen.Corrupt) > 0 {
			onError(errors.Join(seen.Corrupt...))
			return nil
		}
		s.kit.limiter.Over(key)
		epoch := ""
		if len(seen.Recs) > 0 {
			epoch = seen.Recs[0].Value.Epoch
		}
		s.kit.name.SawEpoch(epoch)
		s.epochs.set(epoch)
		return nil
	})
}

// watchIntents follows the node's intents, and reads them again for each new epoch. When the node's record has an
// epoch, farms rely on the node's list of orphans (R1). So the node must compute this list from intents that it has
// read since it saw that epoch.
func (s *session) watchIntents(ctx context.Context) error {
	if !s.kit.awaitReady(ctx) {
		return context.Cause(ctx)
	}
	const key = "intents"
	onError := func(err error) {
		s.kit.limiter.Report(key, "intents cannot be read; pods keep running as they are", err)
		s.askedOnce.Do(func() { close(s.asked) })
		s.inbox.Failed(err)
	}
	for {
		reading, epoch, over, err := s.epochs.begin(ctx)
		if err != nil {
			return err
		}
		s.inbox.Begin(epoch)
		err = s.followIntents(reading, onError, func(seen store.Seen[pod.Intent]) error {
			if seen.WentBack {
				return s.kit.name.WentBack()
			}
			s.kit.limiter.Over(key)
			s.sawIntents(reading, seen, epoch)
			return nil
		})
		ended := errors.Is(context.Cause(reading), errNewEpoch)
		over()
		if !ended || ctx.Err() != nil || errors.Is(err, store.ErrWentBack) {
			return err
		}
	}
}

func (s *session) followIntents(
	ctx context.Context, onError func(error), deliver func(store.Seen[pod.Intent]) error,
) error {
	if s.kit.cfg.Push {
		return s.kit.cfg.Store.PullIntents(ctx, s.kit.cfg.Node.Name, s.inbox.Next, onError, deliver)
	}
	return s.kit.cfg.Store.WatchIntents(ctx, s.kit.cfg.Node.Name, onError, deliver)
}

// renew: watchSchema may not have seen the epoch yet.
func (s *session) renew(epoch string) {
	s.kit.name.SawEpoch(epoch)
	s.epochs.set(epoch)
}

func (s *session) sawIntents(reading context.Context, seen store.Seen[pod.Intent], epoch string) {
	var problems []error
	informed := false
	s.kit.pods.do(func() {
		if reading.Err() != nil {
			return
		}
		var intents IntentSet
		intents, problems = newIntentSet(seen, s.kit.cfg.Node.Name, s.kit.pods.all)
		s.kit.contact.Inform()
		if epoch != s.kit.pods.epoch {
			s.renewed.Raise() // so the realities are read again
		}
		s.kit.learn(intents, epoch)
		s.decide()
		informed = s.kit.contact.Informed()
		s.kit.cfg.Metrics.known(s.kit.contact.Locked(), intents.Known)
	})
	if reading.Err() != nil {
		return // the intents may be older than the new epoch or lock, so they are read again
	}
	if informed {
		s.inbox.Read(seen.Index)
	}
	s.kit.limiter.Saw("unreadable intents", "some intents cannot be understood; their pods stay as they are",
		errors.Join(problems...))
	if seen.MarkerMissing {
		s.relist.Raise() // perhaps the realities were deleted together with the marker
	}
	s.askedOnce.Do(func() { close(s.asked) })
}

// newIntentSet takes the higher revision if two intents have the same identity.
func newIntentSet(seen store.Seen[pod.Intent], nodeName string, local map[pod.Identity]*entry) (IntentSet, []error) {
	w := IntentSet{
		Known: true, Intents: map[pod.Identity]pod.Intent{},
		Unreadable: map[pod.Identity]bool{}, Stops: map[pod.Identity]uint64{},
	}
	problems := append([]error(nil), seen.Corrupt...)
	for _, rec := range seen.Recs {
		in := rec.Value
		err := in.Check()
		if err == nil && in.Identity.Local() {
			err = errors.New("it has the identity of a local service, which only requests to this node may change")
		}
		if err != nil {
			w.Unreadable[in.Identity] = true
			problems = append(problems, fmt.Errorf("intent of %s: %w", in.Identity, err))
			continue
		}
		if other, twice := w.Intents[in.Identity]; !twice || in.Revision > other.Revision {
			w.Intents[in.Identity] = in
			delete(w.Stops, in.Identity)
			if in.State == pod.Stopped || in.Standby {
				w.Stops[in.Identity] = rec.Index
			}
		}
	}
	for _, err := range seen.Corrupt {
		var corrupt *store.CorruptError
		if !errors.As(err, &corrupt) {
			continue
		}
		// Only the key of a corrupt record shows its pod.
		for id := range local {
			if strings.HasSuffix(corrupt.Key, "/"+nodeName+"/"+id.String()) {
				w.Unreadable[id] = true
			}
		}
	}
	return w, problems
}

var errNewEpoch = errors.New("the cluster has a new epoch, or the node's lock was taken again")

// epochs divides one session into periods. In each period the intents are read anew. A period ends when the cluster's
// epoch changes, because earlier intents are from another history of the store. It also ends when the node's lock is
// taken, because earlier intents can lack writes from before that moment.
type epochs struct {
	known wait.Signal // raised when the epoch was read, or the read failed

	mu    sync.Mutex
	epoch string
	tried bool // the epoch was read, or the read failed
	end   context.CancelCauseFunc
}

func (e *epochs) set(epoch string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.end != nil && e.epoch != epoch {
		e.end(errNewEpoch)
	}
	e.epoch, e.tried = epoch, true
	e.known.Raise()
}

// miss stores that the epoch cannot be read. Then the intents are read without it.
func (e *epochs) miss() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tried = true
	e.known.Raise()
}

// renew makes the session read the intents again under the same epoch.
func (e *epochs) renew() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.end != nil {
		e.end(errNewEpoch)
	}
}

// begin waits until the epoch is known or cannot be read. reading ends when the intents must be read again; over
// releases it.
func (e *epochs) begin(ctx context.Context) (reading context.Context, epoch string, over func(), err error) {
	for {
		e.mu.Lock()
		if e.tried {
			defer e.mu.Unlock()
			reading, e.end = context.WithCancelCause(ctx)
			end := e.end
			return reading, e.epoch, func() { end(nil) }, nil
		}
		e.mu.Unlock()
		select {
		case <-e.known:
		case <-ctx.Done():
			return nil, "", nil, context.Cause(ctx)
		}
	}
}
