package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func owning(t *testing.T, st *Store, rcID string, test func(ctx context.Context, farm *FarmSession, fence Fence)) {
	t.Helper()
	ctx, done := context.WithCancel(t.Context())
	cfg := consul.SessionConfig{Kind: "farm", Name: "f1", TTL: time.Minute, Journal: noJournal{}}
	err := st.c.RunSession(ctx, cfg, func(ctx context.Context, sess *consul.Session) error {
		farm := st.FarmSession(sess, "f1")
		got, err := farm.Claim(ctx, rcID)
		if err == nil {
			test(ctx, farm, got.Fence)
		} else {
			t.Error(err)
		}
		done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func write(t *testing.T, st *Store, ops ...consul.Op) {
	t.Helper()
	if _, err := st.c.Commit(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
}

const testUnit = "01hzzzzzzzzzzzzzzzzzzzwebs"

func rollingOn(id string) rollout.Record {
	return rollout.Record{
		ID: "r1", Service: "web", Strategy: rollout.InPlaceStrategy, State: rollout.Progressing, Groups: groups(1),
		Phase: rollout.Planning,
		Revisions: []rollout.Revision{{
			RC: id, Name: "web-r1", Rev: 1, Manifest: "m", Direction: rollout.Up,
			Before: groups(1),
		}},
	}
}

// ReadUnit reads the bell, drops, rollout and alerts of a unit, and each controller's record, status, requests and
// placements, readable or not. It returns no record of another unit whose id begins with the same letters.
func TestReadUnit(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{testUnit, "web"} {
		st := empty(t)
		keys := st.keys
		first, second, pre := unit+"-1", unit+"-2", unit+"-2-pre"
		others := []string{"01hzzzzzzzzzzzzzzzzzzzwebt-1", unit + "x"}
		if unit == "web" { // not a ULID: the controller is a unit by itself
			first, second, pre = unit, unit, unit
			others = []string{"web-1", "webx"}
		}
		record := func(id string, revision int64) consul.Op {
			r := rc.RC{
				ID: id, ManifestDigest: "m", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: new(int)}},
				Service: &rc.Service{Name: "web", Revision: revision},
			}
			return consul.Set(keys.RCs.Key(id), asJSON(r))
		}
		placed := pod.Placement{
			Identity: pod.Identity{RCID: first, Role: "main"}, Node: "n1", PodID: "p",
			Digest: hexOf("m"), RunState: pod.Running, Revision: 1,
		}
		write(
			t, st,
			consul.Set(keys.Bells.Key(first), []byte("x")), consul.Set(keys.Drops.Key(second),
				[]byte("x")), consul.Set(keys.Drops.Key(first, "n1"), []byte("3")),
			record(first, 1), consul.Set(keys.Statuses.Key(first), asJSON(rc.Status{RCID: first, Epoch: "n"})),
			consul.Set(keys.Pods.Key(placed.Identity.String()),
				asJSON(placed)), consul.Set(keys.Pods.Below(first)+"main.1", []byte("{")),
			consul.Set(keys.Statuses.Key(pre), []byte("{")), consul.Set(keys.Rollouts.Key(unit),
				asJSON(rollingOn(first))),
			consul.Set(keys.RolloutTroubles.Key(unit), asJSON(RolloutTrouble{Rollout: "r1", Reason: "look at it"})),
		)
		if second != first {
			write(t, st, record(second, 7), consul.Set(keys.Requests.Key(second, "u"), []byte("{")))
		}
		for _, id := range others {
			write(t, st, record(id, 9), consul.Set(keys.Pods.Below(id)+"main.1", []byte("{")),
				consul.Set(keys.Bells.Key(id), []byte("y")))
			write(t, st, consul.Set(keys.Rollouts.Key(id), []byte("{")),
				consul.Set(keys.RolloutTroubles.Key(id), []byte("{")))
		}
		farm := st.FarmSession(&consul.Session{}, "f1")
		u, err := farm.ReadUnit(t.Context(), unit, Consistent)
		if err != nil || u.BellIndex == 0 || u.Drops.Index == 0 || u.Drops.Counts["n1"].Drops != 3 {
			t.Fatalf("%+v, %v", u, err)
		}
		if u.RolloutErr != nil || u.Rollout.Index == 0 || u.Rollout.Value.ID != "r1" || u.Trouble.Index == 0 ||
			u.Trouble.Value.Reason != "look at it" {
			t.Errorf("%+v, %v, %+v", u.Rollout, u.RolloutErr, u.Trouble)
		}
		want := []string{second, first, pre}
		if second == first {
			want = []string{unit}
		}
		if got := u.IDs(); !slices.Equal(got, want) || u.Latest() != second {
			t.Errorf("controllers %v, want %v; the latest is %s", got, want, u.Latest())
		}
		h := u.Heads[first]
		if h == nil || h.RC.Index == 0 || len(h.Placements) != 1 || h.Placements[0].Index == 0 || len(h.Corrupt) != 1 ||
			!h.Owned() {
			t.Errorf("%+v", h)
		}
		if second != first &&
			(h.Status == nil || h.Status.Epoch != "n" || u.Heads[pre].Owned() || u.Heads[pre].Status != nil) {
			t.Errorf("%+v", u.Heads[pre])
		}
		if rec, err := farm.UnitRC(t.Context(), unit); err != nil || rec.Value.ID != second {
			t.Errorf("labels come from %q, %v", rec.Value.ID, err)
		}
	}
	if _, err := empty(t).FarmSession(&consul.Session{}, "f1").UnitRC(t.Context(), testUnit); !errors.Is(err,
		ErrNotFound) {
		t.Errorf("a unit without a controller: %v", err)
	}
}

// A batch lands only while the unit's other controllers and its rollout are unchanged, and no copy has dropped. If only
// drops refused it, the error is ErrDropped, because the farm can compute the batch again.
func TestABatchDependsOnItsUnit(t *testing.T) {
	t.Parallel()
	st := empty(t)
	keys := st.keys
	a, b := rc.RevisionID(testUnit, 1), rc.RevisionID(testUnit, 2)
	write(t, st, consul.Set(keys.RCs.Key(a), []byte("{}")), consul.Set(keys.RCs.Key(b), []byte("{}")))
	for range 2 {
		if err := st.MakeDrops(t.Context(), testUnit); err != nil {
			t.Fatal(err)
		}
	}
	owning(t, st, testUnit, func(ctx context.Context, farm *FarmSession, fence Fence) {
		try := func(between ...consul.Op) error {
			t.Helper()
			u, err := farm.ReadUnit(ctx, testUnit, Consistent)
			if err != nil {
				t.Fatal(err)
			}
			if len(between) > 0 {
				write(t, st, between...)
			}
			return farm.Commit(ctx, &Batch{
				Fence: fence, RCID: a, RCIndex: u.Heads[a].RC.Index, Beside: map[string]uint64{b: u.Heads[b].RC.Index},
				Rollout: &u.Rollout.Index, Part: Part{DropsIndex: u.Drops.Index}, Audit: &Audit{ID: NewID()},
			})
		}
		if err := try(); err != nil {
			t.Error(err)
		}
		for _, c := range []struct {
			name    string
			between []consul.Op
			dropped bool
		}{
			{"a pod dropped", []consul.Op{consul.Set(keys.Drops.Key(b), []byte("y"))}, true},
			{"the record beside moved", []consul.Op{consul.Set(keys.RCs.Key(b), []byte("{ }"))}, false},
			{
				"both",
				[]consul.Op{consul.Set(keys.RCs.Key(b), []byte("{  }")), consul.Set(keys.Drops.Key(a), []byte("z"))},
				false,
			},
			{"a rollout began", []consul.Op{consul.Set(keys.Rollouts.Key(a), []byte("{"))}, false},
			{"the rollout moved", []consul.Op{consul.Set(keys.Rollouts.Key(a), []byte("{ "))}, false},
			{"the rollout ended", []consul.Op{consul.Delete(keys.Rollouts.Key(a))}, false},
		} {
			if err := try(c.between...); !errors.Is(err, ErrRefused) || errors.Is(err, ErrDropped) != c.dropped {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
}

// With the last controller of a unit, its bell, drops, lock, rollout and alerts are removed, but nothing if another
// controller was made since the bell was read.
func TestFinishOfAUnit(t *testing.T) {
	t.Parallel()
	st := empty(t)
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	schema, err := st.Schema.Get(t.Context(), Default)
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	create := func(revision int64) string {
		id := rc.RevisionID(testUnit, revision)
		r := rc.RC{
			ID: id, Name: id, ManifestDigest: "m", Generation: 1, Service: &rc.Service{Name: "web", Revision: revision},
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
		}
		if err := st.Operator.ChangeRC(t.Context(), RCChange{RC: r, Audit: NewAudit("t", "t", id, nil)}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first, second := create(1), create(2)
	rolling := consul.Set(st.keys.Rollouts.Key(testUnit), asJSON(rollingOn(second)))
	write(t, st, rolling, consul.Set(st.keys.RolloutTroubles.Key(testUnit), []byte("{}")))
	owning(t, st, testUnit, func(ctx context.Context, farm *FarmSession, fence Fence) {
		u, err := farm.ReadUnit(ctx, testUnit, Consistent)
		if err != nil {
			t.Fatal(err)
		}
		finish := func(id string, last uint64) error {
			rec, err := st.RCs.Get(ctx, Consistent, id)
			if err != nil {
				t.Fatal(err)
			}
			return farm.Finish(ctx, fence, rec, last, schema.Index, NewAudit("f1", "finish", id, nil))
		}
		left := func(want bool) {
			t.Helper()
			for _, key := range []string{
				st.keys.Bells.Key(testUnit), st.keys.Drops.Key(testUnit), fence.Key, st.keys.Rollouts.Key(testUnit),
				st.keys.RolloutTroubles.Key(testUnit),
			} {
				if there, err := st.exists(ctx, key); err != nil || there != want {
					t.Errorf("%s is there: %t, %v", key, there, err)
				}
			}
		}
		if err := finish(first, 0); err != nil {
			t.Error(err)
		}
		left(true)
		// During a rollout, ChangeRC makes no controller of the service.
		write(t, st, consul.Delete(st.keys.Rollouts.Key(testUnit)))
		third := create(3)
		write(t, st, rolling)
		if err := finish(second, u.BellIndex); !errors.Is(err, ErrRefused) {
			t.Errorf("another controller has come: %v", err)
		}
		left(true)
		if err := finish(second, 0); err != nil {
			t.Error(err)
		}
		now, err := farm.ReadUnit(ctx, testUnit, Consistent)
		if err != nil {
			t.Fatal(err)
		}
		if err := finish(third, now.BellIndex); err != nil {
			t.Error(err)
		}
		left(false)
	})
}

// If a unit's controllers were removed by hand, Abandon removes their statuses, and with the last one the lock, the
// rollout and the alerts. It removes nothing if the rollout changed since it was read, or the controller is back.
func TestAbandon(t *testing.T) {
	t.Parallel()
	gone := rc.RevisionID(testUnit, 1)
	for name, c := range map[string]struct {
		rollout string // "": there is no rollout
		whole   bool   // no controller of the unit is left
		between func(k *Keys, f Fence) consul.Op
		refused bool
		left    int // of status, lock, rollout and trouble
	}{
		"a controller of several":  {rollout: string(asJSON(rollingOn(gone))), left: 3},
		"all":                      {rollout: string(asJSON(rollingOn(gone))), whole: true},
		"a rollout cannot be read": {rollout: "{", whole: true},
		"without a rollout":        {whole: true},
		"the rollout changed": {
			rollout: "{", whole: true, refused: true, left: 4,
			between: func(k *Keys, _ Fence) consul.Op { return consul.Set(k.Rollouts.Key(testUnit), []byte("{ }")) },
		},
		"the rollout came": {
			whole: true, left: 1,
			between: func(k *Keys, _ Fence) consul.Op { return consul.Set(k.Rollouts.Key(testUnit), []byte("{ }")) },
		},
		"the controller came": {
			rollout: "{", whole: true, refused: true, left: 4,
			between: func(k *Keys, _ Fence) consul.Op { return consul.Set(k.RCs.Key(gone), []byte("{}")) },
		},
		"the fence moved": {
			rollout: "{", whole: true, refused: true, left: 4,
			between: func(_ *Keys, f Fence) consul.Op { return consul.Set(f.Key, []byte("{}")) },
		},
		"the fence moved, a part": {
			rollout: "{", refused: true, left: 4,
			between: func(_ *Keys, f Fence) consul.Op { return consul.Set(f.Key, []byte("{}")) },
		},
		"the rollout changed, a part": {
			rollout: "{", left: 3,
			between: func(k *Keys, _ Fence) consul.Op { return consul.Set(k.Rollouts.Key(testUnit), []byte("{ }")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := empty(t)
			k := st.keys
			write(t, st, consul.Set(k.Statuses.Key(gone), []byte("{}")),
				consul.Set(k.RolloutTroubles.Key(testUnit), []byte("{}")))
			if c.rollout != "" {
				write(t, st, consul.Set(k.Rollouts.Key(testUnit), []byte(c.rollout)))
			}
			owning(t, st, testUnit, func(ctx context.Context, farm *FarmSession, fence Fence) {
				u, err := farm.ReadUnit(ctx, testUnit, Consistent)
				if err != nil {
					t.Fatal(err)
				}
				if c.between != nil {
					write(t, st, c.between(k, fence))
				}
				left := (*Unit)(nil)
				if c.whole {
					left = &u
				}
				if err := farm.Abandon(ctx, fence, []string{gone}, left); errors.Is(err, ErrRefused) != c.refused ||
					err != nil && !c.refused {
					t.Error(err)
				}
				n := 0
				for _, key := range []string{
					k.Statuses.Key(gone), fence.Key, k.Rollouts.Key(testUnit),
					k.RolloutTroubles.Key(testUnit),
				} {
					there, err := st.exists(ctx, key)
					if err != nil {
						t.Error(err)
					}
					if there {
						n++
					}
				}
				if n != c.left {
					t.Errorf("%d are left, want %d", n, c.left)
				}
			})
		})
	}
}
