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
// rollout. The owners run the code of the program (unit.look). The store, the nodes and all events are modelled. Each
// call of the store waits until the history continues it. So any event may come between two calls, and the order is
// always the same.

// simVariant leaves out a condition of the store, or a part of what the owner or a preparer does.
type simVariant struct {
	ignores condition
	lacks   part
}

func (s *simVariant) String() string {
	return strings.TrimSpace(string(s.ignores) + " " + string(s.lacks))
}

// part is something that a variant leaves out and that is no condition of the store.
type part string

const (
	counterGuessed part = "that a counter is read again after an unknown outcome"
	bumpStays      part = "that the fence moves after an unknown outcome"
	counts         part = "the counters, when the drops are listed again"
	counterMade    part = "when a counter was made"
	keyMade        part = "when the key of the drops was made"
	earlyDrops     part = "that the drops are listed before the realities"
	landing        part = "that a batch is applied to the view"
	stepping       part = "that a step is applied to the view"
	found          part = "the statuses that the passes have found"
	secondPasses   part = "the passes after a step"
	companions     part = "the other revisions"
)

func (s *simVariant) without(p part) bool { return s.lacks == p }

// dropsSince returns what a variant makes of drops that are listed again.
func (s *simOwner) dropsSince(now store.Drops) store.Drops {
	before := s.seen.drops
	switch s.lacks {
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

// look calls unit.look. If the variant leaves out a part of unit.look, this function does the other parts.
func (s *simOwner) look(ctx context.Context, u *unit) (time.Duration, error) {
	switch s.lacks {
	case found, secondPasses, companions:
	default:
		return u.look(ctx)
	}
	u.looks.Begin()
	v, err := u.fresh(ctx, &view{level: store.Consistent, stale: true})
	if err != nil {
		return 0, err
	}
	bell := v.BellIndex
	if gone, err := u.updateControllers(ctx, v); gone || err != nil {
		return 0, err
	}
	again, err := s.work(ctx, u, v)
	if err == nil {
		u.looks.Ended(bell)
	}
	return again, err
}

// work does the same as unit.work, without the part that the variant leaves out.
func (s *simOwner) work(ctx context.Context, u *unit, v *view) (time.Duration, error) {
	for range 2 {
		passes := u.passes
		if s.lacks == companions {
			passes = u.passesAlone
		}
		made, seen, err := passes(ctx, v)
		if v = seen; err != nil || v.Rollout.Index == 0 {
			return made.again, errors.Join(err, made.failed)
		}
		if v, err = u.fresh(ctx, v); err != nil {
			return 0, err
		}
		if s.lacks == found {
			for _, c := range u.all() {
				c.memory.found = nil // so that the stored status is used
			}
		}
		stepped, after, err := u.roll(ctx, v)
		if err = errors.Join(made.failed, err); err != nil || !stepped || s.lacks == secondPasses {
			return soonest(made.again, after), err
		}
	}
	return time.Millisecond, nil
}

// passesAlone does the same as passes, but each pass sees only its own controller.
func (u *unit) passesAlone(ctx context.Context, v *view) (made passed, seen *view, err error) {
	for _, id := range v.IDs() {
		if v, err = u.fresh(ctx, v); err != nil {
			return made, nil, err
		}
		if v.Heads[id] == nil || !v.Heads[id].Owned() {
			continue
		}
		alone := *v
		alone.Heads = map[string]*store.Head{id: v.Heads[id]}
		for other := range v.Heads {
			if other != id { // it has a head without a record
				alone.Heads[other] = &store.Head{Err: store.ErrNotFound, Requests: make([]store.Rec[store.Request], 1)}
			}
		}
		after, _, err := u.ensure(id, v.Heads[id]).makePass(ctx, &alone)
		v.stale = true
		if errors.Is(err, store.ErrLost) || errors.Is(err, store.ErrWentBack) {
			return made, nil, err
		}
		if !errors.Is(err, errRecordGone) {
			made.failed = errors.Join(made.failed, err)
		}
		made.again, made.more = soonest(made.again, after.again), made.more || after.more
	}
	return made, v, nil
}

// The steps of a history, the histories of the long test, and the histories in which a variant must break a rule.
const (
	unitModelSteps = 300
	unitModelSeeds = 150
	unitModelTries = 100
)

// seeded makes the history of a seed.
func seeded(v *simVariant, seed uint64) string {
	return newHistory(v, rand.New(rand.NewPCG(seed, 7)).IntN).run(unitModelSteps)
}

// Each write keeps the rules, and any events may come in between. When no more faults come, the unit ends as desired.
func TestUnitModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// hides the deadline of the test, because a synctest bubble has another clock
		rapid.Check(struct{ testing.TB }{t}, func(t *rapid.T) {
			choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
			if why := newHistory(&simVariant{}, choose).run(unitModelSteps); why != "" {
				t.Fatal(why)
			}
		})
	})
}

// This test has many more histories, because they are drawn faster.
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

// A seed always gives the same history, so a failure can be repeated.
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

// Each of these parts is needed: without it some history breaks a rule, or the unit does not end as desired. The search
// starts at a seed near such a history. The drops and their counters would take hundreds of histories; the model of ADR
// 11 covers them.
func TestUnitModelNeedsAll(t *testing.T) {
	t.Parallel()
	for v, from := range map[simVariant]uint64{
		{ignores: onFence}: 0, {ignores: onRC}: 0, {ignores: onBeside}: 20, {ignores: onRollout}: 0,
		{ignores: onReported}: 40,
		{ignores: onSchema}:   0, {ignores: onBreaker}: 0, {ignores: onReservation}: 10,
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
