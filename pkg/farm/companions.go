package farm

import (
	"context"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// readCompanions reads the controllers of the other revisions of the service, after the controller's own placements and before any
// reality. Those without a record are left out: nobody works on them, and they hold nobody up.
func (ps *reader) readCompanions(ctx context.Context) error {
	var ids []string
	if s := ps.head.RC.Value.Service; s != nil && heedCompanions {
		ids = slices.DeleteFunc(slices.Clone(s.Companions), func(id string) bool { return id == ps.id || id == "" })
		slices.Sort(ids)
		ids = slices.Compact(ids)
	}
	ps.kit.companionIndex.set(ps.id, ids)
	if len(ids) == 0 {
		return nil
	}
	if ps.early != nil && ps.mem.expects.nodes && !ps.withCompanions {
		ps.snapshot.CompanionsUnread = true // most likely nothing depends on them
		return nil
	}
	own, companions, err := ps.companionsOf(ctx, ids)
	absent := func(o store.Companion) bool { return !o.Exists }
	if err == nil && slices.ContainsFunc(companions, absent) && !ps.mem.consistent { // a leader that is behind may lack some
		ps.early = nil
		own, companions, err = ps.kit.reads.ReadCompanions(ctx, ps.id, ids, true)
	}
	if err != nil {
		return err
	}
	ps.companions = slices.DeleteFunc(companions, absent)
	ps.drops = store.DropsBy{ps.id: own.Drops}
	for i := range ps.companions {
		o := &ps.companions[i]
		ps.drops[o.RCID] = o.Marks.Drops
		other := reconcile.Companion{RCID: o.RCID, Unread: len(o.Corrupt), Status: o.Status, Asks: o.Asks}
		for _, rec := range o.Placements {
			other.Pods = append(other.Pods, reconcile.Pod{Placement: rec.Value, Index: rec.Index})
		}
		ps.snapshot.Companions = append(ps.snapshot.Companions, other)
	}
	return nil
}

// companionsOf reads companions, unless that was done early. What was read before their marks is too old then.
func (ps *reader) companionsOf(ctx context.Context, ids []string) (store.Marks, []store.Companion, error) {
	if ps.early != nil && slices.Equal(ps.early.Expected.Companions, ids) {
		return store.Marks{Drops: ps.early.Drops}, ps.early.Companions, nil
	}
	ps.early = nil
	return ps.kit.reads.ReadCompanions(ctx, ps.id, ids, ps.mem.consistent)
}

// decide computes the plan. Where companions were not read, and make a difference, that is done first. So is what nodes were told about ordered
// pods that have no placement and are to get one.
func (ps *pass) decide(ctx context.Context) (reconcile.Plan, error) {
	plan := reconcile.Compute(ps.snapshot)
	if ps.snapshot.CompanionsUnread && !plan.Unaided {
		if err := ps.reader.readBeside(ctx); err != nil {
			return plan, err
		}
		plan = reconcile.Compute(ps.snapshot)
	}
	return ps.settle(ctx, plan)
}

// settle reads what nodes were told about ordered pods that a plan gives a placement, and plans anew where there is anything.
func (ps *pass) settle(ctx context.Context, plan reconcile.Plan) (reconcile.Plan, error) {
	for asked := []pod.Identity(nil); ; {
		ids := slices.DeleteFunc(ps.snapshot.Unsettled(&plan), func(id pod.Identity) bool { return slices.Contains(asked, id) })
		if len(ids) == 0 {
			return plan, nil
		}
		asked = append(asked, ids...)
		switch told, err := ps.reader.readTold(ctx, ids); {
		case err != nil:
			return plan, err
		case told:
			plan = reconcile.Compute(ps.snapshot)
		}
	}
}

// readTold reads what all nodes were told about some identities that have no placement, and reports whether there is anything. The owner alone
// writes intents, so that none comes up before the plan lands.
func (ps *reader) readTold(ctx context.Context, ids []pod.Identity) (told bool, err error) {
	var w store.Wanted
	for _, id := range ids {
		for name := range ps.snapshot.Nodes {
			w.Intents = append(w.Intents, store.At{Node: name, Identity: id})
		}
	}
	if len(w.Intents) == 0 {
		return false, nil
	}
	d, err := ps.kit.reads.ReadDetails(ctx, w, true)
	if err != nil {
		return false, err
	}
	for at, in := range d.Intents {
		in.Identity = at.Identity
		ps.snapshot.Tell(at.Node, &in)
	}
	if unread := joined(d.Corrupt); unread != nil {
		ps.snapshot.Unsure = unread.Error()
	}
	return len(d.Intents)+len(d.Corrupt) > 0, nil
}

// readBeside reads companions after all, and then again what nodes report: that must not be older than their marks.
func (ps *reader) readBeside(ctx context.Context) error {
	ps.room.giveBack(nil)
	ps.withCompanions, ps.early, ps.room.nodes = true, nil, nil
	ps.snapshot.CompanionsUnread, ps.snapshot.Errors = false, nil
	if err := ps.readCompanions(ctx); err != nil {
		return err
	}
	if err := ps.readDrops(ctx); err != nil {
		return err
	}
	ps.snapshot.Nodes, ps.room.version = ps.kit.cache.nodesAt()
	return ps.readDetails(ctx)
}

// makeMarks makes the keys that the plan's batches depend on where they are missing, and reports whether there were such: what was
// read before says nothing then.
func (ps *writer) makeMarks(ctx context.Context, plan *reconcile.Plan) (made bool, err error) {
	var drops, stops []string
	for id, d := range ps.drops {
		if d.Index == 0 && len(plan.Counting) > 0 && !ps.minimum.byBell {
			drops = append(drops, id)
		}
	}
	for i := range ps.companions {
		if o := &ps.companions[i]; o.Marks.Stops == 0 && len(plan.Counting)+len(plan.Adds) > 0 {
			stops = append(stops, o.RCID)
		}
	}
	if len(drops)+len(stops) == 0 {
		return false, nil
	}
	return true, ps.kit.writes.MakeMarks(ctx, drops, stops)
}

// dependOnCompanions says what a part depends on of companions besides: that nobody has stopped or added pods, that none has dropped if it depends
// on what counts, and that their records ask for as much as before where the bounds of the service follow that.
func (ps *writer) dependOnCompanions(part *store.Part, counts bool) {
	if len(ps.companions) == 0 {
		return
	}
	if part.Companions == nil {
		part.Companions = make(map[string]store.CompanionIndices, len(ps.companions))
	}
	for i := range ps.companions {
		o := &ps.companions[i]
		on := part.Companions[o.RCID] // what other changes of the part depend on
		on.Stops = o.Marks.Stops
		if ps.head.RC.Value.Mutator == "" {
			on.Record = o.Record
		}
		switch {
		case counts && ps.minimum.byBell:
			on.Bell = o.Marks.Bell
		case counts:
			on.Drops = o.Marks.Drops.Index
		}
		part.Companions[o.RCID] = on
	}
}

// companionIndex knows which controllers of the farm depend on what others have: they are looked at when those bells ring, too.
type companionIndex struct {
	mu     sync.Mutex
	of     map[string][]string        // a controller's companions, by its id
	usedBy map[string]map[string]bool // the controllers that have one as a companion, by its id
	at     map[string][]store.At      // where the pods of one are that has companions, as its last look left them: a hint
}

func (k *companionIndex) set(id string, companions []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Equal(k.of[id], companions) {
		return
	}
	if k.of == nil {
		k.of, k.usedBy, k.at = map[string][]string{}, map[string]map[string]bool{}, map[string][]store.At{}
	}
	for _, other := range k.of[id] {
		if delete(k.usedBy[other], id); len(k.usedBy[other]) == 0 {
			delete(k.usedBy, other)
		}
	}
	delete(k.at, id)
	if delete(k.of, id); len(companions) > 0 {
		k.of[id] = companions
	}
	for _, other := range companions {
		if k.usedBy[other] == nil {
			k.usedBy[other] = map[string]bool{}
		}
		k.usedBy[other][id] = true
	}
}

// leaves notes where a look has left the pods of a controller.
func (k *companionIndex) leaves(id string, at []store.At) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.of[id]) > 0 {
		k.at[id] = at
	}
}

// placesOf returns where the pods of some controllers are, as far as this farm has looked at them.
func (k *companionIndex) placesOf(ids []string) (at []store.At) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		at = append(at, k.at[id]...)
	}
	return at
}

// companions returns the companions that a controller depends on.
func (k *companionIndex) companions(id string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.of[id])
}

// usersOf returns the controllers that have one as a companion.
func (k *companionIndex) usersOf(id string) (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other := range k.usedBy[id] {
		ids = append(ids, other)
	}
	return ids
}
