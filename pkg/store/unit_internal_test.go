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
)

// owning gives a test a farm that owns a controller.
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

// What is read of a unit: its bell and drops, and of each of its controllers the record, status, requests and
// placements, readable or not. What belongs to another unit is not among it, also where its id begins alike.
func TestReadUnit(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{testUnit, "web"} {
		st := empty(t)
		keys := st.keys
		first, second, pre := unit+"-1", unit+"-2", unit+"-2-pre"
		others := []string{"01hzzzzzzzzzzzzzzzzzzzwebt-1", unit + "x"}
		if unit == "web" { // no ULID: a unit by itself
			first, second, pre = unit, unit, unit
			others = []string{"web-1", "webx"}
		}
		record := func(id string, revision int64) consul.Op {
			r := rc.RC{ID: id, ManifestDigest: "m", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: new(int)}}, Service: &rc.Service{Name: "web", Revision: revision}}
			return consul.Set(keys.RCs.Key(id), asJSON(r))
		}
		placed := pod.Placement{Identity: pod.Identity{RCID: first, Role: "main"}, Node: "n1", PodID: "p", Digest: hexOf("m"), RunState: pod.Running, Revision: 1}
		write(
			t, st,
			consul.Set(keys.Bells.Key(first), []byte("x")), consul.Set(keys.Drops.Key(second), []byte("x")), consul.Set(keys.Drops.Key(first, "n1"), []byte("3")),
			record(first, 1), consul.Set(keys.Statuses.Key(first), asJSON(rc.Status{RCID: first, Epoch: "n"})),
			consul.Set(keys.Pods.Key(placed.Identity.String()), asJSON(placed)), consul.Set(keys.Pods.Below(first)+"main.1", []byte("{")),
			consul.Set(keys.Statuses.Key(pre), []byte("{")), consul.Set(keys.Rollouts.Key("web"), []byte(`{"id":"r1","service":"web","state":"paused"}`)),
		)
		if second != first {
			write(t, st, record(second, 7), consul.Set(keys.Requests.Key(second, "u"), []byte("{")))
		}
		for _, id := range others {
			write(t, st, record(id, 9), consul.Set(keys.Pods.Below(id)+"main.1", []byte("{")), consul.Set(keys.Bells.Key(id), []byte("y")))
		}
		farm := st.FarmSession(&consul.Session{}, "f1")
		u, err := farm.ReadUnit(t.Context(), unit, "web", true)
		if err != nil || u.BellIndex == 0 || u.Drops.Index == 0 || u.Drops.Counts["n1"].Drops != 3 || u.InCharge.Term != "web/r1" {
			t.Fatalf("%+v, %v", u, err)
		}
		want := []string{second, first, pre}
		if second == first {
			want = []string{unit}
		}
		if got := u.IDs(); !slices.Equal(got, want) || u.Latest() != second {
			t.Errorf("controllers %v, want %v; the latest is %s", got, want, u.Latest())
		}
		h := u.Heads[first]
		if h == nil || h.RC.Index == 0 || len(h.Placements) != 1 || h.Placements[0].Index == 0 || len(h.Corrupt) != 1 || !h.Owned() {
			t.Errorf("%+v", h)
		}
		if second != first && (h.Status == nil || h.Status.Epoch != "n" || u.Heads[pre].Owned() || u.Heads[pre].Status != nil) {
			t.Errorf("%+v", u.Heads[pre])
		}
		if rec, err := farm.UnitRC(t.Context(), unit); err != nil || rec.Value.ID != second {
			t.Errorf("labels come from %q, %v", rec.Value.ID, err)
		}
	}
	if _, err := empty(t).FarmSession(&consul.Session{}, "f1").UnitRC(t.Context(), testUnit); !errors.Is(err, ErrNotFound) {
		t.Errorf("a unit without a controller: %v", err)
	}
}

// A batch lands only while the records of the unit's other controllers are as they were, and nothing has dropped. Only
// the latter is told apart, as it can be sent again.
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
			u, err := farm.ReadUnit(ctx, testUnit, "", true)
			if err != nil {
				t.Fatal(err)
			}
			if len(between) > 0 {
				write(t, st, between...)
			}
			return farm.Commit(ctx, &Batch{
				Fence: fence, RCID: a, RCIndex: u.Heads[a].RC.Index, Beside: map[string]uint64{b: u.Heads[b].RC.Index}, Part: Part{DropsIndex: u.Drops.Index},
				Audit: &Audit{ID: NewID()},
			})
		}
		if err := try(); err != nil {
			t.Error(err)
		}
		for name, c := range map[string]struct {
			between []consul.Op
			dropped bool
		}{
			"a pod dropped":           {[]consul.Op{consul.Set(keys.Drops.Key(b), []byte("y"))}, true},
			"the record beside moved": {[]consul.Op{consul.Set(keys.RCs.Key(b), []byte("{ }"))}, false},
			"both":                    {[]consul.Op{consul.Set(keys.RCs.Key(b), []byte("{  }")), consul.Set(keys.Drops.Key(a), []byte("z"))}, false},
		} {
			if err := try(c.between...); !errors.Is(err, ErrRefused) || errors.Is(err, ErrDropped) != c.dropped {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// What belongs to a unit goes with its last controller, and only where no other one has come since its bell was read.
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
	owning(t, st, testUnit, func(ctx context.Context, farm *FarmSession, fence Fence) {
		u, err := farm.ReadUnit(ctx, testUnit, "", true)
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
			for _, key := range []string{st.keys.Bells.Key(testUnit), st.keys.Drops.Key(testUnit), fence.Key} {
				if there, err := st.exists(ctx, key); err != nil || there != want {
					t.Errorf("%s is there: %t, %v", key, there, err)
				}
			}
		}
		if err := finish(first, 0); err != nil {
			t.Error(err)
		}
		left(true)
		third := create(3)
		if err := finish(second, u.BellIndex); !errors.Is(err, ErrRefused) {
			t.Errorf("another controller has come: %v", err)
		}
		if err := finish(second, 0); err != nil {
			t.Error(err)
		}
		now, err := farm.ReadUnit(ctx, testUnit, "", true)
		if err != nil {
			t.Fatal(err)
		}
		if err := finish(third, now.BellIndex); err != nil {
			t.Error(err)
		}
		left(false)
	})
}

// What owners see of a rollout, and that a controller is released only while the rollout is as it was read.
func TestReleaseMutator(t *testing.T) {
	t.Parallel()
	st := empty(t)
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, key := 1, st.keys.Rollouts.Key("web")
	r := rc.RC{
		ID: "a", Name: "a", ManifestDigest: "m", Generation: 4, Mutator: "web/r1", InPlace: &rc.InPlace{Limit: 1}, Service: &rc.Service{Name: "web", Revision: 1},
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
	}
	write(t, st, consul.Set(st.keys.RCs.Key("a"), asJSON(r)))
	owning(t, st, "a", func(ctx context.Context, farm *FarmSession, fence Fence) {
		for text, want := range map[string]InCharge{
			`{"id":"r1","service":"web","state":"paused"}`: {Term: "web/r1", State: "paused"}, `{`: {}, `{"id":"r1","service":"other"}`: {}, `{"service":"web"}`: {},
		} {
			write(t, st, consul.Set(key, []byte(text)))
			got, err := farm.RolloutInCharge(ctx, "web", true)
			if err != nil || got.Index == 0 || got.Term != want.Term || got.State != want.State {
				t.Errorf("%s: %+v, %v", text, got, err)
			}
		}
		write(t, st, consul.Delete(key))
		none, err := farm.RolloutInCharge(ctx, "web", false)
		if err != nil || none != (InCharge{}) {
			t.Errorf("%+v, %v", none, err)
		}
		rec, err := st.RCs.Get(ctx, Consistent, "a")
		if err != nil {
			t.Error(err)
		}
		schema, err := st.Schema.Get(ctx, Default)
		if err != nil {
			t.Error(err)
		}
		release := func(was InCharge, schemaIndex uint64) error {
			return farm.ReleaseMutator(ctx, fence, rec, "web", was, schemaIndex, NewAudit("f1", "release", "a", nil))
		}
		write(t, st, consul.Set(key, []byte(`{"id":"r1","service":"web"}`)))
		if err := release(none, schema.Index); !errors.Is(err, ErrRefused) {
			t.Errorf("a rollout began meanwhile: %v", err)
		}
		other, _ := farm.RolloutInCharge(ctx, "web", true)
		if err := release(other, schema.Index+1); !errors.Is(err, ErrRefused) {
			t.Errorf("in another world: %v", err)
		}
		if err := release(other, schema.Index); err != nil {
			t.Error(err)
		}
		if now, err := st.RCs.Get(ctx, Consistent, "a"); err != nil || now.Value.Mutator != "" || now.Value.Generation != 4 || now.Value.InPlace == nil || now.Value.Disabled {
			t.Errorf("%+v, %v", now.Value, err)
		}
		if err := release(other, schema.Index); !errors.Is(err, ErrRefused) {
			t.Errorf("a second time: %v", err)
		}
	})
}
