package farm

import (
	"context"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// CompanionReads are how a pass learns what other revisions of a service have (ADR 16).
type CompanionReads interface {
	ReadCompanions(ctx context.Context, rcID string, ids []string, consistent bool) (store.Marks, []store.Companion, error)
}

// readCompanions reads the controllers of the other revisions of the service, after the controller's own placements and before any
// reality. Those without a record are left out: nobody works on them, and they hold nobody up.
func (c *ReplicationController) readCompanions(ctx context.Context, v *view) error {
	var ids []string
	if s := v.head.RC.Value.Service; s != nil && heedCompanions {
		ids = slices.DeleteFunc(slices.Clone(s.Companions), func(id string) bool { return id == c.ID || id == "" })
		slices.Sort(ids)
		ids = slices.Compact(ids)
	}
	c.farm.kin.set(c.ID, ids)
	if len(ids) == 0 {
		return nil
	}
	if v.early != nil && c.expects.nodes && !v.beside {
		v.snapshot.CompanionsUnread = true // most likely nothing depends on them
		return nil
	}
	own, companions, err := c.companionsOf(ctx, v, ids)
	absent := func(o store.Companion) bool { return !o.Exists }
	if err == nil && slices.ContainsFunc(companions, absent) && !c.consistent { // a leader that is behind may lack some
		v.early = nil
		own, companions, err = c.farm.cfg.Store.ReadCompanions(ctx, c.ID, ids, true)
	}
	if err != nil {
		return err
	}
	v.companions = slices.DeleteFunc(companions, absent)
	v.drops = store.DropsBy{c.ID: own.Drops}
	for i := range v.companions {
		o := &v.companions[i]
		v.drops[o.RCID] = o.Marks.Drops
		other := reconcile.Companion{RCID: o.RCID, Unread: len(o.Corrupt), Status: o.Status, Asks: o.Asks}
		for _, rec := range o.Placements {
			other.Pods = append(other.Pods, reconcile.Pod{Placement: rec.Value, Index: rec.Index})
		}
		v.snapshot.Companions = append(v.snapshot.Companions, other)
	}
	return nil
}

// companionsOf reads companions, unless that was done early. What was read before their marks is too old then.
func (c *ReplicationController) companionsOf(ctx context.Context, v *view, ids []string) (store.Marks, []store.Companion, error) {
	if v.early != nil && slices.Equal(v.early.Expected.Companions, ids) {
		return store.Marks{Drops: v.early.Drops}, v.early.Companions, nil
	}
	v.early = nil
	return c.farm.cfg.Store.ReadCompanions(ctx, c.ID, ids, c.consistent)
}

// decide computes the plan. Where companions were not read, and make a difference, that is done first.
func (c *ReplicationController) decide(ctx context.Context, v *view) (reconcile.Plan, error) {
	plan := reconcile.Compute(v.snapshot)
	if !v.snapshot.CompanionsUnread || plan.Unaided {
		return plan, nil
	}
	if err := c.readBeside(ctx, v); err != nil {
		return plan, err
	}
	return reconcile.Compute(v.snapshot), nil
}

// readBeside reads companions after all, and then again what nodes report: that must not be older than their marks.
func (c *ReplicationController) readBeside(ctx context.Context, v *view) error {
	c.giveBack(v, nil)
	v.beside, v.early, v.nodes = true, nil, nil
	v.snapshot.CompanionsUnread, v.snapshot.Errors = false, nil
	if err := c.readCompanions(ctx, v); err != nil {
		return err
	}
	if err := c.readDrops(ctx, v); err != nil {
		return err
	}
	v.snapshot.Nodes, v.nodesVersion = c.farm.world.nodesAt()
	return c.readDetails(ctx, v)
}

// makeMarks makes the keys that the plan's batches depend on where they are missing, and reports whether there were such: what was
// read before says nothing then.
func (c *ReplicationController) makeMarks(ctx context.Context, v *view, plan *reconcile.Plan) (made bool, err error) {
	var drops, stops []string
	for id, d := range v.drops {
		if d.Index == 0 && len(plan.Counting) > 0 && !v.minimum.byBell {
			drops = append(drops, id)
		}
	}
	for i := range v.companions {
		if o := &v.companions[i]; o.Marks.Stops == 0 && len(plan.Counting)+len(plan.Adds) > 0 {
			stops = append(stops, o.RCID)
		}
	}
	if len(drops)+len(stops) == 0 {
		return false, nil
	}
	return true, c.farm.cfg.Store.MakeMarks(ctx, drops, stops)
}

// dependOnCompanions says what a part depends on of companions besides: that nobody has stopped or added pods, that none has dropped if it depends
// on what counts, and that their records ask for as much as before where the bounds of the service follow that.
func dependOnCompanions(v *view, part *store.Part, counts bool) {
	if len(v.companions) == 0 {
		return
	}
	if part.Companions == nil {
		part.Companions = make(map[string]store.CompanionIndices, len(v.companions))
	}
	for i := range v.companions {
		o := &v.companions[i]
		on := part.Companions[o.RCID] // what other changes of the part depend on
		on.Stops = o.Marks.Stops
		if v.head.RC.Value.Mutator == "" {
			on.Record = o.Record
		}
		switch {
		case counts && v.minimum.byBell:
			on.Bell = o.Marks.Bell
		case counts:
			on.Drops = o.Marks.Drops.Index
		}
		part.Companions[o.RCID] = on
	}
}

// kin knows which controllers of the farm depend on what others have: they are looked at when those bells ring, too.
type kin struct {
	mu     sync.Mutex
	of     map[string][]string        // a controller's companions, by its id
	beside map[string]map[string]bool // the controllers that have one as a companion, by its id
}

func (k *kin) set(id string, companions []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Equal(k.of[id], companions) {
		return
	}
	if k.of == nil {
		k.of, k.beside = map[string][]string{}, map[string]map[string]bool{}
	}
	for _, other := range k.of[id] {
		if delete(k.beside[other], id); len(k.beside[other]) == 0 {
			delete(k.beside, other)
		}
	}
	if delete(k.of, id); len(companions) > 0 {
		k.of[id] = companions
	}
	for _, other := range companions {
		if k.beside[other] == nil {
			k.beside[other] = map[string]bool{}
		}
		k.beside[other][id] = true
	}
}

// companions returns the companions that a controller depends on.
func (k *kin) companions(id string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.of[id])
}

// besides returns the controllers that have one as a companion.
func (k *kin) besides(id string) (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other := range k.beside[id] {
		ids = append(ids, other)
	}
	return ids
}
