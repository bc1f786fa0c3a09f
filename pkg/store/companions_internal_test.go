package store

import (
	"context"
	"errors"
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

// What is read of companions: their marks, whether there is a record, the status and the placements, readable or not.
func TestReadCompanions(t *testing.T) {
	t.Parallel()
	st := empty(t)
	keys := st.keys
	four := 4
	other := rc.RC{ID: "d", ManifestDigest: "m", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &four}}}
	placed := pod.Placement{Identity: pod.Identity{RCID: "b", Role: "main", Index: 0}, Node: "n1", PodID: "p", Digest: hexOf("m"), RunState: pod.Running, Revision: 1}
	write(
		t, st,
		consul.Set(keys.Stops.Key("a"), []byte("x")), consul.Set(keys.Drops.Key("a"), []byte("x")), consul.Set(keys.Drops.Key("a", "n1"), []byte("3")),
		consul.Set(keys.RCs.Key("b"), []byte("{")), consul.Set(keys.Stops.Key("b"), []byte("x")), consul.Set(keys.Bells.Key("b"), []byte("x")),
		consul.Set(keys.Statuses.Key("b"), asJSON(rc.Status{RCID: "b", Epoch: "n"})), consul.Set(keys.Pods.Key(placed.Identity.String()), asJSON(placed)),
		consul.Set(keys.Pods.Below("b")+"main.1", []byte("{")), consul.Set(keys.Statuses.Key("c"), []byte("{")), consul.Set(keys.Drops.Key("b"), []byte("x")),
		consul.Set(keys.Drops.Key("b", "n1"), []byte("1")), consul.Set(keys.Drops.Key("b", "n2"), []byte("2")),
		consul.Set(keys.Pods.Below("bb")+"main.1", []byte("{")), consul.Set(keys.Stops.Key("bb"), []byte("x")),
	)
	write(t, st, consul.Set(keys.RCs.Key("d"), asJSON(other)))
	farm := st.FarmSession(&consul.Session{}, "f1")
	for _, consistent := range []bool{false, true} {
		own, others, err := farm.ReadCompanions(t.Context(), "a", []string{"b", "c", "d"}, consistent)
		if err != nil || own.Stops == 0 || own.Drops.Counts["n1"].Drops != 3 || own.Bell != 0 || len(others) != 3 {
			t.Fatalf("%+v, %+v, %v", own, others, err)
		}
		b, c, d := others[0], others[1], others[2]
		if !b.Exists || b.Record == 0 || b.Asks != nil || b.Marks.Stops == 0 || b.Marks.Bell == 0 || len(b.Marks.Drops.Counts) != 2 || b.Status == nil || b.Status.Epoch != "n" ||
			len(b.Placements) != 1 || b.Placements[0].Index == 0 || len(b.Corrupt) != 1 {
			t.Errorf("%+v", b)
		}
		if !d.Exists || d.Record == b.Record || d.Asks == nil || *d.Asks != 4 {
			t.Errorf("%+v", d)
		}
		if c.Exists || c.Record != 0 || c.Asks != nil || c.Marks.Stops != 0 || c.Marks.Drops.Index != 0 || c.Status != nil || len(c.Placements)+len(c.Corrupt) != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// A batch lands only while nobody has stopped or added pods of a companion, and none of those has dropped. Only the latter is told
// apart, as it can be sent again.
func TestABatchDependsOnCompanions(t *testing.T) {
	t.Parallel()
	st := empty(t)
	keys := st.keys
	write(t, st, consul.Set(keys.RCs.Key("a"), []byte("{}")), consul.Set(keys.RCs.Key("b"), []byte("{}")), consul.Set(keys.Drops.Key("a"), []byte("x")))
	if err := st.MakeMarks(t.Context(), []string{"a", "b"}, []string{"b"}); err != nil {
		t.Fatal(err)
	}
	owning(t, st, "a", func(ctx context.Context, farm *FarmSession, fence Fence) {
		try := func(between ...consul.Op) (before, after Marks, err error) {
			t.Helper()
			head, _ := farm.ReadHead(ctx, "a", true)
			record, err := st.c.Get(ctx, keys.RCs.Key("a"), consul.Consistent)
			if err != nil {
				t.Fatal(err)
			}
			before, others, err := farm.ReadCompanions(ctx, "a", []string{"b"}, true)
			if err != nil {
				t.Fatal(err)
			}
			if len(between) > 0 {
				write(t, st, between...)
			}
			marks := others[0].Marks
			err = farm.Commit(ctx, &Batch{Fence: fence, RCID: "a", RCIndex: record.ModifyIndex, Part: Part{
				DropsIndex: head.Drops.Index, NotifyCompanions: true,
				Companions: map[string]CompanionIndices{"b": {Stops: marks.Stops, Drops: marks.Drops.Index, Bell: marks.Bell, Record: others[0].Record}},
			}})
			after, _, readErr := farm.ReadCompanions(ctx, "a", nil, true)
			return before, after, errors.Join(err, readErr)
		}
		if before, after, err := try(); err != nil || after.Stops <= before.Stops {
			t.Errorf("%v: stops %d, then %d", err, before.Stops, after.Stops)
		}
		for name, c := range map[string]struct {
			between []consul.Op
			dropped bool
		}{
			"its owner stopped one":      {[]consul.Op{consul.Set(keys.Stops.Key("b"), []byte("y"))}, false},
			"one of them dropped":        {[]consul.Op{consul.Set(keys.Drops.Key("b"), []byte("y"))}, true},
			"both":                       {[]consul.Op{consul.Set(keys.Drops.Key("b"), []byte("z")), consul.Set(keys.Stops.Key("b"), []byte("z"))}, false},
			"its record changed":         {[]consul.Op{consul.Set(keys.RCs.Key("b"), []byte("{ }"))}, false},
			"one of its own dropped too": {[]consul.Op{consul.Set(keys.Drops.Key("b"), []byte("w")), consul.Set(keys.Drops.Key("a"), []byte("w"))}, true},
		} {
			if before, after, err := try(c.between...); !errors.Is(err, ErrRefused) || errors.Is(err, ErrDropped) != c.dropped || after.Stops != before.Stops {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Keys that are there are left as they are: they were relied on.
func TestMakeMarks(t *testing.T) {
	t.Parallel()
	st := empty(t)
	farm := st.FarmSession(&consul.Session{}, "f1")
	for range 2 {
		if err := st.MakeMarks(t.Context(), []string{"a"}, []string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
	}
	a, others, err := farm.ReadCompanions(t.Context(), "a", []string{"b"}, true)
	if err != nil || a.Stops == 0 || a.Drops.Index == 0 || a.Drops.Index != a.Drops.Created || others[0].Marks.Stops == 0 || others[0].Marks.Drops.Index != 0 {
		t.Errorf("%+v, %+v, %v", a, others, err)
	}
}

// Drops of several controllers are added, and known only where all of them are.
func TestDropsOfSeveral(t *testing.T) {
	t.Parallel()
	at := func(index uint64, n int64) Drops {
		return Drops{Index: index, Created: 1, Counts: map[string]DropCount{"n1": {Created: 1, Drops: n}}}
	}
	before := DropsBy{"a": at(2, 1), "b": at(3, 5)}
	for name, c := range map[string]struct {
		now   DropsBy
		drops int64
		known bool
	}{
		"nothing":       {DropsBy{"a": at(2, 1), "b": at(3, 5)}, 0, true},
		"one of one":    {DropsBy{"a": at(4, 2), "b": at(3, 5)}, 1, true},
		"of both":       {DropsBy{"a": at(4, 2), "b": at(6, 7)}, 3, true},
		"one went back": {DropsBy{"a": at(4, 2), "b": at(6, 4)}, 0, false},
		"one is gone":   {DropsBy{"a": at(4, 2), "b": {}}, 0, false},
		"one is absent": {DropsBy{"a": at(4, 2)}, 0, false},
	} {
		if drops, known := c.now.Since(before); drops != c.drops || known != c.known {
			t.Errorf("%s: %d, %t", name, drops, known)
		}
	}
}

// The key of stops comes with the record of a revision of a service, and goes with what else is left of a controller.
func TestStopsComeAndGo(t *testing.T) {
	t.Parallel()
	st := empty(t)
	one := 1
	for id, service := range map[string]*rc.Service{"a": {Name: "web", Revision: 1}, "b": nil} {
		r := rc.RC{ID: id, Name: id, ManifestDigest: "m", Generation: 1, Service: service, ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}}}
		if err := st.Operator.ChangeRC(t.Context(), RCChange{RC: r, Audit: NewAudit("t", "t", id, nil)}); err != nil {
			t.Fatal(err)
		}
		if there, err := st.exists(t.Context(), st.keys.Stops.Key(id)); err != nil || there != (service != nil) {
			t.Errorf("%s: %t, %v", id, there, err)
		}
	}
	write(t, st, consul.Delete(st.keys.RCs.Key("a")), consul.Delete(st.keys.Drops.Key("a")))
	if n, err := st.Leader("f", st.c.Commit).SweepDrops(t.Context(), 9); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if there, err := st.exists(t.Context(), st.keys.Stops.Key("a")); err != nil || there {
		t.Errorf("%t, %v", there, err)
	}
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
