package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func groups(n int) []rc.ReplicaGroup { return []rc.ReplicaGroup{{Role: "main", Count: &n}} }

func revision(rev int64, count int) rc.RC {
	return rc.RC{
		ID: rc.RevisionID(testUnit, rev), Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: fmt.Sprintf("%064d", rev),
		ReplicaGroups: groups(count), Labels: map[string]string{"service": "web"}, Strategy: rc.Dynamic, Generation: 1,
		ChangedBy: "op",
		Service:   &rc.Service{Name: "web", Revision: rev},
	}
}

func rolloutOf(id string, revs ...rc.RC) rollout.Record {
	r := rollout.Record{
		ID: id, Service: "web", Strategy: rollout.AvailabilityStrategy, State: rollout.Progressing, By: "op",
		Groups: groups(3), Phase: rollout.Moving,
	}
	for i := range revs {
		v := &revs[i]
		d := rollout.Down
		if i == len(revs)-1 {
			d = rollout.Up
		}
		r.Revisions = append(r.Revisions, rollout.Revision{
			RC: v.ID, Name: v.Name, Rev: v.Service.Revision, Manifest: v.ManifestDigest, Direction: d,
			Before: v.ReplicaGroups, Target: new(int),
		})
	}
	return r
}

func deploy(t *testing.T, st *FarmSession, r rollout.Record, index uint64, recs ...Rec[rc.RC]) error {
	t.Helper()
	schema, err := st.Schema.Get(t.Context(), Default)
	if err != nil {
		t.Fatal(err)
	}
	canonical := []byte(`{"id":"web"}`)
	document := map[string]any{
		"id": testUnit, "service": "web", "revision": 2, "rc": rc.RevisionID(testUnit, 2), "rollout": r.ID,
		"spec": map[string]any{"replicas": 3, "pod": map[string]any{}},
	}
	entry := map[string]any{
		"service": "web", "revision": 2, "rollout": r.ID, "later": []int{1}, "spec": document["spec"],
	}
	var besides []consul.Op
	if index == 0 {
		besides = append(besides, consul.Set(st.keys.Deployed.Key("web"), asJSON(document)),
			consul.Set(st.keys.Entries.Key("web", "2"), asJSON(entry)))
	}
	return (&Deployments{st.db}).Deploy(t.Context(), Deploy{
		Rollout: Rec[rollout.Record]{Value: r, Index: index}, RCs: recs, SchemaIndex: schema.Index,
		Manifests: []DeployManifest{{Digest: "d2", Canonical: canonical}, {Digest: "d2", Canonical: canonical}},
		Besides:   besides, Audit: NewAudit("op", "deploy", rc.RevisionID(testUnit, 2), nil),
	})
}

var oldID, newID = rc.RevisionID(testUnit, 1), rc.RevisionID(testUnit, 2)

// begun makes a service, and begins a rollout to revision 2. It returns the owner and its fence.
func begun(t *testing.T) (*FarmSession, Fence) {
	t.Helper()
	farm := farmSession(t, "f")
	old := revision(1, 3)
	if err := (&Operator{farm.db}).ChangeRC(t.Context(),
		RCChange{RC: old, Audit: NewAudit("op", "create", old.ID, nil)}); err != nil {
		t.Fatal(err)
	}
	was, err := farm.RCs.Get(t.Context(), Consistent, old.ID)
	if err != nil {
		t.Fatal(err)
	}
	was.Value.Generation = 2
	next := revision(2, 0)
	if err := deploy(t, farm, rolloutOf("one", old, next), 0, was, Rec[rc.RC]{Value: next}); err != nil {
		t.Fatal(err)
	}
	claimed, err := farm.Claim(t.Context(), testUnit)
	if err != nil {
		t.Fatal(err)
	}
	return farm, claimed.Fence
}

func unitNow(t *testing.T, farm *FarmSession) *Unit {
	t.Helper()
	u, err := farm.ReadUnit(t.Context(), testUnit, Consistent)
	if err != nil {
		t.Fatal(err)
	}
	return &u
}

// next returns a step without writes that depends on the present records.
func next(t *testing.T, farm *FarmSession, f Fence) *RolloutStep {
	t.Helper()
	s := &RolloutStep{Fence: f, Unit: unitNow(t, farm)}
	schema, err := farm.Schema.Get(t.Context(), Consistent)
	if err != nil {
		t.Fatal(err)
	}
	breaker, err := farm.Breaker.Get(t.Context(), Consistent)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	s.Schema, s.Breaker = schema.Index, breaker.Index
	return s
}

func moved(s *RolloutStep) *RolloutStep {
	record, up := s.Unit.Rollout.Value, s.Unit.Heads[newID].RC.Value
	record.Stage++
	up.ReplicaGroups, up.Generation = groups(*up.ReplicaGroups[0].Count+1), up.Generation+1
	s.Record, s.RCs = &record, []rc.RC{up}
	return s
}

func ended(s *RolloutStep, state rollout.State, reason string) *RolloutStep {
	record := s.Unit.Rollout.Value
	record.State, record.Reason = state, reason
	s.Record, s.Ended = &record, true
	return s
}

func committed(t *testing.T, farm *FarmSession, s *RolloutStep) uint64 {
	t.Helper()
	index, err := farm.CommitRollout(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// indexOf returns zero if the key is missing.
func indexOf(t *testing.T, farm *FarmSession, key string) uint64 {
	t.Helper()
	p, err := farm.c.Get(t.Context(), key, consul.Consistent)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	return p.ModifyIndex
}

func everything(t *testing.T, farm *FarmSession) map[string]uint64 {
	t.Helper()
	pairs, err := farm.c.List(t.Context(), farm.keys.Prefix(), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{}
	for _, p := range pairs {
		all[p.Key] = p.ModifyIndex
	}
	return all
}

// touch changes a key's index by a space in front of its value. A missing key gets an unreadable value.
func touch(t *testing.T, farm *FarmSession, key string) error {
	t.Helper()
	p, err := farm.c.Get(t.Context(), key, consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		p.Value = []byte("{")
	} else if err != nil {
		return err
	}
	_, err = farm.c.Commit(t.Context(), []consul.Op{consul.Set(key, append([]byte(" "), p.Value...))})
	return err
}
