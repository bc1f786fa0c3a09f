package record_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func group(role string, n int) rc.ReplicaGroup { return rc.ReplicaGroup{Role: role, Count: &n} }

// Counts are taken over by role. A document without counts gets none.
func TestWithCounts(t *testing.T) {
	t.Parallel()
	three := 3
	for name, tc := range map[string]struct {
		spec    record.ServiceSpec
		present []rc.ReplicaGroup
		want    []rc.ReplicaGroup
	}{
		"replicas": {
			record.ServiceSpec{Replicas: &three},
			[]rc.ReplicaGroup{group(rc.DefaultRole, 5)},
			[]rc.ReplicaGroup{group(rc.DefaultRole, 5)},
		},
		"another role": {
			record.ServiceSpec{Replicas: &three},
			[]rc.ReplicaGroup{group("cache", 5)},
			[]rc.ReplicaGroup{group(rc.DefaultRole, 3)},
		},
		"one of two": {
			record.ServiceSpec{ReplicaGroups: []rc.ReplicaGroup{group("a", 1), group("b", 2)}},
			[]rc.ReplicaGroup{group("b", 9)},
			[]rc.ReplicaGroup{group("a", 1), group("b", 9)},
		},
		"no number": {
			record.ServiceSpec{Replicas: &three},
			[]rc.ReplicaGroup{{Role: rc.DefaultRole}},
			[]rc.ReplicaGroup{group(rc.DefaultRole, 3)},
		},
		"on each node": {record.ServiceSpec{Mode: rc.EachNode}, []rc.ReplicaGroup{group(rc.DefaultRole, 5)}, nil},
		"to each node": {
			record.ServiceSpec{Mode: rc.EachNode, ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole}}},
			[]rc.ReplicaGroup{group(rc.DefaultRole, 5)},
			[]rc.ReplicaGroup{{Role: rc.DefaultRole}},
		},
		"from no group": {record.ServiceSpec{Replicas: &three}, nil, []rc.ReplicaGroup{group(rc.DefaultRole, 3)}},
	} {
		before, _ := json.Marshal(tc.spec)
		if diff := cmp.Diff(tc.want, tc.spec.WithCounts(tc.present).Groups()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if after, _ := json.Marshal(tc.spec); string(after) != string(before) {
			t.Errorf("%s: the document itself was changed: %s", name, after)
		}
	}
}

// After a failed rollout, the counts in effect come from the controller, because the service may have been scaled
// during the rollout.
func TestCountsInEffectAfterAFailedRollout(t *testing.T) {
	t.Parallel()
	three := 3
	spec := record.ServiceSpec{Name: "web", Replicas: &three, Pod: &manifest.Manifest{}}
	svc := &record.Service{
		Deployed: record.Deployed{Service: "web", Revision: 2, RC: "u-2", Spec: spec},
		History: []record.Entry{
			{Revision: 1, RC: "u-1", Spec: spec, Ending: record.Ending{Rollout: "a", Outcome: rollout.Done}},
			{Revision: 2, RC: "u-2", Spec: spec, Ending: record.Ending{Rollout: "b", Outcome: rollout.Failed}},
		},
		Controllers: []record.Controller{
			{RC: rc.RC{ID: "u-1", ReplicaGroups: []rc.ReplicaGroup{group(rc.DefaultRole, 5)}}},
		},
	}
	if d := svc.InEffect(); d.Revision != 1 || d.Spec.Total() != 5 {
		t.Errorf("revision %d with %d pods", d.Revision, d.Spec.Total())
	}
	// An aborted rollback leaves only some of the pods. Nobody asked for this number.
	svc.Controllers = append(svc.Controllers,
		record.Controller{RC: rc.RC{ID: "u-2", ReplicaGroups: []rc.ReplicaGroup{group(rc.DefaultRole, 1)}}})
	if d := svc.InEffect(); d.Revision != 1 || d.Spec.Total() != 3 {
		t.Errorf("aborted rollback: revision %d with %d pods", d.Revision, d.Spec.Total())
	}
}

// The newest digest of each artifact is used. Neither the service nor the order of the entries matters.
func TestKnownDigests(t *testing.T) {
	t.Parallel()
	at := func(minutes int) time.Time { return time.Date(2026, 1, 2, 3, minutes, 0, 0, time.UTC) }
	entries := []record.Entry{
		{Service: "web", Revision: 1, At: at(1), Digests: map[string]string{"a": "old", "b": "only"}},
		{Service: "web", Revision: 2, At: at(5), Digests: map[string]string{"a": "own"}},
		{Service: "api", Revision: 1, At: at(9), Digests: map[string]string{"a": "new", "c": ""}},
		{Service: "api", Revision: 2, At: at(7), Digests: map[string]string{"a": "before"}},
		{Service: "job", Revision: 1, At: at(10)},
		{Service: "x", Revision: 1, At: at(3), Digests: map[string]string{"d": "first"}},
		{Service: "x", Revision: 2, At: at(3), Digests: map[string]string{"d": "second"}},
	}
	want := map[string]string{"a": "new", "b": "only", "d": "second"}
	for range entries {
		entries = append(entries[1:], entries[0])
		if diff := cmp.Diff(want, record.KnownDigests(entries)); diff != "" {
			t.Error(diff)
		}
		slices.Reverse(entries)
		if diff := cmp.Diff(want, record.KnownDigests(entries)); diff != "" {
			t.Error(diff)
		}
		slices.Reverse(entries)
	}
	if got := record.KnownDigests(nil); len(got) != 0 {
		t.Error(got)
	}
}

// An ending changes no other field of an entry, not even fields that only a later version knows. It is written once,
// and only for its own rollout.
func TestEndingOfAnEntry(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e := record.Ending{Rollout: "a", EndedAt: &at, Outcome: rollout.Failed, Reason: "why"}
	got, err := e.Into([]byte(`{"rollout":"a","revision":12345678901234567,"spec":{"later":1},"later":{"b":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ended_at":"2026-01-02T03:04:05Z","later":{"b":2},"outcome":"failed","reason":"why","revision":12345678901234567,"rollout":"a","spec":{"later":1}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	var back record.Entry
	if err := json.Unmarshal(got, &back); err != nil || back.Outcome != rollout.Failed || !back.EndedAt.Equal(at) {
		t.Errorf("%+v, %v", back, err)
	}
	for _, other := range []string{string(got), `{"rollout":"b"}`, `{}`} {
		if _, err := e.Into([]byte(other)); !errors.Is(err, record.ErrOtherRollout) {
			t.Errorf("%s: %v", other, err)
		}
	}
	if _, err := e.Into([]byte(`[`)); err == nil {
		t.Error("an entry that cannot be read has an ending")
	}
}
