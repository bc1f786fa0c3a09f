package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func groups(n int) []rc.ReplicaGroup { return []rc.ReplicaGroup{{Role: "main", Count: &n}} }

func revision(rev int64, count int) rc.RC {
	return rc.RC{
		ID: fmt.Sprintf("id%d", rev), Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: fmt.Sprintf("%064d", rev), ReplicaGroups: groups(count),
		Labels: map[string]string{"service": "web"}, Strategy: rc.Dynamic, Generation: 1, ChangedBy: "op",
		Service: &rc.Service{Name: "web", Revision: rev},
	}
}

func rolloutOf(id string, revs ...rc.RC) rollout.Record {
	r := rollout.Record{
		ID: id, Service: "web", Strategy: rollout.AvailabilityStrategy, State: rollout.Progressing, By: "op", Groups: groups(3), Phase: rollout.Moving,
	}
	for i := range revs {
		v := &revs[i]
		d := rollout.Down
		if i == len(revs)-1 {
			d = rollout.Up
		}
		r.Revisions = append(r.Revisions, rollout.Revision{
			RC: v.ID, Name: v.Name, Rev: v.Service.Revision, Manifest: v.ManifestDigest, Direction: d, Before: v.ReplicaGroups, Target: new(int),
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
	entry := map[string]any{"service": "web", "revision": 2, "rollout": r.ID, "later": []int{1}}
	var besides []consul.Op
	if index == 0 {
		besides = append(besides, consul.Set(st.keys.Entries.Key("web", "2"), asJSON(entry)))
	}
	return (&Deployments{st.db}).Deploy(t.Context(), Deploy{
		Rollout: Rec[rollout.Record]{Value: r, Index: index}, RCs: recs, SchemaIndex: schema.Index,
		Manifests: []DeployManifest{{Digest: "d2", Canonical: canonical}, {Digest: "d2", Canonical: canonical}},
		Besides:   besides, Audit: NewAudit("op", "deploy", "id2", nil),
	})
}

// begun is a service whose revision 1 is there and whose rollout to revision 2 has begun, claimed by a farm.
func begun(t *testing.T) (*FarmSession, Fence, RolloutView) {
	t.Helper()
	farm := farmSession(t, "f")
	old := revision(1, 3)
	if err := (&Operator{farm.db}).ChangeRC(t.Context(), RCChange{RC: old, Audit: NewAudit("op", "create", old.ID, nil)}); err != nil {
		t.Fatal(err)
	}
	was, err := farm.RCs.Get(t.Context(), Consistent, old.ID)
	if err != nil {
		t.Fatal(err)
	}
	was.Value.Generation, was.Value.Mutator = 2, "web/one"
	next := revision(2, 0)
	if err := deploy(t, farm, rolloutOf("one", old, next), 0, was, Rec[rc.RC]{Value: next}); err != nil {
		t.Fatal(err)
	}
	fence, err := farm.ClaimRollout(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	return farm, fence, view(t, farm)
}

func view(t *testing.T, farm *FarmSession) RolloutView {
	t.Helper()
	v, err := farm.ReadRollout(t.Context(), "web", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// All that a rollout begins with is there after its transaction.
func TestADeploymentIsWhole(t *testing.T) {
	t.Parallel()
	farm, _, v := begun(t)
	if v.Rollout.Value.ID != "one" || v.RCs["id1"].Value.Mutator != "web/one" || v.RCs["id2"].Value.Name != "web-r2" || v.Schema.Index == 0 || v.Breaker.Value.Tripped {
		t.Errorf("read %+v", v)
	}
	keys := farm.keys
	for _, key := range []string{keys.Names.Key("web-r2"), keys.Bells.Key("id2"), keys.Drops.Key("id2"), keys.Manifests.Key("d2"), keys.RolloutBells.Key("web"), keys.Entries.Key("web", "2")} {
		if there, err := farm.exists(t.Context(), key); !there || err != nil {
			t.Errorf("%s: %v, %v", key, there, err)
		}
	}
}

// A second one is refused, and so is one that relies on a record which has changed; one in mid-course replaces what it has seen.
func TestADeploymentIsRefused(t *testing.T) {
	t.Parallel()
	farm, fence, v := begun(t)
	third := revision(3, 0)
	var running *RunningError
	if err := deploy(t, farm, rolloutOf("two", third), 0, Rec[rc.RC]{Value: third}); !errors.As(err, &running) || running.Farm != "f" {
		t.Errorf("beside another rollout: %v", err)
	}
	if err := farm.Release(t.Context(), "unused", fence); err != nil {
		t.Fatal(err)
	}
	if err := deploy(t, farm, rolloutOf("two", third), 0, Rec[rc.RC]{Value: third}); !errors.Is(err, ErrConflict) {
		t.Errorf("beside another rollout without a runner: %v", err)
	}
	if there, err := farm.RCs.Exists(t.Context(), "id3"); there || err != nil {
		t.Errorf("it left its controller: %v, %v", there, err)
	}
	stale := v.RCs["id1"]
	stale.Index--
	if err := deploy(t, farm, rolloutOf("two", stale.Value, third), v.Rollout.Index, stale, Rec[rc.RC]{Value: third}); !errors.Is(err, ErrConflict) {
		t.Errorf("over a changed controller: %v", err)
	}
	if err := deploy(t, farm, rolloutOf("two", v.RCs["id1"].Value, third), v.Rollout.Index, v.RCs["id1"], Rec[rc.RC]{Value: third}); err != nil {
		t.Errorf("in mid-course: %v", err)
	}
}

// A farm that has seen an old record holds the lock for a moment; a deployment waits for it.
func TestADeploymentWaitsForWhoeverFindsNoRollout(t *testing.T) {
	t.Parallel()
	farm := farmSession(t, "f")
	fence, err := farm.ClaimRollout(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := farm.ReadRollout(t.Context(), "web", nil, true); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	done := make(chan error)
	next := revision(2, 0)
	go func() { done <- deploy(t, farm, rolloutOf("one", next), 0, Rec[rc.RC]{Value: next}) }()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(lockPatience / 10):
	}
	if err := farm.AbandonRollout(t.Context(), "web", fence); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A step lands only while all that it was decided from is as it was read.
func TestAStepIsRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, farm *FarmSession, f Fence, v *RolloutView) error{
		"the rollout changed": func(t *testing.T, farm *FarmSession, _ Fence, _ *RolloutView) error {
			t.Helper()
			return (&Operator{farm.db}).AskRollout(t.Context(), RolloutAsk{Service: "web", Request: rollout.Request{Verb: rollout.PauseVerb, By: "op"}, Audit: NewAudit("op", "pause", "", nil)})
		},
		"a controller that changes changed": func(t *testing.T, farm *FarmSession, _ Fence, _ *RolloutView) error {
			t.Helper()
			return touch(t, farm, farm.keys.RCs.Key("id2"))
		},
		"a controller that stays changed": func(t *testing.T, farm *FarmSession, _ Fence, _ *RolloutView) error {
			t.Helper()
			return touch(t, farm, farm.keys.RCs.Key("id1"))
		},
		"a controller that stays is gone": func(t *testing.T, farm *FarmSession, _ Fence, _ *RolloutView) error {
			t.Helper()
			_, err := farm.c.Commit(t.Context(), []consul.Op{consul.Delete(farm.keys.RCs.Key("id1"))})
			return err
		},
		"a status appeared": func(t *testing.T, farm *FarmSession, _ Fence, _ *RolloutView) error {
			t.Helper()
			return touch(t, farm, farm.keys.Statuses.Key("id1"))
		},
		"the breaker changed": func(t *testing.T, farm *FarmSession, _ Fence, _ *RolloutView) error {
			t.Helper()
			return touch(t, farm, farm.keys.Breaker.Key())
		},
		"the epoch is new": func(t *testing.T, farm *FarmSession, _ Fence, v *RolloutView) error {
			t.Helper()
			return farm.RenewEpoch(t.Context(), v.Schema.Value.Epoch, "")
		},
		"the fence moved": func(t *testing.T, farm *FarmSession, f Fence, _ *RolloutView) error {
			t.Helper()
			_, err := farm.Bump(t.Context(), f)
			return err
		},
		"another farm carries it out by now": func(t *testing.T, farm *FarmSession, f Fence, _ *RolloutView) error {
			t.Helper()
			return farm.Release(t.Context(), "unused", f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			farm, fence, v := begun(t)
			if err := spoil(t, farm, fence, &v); err != nil {
				t.Fatal(err)
			}
			next := v.RCs["id2"].Value
			next.ReplicaGroups, next.Generation = groups(1), 2
			moved := v.Rollout.Value
			moved.Stage = 1
			for what, s := range map[string]*RolloutStep{
				"step": {Fence: fence, View: &v, Record: &moved, RCs: []rc.RC{next}},
				"end":  {Fence: fence, View: &v, Record: &moved, RCs: []rc.RC{next}, Ended: true},
			} {
				if _, err := farm.CommitRollout(t.Context(), s); !errors.Is(err, ErrRefused) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// touch writes what is there once more, or something unreadable.
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

// The last transaction leaves nothing of a rollout but its outcome in the history, and the incident that outlives it.
func TestTheEndOfARollout(t *testing.T) {
	t.Parallel()
	farm, fence, v := begun(t)
	ended := v.Rollout.Value
	ended.State, ended.Reason = rollout.Failed, "it did not get anywhere"
	incident := RolloutIncident{Rollout: "one", Ended: true, Incident: rc.Incident{Key: "k", Reason: "look at it", Since: time.Now().UTC().Truncate(time.Second)}}
	audit := NewAudit("f", "rollout-failed", "id2", nil)
	if _, err := farm.CommitRollout(t.Context(), &RolloutStep{Fence: fence, View: &v, Record: &ended, Ended: true, Audit: &audit, Incident: &incident}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{farm.keys.Rollouts.Key("web"), farm.keys.RolloutBells.Key("web"), farm.keys.RolloutLocks.Key("web")} {
		if there, err := farm.exists(t.Context(), key); there || err != nil {
			t.Errorf("%s: %v, %v", key, there, err)
		}
	}
	p, err := farm.c.Get(t.Context(), farm.keys.Entries.Key("web", "2"), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	var entry map[string]any
	if err := json.Unmarshal(p.Value, &entry); err != nil || entry["outcome"] != "failed" || entry["reason"] != ended.Reason || entry["ended_at"] == nil || entry["later"] == nil {
		t.Errorf("history %s, %v", p.Value, err)
	}
	got, err := farm.RolloutIncidents.Get(t.Context(), consul.Consistent, "web")
	if err != nil || !reflect.DeepEqual(got.Value, incident) {
		t.Errorf("incident %+v, %v", got.Value, err)
	}
	if _, err := farm.ReadRollout(t.Context(), "web", nil, true); !errors.Is(err, ErrNotFound) {
		t.Errorf("read %v", err)
	}
}

func TestWhatAnOperatorAsks(t *testing.T) {
	t.Parallel()
	farm, _, _ := begun(t)
	ask := func(service, id string, verb rollout.Verb) error {
		return (&Operator{farm.db}).AskRollout(t.Context(), RolloutAsk{Service: service, ID: id, Request: rollout.Request{Verb: verb, By: "op"}, Audit: NewAudit("op", string(verb), "", nil)})
	}
	if err := ask("api", "", rollout.PauseVerb); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no rollout: %v", err)
	}
	if err := ask("web", "zero", rollout.PauseVerb); !errors.Is(err, ErrConflict) {
		t.Errorf("of another rollout: %v", err)
	}
	for range 2 {
		if err := ask("web", "one", rollout.PauseVerb); err != nil {
			t.Error(err)
		}
	}
	if err := ask("web", "", rollout.AbortVerb); !errors.Is(err, ErrAsked) {
		t.Errorf("beside another request: %v", err)
	}
	if asked := view(t, farm).Rollout.Value.Request; asked == nil || asked.Verb != rollout.PauseVerb || asked.By != "op" {
		t.Errorf("asked %+v", asked)
	}
	audits := audited(t, farm)
	if n := len(slices.DeleteFunc(audits, func(a Audit) bool { return a.What != "pause" })); n != 1 {
		t.Errorf("%d audit records of one request", n)
	}
}

// The owner of a controller that a rollout is in charge of rings for its runner with each status.
func TestAStatusRingsForItsRollout(t *testing.T) {
	t.Parallel()
	farm, _, v := begun(t)
	claimed, err := farm.Claim(t.Context(), "id1")
	if err != nil {
		t.Fatal(err)
	}
	rung := func() uint64 {
		t.Helper()
		p, err := farm.c.Get(t.Context(), farm.keys.RolloutBells.Key("web"), consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		return p.ModifyIndex
	}
	controller := v.RCs["id1"].Value
	b := Batch{Fence: claimed.Fence, RCID: "id1", RCIndex: v.RCs["id1"].Index, Rollout: controller.Rollout()}
	before := rung()
	if err := farm.Commit(t.Context(), &b); err != nil || rung() != before {
		t.Errorf("rung without a status: %v", err)
	}
	b.Status = &rc.Status{RCID: "id1"}
	if err := farm.Commit(t.Context(), &b); err != nil || rung() == before {
		t.Errorf("not rung: %v", err)
	}
}

// The watch tells rollouts, bells, incidents and garbage apart.
func TestTheWatchOfRollouts(t *testing.T) {
	t.Parallel()
	farm, _, _ := begun(t)
	incident := RolloutIncident{Rollout: "one", Incident: rc.Incident{Key: "k", Reason: "look at it"}}
	if err := (&Leader{db: farm.db, fenced: farm.c.Commit}).WriteRolloutIncident(t.Context(), "web", 0, &incident); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{farm.keys.Rollouts.Key("bad"): "{", farm.keys.Rollouts.Key("copy"): string(asJSON(rolloutOf("one", revision(1, 1)))), farm.keys.RolloutIncidents.Key("odd"): "{"} {
		if _, err := farm.c.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(value))}); err != nil {
			t.Fatal(err)
		}
	}
	stop := errors.New("seen enough")
	err := farm.WatchRollouts(t.Context(), func(err error) { t.Error(err) }, func(s RolloutsSeen) error {
		if len(s.Recs) != 1 || s.Recs[0].Value.ID != "one" || s.Bells["web"] == 0 || len(s.Bells) != 1 || s.Incidents["web"].Value.Reason != "look at it" ||
			s.Incidents["odd"].Index == 0 || len(s.Corrupt) != 2 || s.Corrupt["bad"] == nil || s.Corrupt["copy"] == nil || s.MarkerMissing {
			t.Errorf("seen %+v", s)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
}
