package preparer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// serving is the preparer under one session.
type serving struct {
	*Preparer
	tenure Tenure
	held   chan struct{} // closed when the node's lock was taken
	asked  chan struct{} // closed when the intents were read, or could not be

	recheck loop.Signal // the node record must be written again, whatever it says
	relist  loop.Signal // the realities must be read again
	renewed loop.Signal // the lock was taken or proved, so writes are worth a try

	heldOnce, askedOnce sync.Once

	epochs  epochs
	written atomic.Pointer[string] // the node record as last written, in the form of recordText
}

// Serve takes new intents and reports, under one session, until ctx ends or the session turns out to be useless. Run
// must be running. It returns ErrLost when the session is gone, ErrRegressed when the store went back in time, or the
// cause of ctx's end. No pod is touched by its end.
func (p *Preparer) Serve(ctx context.Context, tenure Tenure) error {
	s := &serving{
		Preparer: p, tenure: tenure, held: make(chan struct{}), asked: make(chan struct{}),
		recheck: loop.NewSignal(), relist: loop.NewSignal(), renewed: loop.NewSignal(), epochs: epochs{known: loop.NewSignal()},
	}
	p.leave()
	defer p.leave()
	p.contact.Serve(p.name.Refusal() == nil)
	defer p.contact.Serve(false)
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return s.keepRecord(ctx) })
	for _, part := range []func(context.Context) error{s.watchRecord, s.watchSchema, s.watchIntents} {
		parts.Go(func() error {
			select {
			case <-s.held:
				return part(ctx)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	parts.Go(func() error {
		select {
		case <-s.asked:
			return s.publishRealities(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return parts.Wait()
}

// leave closes the door to new intents and forgets what was known of them. How each pod stood to them is not forgotten.
func (p *Preparer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contact.Lock(false)
	p.world, p.nonce = World{}, ""
	p.cfg.Metrics.stands(false, false)
}

// setHolding opens or closes the door to new intents. What was read while it was closed is read again.
func (s *serving) setHolding(holding bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.contact.Lock(holding) {
		return
	}
	s.world = World{}
	s.cfg.Metrics.stands(holding, false)
	if holding {
		s.epochs.renew()
	}
}

// watchSchema follows the cluster nonce. A new nonce begins a new epoch of intents.
func (s *serving) watchSchema(ctx context.Context) error {
	const key = "schema"
	onError := func(err error) {
		s.trouble.Report(key, "schema cannot be read; the node cannot say which world it has seen", err)
		s.epochs.miss()
	}
	return s.cfg.Store.WatchSchema(ctx, onError, func(seen store.Seen[store.Schema]) error {
		if seen.Regressed {
			return s.name.WentBack()
		}
		if len(seen.Corrupt) > 0 {
			onError(errors.Join(seen.Corrupt...))
			return nil
		}
		s.trouble.Over(key)
		nonce := ""
		if len(seen.Recs) > 0 {
			nonce = seen.Recs[0].Value.Nonce
		}
		s.name.SawNonce(nonce)
		s.epochs.set(nonce)
		return nil
	})
}

// watchIntents follows what the node must do. A nonce is echoed only with orphans that follow from intents read after
// the nonce was (R1), so that each new nonce makes it read them anew.
func (s *serving) watchIntents(ctx context.Context) error {
	select {
	case <-s.ready: // before, a running pod may be unknown
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	const key = "intents"
	onError := func(err error) {
		s.trouble.Report(key, "intents cannot be read; pods keep running as they are", err)
		s.askedOnce.Do(func() { close(s.asked) })
	}
	for {
		epoch, nonce, err := s.epochs.begin(ctx)
		if err != nil {
			return err
		}
		err = s.cfg.Store.WatchIntents(epoch, s.cfg.Node.Name, onError, func(seen store.Seen[pod.Intent]) error {
			if seen.Regressed {
				return s.name.WentBack()
			}
			s.trouble.Over(key)
			s.sawIntents(epoch, seen, nonce)
			return nil
		})
		ended := errors.Is(context.Cause(epoch), errNewEpoch)
		s.epochs.over()
		if !ended || ctx.Err() != nil || errors.Is(err, store.ErrRegressed) {
			return err
		}
	}
}

func (s *serving) sawIntents(epoch context.Context, seen store.Seen[pod.Intent], nonce string) {
	s.mu.Lock()
	if epoch.Err() != nil {
		s.mu.Unlock()
		return // read before what ended the epoch
	}
	world, problems := newWorld(seen, s.cfg.Node.Name, s.pods)
	s.world, s.nonce = world, nonce
	s.contact.Inform()
	s.decide()
	s.cfg.Metrics.stands(s.contact.Locked(), world.Known)
	s.mu.Unlock()

	const key = "unreadable intents"
	if len(problems) > 0 {
		s.trouble.Report(key, "some intents cannot be understood; their pods stay as they are", errors.Join(problems...))
	} else {
		s.trouble.Over(key)
	}
	if seen.MarkerMissing {
		s.relist.Raise() // what took the marker may have taken the realities
	}
	s.askedOnce.Do(func() { close(s.asked) })
}

// newWorld sorts what was read into what can be acted on and what cannot. Of two intents for one identity, the higher
// revision counts.
func newWorld(seen store.Seen[pod.Intent], nodeName string, local map[pod.Identity]*entry) (World, []error) {
	w := World{Known: true, Intents: map[pod.Identity]pod.Intent{}, Unreadable: map[pod.Identity]bool{}, Stops: map[pod.Identity]uint64{}}
	problems := append([]error(nil), seen.Corrupt...)
	for _, rec := range seen.Recs {
		in := rec.Value
		if err := CheckIntent(in); err != nil {
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
