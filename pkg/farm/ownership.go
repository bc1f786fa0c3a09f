package farm

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// errGone means that there is no such controller any more.
var errGone = errors.New("the controller is gone")

// controller returns the controller if this farm owns it or can claim it now. Otherwise it returns nil, and when to look
// again (zero: something will ring).
func (f *Farm) controller(ctx context.Context, id string) (*ReplicationController, time.Duration, error) {
	f.mu.Lock()
	c, foreign := f.owned[id], f.foreign[id]
	f.mu.Unlock()
	if c != nil || foreign {
		return c, 0, nil
	}
	if placement.PreferredOwner(id, f.world.members()) != f.cfg.ID {
		wait, err := f.watchUnowned(ctx, id)
		if wait > 0 || err != nil {
			return nil, wait, err
		}
		f.mu.Lock()
		foreign = f.foreign[id]
		f.mu.Unlock()
		if foreign {
			return nil, 0, nil
		}
	}
	return f.claim(ctx, id)
}

// watchUnowned tells whether a controller that another farm should claim has lacked an owner for long enough. It returns
// how long to wait before looking again, zero when the lock is held (then the controller is marked foreign) or the time
// is up.
func (f *Farm) watchUnowned(ctx context.Context, id string) (time.Duration, error) {
	locks, err := f.cfg.Store.LockHeld(ctx, id)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if locks {
		f.foreign[id] = true
		delete(f.freed, id)
		return 0, nil
	}
	since, seen := f.freed[id]
	if !seen {
		f.freed[id] = time.Now()
		return unownedGrace, nil
	}
	if left := unownedGrace - time.Since(since); left > 0 {
		return left, nil
	}
	delete(f.freed, id)
	return 0, nil
}

func (f *Farm) claim(ctx context.Context, id string) (*ReplicationController, time.Duration, error) {
	exists, err := f.cfg.Store.RCExists(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	if !exists {
		return nil, 0, errGone // a bell without a controller: claiming would leave a lock behind
	}
	fence, err := f.cfg.Store.Claim(ctx, id)
	if _, held := store.HeldBy(err); held {
		f.mu.Lock()
		f.foreign[id] = true
		f.mu.Unlock()
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	c := &ReplicationController{
		ID: id, farm: f, fence: fence, deep: true, consistent: true,
		log: f.log.WithField(obs.RCID, id),
	}
	f.mu.Lock()
	f.owned[id] = c
	f.mu.Unlock()
	c.log.WithField(obs.ConsulIndex, fence.Index).Info("claimed a controller")
	return c, 0, nil
}

// drop forgets a controller that is not ours any more.
func (f *Farm) drop(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owned, id)
	delete(f.foreign, id)
	delete(f.freed, id)
	f.cfg.Metrics.forget(id)
}

// bellGone looks at a controller that was probably deleted, if it is ours, and forgets it otherwise.
func (f *Farm) bellGone(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owned[id] != nil {
		f.queue.Add(id)
		return
	}
	delete(f.foreign, id)
	delete(f.freed, id)
}

// membersChanged looks at every controller whose owner may be gone.
func (f *Farm) membersChanged() {
	f.mu.Lock()
	clear(f.foreign)
	f.mu.Unlock()
	for _, id := range f.world.bellIDs() {
		f.enqueue(id)
	}
}

// sweepLoop sweeps at the start, whenever something vanished that should be there, and every now and then (R4).
func (f *Farm) sweepLoop(ctx context.Context) error {
	for {
		if err := f.sweep(ctx); err != nil && ctx.Err() == nil {
			f.log.WithError(err).Warn("sweep failed")
		}
		timer := time.NewTimer(f.cfg.SweepEvery + rand.N(f.cfg.SweepEvery/4+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		case <-f.sweepNow:
			timer.Stop()
		}
	}
}

// sweep makes missing bells, removes stray ones, and looks at every controller that is not known to be in good hands.
func (f *Farm) sweep(ctx context.Context) error {
	ids, err := f.cfg.Store.SweepBells(ctx)
	if err != nil {
		return err
	}
	locks, err := f.cfg.Store.Locks(ctx)
	if err != nil {
		return err
	}
	f.reportUnclaimed(ctx, ids, locks)
	deepBefore := time.Now().Add(-f.cfg.DeepEvery)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		c := f.owned[id]
		switch {
		case c == nil:
			f.foreign[id] = locks[id]
			if !locks[id] {
				f.queue.Add(id)
			}
		case !locks[id]:
			f.queue.Add(id) // its next pass finds out
		case c.deepDue(deepBefore):
			f.queue.Add(id)
		}
	}
	return nil
}

// settling is where the farm stands with the current cluster nonce (R1).
type settling struct {
	nonce   string // that everything settled for; empty: none yet
	reason  string // why it is not settled
	current string // that the reason is about
}

// settleEvery is how often the nodes' answers to a new nonce are looked at.
const settleEvery = 250 * time.Millisecond

// settle finds out, for each new cluster nonce, when every living node has said what it runs. Until then nothing is added.
func (f *Farm) settle(ctx context.Context) error {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for {
		schema := f.world.schemaRec().Value
		f.mu.Lock()
		done := schema.Nonce != "" && f.nonce.nonce == schema.Nonce
		f.mu.Unlock()
		if !done {
			reason := f.unsettled(ctx, schema)
			f.mu.Lock()
			f.nonce.reason, f.nonce.current = reason, schema.Nonce
			if reason == "" {
				f.nonce.nonce = schema.Nonce
			}
			f.mu.Unlock()
			if reason == "" {
				f.log.WithField("nonce", schema.Nonce).Info("every living node has reported")
				f.enqueueOwned(func(*ReplicationController) bool { return true })
			}
		}
		f.observe()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// unsettled says what is missing before pods may be added in a world with this nonce, "" when nothing is.
func (f *Farm) unsettled(ctx context.Context, schema store.Schema) string {
	if schema.Nonce == "" {
		return "the cluster record is missing"
	}
	// A clock ahead of ours must not make us wait longer than the rule asks for.
	if age := time.Since(schema.CreatedAt); age >= 0 && age < 2*f.cfg.TTL {
		return "the records are new: waiting for nodes to report what they run"
	}
	passing, err := f.cfg.Store.Passing(ctx)
	if err != nil {
		return "cannot tell which nodes are alive: " + err.Error()
	}
	views := f.world.nodes()
	var silent []string
	for _, name := range passing {
		if v := views[name]; v == nil || v.Nonce != schema.Nonce {
			silent = append(silent, name)
		}
	}
	if len(silent) > 0 {
		const show = 5
		more := ""
		if len(silent) > show {
			silent, more = silent[:show], " and others"
		}
		return "waiting for nodes to report what they run: " + strings.Join(silent, ", ") + more
	}
	return ""
}

// hold returns why nothing may be added now, "" when it may.
func (f *Farm) hold(nonce string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case nonce != "" && f.nonce.nonce == nonce:
		return ""
	case f.nonce.reason != "" && f.nonce.current == nonce:
		return f.nonce.reason
	default:
		return "the cluster record is new: looking at the nodes"
	}
}
