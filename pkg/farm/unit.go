package farm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// unit is a service with all its revisions, or one controller alone, that this farm owns (ADR 29). One goroutine at a
// time works on it.
type unit struct {
	id  string
	kit *kit
	log obs.Logger
	tenure
	claimed *store.Claimed // what came with the lock, until the first look uses it
	rolling rolling
	waits   bool // the last look asked nodes for something, and for nothing else
	looks   looks.Looks
	leaving atomic.Bool // give it to the farm that prefers it

	mu          sync.Mutex
	controllers map[string]*controller // those that looks have found
}

// tenure is the ownership of a unit since its lock was taken.
type tenure struct {
	fence      store.Fence
	consistent bool // the next look's reads must be: it is the first of this tenure
	unsure     bool // a write may linger: the fence must be bumped before anything is read
}

// newUnit begins a tenure.
func (k *kit) newUnit(id string, fence store.Fence) *unit {
	return &unit{
		id: id, kit: k, log: k.log.WithField(obs.RCID, id), tenure: tenure{fence: fence, consistent: true},
		controllers: map[string]*controller{},
	}
}

// bump moves the fence. Until that has worked, every look begins with it.
func (u *unit) bump(ctx context.Context) error {
	fence, err := u.kit.lock.Bump(ctx, u.fence)
	if err != nil {
		u.unsure = true
		return fmt.Errorf("bump the fence: %w", err)
	}
	if u.unsure {
		u.kit.metrics.bumps.Inc()
	}
	u.tenure = tenure{fence: fence, consistent: true}
	return nil
}

// takenOver reports, once, that the unit was just claimed and had an owner before. What came with the lock is read
// again, because it may be old by the time of the look.
func (u *unit) takenOver() bool {
	if u.claimed == nil {
		return false
	}
	for _, h := range u.claimed.Unit.Heads {
		if h.Status != nil {
			u.claimed = nil
			return true
		}
	}
	return false
}

// all returns the controllers that looks have found.
func (u *unit) all() []*controller {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.controllers))
}

// count returns how many these are.
func (u *unit) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.controllers)
}

// known returns one of the controllers that looks have found, nil for another one.
func (u *unit) known(id string) *controller {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.controllers[id]
}

// meet takes in a controller that a look has found, and what the mass-stop breaker must know of it before the first
// plan for it.
func (u *unit) meet(id string, h *store.Head) *controller {
	c := u.known(id)
	known := c != nil
	if !known {
		c = u.add(id)
	}
	if c.memory.recordless = !h.Exists(); !known {
		u.kit.resyncClaimed(c, len(h.Placements))
		c.newPass(&view{Unit: store.Unit{Heads: map[string]*store.Head{id: h}}}).learn()
	}
	return c
}

// add adds a controller.
func (u *unit) add(id string) *controller {
	c := &controller{ID: id, kit: u.kit, unit: u, log: u.kit.log.WithField(obs.RCID, id)}
	c.memory.tenure, c.shared.looks = &u.tenure, &u.looks
	u.mu.Lock()
	defer u.mu.Unlock()
	u.controllers[id] = c
	return c
}

// forget is for a controller that is gone.
func (u *unit) forget(id string) {
	u.mu.Lock()
	delete(u.controllers, id)
	u.mu.Unlock()
	u.kit.forget(id)
}

// rebalance asks for the unit to be given to the farm that prefers it, if that is not this one.
func (u *unit) rebalance() {
	u.leaving.Store(true)
	u.looks.Ask()
}

// view is a unit as one look, or a part of one, sees it: all that its passes read together, in this order.
type view struct {
	consistent bool   // what was read is not that of a leader that is behind
	mark       uint64 // nodes told of later may have room that no pass over this view sees
	schema     store.Rec[store.Schema]
	breaker    store.Rec[store.Breaker]
	store.Unit // with its drops: what is read after them is newer
	hold       string
	now        time.Time
	orphans    map[string][]reconcile.Orphan // by controller: at least as new as what the hold ended for
	nodes      map[string]*node.View         // one whose preparer has changed has reported under another one before that
	version    uint64                        // of nodes
	reports    map[store.At]store.Report     // that passes over the view have read
	pods       map[string]reported           // by controller; see podsOf

	writes int  // batches of this look that have landed; what they wrote is in the view
	stale  bool // something may have been written that is not
}

// landed takes in what a batch of a controller has written: what a new reading of the unit would show of it.
func (v *view) landed(b *store.Batch) {
	v.writes++
	h := v.Heads[b.RCID]
	if b.Status != nil {
		h.Status = b.Status
	}
	written := map[pod.Identity]*store.PodWrite{}
	for i := range b.Pods {
		written[b.Pods[i].Identity] = &b.Pods[i]
	}
	left := slices.DeleteFunc(slices.Clone(h.Placements), func(rec store.Rec[pod.Placement]) bool {
		_, is := written[rec.Value.Identity]
		return is
	})
	for _, w := range written {
		if w.Placement != nil {
			left = append(left, store.Rec[pod.Placement]{Value: *w.Placement, Index: w.Landed})
		}
	}
	slices.SortFunc(left, func(a, b store.Rec[pod.Placement]) int { return a.Value.Identity.Compare(b.Value.Identity) })
	h.Placements = left
	delete(v.pods, b.RCID)
	h.Requests = slices.DeleteFunc(slices.Clone(h.Requests), func(r store.Rec[store.Request]) bool { return slices.Contains(b.Answered, r.Value.ID) })
}

// stepped takes in a step of the rollout that has landed.
func (v *view) stepped(s *store.RolloutStep, index uint64) {
	v.writes++
	for i := range s.RCs {
		h := *v.Heads[s.RCs[i].ID]
		h.RC = store.Rec[rc.RC]{Value: s.RCs[i], Index: index, Session: h.RC.Session}
		v.Heads[s.RCs[i].ID] = &h
	}
	switch {
	case s.Ended:
		v.Rollout = store.Rec[rollout.Record]{}
	case s.Record != nil:
		v.Rollout.Value, v.Rollout.Index = *s.Record, index
	}
	switch {
	case s.Trouble != nil:
		v.Trouble = store.Rec[store.RolloutTrouble]{Value: *s.Trouble, Index: index}
	case s.ForgetsTrouble():
		v.Trouble = store.Rec[store.RolloutTrouble]{}
	}
}

// read reads the unit. With records that are older than they were it returns store.ErrWentBack, even if others have
// written so much since that no watch could tell: the owner alone writes placements.
func (u *unit) read(ctx context.Context, consistent bool) (*view, error) {
	for {
		v := &view{consistent: consistent || u.claimed != nil, mark: u.kit.scarcity.mark()}
		seen := u.kit.cache.now()
		v.schema, v.breaker = seen.schema, seen.breaker
		var err error
		if got := u.claimed; got != nil {
			u.claimed = nil
			v.Unit, err = got.Unit, got.UnitErr
		} else {
			v.Unit, err = u.kit.reads.ReadUnit(ctx, u.id, v.consistent)
		}
		if err != nil {
			return nil, err
		}
		if older, missing := u.compare(&v.Unit); older != "" && v.consistent {
			return nil, fmt.Errorf("controller %s: %w", older, store.ErrWentBack)
		} else if !v.consistent && (older != "" || missing) {
			consistent = true // a new leader may be behind for a moment
			continue
		}
		v.hold = u.kit.nodeSync.hold(v.schema.Value.Epoch)
		v.now = time.Now()
		v.orphans = map[string][]reconcile.Orphan{}
		for id := range v.Heads {
			v.orphans[id] = u.kit.cache.orphansOf(id)
		}
		v.nodes, v.version = u.kit.cache.nodesAt()
		return v, nil
	}
}

// compare compares a unit with what the last look has read of it. It returns a controller of which something is older
// now, "" for none, and whether a record is missing that somebody may be wrong about.
func (u *unit) compare(now *store.Unit) (older string, missing bool) {
	records := 0
	for id, h := range now.Heads {
		c := u.known(id)
		if h.Exists() {
			records++
		} else if len(h.Requests) > 0 || c != nil && !c.memory.recordless {
			missing = true
		}
		if c != nil && (h.Exists() || c.memory.recordless) && c.memory.last.after(h.RC.Index, h.Placements) {
			return id, missing
		}
	}
	for _, c := range u.all() {
		missing = missing || now.Heads[c.ID] == nil
	}
	return "", missing || records == 0
}

// alone reports whether the owner of the unit works on no other controller than one.
func (v *view) alone(id string) bool {
	for other, h := range v.Heads {
		if other != id && h.Owned() {
			return false
		}
	}
	return true
}

// matches reports whether a selector matches the unit, as far as its labels can be read: those that cannot be are left
// to the owner.
func (v *view) matches(selector labels.Selector) bool {
	h := v.Heads[v.Latest()]
	return h == nil || h.Err != nil || selector.Matches(labels.Set(h.RC.Value.Labels))
}
