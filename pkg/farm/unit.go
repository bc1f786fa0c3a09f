package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// unit is a unit that this farm owns (ADR 29). One goroutine at a time works on it.
type unit struct {
	id  string
	kit *kit
	log obs.Logger
	tenure
	claimed       *store.Claimed // what the claim has read, until the first look uses it
	rolling       rolling
	waits         bool // the last look only wrote intents, and the next work comes with the nodes' reports
	looks         looks.Looks
	handOverAsked atomic.Bool // the next look hands the unit over if another farm is preferred

	mu          sync.Mutex
	controllers map[string]*controller // controllers that looks have found
}

// tenure is the ownership of a unit since its lock was taken.
type tenure struct {
	fence  store.Fence
	level  store.Level // of the reads of the next look; Consistent in the first look of a tenure
	unsure bool        // an earlier write may still land: bump the fence before the next read
}

// newUnit returns a unit whose lock this farm has just taken.
func (k *kit) newUnit(id string, fence store.Fence) *unit {
	return &unit{
		id: id, kit: k, log: k.log.WithField(obs.RCID, id), tenure: tenure{fence: fence, level: store.Consistent},
		controllers: map[string]*controller{},
	}
}

// bump moves the fence. If that fails, each look tries again before it reads.
func (u *unit) bump(ctx context.Context) error {
	fence, err := u.kit.lock.Bump(ctx, u.fence)
	if err != nil {
		u.unsure = true
		return fmt.Errorf("bump the fence: %w", err)
	}
	if u.unsure {
		u.kit.metrics.bumps.Inc()
	}
	u.tenure = tenure{fence: fence, level: store.Consistent}
	return nil
}

// afterFailure is called after a failed write (R9). After an unknown outcome it bumps the fence, so that the write
// cannot land after the next read. If Consul refused the fence itself, the bump shows whether this farm still has the
// lock.
func (u *unit) afterFailure(ctx context.Context, failure error) error {
	if !errors.Is(failure, store.ErrUnknown) && !store.LockRefused(failure, u.fence) {
		return failure
	}
	u.unsure = true
	if err := u.bump(ctx); err != nil {
		return errors.Join(err, failure)
	}
	u.log.WithError(failure).Info("bumped the fence")
	return failure
}

// takenOver returns true once for a unit that was just claimed and had an owner before. It also drops what the claim
// has read, because that may have changed when the look begins.
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

func (u *unit) all() []*controller {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.controllers))
}

func (u *unit) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.controllers)
}

// known returns nil if looks have not found the controller.
func (u *unit) known(id string) *controller {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.controllers[id]
}

// ensure adds a controller if it is new, and gives the mass-stop breaker what it must know before the first plan.
func (u *unit) ensure(id string, h *store.Head) *controller {
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

func (u *unit) add(id string) *controller {
	c := &controller{ID: id, kit: u.kit, unit: u, log: u.kit.log.WithField(obs.RCID, id)}
	c.shared.looks = &u.looks
	u.mu.Lock()
	defer u.mu.Unlock()
	u.controllers[id] = c
	return c
}

func (u *unit) forget(id string) {
	u.mu.Lock()
	delete(u.controllers, id)
	u.mu.Unlock()
	u.kit.forget(id)
}

// askHandOver makes the next look hand the unit over, if another farm is preferred.
func (u *unit) askHandOver() {
	u.handOverAsked.Store(true)
	u.looks.Ask()
}

// read reads the unit. If a record is older than at the last read, it returns store.ErrWentBack. It notices a restore
// that no watch notices because of many writes since, because only the owner writes placements.
func (u *unit) read(ctx context.Context, level store.Level) (*view, error) {
	for {
		v := &view{level: level, mark: u.kit.places.Mark()}
		seen := u.kit.cache.present()
		v.schema, v.breaker = seen.schema, seen.breaker
		var err error
		if got := u.claimed; got != nil {
			u.claimed, v.level = nil, store.Consistent
			v.Unit, err = got.Unit, got.UnitErr
		} else {
			v.Unit, err = u.kit.reads.ReadUnit(ctx, u.id, v.level)
		}
		if err != nil {
			return nil, err
		}
		if older, missing := u.compare(&v.Unit); older != "" && v.level == store.Consistent {
			return nil, fmt.Errorf("controller %s: %w", older, store.ErrWentBack)
		} else if v.level != store.Consistent && (older != "" || missing) {
			level = store.Consistent // Consul's new leader may be behind for a moment
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

// compare compares a unit with what the last look read. older is a controller with a record whose index is lower now;
// "": none. missing means that an expected record is missing, perhaps because the read was stale.
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
