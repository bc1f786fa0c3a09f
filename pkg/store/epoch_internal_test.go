package store

import (
	"errors"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func renewed(t *testing.T, farm *FarmSession) Schema {
	t.Helper()
	if err := farm.RenewEpoch(t.Context(), "", ""); err != nil {
		t.Fatal(err)
	}
	rec, err := farm.Schema.Get(t.Context(), Consistent)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Value
}

// An epoch that begins because the store went back has WentBack, unless the gate went back too and forbids it.
func TestASchemaRecordsThatTheStoreWentBack(t *testing.T) {
	t.Parallel()
	farm := sessions(t, 1)[0]
	rec, err := farm.Schema.Get(t.Context(), Consistent)
	if err != nil || rec.Value.WentBack {
		t.Fatalf("the first epoch: %+v, %v", rec.Value, err)
	}
	after := renewed(t, farm)
	if !after.WentBack || after.Epoch <= rec.Value.Epoch {
		t.Errorf("%+v after %+v", after, rec.Value)
	}
	other := New(farm.c, farm.keys)
	write(t, other, consul.Set(farm.keys.Gate.Key(), asJSON(newGate("0.1.0"))))
	if again := renewed(t, farm); again.WentBack || again.Epoch <= after.Epoch {
		t.Errorf("below the gate: %+v after %+v", again, after)
	}
}

// A new controller gets the epoch in which it was made, even if the caller passes another MadeIn, and keeps it.
func TestAControllerRecordsTheEpochInWhichItWasMade(t *testing.T) {
	t.Parallel()
	farm := sessions(t, 1)[0]
	st := New(farm.c, farm.keys)
	first, err := farm.Schema.Get(t.Context(), Consistent)
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	write := func(id string, change func(*rc.RC)) (got rc.RC) {
		t.Helper()
		rec, err := st.RCs.Get(t.Context(), Consistent, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		if rec.Index == 0 {
			rec.Value = rc.RC{
				ID: id, Name: id, ManifestDigest: "m",
				ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
			}
		}
		rec.Value.Generation++
		change(&rec.Value)
		if err := st.Operator.ChangeRC(t.Context(),
			RCChange{RC: rec.Value, Index: rec.Index, Audit: NewAudit("op", "apply", id, nil)}); err != nil {
			t.Fatal(err)
		}
		if rec, err = st.RCs.Get(t.Context(), Consistent, id); err != nil {
			t.Fatal(err)
		}
		return rec.Value
	}
	same := func(*rc.RC) {}
	if got := write("a", func(r *rc.RC) { r.MadeIn = "another" }); !got.MadeInEpoch(first.Value.Epoch) {
		t.Errorf("made: %q", got.MadeIn)
	}
	next := renewed(t, farm)
	if got := write("a", same); !got.MadeInEpoch(first.Value.Epoch) || got.MadeInEpoch(next.Epoch) {
		t.Errorf("changed: %q", got.MadeIn)
	}
	if got := write("b", same); !got.MadeInEpoch(next.Epoch) {
		t.Errorf("made later: %q", got.MadeIn)
	}
	undone := newSchema(next.Epoch)
	undone.WentBack = true
	if _, err := farm.c.Commit(t.Context(),
		[]consul.Op{consul.Set(farm.keys.Schema.Key(), asJSON(undone))}); err != nil {
		t.Fatal(err)
	}
	if got := write(rc.RevisionID(testUnit, 2), same); got.MadeIn != "" {
		t.Errorf("a revision after a restore: made in %q", got.MadeIn)
	}
	if got := write(NewID(), same); !got.MadeInEpoch(undone.Epoch) {
		t.Errorf("a controller after a restore: made in %q", got.MadeIn)
	}
	other := New(farm.c, farm.keys)
	if _, err := other.c.Commit(t.Context(),
		[]consul.Op{consul.Set(farm.keys.Gate.Key(), asJSON(newGate(feature.Oldest)))}); err != nil {
		t.Fatal(err)
	}
	st = st.beside(t, feature.Known.Newest())
	for _, id := range []string{"b", "c"} {
		if got := write(id, same); got.MadeIn != "" || got.MadeInEpoch("") {
			t.Errorf("%s below the gate: %q", id, got.MadeIn)
		}
	}
}
