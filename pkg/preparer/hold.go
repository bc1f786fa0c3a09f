package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// holdTimeout bounds one try to take the lock, so that what is in the way gets logged.
const holdTimeout = 10 * time.Second

var errHoldTimeout = errors.New("the node record could not be written within " + holdTimeout.String())

// keepRecord holds the node's lock and keeps the record under it true. It writes only what differs.
func (s *serving) keepRecord(ctx context.Context) error {
	const key = "node record"
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = s.cfg.RetryMin, min(s.cfg.RetryMax, 5*time.Second)
	must := true
	for {
		n := s.nodeRecord()
		if must || !s.isWritten(n) {
			err := s.hold(ctx, n)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, store.ErrLost):
				return err
			case err != nil:
				s.notHeld(ctx, key, err)
				must = true
				if err := pause(ctx, pace.NextBackOff()); err != nil {
					return err
				}
				continue
			}
			s.trouble.over(key)
			pace.Reset()
			s.tookLock(n)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.record:
			must = false
		case <-s.recheck:
			must = true
		}
	}
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

// nodeRecord is what the node record should say now.
func (p *Preparer) nodeRecord() node.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.cfg.Node
	n.Orphans, n.OrphansLeftOut = p.orphans()
	n.Nonce = ""
	if p.informed() {
		n.Nonce = p.nonce
	}
	if p.nonce <= p.regressed {
		n.Regressed = p.regressed // until a farm has answered with a newer nonce
	}
	return n
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
