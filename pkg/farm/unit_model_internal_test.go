package farm

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// The model of a unit (ADR 29): one service, two farms that may own it, three nodes, operators, and the steps of its
// rollout. The owners are the program's own (unit.look); the store, the nodes and what happens are the model's. Each
// call of the store waits until the history goes on with it, so that whatever can happen comes between any two of them,
// and always in the same order.

// simVariant leaves something out of the store's conditions, or of what the owner or a preparer does.
type simVariant struct {
	ignores condition
	lacks   part
}

func (v *simVariant) String() string {
	return strings.TrimSpace(string(v.ignores) + " " + string(v.lacks))
}

// part is what a variant leaves out, besides conditions.
type part string

const (
	counterGuessed part = "that a counter is read again after an unknown outcome"
	bumpStays      part = "that the fence moves after an unknown outcome"
	counts         part = "the counters that are listed with the drops again"
	counterMade    part = "when a counter was made"
	keyMade        part = "when the key of the drops was made"
	earlyDrops     part = "that the drops are listed before the realities"
	landing        part = "that the view takes in a batch"
	stepping       part = "that the view takes in a step"
	found          part = "what the passes have found"
	secondPasses   part = "the passes after a step"
	companions     part = "the other revisions"
)

func (v *simVariant) without(p part) bool { return v.lacks == p }

// dropsSince is what a variant makes of drops that are listed again.
func (o *simOwner) dropsSince(now store.Drops) store.Drops {
	before := o.seen.drops
	switch o.lacks {
	case counts:
		now.Counts, now.Created = before.Counts, before.Created
	case counterMade:
		for name, was := range before.Counts {
			now.Counts[name] = store.DropCount{Created: was.Created, Drops: max(was.Drops, now.Counts[name].Drops)}
		}
	case keyMade:
		now.Created = before.Created
	default:
	}
	return now
}

// look is the owner's. Where a variant leaves out a part of it, it is put together here.
func (o *simOwner) look(ctx context.Context, u *unit) (time.Duration, error) {
	switch o.lacks {
	case found, secondPasses, companions:
	default:
		return u.look(ctx)
	}
	u.looks.Begin()
	v, err := u.fresh(ctx, &view{stale: true}, true)
	if err != nil {
		return 0, err
	}
	bell := v.BellIndex
	if gone, err := u.settle(ctx, v); gone || err != nil {
		return 0, err
	}
	again, err := o.work(ctx, u, v)
	if err == nil {
		u.looks.Ended(bell)
	}
	return again, err
}

// work is unit.work without something.
func (o *simOwner) work(ctx context.Context, u *unit, v *view) (time.Duration, error) {
	for range 2 {
		passes := u.passes
		if o.lacks == companions {
			passes = u.passesAlone
		}
		made, err := passes(ctx, &v, true)
		if err != nil || v.Rollout.Index == 0 {
			return made.again, errors.Join(err, made.failed)
		}
		if v, err = u.fresh(ctx, v, true); err != nil {
			return 0, err
		}
		if o.lacks == found {
			for _, c := range u.all() {
				c.memory.found = nil // so that the stored one counts
			}
		}
		stepped, after, err := u.roll(ctx, v)
		if err = errors.Join(made.failed, err); err != nil || !stepped || o.lacks == secondPasses {
			return soonest(made.again, after), err
		}
	}
	return time.Millisecond, nil
}

// passesAlone is passes where each sees its own controller alone.
func (u *unit) passesAlone(ctx context.Context, seen **view, consistent bool) (made passed, err error) {
	for _, id := range (*seen).IDs() {
		v, err := u.fresh(ctx, *seen, consistent)
		if err != nil {
			return made, err
		}
		*seen = v
		if v.Heads[id] == nil || !v.Heads[id].Owned() {
			continue
		}
		alone := *v
		alone.Heads = map[string]*store.Head{id: v.Heads[id]}
		for other := range v.Heads {
			if other != id { // it is there, and has no record
				alone.Heads[other] = &store.Head{Err: store.ErrNotFound, Requests: make([]store.Rec[store.Request], 1)}
			}
		}
		after, err := u.meet(id, v.Heads[id]).look(ctx, &alone)
		v.stale = true
		if errors.Is(err, store.ErrLost) || errors.Is(err, store.ErrWentBack) {
			return made, err
		}
		if !errors.Is(err, errRecordGone) {
			made.failed = errors.Join(made.failed, err)
		}
		made.again, made.more = soonest(made.again, after.again), made.more || after.more
	}
	return made, nil
}

// How many steps a history has, how many histories the long test makes, and how many are looked at for one without a
// part.
const (
	unitModelSteps = 300
	unitModelSeeds = 150
	unitModelTries = 100
)

// seeded makes the history of a seed.
func seeded(v *simVariant, seed uint64) string {
	return newHistory(v, rand.New(rand.NewPCG(seed, 7)).IntN).run(unitModelSteps)
}

// Whatever comes between, what lands keeps to the rules, and once all is well the unit has what it asks for.
func TestUnitModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ testing.TB }{t}, func(t *rapid.T) { // without its deadline, which a bubble has not
			choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
			if why := newHistory(&simVariant{}, choose).run(unitModelSteps); why != "" {
				t.Fatal(why)
			}
		})
	})
}

// The same over many histories that are drawn faster.
func TestUnitModelLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(unitModelSeeds) {
			if why := seeded(&simVariant{}, seed); why != "" {
				t.Fatalf("seed %d: %s", seed, why)
			}
		}
	})
}

// A history is the same each time: what is found can be looked at again.
func TestUnitModelIsDeterministic(t *testing.T) {
	t.Parallel()
	first := map[uint64]string{}
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			for seed := range uint64(20) {
				h := newHistory(&simVariant{}, rand.New(rand.NewPCG(seed, 7)).IntN)
				h.run(unitModelSteps)
				trace := strings.Join(h.trace, "\n")
				if before, known := first[seed]; known && before != trace {
					t.Errorf("seed %d:\n%s\nand\n%s", seed, before, trace)
				}
				first[seed] = trace
			}
		})
	}
}

// Each of these is needed: without it some history breaks a rule, or the unit is stuck. A history is looked for from a
// seed on that is near to one which does. The drops and their counters take hundreds of histories, so they are left to
// the model of ADR 11.
func TestUnitModelNeedsAll(t *testing.T) {
	t.Parallel()
	for v, from := range map[simVariant]uint64{
		{ignores: onFence}: 0, {ignores: onRC}: 0, {ignores: onBeside}: 20, {ignores: onRollout}: 0, {ignores: onReported}: 40,
		{ignores: onSchema}: 0, {ignores: onBreaker}: 0, {ignores: onReservation}: 10,
		{ignores: onStepRollout}: 0, {ignores: onStepSchema}: 0, {ignores: onStepBreaker}: 0,
		{lacks: landing}: 0, {lacks: secondPasses}: 0, {lacks: companions}: 0,
	} {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for seed := from; seed < from+unitModelTries; seed++ {
					if why := seeded(&v, seed); why != "" {
						first, _, _ := strings.Cut(why, "\n")
						t.Logf("seed %d: %s", seed, first)
						return
					}
				}
				t.Error("no history breaks it")
			})
		})
	}
}
