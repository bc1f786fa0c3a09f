package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// holdTimeout bounds one try to take the lock, so that what is in the way gets logged.
const holdTimeout = 10 * time.Second

var errHoldTimeout = errors.New("the node record could not be written within " + holdTimeout.String())

// keepRecord holds the node's lock and keeps the record under it true, and the pages of orphans that it leads to. It writes
// only what differs.
func (s *serving) keepRecord(ctx context.Context) error {
	const key = "node record"
	pace, tellPace := s.newPace(), s.newPace()
	must := true  // the record must be written, whatever it says
	again := true // what is there of the pages must be read
	for {
		n, untold := s.told(ctx, again)
		must = must || errors.Is(untold, store.ErrLost)
		if must || untold == nil && !s.isWritten(n) {
			err := s.hold(ctx, n)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, store.ErrLost):
				return err
			case err != nil:
				s.notHeld(ctx, key, err)
				must, again = true, true
				if err := pause(ctx, pace.NextBackOff()); err != nil {
					return err
				}
				continue
			}
			s.trouble.over(key)
			pace.Reset()
			s.tookLock(n)
		}
		wait := s.cfg.RelistEvery
		if untold == nil {
			tellPace.Reset()
		} else {
			wait = tellPace.NextBackOff()
		}
		var err error
		if must, again, err = s.nextRecord(ctx, wait); err != nil {
			return err
		}
		again = again || untold != nil
	}
}

func (s *serving) newPace() *backoff.ExponentialBackOff {
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = s.cfg.RetryMin, min(s.cfg.RetryMax, 5*time.Second)
	return pace
}

// nextRecord waits until the record should be looked at again, and returns whether it must be written then, and whether it
// should be read what there is of the pages, which nothing watches.
func (s *serving) nextRecord(ctx context.Context, wait time.Duration) (must, again bool, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false, context.Cause(ctx)
	case <-s.record:
		return false, false, nil
	case <-s.recheck:
		return true, true, nil
	case <-timer.C:
		return false, true, nil
	}
}

// told returns the record as it should be, after it has written the pages that the record leads to: whoever reads its nonce
// can read all that the node runs (R1). Where the node does not know, or could not tell, the record says nothing about that.
func (s *serving) told(ctx context.Context, again bool) (node.Node, error) {
	const key = "orphans"
	n, orphans, knows := s.nodeRecord()
	if !knows {
		return n, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, holdTimeout, errHoldTimeout)
	defer cancel()
	pages, err := s.tenure.WriteOrphans(ctx, n.Nonce, orphans, again)
	if err != nil {
		if !errors.Is(err, store.ErrLost) && ctx.Err() == nil {
			s.trouble.report(key, "what runs here without an intent cannot be told; farms with new records wait for it before they add pods", err)
		}
		n.Nonce = ""
		return n, err
	}
	s.trouble.over(key)
	n.OrphanPages = &pages
	return n, nil
}

// notHeld says why the node's lock is not held.
func (s *serving) notHeld(ctx context.Context, key string, err error) {
	var foreign *store.ForeignError
	_, held := store.HeldBy(err)
	switch {
	case errors.As(err, &foreign):
		s.setHolding(false)
		s.refuse(err)
		// With the host in the message, another one is told at once.
		s.trouble.report(key, "this node's name belongs to another host; no intents are taken: "+hostOf(foreign.Record), err)
		s.judge(ctx)
	case held:
		s.setHolding(false)
		s.trouble.report(key, "another preparer holds this node's name; no intents are taken until it lets go", err)
	default:
		s.trouble.report(key, "node record cannot be written", err)
	}
}

func hostOf(n node.Node) string { return n.Host + " at agent " + n.ConsulNode }

func (s *serving) hold(ctx context.Context, n node.Node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, holdTimeout, errHoldTimeout)
	defer cancel()
	s.Preparer.mu.Lock()
	takeOver := s.takeOver
	s.Preparer.mu.Unlock()
	return s.tenure.Hold(ctx, n, takeOver)
}

func (s *serving) tookLock(n node.Node) {
	s.mu.Lock()
	s.written = recordText(n)
	s.mu.Unlock()
	s.Preparer.mu.Lock()
	s.takeOver = false // it was for one time
	s.Preparer.mu.Unlock()
	s.suspicion, s.kept = suspicion{}, ""
	s.noteName(func(n nameNote) nameNote { // pods that were stopped for it wait for their intents all the same
		n.Lost = ""
		return n
	})
	s.refuse(nil)
	s.setHolding(true)
	s.heldOnce.Do(func() { close(s.held) })
	s.renewed.raise()
}

func (s *serving) isWritten(n node.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written != nil && string(s.written) == string(recordText(n))
}

// recordText returns the record without what the tenure fills in.
func recordText(n node.Node) []byte {
	n.Incarnation, n.ConsulNode = "", ""
	data, err := json.Marshal(n)
	if err != nil {
		return nil // cannot be: it is made of plain fields
	}
	return data
}

// watchRecord notices when the own record vanishes, loses its lock or is changed by somebody else.
func (s *serving) watchRecord(ctx context.Context) error {
	const key = "own node record"
	onError := func(err error) {
		s.trouble.report(key, "own node record cannot be read; its lock is held on", err)
	}
	return s.cfg.Store.WatchNode(ctx, s.cfg.Node.Name, onError, func(seen store.Seen[node.Node]) error {
		if seen.Regressed {
			return s.wentBack()
		}
		s.trouble.over(key)
		if len(seen.Recs) > 0 && seen.Recs[0].Session != "" && seen.Recs[0].Value.Host == s.cfg.Node.Host {
			s.noteName(func(n nameNote) nameNote { return n.held(seen.Recs[0]) })
		}
		if len(seen.Recs) == 0 || seen.Recs[0].Session == "" || !s.isWritten(seen.Recs[0].Value) {
			s.recheck.raise()
		}
		return nil
	})
}

// nodeRecord is what the node record should say now, and with it the orphans, if the intents that tell them are known.
func (p *Preparer) nodeRecord() (n node.Node, orphans []pod.Orphan, knows bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = p.cfg.Node
	n.Nonce = ""
	n.Anonymous, n.Shut = p.doors, p.shut()
	if p.nonce <= p.regressed {
		n.Regressed = p.regressed // until a farm has answered with a newer nonce
	}
	if !p.informed() {
		return n, nil, false
	}
	n.Nonce = p.nonce
	return n, p.orphans(), true
}

// wentBack notes that the store went back in time, which the node record tells the farms: they may have missed it.
func (p *Preparer) wentBack() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.regressed = p.newest
	return store.ErrRegressed
}

// sawNonce notes a cluster nonce. They sort by the time of their making.
func (p *Preparer) sawNonce(nonce string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = max(p.newest, nonce)
}
