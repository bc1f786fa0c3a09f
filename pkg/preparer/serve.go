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

// session is what the preparer does under one session with Consul.
type session struct {
	kit    *kit
	decide func() // applies what the intents say; called in pods.do
	inbox  *push.Inbox
	keeper *report.Keeper
	doubt  func()        // is told that the lock was taken, or is another's
	locked chan struct{} // closed when the node's lock was taken
	asked  chan struct{} // closed when the intents were read, or could not be

	relist  wait.Signal // the realities must be read again
	renewed wait.Signal // the lock was taken or proved, so writes are worth a try

	lockedOnce, askedOnce sync.Once

	epochs epochs
}

// Serve takes new intents and reports, under one session, until ctx ends or the session turns out to be useless. Run
// must be running. It returns ErrLost when the session is gone, ErrWentBack when the store went back in time, or the
// cause of ctx's end. No pod is touched by its end.
func (p *Preparer) Serve(ctx context.Context, writes Session) error {
	s := &session{
		kit: &p.kit, decide: p.decide, inbox: p.inbox, locked: make(chan struct{}), asked: make(chan struct{}), relist: wait.NewSignal(), renewed: wait.NewSignal(),
		epochs: epochs{known: wait.NewSignal()},
	}
	pace := func() *backoff.ExponentialBackOff {
		return wait.NewPace(p.cfg.RetryMin, min(p.cfg.RetryMax, 5*time.Second))
	}
	publisher := &report.Publisher{
		Board: p.board, Store: writes, Limiter: p.limiter, Log: p.log, Wrote: p.cfg.Metrics.written.Inc,
		Epoch: p.pods.knownEpoch, Complete: p.pods.allSaid, Confirmed: p.pods.record.Raise,
		RelistEvery: p.cfg.RelistEvery, NewPace: pace, Relist: s.relist, Renewed: s.renewed,
	}
	s.keeper = &report.Keeper{
		Node: p.cfg.Node.Name, Reader: p.cfg.Store, Writer: &claimsFirst{NodeWriter: writes, book: p.locals.bookAgain}, Name: p.name, Contact: p.contact, Limiter: p.limiter, Log: p.log,
		Says:   func() (node.Node, []pod.Orphan, bool) { return p.nodeRecord(publisher.WrittenIn) },
		Locked: func(locked bool) { s.setLocked(locked); p.locals.wake.Raise(); p.agent.Wake.Raise() }, NameLost: p.endAll, Cut: p.cfg.Metrics.cutFields, Refused: p.cfg.Metrics.refused,
		ConfirmLoss: p.cfg.ConfirmLoss, RelistEvery: p.cfg.RelistEvery, LookAtGate: p.cfg.LookAtGate, NewPace: pace, Changed: p.pods.record, Recheck: wait.NewSignal(),
	}
	publisher.Lost, s.doubt = s.keeper.Recheck, publisher.Doubt
	p.leave()
	defer p.leave()
	p.inbox.Open(s.renew)
	defer p.inbox.Close()
	claims := reserver(writes)
	p.locals.session.Store(&claims)
	defer p.locals.session.Store(nil)
	p.contact.Begin(writes.Left)
	p.contact.Serve(p.name.Refusal() == nil)
	defer p.contact.Serve(false)
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

// nodeRecord is what the node record should say now, and with it the orphans, if the intents that tell them are known
// and the realities are written under the epoch that the record would echo. Farms believe the realities of a node that
// has echoed it.
func (p *Preparer) nodeRecord(written func(epoch string) bool) (n node.Node, orphans []pod.Orphan, knows bool) {
	n = p.cfg.Node
	n.Epoch = ""
	n.Anonymous, n.Shut = p.exposure.Said()
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

// endAll has all pods looked at, as none may run any more.
func (p *Preparer) endAll() {
	p.pods.do(func() {
		for _, e := range p.pods.all {
			p.pods.enqueue(e)
			e.interrupt()
		}
	})
}

// leave closes the door to new intents and forgets what was known of them. How each pod stood to them is not forgotten.
func (p *Preparer) leave() {
	p.pods.do(func() {
		p.contact.Lock(false)
		p.learn(IntentSet{}, "")
		p.cfg.Metrics.known(false, false)
	})
}

// learn takes in what the intents say; the zero value for that nobody knows. The caller is in pods.do.
func (k *kit) learn(intents IntentSet, epoch string) {
	k.pods.intents, k.pods.epoch = intents, epoch
	told := report.Told{Stops: intents.Stops}
	if intents.Known && k.contact.Informed() {
		told.Named = map[pod.Identity]bool{}
		maps.Copy(told.Named, intents.Unreadable)
		for id := range intents.Intents {
			told.Named[id] = true
		}
		for id := range k.pods.all {
			told.Named[id] = true
		}
	}
	k.board.Tell(told)
}

// setLocked opens or closes the door to new intents. What was read while it was closed is read again.
func (s *session) setLocked(locked bool) {
	s.kit.pods.do(func() {
		if !s.kit.contact.Lock(locked) {
			return
		}
		s.doubt()
		s.kit.learn(IntentSet{}, s.kit.pods.epoch)
		s.kit.cfg.Metrics.known(locked, false)
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

// watchSchema follows the cluster epoch. With a new one the intents are read anew.
func (s *session) watchSchema(ctx context.Context) error {
	const key = "schema"
	onError := func(err error) {
		s.kit.limiter.Report(key, "schema cannot be read; the node cannot say which world it has seen", err)
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

// watchIntents follows what the node must do. An epoch is echoed only with orphans that follow from intents read after
// the epoch was (R1), so that each new epoch makes it read them anew.
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

// followIntents delivers the intents at once, and whenever they have changed: as a standing query says, or as farms and time do.
func (s *session) followIntents(ctx context.Context, onError func(error), deliver func(store.Seen[pod.Intent]) error) error {
	if s.kit.cfg.Push {
		return s.kit.cfg.Store.PullIntents(ctx, s.kit.cfg.Node.Name, s.inbox.Next, onError, deliver)
	}
	return s.kit.cfg.Store.WatchIntents(ctx, s.kit.cfg.Node.Name, onError, deliver)
}

// renew has the intents read anew under an epoch that Consul has, though the watch may not have brought it yet.
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
			s.renewed.Raise() // the realities are read again
		}
		s.kit.learn(intents, epoch)
		s.decide()
		informed = s.kit.contact.Informed()
		s.kit.cfg.Metrics.known(s.kit.contact.Locked(), intents.Known)
	})
	if reading.Err() != nil {
		return // read before what ended this reading, or it ends now and all is read again
	}
	if informed {
		s.inbox.Read(seen.Index)
	}
	s.kit.limiter.Saw("unreadable intents", "some intents cannot be understood; their pods stay as they are", errors.Join(problems...))
	if seen.MarkerMissing {
		s.relist.Raise() // what took the marker may have taken the realities
	}
	s.askedOnce.Do(func() { close(s.asked) })
}

// newIntentSet sorts what was read into what can be acted on and what cannot. Of two intents for one identity, the higher
// revision counts.
func newIntentSet(seen store.Seen[pod.Intent], nodeName string, local map[pod.Identity]*entry) (IntentSet, []error) {
	w := IntentSet{Known: true, Intents: map[pod.Identity]pod.Intent{}, Unreadable: map[pod.Identity]bool{}, Stops: map[pod.Identity]uint64{}}
	problems := append([]error(nil), seen.Corrupt...)
	for _, rec := range seen.Recs {
		in := rec.Value
		err := in.Check()
		if err == nil && in.Identity.Local() {
			err = errors.New("it has the identity of a local service, which only requests to this node change")
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
		// Keys are not parsed; but the key of each pod that is known here is known too.
		for id := range local {
			if strings.HasSuffix(corrupt.Key, "/"+nodeName+"/"+id.String()) {
				w.Unreadable[id] = true
			}
		}
	}
	return w, problems
}

var errNewEpoch = errors.New("the cluster has a new epoch, or the node's lock was taken anew")

// epochs divide the time of one session: intents are read anew with each, because what was read before says nothing of a cluster with
// another epoch, nor of what others did before the node's lock was taken.
type epochs struct {
	known wait.Signal // raised when the epoch is known, or that it cannot be

	mu    sync.Mutex
	epoch string
	tried bool // the epoch was read, or could not be
	end   context.CancelCauseFunc
}

// set notes the cluster's epoch. With a new one the intents are read anew.
func (x *epochs) set(epoch string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.end != nil && x.epoch != epoch {
		x.end(errNewEpoch)
	}
	x.epoch, x.tried = epoch, true
	x.known.Raise()
}

// miss notes that the epoch cannot be read. Intents can do without.
func (x *epochs) miss() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tried = true
	x.known.Raise()
}

// renew has the intents read anew in the same epoch.
func (x *epochs) renew() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.end != nil {
		x.end(errNewEpoch)
	}
}

// begin returns a context that ends when the intents are to be read anew, the epoch, and what releases it.
func (x *epochs) begin(ctx context.Context) (reading context.Context, epoch string, over func(), err error) {
	for {
		x.mu.Lock()
		if x.tried {
			defer x.mu.Unlock()
			reading, x.end = context.WithCancelCause(ctx)
			end := x.end
			return reading, x.epoch, func() { end(nil) }, nil
		}
		x.mu.Unlock()
		select {
		case <-x.known:
		case <-ctx.Done():
			return nil, "", nil, context.Cause(ctx)
		}
	}
}
