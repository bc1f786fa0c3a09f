package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
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
				if err := loop.Pause(ctx, pace.NextBackOff()); err != nil {
					return err
				}
				continue
			}
			s.trouble.Over(key)
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
			s.trouble.Report(key, "what runs here without an intent cannot be told; farms with new records wait for it before they add pods", err)
		}
		n.Nonce = ""
		return n, err
	}
	s.trouble.Over(key)
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
		s.refused(err)
		// With the host in the message, another one is told at once.
		s.trouble.Report(key, "this node's name belongs to another host; no intents are taken: "+claim.HostOf(foreign.Record), err)
		s.judge(ctx)
	case held:
		s.setHolding(false)
		s.trouble.Report(key, "another preparer holds this node's name; no intents are taken until it lets go", err)
	default:
		s.trouble.Report(key, "node record cannot be written", err)
	}
}

// refused notes that the node's name belongs to another host.
func (s *serving) refused(err error) {
	s.cfg.Metrics.refused(true)
	if s.name.Refuse(err) {
		s.contact.Serve(false)
	}
}

// judge finds out whether the other host has taken the name over, which ends all pods.
func (s *serving) judge(ctx context.Context) {
	rec, err := s.cfg.Store.Node(ctx, s.cfg.Node.Name)
	var corrupt *store.CorruptError
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.As(err, &corrupt) {
		return // no answer says nothing
	}
	read := &rec
	if err != nil {
		read = nil
	}
	lost, kept := s.name.Judge(read, time.Now(), s.cfg.ConfirmLoss)
	if kept != "" {
		s.log.WithField(obs.Reason, kept).Warn("pods of this host keep running although its node's name is another's; if they run elsewhere too, end them")
	}
	if !lost {
		return
	}
	s.log.WithField(obs.Reason, "taken over by host "+claim.HostOf(rec.Value)).Error("this node's name was taken over by another host, which declares this one dead; all its pods are stopped, so that none runs twice")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.pods {
		s.enqueue(e)
		e.interrupt()
	}
}

func (s *serving) hold(ctx context.Context, n node.Node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, holdTimeout, errHoldTimeout)
	defer cancel()
	return s.tenure.Hold(ctx, n, s.name.TakeOver())
}

func (s *serving) tookLock(n node.Node) {
	text := recordText(n)
	s.written.Store(&text)
	s.name.Take()
	s.cfg.Metrics.refused(false)
	s.contact.Serve(true) // whose name was lost was not before
	s.setHolding(true)
	s.heldOnce.Do(func() { close(s.held) })
	s.renewed.Raise()
}

func (s *serving) isWritten(n node.Node) bool {
	written := s.written.Load()
	return written != nil && *written == recordText(n)
}

// recordText returns the record without what the tenure fills in.
func recordText(n node.Node) string {
	n.Incarnation, n.ConsulNode = "", ""
	data, err := json.Marshal(n)
	if err != nil {
		return "" // cannot be: it is made of plain fields
	}
	return string(data)
}

// watchRecord notices when the own record vanishes, loses its lock or is changed by somebody else.
func (s *serving) watchRecord(ctx context.Context) error {
	const key = "own node record"
	onError := func(err error) {
		s.trouble.Report(key, "own node record cannot be read; its lock is held on", err)
	}
	return s.cfg.Store.WatchNode(ctx, s.cfg.Node.Name, onError, func(seen store.Seen[node.Node]) error {
		if seen.Regressed {
			return s.name.WentBack()
		}
		s.trouble.Over(key)
		if len(seen.Recs) > 0 && seen.Recs[0].Session != "" && seen.Recs[0].Value.Host == s.cfg.Node.Host {
			s.name.Saw(seen.Recs[0])
		}
		if len(seen.Recs) == 0 || seen.Recs[0].Session == "" || !s.isWritten(seen.Recs[0].Value) {
			s.recheck.Raise()
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
	n.Anonymous, n.Shut = p.exposure.Said()
	n.Regressed = p.name.Regressed(p.nonce)
	if !p.contact.Informed() {
		return n, nil, false
	}
	n.Nonce = p.nonce
	return n, p.orphans(), true
}
